-- A failover of the database to a replica that lagged, and a restored dump, must be noticed.

-- The leadership is a random number, drawn by each leader: a count could be used twice when a failover
-- loses the last take. trust: how far the present locks can be trusted, as the last start recorded it.
ALTER TABLE state
    ADD COLUMN id    text   NOT NULL DEFAULT md5(random()::text || clock_timestamp()::text || random()::text),
    ADD COLUMN nonce bigint NOT NULL DEFAULT 0,
    ADD COLUMN trust text   NOT NULL DEFAULT 'exact' CHECK (trust IN ('exact', 'roster', 'open'));

-- timeline: that of the database when the leadership was taken; on another one no server leads.
-- former: the nonce of the leader before. promised: synchronous replicas were configured ever since the
-- leader vouched for the rows.
ALTER TABLE seat
    ADD COLUMN nonce    bigint  NOT NULL DEFAULT 0,
    ADD COLUMN former   bigint  NOT NULL DEFAULT 0,
    ADD COLUMN timeline text,
    ADD COLUMN promised boolean NOT NULL DEFAULT false;

-- At most one row: on which timeline, and in which transaction, a leader vouched that the rows are those
-- that it acknowledged. A dump carries the numbers along, but not the row's own xmin and table.
CREATE TABLE vouched (
    one      boolean PRIMARY KEY DEFAULT true CHECK (one),
    timeline text   NOT NULL,
    xact     bigint NOT NULL,
    relation oid    NOT NULL
);
