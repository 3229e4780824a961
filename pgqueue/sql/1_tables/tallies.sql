-- Tallies: the statistics of the runs of each job; and the workers. 6_families/tallies.sql has the theory.

CREATE UNLOGGED TABLE pgqueue.tally_part (
    writer      bigint      NOT NULL,
    at          timestamptz NOT NULL,
    queue_id    int         NOT NULL,
    batch       int         NOT NULL,
    done        bigint      NOT NULL,
    failed      bigint      NOT NULL,
    retried     bigint      NOT NULL,
    timeouts    bigint      NOT NULL,
    cancelled   bigint      NOT NULL,
    waited      float8      NOT NULL,
    ran         float8      NOT NULL,
    job         text        NOT NULL,
    waits       bigint[]    NOT NULL,
    runs        bigint[]    NOT NULL,
    PRIMARY KEY (at, writer, queue_id, job)
);
COMMENT ON TABLE  pgqueue.tally_part        IS 'The counts of one worker for one job in one of the last minutes.';
COMMENT ON COLUMN pgqueue.tally_part.writer IS 'A random number that the worker chose.';
COMMENT ON COLUMN pgqueue.tally_part.batch  IS 'The writer''s last call that this row has: a repeated one is ignored.';

CREATE TABLE pgqueue.tally (
    at          timestamptz NOT NULL,
    last_at     timestamptz NOT NULL,
    queue_id    int         NOT NULL,
    done        bigint      NOT NULL,
    failed      bigint      NOT NULL,
    retried     bigint      NOT NULL,
    timeouts    bigint      NOT NULL,
    cancelled   bigint      NOT NULL,
    waited      float8      NOT NULL,
    ran         float8      NOT NULL,
    period      text        NOT NULL,
    job         text        NOT NULL,
    waits       bigint[]    NOT NULL,
    runs        bigint[]    NOT NULL,
    PRIMARY KEY (period, at, queue_id, job)
);
COMMENT ON TABLE  pgqueue.tally           IS
    'The counts of all workers for one job in a minute, an hour or a day, or ever.';
COMMENT ON COLUMN pgqueue.tally.at        IS 'The beginning of the period; -infinity: ever.';
COMMENT ON COLUMN pgqueue.tally.last_at   IS 'The last minute that was counted here.';
COMMENT ON COLUMN pgqueue.tally.failed    IS 'Runs after which the task was buried.';
COMMENT ON COLUMN pgqueue.tally.retried   IS 'Runs that failed and after which the task was to be tried again.';
COMMENT ON COLUMN pgqueue.tally.timeouts  IS 'Of both, those that a time limit ended.';
COMMENT ON COLUMN pgqueue.tally.waited    IS 'The sum of the seconds that tasks were ready before their runs began.';
COMMENT ON COLUMN pgqueue.tally.ran       IS 'The sum of the seconds that runs took.';
COMMENT ON COLUMN pgqueue.tally.period    IS 'minute, hour, day, or all.';
COMMENT ON COLUMN pgqueue.tally.job       IS 'The name of the job; empty: of the queue''s plain handler.';
COMMENT ON COLUMN pgqueue.tally.waits     IS
    'A histogram of the times that tasks waited: one number for each bucket of run_bounds().';
COMMENT ON COLUMN pgqueue.tally.runs      IS 'A histogram of the times that runs took.';

CREATE UNLOGGED TABLE pgqueue.worker (
    session_id  int         NOT NULL,
    number      int         NOT NULL,
    concurrency int         NOT NULL,
    started_at  timestamptz NOT NULL,
    name        text        NOT NULL,
    queues      text[]      NOT NULL,
    jobs        text[]      NOT NULL,
    limits      jsonb       NOT NULL,
    version     text        NOT NULL,
    PRIMARY KEY (session_id, number)
);
COMMENT ON TABLE  pgqueue.worker        IS 'The workers that run. A row ends with its session.';
COMMENT ON COLUMN pgqueue.worker.number IS 'The worker''s number in its session.';
COMMENT ON COLUMN pgqueue.worker.queues IS 'The names of the queues that it serves, whether they exist or not.';
COMMENT ON COLUMN pgqueue.worker.limits IS
    'The settings of its start: time limits and the like, for people; and max_attempts, at which a death buries a task'
    ' (suspect.sql).';
