-- The tables of one store, in the schema that search_path names first.
--
-- Numbers without a sign (ids, epochs, bounds of ranges, milliseconds) are bigint by their bits: ids
-- from 2^63 on look negative here. Names, tags and file keys are bytes, and never text.
--
-- The way down (nobody may hold a lock; the epoch is forgotten, so clients may not notice the next
-- start: better keep the schema): V1__tables.down.sql.

-- One row. Every batch writes it first, on condition that writer and session are its own.
CREATE TABLE state (
    one             boolean PRIMARY KEY DEFAULT true CHECK (one),
    format          bigint  NOT NULL,
    epoch           bigint  NOT NULL DEFAULT 0,
    ids_below       bigint  NOT NULL DEFAULT 0,
    in_grace        boolean NOT NULL DEFAULT false,
    stopped_cleanly boolean NOT NULL DEFAULT false,
    token           bigint  NOT NULL DEFAULT 0,
    writer          bigint  NOT NULL DEFAULT 0,
    session         bigint  NOT NULL DEFAULT 0,
    weak            boolean NOT NULL DEFAULT false
) WITH (fillfactor = 10);
INSERT INTO state (format) VALUES (1);

-- One row, which a crash of the database takes away, as it is not logged. While state.weak says that
-- batches may have been acknowledged before they were on the disk, its absence means that some of
-- them may be lost: then the locks are a roster only.
CREATE UNLOGGED TABLE intact (
    one boolean PRIMARY KEY DEFAULT true CHECK (one)
);
INSERT INTO intact DEFAULT VALUES;

-- One row: who serves. Apart from state, so that neither a heartbeat waits for a big batch nor a
-- batch for a heartbeat. writer is the same in both, and changes in both at once.
CREATE TABLE seat (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    writer     bigint  NOT NULL DEFAULT 0,
    node       text,
    since      timestamptz,
    heartbeat  bigint  NOT NULL DEFAULT 0,
    lease_ms   bigint  NOT NULL DEFAULT 0,
    has_left   boolean NOT NULL DEFAULT true,
    boot       bytea,
    namespaces text,
    pid        bigint,
    started    bigint,
    -- Who was taken to be dead and has not been fenced since: it may only be paused.
    unfenced   text[]  NOT NULL DEFAULT '{}'
) WITH (fillfactor = 10);
INSERT INTO seat DEFAULT VALUES;

-- Who waits for the seat.
CREATE TABLE nodes (
    name      text PRIMARY KEY,
    counter   bigint NOT NULL,
    since     timestamptz NOT NULL,
    refreshed timestamptz NOT NULL
) WITH (fillfactor = 50);

-- Secrets that all nodes must share.
CREATE TABLE keys (
    name  text PRIMARY KEY,
    value bytea NOT NULL
);

CREATE TABLE clients (
    id               bigint PRIMARY KEY,
    protocol         text    NOT NULL CHECK (protocol IN ('nlm', 'nsm')),
    address          inet    NOT NULL,
    name             bytea   NOT NULL,
    incarnation      bigint  NOT NULL,
    reboot_from      bigint,
    reboot_to        bigint,
    reboot_before    bigint,
    monitored        boolean NOT NULL,
    fenced           boolean NOT NULL,
    used             inet[]  NOT NULL,
    registered_at_ms bigint  NOT NULL,
    epoch            bigint  NOT NULL,
    callback_name    bytea,
    program          bigint,
    version          bigint,
    procedure        bigint,
    watched          bytea,
    private          bytea
);
CREATE INDEX clients_by_callback_host ON clients (address);
CREATE INDEX clients_by_registered_at ON clients (registered_at_ms);
CREATE INDEX clients_by_mon_name ON clients (watched);

-- Locks come and go by the thousand each second: what they leave is cleared away early.
CREATE TABLE locks (
    id          bigint PRIMARY KEY,
    file        bytea   NOT NULL,
    host        bigint  NOT NULL,
    ours        inet    NOT NULL,
    udp         boolean NOT NULL,
    version     bigint  NOT NULL,
    number      bigint  NOT NULL,
    tag         bytea   NOT NULL,
    first       bigint  NOT NULL,
    last        bigint  NOT NULL,
    exclusive   boolean NOT NULL,
    incarnation bigint  NOT NULL,
    monitored   boolean NOT NULL,
    since_ms    bigint  NOT NULL
) WITH (autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_scale_factor = 0.05,
        autovacuum_vacuum_cost_delay = 0);

CREATE TABLE shares (
    id           bigint PRIMARY KEY,
    file         bytea   NOT NULL,
    host         bigint  NOT NULL,
    ours         inet    NOT NULL,
    udp          boolean NOT NULL,
    version      bigint  NOT NULL,
    number       bigint  NOT NULL,
    tag          bytea   NOT NULL,
    reads        boolean NOT NULL,
    writes       boolean NOT NULL,
    denies_read  boolean NOT NULL,
    denies_write boolean NOT NULL,
    incarnation  bigint  NOT NULL,
    since_ms     bigint  NOT NULL
);
