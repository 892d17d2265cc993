-- A protocol of the client tracker is any short name, not one of two. The names that a program adds, and
-- their recovery windows, are in its configuration.
ALTER TABLE clients DROP CONSTRAINT clients_protocol_check;
ALTER TABLE clients ADD CONSTRAINT clients_protocol_check CHECK (protocol ~ '^[a-z0-9-]{1,32}$');
