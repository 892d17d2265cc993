-- Who said that a node in seat.unfenced has been fenced: a takeover hook or an operator.
CREATE TABLE fencings (
    node   text        NOT NULL,
    author text        NOT NULL,
    at     timestamptz NOT NULL
);
