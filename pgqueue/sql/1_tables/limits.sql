-- Limits of how many tasks run at once, and of how many begin in a period: 4_rules/limits/meters.sql has the theory.

CREATE TABLE pgqueue.task_limit (
    id          int         GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id    int         NOT NULL REFERENCES pgqueue.queue ON DELETE CASCADE,
    job         text        COLLATE "C" CHECK (octet_length(job) BETWEEN 1 AND 255),
    argument    text        COLLATE "C" CHECK (octet_length(argument) BETWEEN 1 AND 255),
    concurrency int         CHECK (concurrency > 0),
    rate        int         CHECK (rate > 0),
    burst       int         CHECK (burst > 0),
    period      interval    CHECK (period > '0' AND period <= '1000000000 s'),
    home        int         CHECK (home BETWEEN 0 AND 1023),
    declared    boolean     NOT NULL DEFAULT false,
    dropped     boolean     NOT NULL DEFAULT false,
    changing    boolean     NOT NULL DEFAULT true,
    altered     xid8        DEFAULT pg_current_xact_id(),
    ended       xid8,
    is_over     boolean     NOT NULL DEFAULT false,
    rechecked   text        COLLATE "C",
    rechecked_at timestamptz,
    CHECK (concurrency IS NOT NULL OR rate IS NOT NULL),
    CHECK ((rate IS NULL) = (burst IS NULL) AND (rate IS NULL) = (period IS NULL))
);
COMMENT ON TABLE  pgqueue.task_limit             IS
    'How many tasks of a job, or of a queue, may run at once, or begin in a period.';
COMMENT ON COLUMN pgqueue.task_limit.job         IS
    'The job that it limits, by the name in the data of its tasks. NULL: all tasks of the queue whose job has no limit '
    'of its own.';
COMMENT ON COLUMN pgqueue.task_limit.argument    IS
    'The limit counts for each value of this argument. NULL: for all tasks together.';
COMMENT ON COLUMN pgqueue.task_limit.concurrency IS 'How many may be taken at once. NULL: any number.';
COMMENT ON COLUMN pgqueue.task_limit.rate        IS 'How many may begin in each period. NULL: any number.';
COMMENT ON COLUMN pgqueue.task_limit.burst       IS
    'How many may begin at once after a pause: the number of tokens that the bucket holds.';
COMMENT ON COLUMN pgqueue.task_limit.home        IS
    'The number of the server that alone gets new tasks of it. NULL: each server gets some, and counts its own.';
COMMENT ON COLUMN pgqueue.task_limit.declared    IS 'A program declared it at its start; it may change and drop it.';
COMMENT ON COLUMN pgqueue.task_limit.dropped     IS
    'It limits no tasks any more; the row stays until no task waits for it: limits/setting.sql.';
COMMENT ON COLUMN pgqueue.task_limit.changing    IS
    'Transactions may still follow an earlier form of it: limits/setting.sql.';
COMMENT ON COLUMN pgqueue.task_limit.altered     IS
    'The transaction that altered it. NULL: every snapshot sees its present form.';
COMMENT ON COLUMN pgqueue.task_limit.ended       IS
    'When all transactions up to this one have ended, none follows an earlier form.';
COMMENT ON COLUMN pgqueue.task_limit.is_over     IS
    'All those have ended; ticks leave the last checks.';
COMMENT ON COLUMN pgqueue.task_limit.rechecked   IS
    'The meter up to which ticks have left checks. NULL: they have finished.';
COMMENT ON COLUMN pgqueue.task_limit.rechecked_at IS
    'When ticks last finished, or found that claims have enough checks to look at.';

CREATE UNIQUE INDEX task_limit_key  ON pgqueue.task_limit (queue_id, coalesce(job, '')) WHERE NOT dropped;
CREATE INDEX task_limit_queue       ON pgqueue.task_limit (queue_id);
-- For ticks, which would otherwise read all limits: the changed ones, the one looked at longest ago first.
CREATE INDEX task_limit_changing    ON pgqueue.task_limit (rechecked_at NULLS FIRST) WHERE changing;

-- Only for limits by rate: one row for each meter, written by claims, one claim at a time.
CREATE TABLE pgqueue.bucket (
    queue_id    int         NOT NULL,
    meter       text        COLLATE "C" NOT NULL,
    tokens      float8      NOT NULL,
    filled_at   timestamptz NOT NULL,
    due_at      timestamptz,
    PRIMARY KEY (queue_id, meter)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
COMMENT ON TABLE  pgqueue.bucket           IS
    'The token buckets of limits by rate. A task needs a token to begin; a meter without a row has a full bucket.';
COMMENT ON COLUMN pgqueue.bucket.tokens    IS 'How many tokens it held at filled_at.';
COMMENT ON COLUMN pgqueue.bucket.due_at    IS
    'When the next token is added for a waiting task. NULL: no task waits for one.';

CREATE INDEX bucket_due ON pgqueue.bucket (queue_id, due_at) WHERE due_at IS NOT NULL;

CREATE TABLE pgqueue.meter_check (
    id          bigint      GENERATED ALWAYS AS IDENTITY,
    xid         xid8        NOT NULL DEFAULT pg_current_xact_id(),
    queue_id    int         NOT NULL,
    meter       text        COLLATE "C" NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
COMMENT ON TABLE  pgqueue.meter_check     IS 'Meters in which a task may begin: limits/meters.sql.';
COMMENT ON COLUMN pgqueue.meter_check.xid IS 'The transaction that left the check, and so must not drop it.';

CREATE INDEX meter_check_queue ON pgqueue.meter_check (queue_id, id);
