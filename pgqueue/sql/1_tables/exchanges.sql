-- Exchanges, bindings, retained and unmatched messages, wills; the takers of queues that are deleted with their last
-- taker, and the times since when queues that expire are unused.

CREATE TABLE pgqueue.exchange (
    name        text        PRIMARY KEY CHECK (octet_length(name) BETWEEN 1 AND 255),
    role        name        NOT NULL,
    role_id     oid         GENERATED ALWAYS AS (pgqueue._role_id(role)) STORED,
    session_id  int,
    type        text        NOT NULL CHECK (type IN ('fanout', 'direct', 'topic', 'mqtt')),
    created_at  timestamptz NOT NULL DEFAULT now(),
    bound_at    timestamptz
);
COMMENT ON TABLE  pgqueue.exchange            IS
    'Where tasks are published; its bindings name the queues that get them.';
COMMENT ON COLUMN pgqueue.exchange.role       IS 'The role that created it: quotas.sql counts.';
COMMENT ON COLUMN pgqueue.exchange.session_id IS 'The exchange is deleted when this session ends. NULL: it is durable.';
COMMENT ON COLUMN pgqueue.exchange.bound_at   IS
    'When a queue was last bound: this update orders binds and retained messages; see exchanges.sql.';

CREATE INDEX exchange_role ON pgqueue.exchange (role_id);

CREATE TABLE pgqueue.binding (
    exchange    text        NOT NULL REFERENCES pgqueue.exchange ON DELETE CASCADE,
    key         text        NOT NULL CHECK (octet_length(key) <= 255),
    queue_id    int         NOT NULL REFERENCES pgqueue.queue ON DELETE CASCADE,
    role        name        NOT NULL,
    role_id     oid         GENERATED ALWAYS AS (pgqueue._role_id(role)) STORED,
    hint        text,
    pattern     text        CHECK ((pattern IS NULL) = (hint IS NULL)),
    PRIMARY KEY (exchange, key, queue_id)
);
COMMENT ON TABLE  pgqueue.binding         IS
    'The queue gets messages that are published to the exchange under a key that the binding''s key matches.';
COMMENT ON COLUMN pgqueue.binding.hint    IS
    'A LIKE pattern that matches all keys that `pattern` matches: it is tried first, and is much cheaper.';
COMMENT ON COLUMN pgqueue.binding.pattern IS 'A regular expression for the key. NULL: the keys have to be equal.';

CREATE INDEX binding_role  ON pgqueue.binding (role_id);
CREATE INDEX binding_queue ON pgqueue.binding (queue_id);
CREATE INDEX binding_mask  ON pgqueue.binding (exchange) WHERE pattern IS NOT NULL;

CREATE TABLE pgqueue.retained (
    exchange    text        NOT NULL REFERENCES pgqueue.exchange ON DELETE CASCADE,
    key         text        NOT NULL CHECK (octet_length(key) <= 255),
    data        jsonb       NOT NULL,
    updated_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (exchange, key)
);
COMMENT ON TABLE  pgqueue.retained IS
    'The last message of each key that was published to be retained: a queue gets it when it is bound.';

CREATE UNLOGGED TABLE pgqueue.unmatched (
    last_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    messages    bigint      NOT NULL DEFAULT 1,
    exchange    text        NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE  pgqueue.unmatched         IS
    'Messages that matched no binding: a row for each, until clean_up adds up the rows of an exchange.';
COMMENT ON COLUMN pgqueue.unmatched.last_at IS 'When the last of them was published.';

CREATE INDEX unmatched_exchange ON pgqueue.unmatched (exchange);

CREATE UNLOGGED TABLE pgqueue.will (
    session_id  int         PRIMARY KEY,
    role        regrole     NOT NULL,
    exchange    text        NOT NULL,
    key         text        NOT NULL,
    data        jsonb       NOT NULL,
    retain      boolean     NOT NULL
);
COMMENT ON TABLE  pgqueue.will      IS 'The messages that are published when sessions die.';
COMMENT ON COLUMN pgqueue.will.role IS 'The role that set it.';

CREATE UNLOGGED TABLE pgqueue.taker (
    session_id  int         NOT NULL,
    queue_id    int         NOT NULL,
    PRIMARY KEY (session_id, queue_id)
);
COMMENT ON TABLE  pgqueue.taker IS 'The sessions that took from a queue that is deleted with its last taker.';

-- No unique key: a clean-up would wait for a claim that deletes the row and stays open.
CREATE UNLOGGED TABLE pgqueue.unused (
    queue_id    int         NOT NULL,
    since       timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE  pgqueue.unused       IS 'Queues with `expires` that clean_up found unused: expiry.sql.';
COMMENT ON COLUMN pgqueue.unused.since IS 'When clean_up first found it unused, after the last use.';

CREATE INDEX unused_queue ON pgqueue.unused (queue_id);
