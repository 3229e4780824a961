-- Statuses, results and progress of tasks, and payloads that are too large for NOTIFY.

CREATE UNLOGGED TABLE pgqueue.payload (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    seen_at     timestamptz,
    payload     text        NOT NULL
);
COMMENT ON TABLE  pgqueue.payload         IS 'What was posted and is too large for NOTIFY, for a minute.';
COMMENT ON COLUMN pgqueue.payload.seen_at IS 'When a cleaning first saw it; its post may have been long before its commit.';

CREATE TABLE pgqueue.status (
    key         text        PRIMARY KEY CHECK (length(key) BETWEEN 1 AND 200),
    updated_at  timestamptz NOT NULL,
    expires_at  timestamptz,
    value       jsonb       NOT NULL
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
COMMENT ON TABLE  pgqueue.status            IS 'A value under a key of somebody''s choice.';
COMMENT ON COLUMN pgqueue.status.expires_at IS 'From then on it counts as absent. NULL: never.';

CREATE INDEX status_expires ON pgqueue.status (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE pgqueue.result (
    task_id     bigint      PRIMARY KEY,
    finished_at timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL,
    queue_id    int         NOT NULL,
    attempts    int         NOT NULL,
    value       jsonb,
    error       text,
    CHECK ((value IS NULL) = (error IS NOT NULL))
) WITH (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0
);
COMMENT ON TABLE  pgqueue.result            IS 'What a task came to, where that is kept: a value if it is done, an error if it failed for good.';
COMMENT ON COLUMN pgqueue.result.expires_at IS 'From then on it counts as absent.';
COMMENT ON COLUMN pgqueue.result.queue_id   IS 'Where it ended; a task that is in another queue was moved afterwards.';

CREATE INDEX result_expires ON pgqueue.result (expires_at);

CREATE UNLOGGED TABLE pgqueue.progress (
    task_id     bigint      PRIMARY KEY,
    token       bigint      NOT NULL,
    updated_at  timestamptz NOT NULL,
    value       jsonb
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
COMMENT ON TABLE  pgqueue.progress       IS 'How far a taken task is, as its holder says.';
COMMENT ON COLUMN pgqueue.progress.token IS 'Of the take that reported it: it counts no longer than that.';
