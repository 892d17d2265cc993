-- Undoes V2__fencings.sql, by hand and only while no server uses the store:
--   psql -v ON_ERROR_STOP=1 -c 'SET search_path TO lockkeeper' -f V2__fencings.down.sql DATABASE
BEGIN;
DROP TABLE fencings;
DELETE FROM refinery_schema_history WHERE version = 2;
COMMIT;
