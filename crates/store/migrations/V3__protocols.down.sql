-- Undoes V3__protocols.sql, by hand and only while no server uses the store:
--   psql -v ON_ERROR_STOP=1 -c 'SET search_path TO lockkeeper' -f V3__protocols.down.sql DATABASE
-- It forgets the clients of protocols other than NLM and NSM.
BEGIN;
DELETE FROM clients WHERE protocol NOT IN ('nlm', 'nsm');
ALTER TABLE clients DROP CONSTRAINT clients_protocol_check;
ALTER TABLE clients ADD CONSTRAINT clients_protocol_check CHECK (protocol IN ('nlm', 'nsm'));
DELETE FROM refinery_schema_history WHERE version = 3;
COMMIT;
