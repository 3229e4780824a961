-- The line of processes that wait for a task.

CREATE UNLOGGED TABLE pgqueue.line (
    queue_id    int         NOT NULL,
    since       timestamptz NOT NULL,
    session_id  int         NOT NULL
) WITH (
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = false
);
COMMENT ON TABLE  pgqueue.line       IS
    'The sessions with a sleeping taker, in the order in which puts call them: 2_base/line.sql.';
COMMENT ON COLUMN pgqueue.line.since IS 'When the session''s longest-waiting taker began to wait.';

-- No unique key: a session that enters again would wait for the transaction that calls it.
CREATE INDEX line_order ON pgqueue.line (queue_id, since);

CREATE UNLOGGED TABLE pgqueue.unanswered (
    queue_id    int         PRIMARY KEY,
    seen_at     timestamptz NOT NULL,
    calls       int         NOT NULL DEFAULT 0
);
COMMENT ON TABLE  pgqueue.unanswered         IS
    'Queues that a tick found with a task ready and a session in line: 4_rules/unanswered.sql.';
COMMENT ON COLUMN pgqueue.unanswered.seen_at IS 'When a tick first found this, or last called for the queue.';
COMMENT ON COLUMN pgqueue.unanswered.calls   IS 'The number of the last call: 1 to 8, then 1 again.';
