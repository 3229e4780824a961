-- Posts that are too large for NOTIFY; statuses by key; results and progress of tasks.

CREATE UNLOGGED TABLE pgqueue.payload (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    role        name        NOT NULL,
    role_id     oid         GENERATED ALWAYS AS (pgqueue._role_id(role)) STORED,
    size        int         NOT NULL,
    payload     text        NOT NULL,
    seen_at     timestamptz
);
COMMENT ON TABLE  pgqueue.payload         IS 'Posts that are too large for NOTIFY, for a minute.';
COMMENT ON COLUMN pgqueue.payload.size    IS 'The bytes of the payload: quotas.sql adds them up.';
COMMENT ON COLUMN pgqueue.payload.seen_at IS
    'When a cleaning first saw the row; the post may be much older than its commit.';

CREATE INDEX payload_role ON pgqueue.payload (role_id, size);

CREATE TABLE pgqueue.status (
    key         text        COLLATE "C" PRIMARY KEY CHECK (length(key) BETWEEN 1 AND 200),
    value       jsonb       NOT NULL,
    updated_at  timestamptz NOT NULL,
    expires_at  timestamptz
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
COMMENT ON TABLE  pgqueue.status            IS 'Values under keys that the application chooses.';
COMMENT ON COLUMN pgqueue.status.key        IS 'In byte order, so that the keys with one prefix are adjacent.';
COMMENT ON COLUMN pgqueue.status.expires_at IS 'After this time the status counts as absent. NULL: it never expires.';

CREATE INDEX status_expires ON pgqueue.status (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE pgqueue.result (
    task_id     bigint      PRIMARY KEY,
    queue_id    int         NOT NULL,
    attempts    int         NOT NULL,
    finished_at timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL,
    kept_until  timestamptz,
    cancelled   boolean,
    value       jsonb,
    error       text,
    CHECK ((value IS NULL) = (error IS NOT NULL))
) WITH (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0
);
COMMENT ON TABLE  pgqueue.result            IS
    'How tasks ended, if that is kept: a value if done, an error if the task failed for good or was cancelled.';
COMMENT ON COLUMN pgqueue.result.queue_id   IS
    'The queue in which it ended; a task that is now in another queue was moved afterwards.';
COMMENT ON COLUMN pgqueue.result.cancelled  IS 'It was cancelled, and error has the reason. NULL: it was not.';
COMMENT ON COLUMN pgqueue.result.expires_at IS
    'After this time the result counts as absent. 9999-12-30: it is kept while a task waits for this one.';
COMMENT ON COLUMN pgqueue.result.kept_until IS
    'If it is, or was, kept for a task that waits: the time that was set, to which expires_at goes back.';

CREATE INDEX result_expires ON pgqueue.result (expires_at);

CREATE UNLOGGED TABLE pgqueue.progress (
    task_id     bigint      PRIMARY KEY,
    token       bigint      NOT NULL,
    updated_at  timestamptz NOT NULL,
    value       jsonb
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
COMMENT ON TABLE  pgqueue.progress       IS 'The progress of taken tasks, as reported by their holders.';
COMMENT ON COLUMN pgqueue.progress.token IS
    'The take that reported the progress, which counts only as long as that take.';
