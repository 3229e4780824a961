-- Exchanges, bindings, retained messages and wills.

CREATE TABLE pgqueue.exchange (
    name        text        PRIMARY KEY CHECK (octet_length(name) BETWEEN 1 AND 255),
    type        text        NOT NULL CHECK (type IN ('fanout', 'direct', 'topic', 'mqtt')),
    session_id  int,
    bound_at    timestamptz,
    created_at  timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE  pgqueue.exchange            IS 'Where tasks are published; its bindings say which queues they go to.';
COMMENT ON COLUMN pgqueue.exchange.session_id IS 'Whose end is also its own; NULL: it is durable.';
COMMENT ON COLUMN pgqueue.exchange.bound_at   IS 'Of the last bind, which orders binds and retained messages; see routes.sql.';

CREATE TABLE pgqueue.binding (
    exchange    text        NOT NULL REFERENCES pgqueue.exchange ON DELETE CASCADE,
    key         text        NOT NULL CHECK (octet_length(key) <= 255),
    queue_id    int         NOT NULL REFERENCES pgqueue.queue ON DELETE CASCADE,
    hint        text,
    pattern     text        CHECK ((pattern IS NULL) = (hint IS NULL)),
    PRIMARY KEY (exchange, key, queue_id)
);
COMMENT ON TABLE  pgqueue.binding         IS 'What is published to the exchange under a key that this one matches goes to the queue.';
COMMENT ON COLUMN pgqueue.binding.pattern IS 'A regular expression for the key; NULL: it has to be equal.';
COMMENT ON COLUMN pgqueue.binding.hint    IS 'A LIKE pattern for whatever that expression matches: it is tried first, and is much cheaper.';

CREATE INDEX binding_queue ON pgqueue.binding (queue_id);
CREATE INDEX binding_mask  ON pgqueue.binding (exchange) WHERE pattern IS NOT NULL;

CREATE TABLE pgqueue.retained (
    exchange    text        NOT NULL REFERENCES pgqueue.exchange ON DELETE CASCADE,
    key         text        NOT NULL CHECK (octet_length(key) <= 255),
    updated_at  timestamptz NOT NULL DEFAULT now(),
    data        jsonb       NOT NULL,
    PRIMARY KEY (exchange, key)
);
COMMENT ON TABLE  pgqueue.retained IS 'The last message of each key that was published to be retained: a queue gets it when it is bound.';

CREATE UNLOGGED TABLE pgqueue.will (
    session_id  int         PRIMARY KEY,
    exchange    text        NOT NULL,
    key         text        NOT NULL,
    retain      boolean     NOT NULL,
    data        jsonb       NOT NULL
);
COMMENT ON TABLE  pgqueue.will     IS 'What is published when a session dies.';

CREATE UNLOGGED TABLE pgqueue.taker (
    session_id  int         NOT NULL,
    queue_id    int         NOT NULL,
    PRIMARY KEY (session_id, queue_id)
);
COMMENT ON TABLE  pgqueue.taker    IS 'Which sessions took from which queue, of those that go with their last taker.';
