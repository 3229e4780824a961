-- Failed attempts of tasks: the last ones of each task, with their tracebacks.

CREATE TABLE pgqueue.attempt (
    task_id     bigint      NOT NULL,
    number      int         NOT NULL,
    queue_id    int         NOT NULL,
    began_at    timestamptz,
    ended_at    timestamptz NOT NULL,
    worker      text,
    state       text        NOT NULL CHECK (state IN ('failed', 'timeout', 'cancelled', 'died')),
    error       text,
    traceback   text,
    PRIMARY KEY (task_id, number)
) WITH (autovacuum_vacuum_scale_factor = 0.02);
COMMENT ON TABLE  pgqueue.attempt           IS 'Attempts that failed, the last ten of each task: attempts.sql.';
COMMENT ON COLUMN pgqueue.attempt.number    IS 'Attempts that were recorded of the task, up to this one.';
COMMENT ON COLUMN pgqueue.attempt.queue_id  IS 'The queue in which the task was then.';
COMMENT ON COLUMN pgqueue.attempt.began_at  IS 'When the handler began, or if that is not known, the take.';
COMMENT ON COLUMN pgqueue.attempt.worker    IS 'The label of its session, or the name that the worker gave.';
COMMENT ON COLUMN pgqueue.attempt.state     IS
    'failed: its handler failed; timeout: its time was over; cancelled: the task was cancelled; died: its taker died.';
COMMENT ON COLUMN pgqueue.attempt.traceback IS 'At most 16 kB: of a longer one the middle is cut.';
