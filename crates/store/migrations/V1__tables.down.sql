-- Undoes V1__tables.sql, by hand and only while no server uses the store:
--   psql -v ON_ERROR_STOP=1 -c 'SET search_path TO lockkeeper' -f V1__tables.down.sql DATABASE
-- It takes the locks, the registrations, the epoch and the handle key with it: clients keep file
-- handles that mean nothing afterwards.
BEGIN;
DROP TABLE shares, locks, clients, keys, nodes, seat, intact, state;
DELETE FROM refinery_schema_history WHERE version = 1;
COMMIT;
