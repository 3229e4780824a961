-- Statistics: changes of counts, their sums, samples of these, and the history. The theories are in stats.sql and in
-- 7_operations/history.sql.

CREATE UNLOGGED TABLE pgqueue.delta (
    xid         xid8        NOT NULL DEFAULT pg_current_xact_id(),
    queue_id    int         NOT NULL,
    standing    int         NOT NULL DEFAULT 0,
    taken       int         NOT NULL DEFAULT 0,
    delayed     int         NOT NULL DEFAULT 0,
    buried      int         NOT NULL DEFAULT 0,
    blocked     int         NOT NULL DEFAULT 0,
    kept        int         NOT NULL DEFAULT 0,
    verb        text,
    calls       int         NOT NULL DEFAULT 0
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE  pgqueue.delta          IS
    'Changes of a queue''s counts by transactions, until they are folded into `counter`: count.sql.';
COMMENT ON COLUMN pgqueue.delta.standing IS 'Tasks in the state R: ready and taken.';
COMMENT ON COLUMN pgqueue.delta.kept     IS 'Tasks in the state F: done, and kept.';
COMMENT ON COLUMN pgqueue.delta.verb     IS 'The verb that `calls` counts.';

CREATE INDEX delta_xid ON pgqueue.delta (xid);

CREATE UNLOGGED TABLE pgqueue.counter (
    queue_id    int         NOT NULL,
    version     bigint      NOT NULL,
    standing    bigint      NOT NULL,
    taken       bigint      NOT NULL,
    delayed     bigint      NOT NULL,
    buried      bigint      NOT NULL,
    blocked     bigint      NOT NULL,
    kept        bigint      NOT NULL,
    calls       jsonb       NOT NULL,
    PRIMARY KEY (queue_id, version)
);
COMMENT ON TABLE  pgqueue.counter         IS
    'The counts of a queue up to a fold; the newest version counts: stats.sql.';
COMMENT ON COLUMN pgqueue.counter.version IS 'The fold that made it.';
COMMENT ON COLUMN pgqueue.counter.calls   IS 'How many tasks each verb was called for: {verb: number}.';

CREATE UNLOGGED TABLE pgqueue.fold (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    folded_at   timestamptz NOT NULL,
    since       xid8        NOT NULL,
    late        xid8[]      NOT NULL
);
COMMENT ON TABLE  pgqueue.fold IS
    'Where unfolded deltas may be: of transactions `since`, and of earlier ones that ended `late`. The newest row '
    'counts.';

CREATE UNLOGGED TABLE pgqueue.recount (
    asked_at    timestamptz NOT NULL DEFAULT now(),
    xid         xid8
);
COMMENT ON TABLE  pgqueue.recount     IS
    'With a row in it, the counters are wrong, and the next fold counts the tasks again.';
COMMENT ON COLUMN pgqueue.recount.xid IS
    'The row counts once this transaction has ended. It was prepared before a crash, which emptied its deltas.';

CREATE UNLOGGED TABLE pgqueue.sample (
    sampled_at  timestamptz PRIMARY KEY,
    calls       jsonb       NOT NULL
);
COMMENT ON TABLE  pgqueue.sample       IS
    'The sums of calls of all queues, every ten seconds of the last three minutes: rates come from the difference.';
COMMENT ON COLUMN pgqueue.sample.calls IS
    '{id of the queue: {verb: number}}. One row for all queues: under a held snapshot a reader walks over each dead '
    'row.';

CREATE UNLOGGED TABLE pgqueue.oldest (
    queue_id    int         NOT NULL,
    looked_at   timestamptz NOT NULL,
    took        interval    NOT NULL,
    ready_since timestamptz,
    PRIMARY KEY (queue_id, looked_at)
);
COMMENT ON TABLE  pgqueue.oldest             IS 'The oldest ready task of queues in which it takes long to find.';
COMMENT ON COLUMN pgqueue.oldest.ready_since IS 'Since when that task was ready; NULL: no task was ready.';

-- Columns of a fixed size, the largest first: a row has 124 bytes, and there are thousands for each queue.
CREATE TABLE pgqueue.history (
    at          timestamptz NOT NULL,
    puts        bigint      NOT NULL,
    takes       bigint      NOT NULL,
    acks        bigint      NOT NULL,
    deletes     bigint      NOT NULL,
    releases    bigint      NOT NULL,
    buries      bigint      NOT NULL,
    timeouts    bigint      NOT NULL,
    queue_id    int         NOT NULL,
    ready       int         NOT NULL,
    most_ready  int         NOT NULL,
    taken       int         NOT NULL,
    delayed     int         NOT NULL,
    buried      int         NOT NULL,
    blocked     int         NOT NULL,
    oldest_age  real        NOT NULL,
    period      "char"      NOT NULL,
    PRIMARY KEY (queue_id, period, at)
);
COMMENT ON TABLE  pgqueue.history            IS
    'The calls and the length of each queue in a minute, an hour or a day. Each call is counted in one row.';
COMMENT ON COLUMN pgqueue.history.at         IS 'The beginning of the period.';
COMMENT ON COLUMN pgqueue.history.timeouts   IS 'Takes whose time to run was over.';
COMMENT ON COLUMN pgqueue.history.ready      IS
    'At the end of the period; likewise taken, delayed, buried and blocked.';
COMMENT ON COLUMN pgqueue.history.most_ready IS 'The most at the end of any minute of the period.';
COMMENT ON COLUMN pgqueue.history.oldest_age IS
    'For how many seconds the oldest ready task had been ready, the most at the end of any minute. 0: none was ready.';
COMMENT ON COLUMN pgqueue.history.period     IS 'm: a minute, h: an hour, d: a day, in UTC.';

CREATE UNLOGGED TABLE pgqueue.history_mark (
    queue_id    int         NOT NULL,
    marked_at   timestamptz NOT NULL,
    total       bigint      NOT NULL,
    calls       jsonb       NOT NULL,
    PRIMARY KEY (queue_id, marked_at)
);
COMMENT ON TABLE  pgqueue.history_mark       IS
    'The counts of each queue up to which the history has its calls. Empty after a crash, as the counters are.';
COMMENT ON COLUMN pgqueue.history_mark.total IS 'How many tasks the queue had then.';
COMMENT ON COLUMN pgqueue.history_mark.calls IS 'How many tasks each verb had been called for: {verb: number}.';
