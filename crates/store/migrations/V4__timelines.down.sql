-- Undoes V4__timelines.sql, by hand and only while no server uses the store:
--   psql -v ON_ERROR_STOP=1 -c 'SET search_path TO lockkeeper' -f V4__timelines.down.sql DATABASE
-- A state that is not exact becomes a roster: earlier versions have no other word for it.
BEGIN;
UPDATE state SET weak = true WHERE trust <> 'exact';
DELETE FROM intact WHERE EXISTS (SELECT FROM state WHERE trust <> 'exact');
DROP TABLE vouched;
ALTER TABLE seat DROP COLUMN nonce, DROP COLUMN former, DROP COLUMN timeline, DROP COLUMN promised;
ALTER TABLE state DROP COLUMN id, DROP COLUMN nonce, DROP COLUMN trust;
DELETE FROM refinery_schema_history WHERE version = 4;
COMMIT;
