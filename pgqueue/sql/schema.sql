-- The tables of pgqueue, as they are today. The only file here with a history: it is what all migrations add up to.
--
-- Theory of operation
-- -------------------
-- A task is one row of `task`, and that row is not rewritten when somebody takes it. *Taken* means that a row in
-- `take` names the task; an ack deletes both, a release deletes the take. So the life of a task is one INSERT and
-- one DELETE in the write-ahead log. An UPDATE ... SET state = 'taken' costs a new row version, entries in every
-- index and four times the log.
--
--       put                take                  ack
--     --------> [ready] ----------> [taken] ------------> gone
--       |          ^ ^ \             | | |
--       | delay    | |  \ bury       | | '-- bury ------> [buried] --- kick --> [ready]
--       v          | |   '---------> | |
--    [delayed] ----' '---- release --' '---- release with a delay ----> [delayed]
--             due          deadline passed
--                          session dead
--
--   state  task.state   row in take        who moves it on
--   ready     'R'          no              a take, in the order (priority, id)
--   delayed   'D'          no              whoever promotes what is due: a take, or any listener's sweep
--   taken     'R'          yes             the holder of the token; the sweep, when the deadline passed or the session died
--   buried    'B'          no              a kick
--
-- `take` and `session` are UNLOGGED, and that is their meaning as much as their speed: after a crash of the server
-- PostgreSQL empties them, nobody holds anything, and every task that was taken is ready again.
--
-- Lock order: whoever holds a task's row never waits for its take. An ack locks the take first and the task second;
-- a claim holds task rows and only ever *looks* at takes. The other order deadlocks within seconds under eight takers.
--
-- Tables are private. Applications use the functions and views; see grants.sql.

CREATE SCHEMA IF NOT EXISTS pgqueue;

CREATE TABLE pgqueue.queue (
    id          int         GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text        NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 200),
    priority    int         NOT NULL DEFAULT 0,
    delay       interval    NOT NULL DEFAULT '0' CHECK (delay >= '0'),
    ttr         interval    CHECK (ttr > '0'),
    created_at  timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE  pgqueue.queue          IS 'A named container of tasks, with the defaults of its puts.';
COMMENT ON COLUMN pgqueue.queue.priority IS 'Default priority of a put; lower is taken first.';
COMMENT ON COLUMN pgqueue.queue.ttr      IS 'Default time to run: a take older than this is given back. NULL: no limit.';

CREATE TABLE pgqueue.task (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    created_at  timestamptz NOT NULL DEFAULT now(),
    run_at      timestamptz,
    queue_id    int         NOT NULL,
    priority    int         NOT NULL DEFAULT 0,
    attempts    int         NOT NULL DEFAULT 0,
    state       "char"      NOT NULL DEFAULT 'R' CHECK (state IN ('R', 'D', 'B')),
    ttr         interval,
    error       text,
    data        jsonb       NOT NULL,
    CHECK ((state = 'D') = (run_at IS NOT NULL))
) WITH (
    -- A queue's table turns over many times a day: vacuum by the number of dead rows, not by their share.
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0
);
COMMENT ON TABLE  pgqueue.task          IS 'One row a task; it is not touched by a take.';
COMMENT ON COLUMN pgqueue.task.run_at   IS 'When a delayed task becomes ready; NULL in every other state.';
COMMENT ON COLUMN pgqueue.task.attempts IS 'How often it came back: failed, past its deadline, or its taker died.';
COMMENT ON COLUMN pgqueue.task.error    IS 'What the last failed attempt or the burial said.';

-- No more indexes than these: each one is write-ahead log on every put. The last two cost a put nothing.
CREATE INDEX task_ready   ON pgqueue.task (queue_id, priority, id) WHERE state = 'R';
CREATE INDEX task_delayed ON pgqueue.task (queue_id, run_at)       WHERE state = 'D';
CREATE INDEX task_buried  ON pgqueue.task (queue_id, priority, id) WHERE state = 'B';

CREATE UNLOGGED TABLE pgqueue.take (
    task_id     bigint      PRIMARY KEY,
    token       bigint      NOT NULL,
    taken_at    timestamptz NOT NULL,
    deadline    timestamptz NOT NULL,
    queue_id    int         NOT NULL,
    session_id  int         NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0
);
COMMENT ON TABLE  pgqueue.take          IS 'Who holds which task, since when, until when. Empty after a crash of the server.';
COMMENT ON COLUMN pgqueue.take.token    IS 'Random, one a claim. Whoever settles the task presents it: the fence against a late holder.';
COMMENT ON COLUMN pgqueue.take.deadline IS 'Past it the take counts for nothing. infinity: no time to run was set.';

CREATE INDEX take_deadline ON pgqueue.take (queue_id, deadline) WHERE deadline < 'infinity';

CREATE UNLOGGED TABLE pgqueue.session (
    id            int         PRIMARY KEY,
    grace         interval    NOT NULL,
    epoch         timestamptz NOT NULL,
    started_at    timestamptz NOT NULL DEFAULT now(),
    missing_since timestamptz,
    backend_pid   int         NOT NULL,
    label         text        NOT NULL
);
COMMENT ON TABLE  pgqueue.session               IS 'One row a process that takes; alive exactly as long as its advisory lock is held.';
COMMENT ON COLUMN pgqueue.session.epoch         IS 'Start of the server that the lock was last taken on: a restart frees every lock at once.';
COMMENT ON COLUMN pgqueue.session.missing_since IS 'When a sweep first found the lock free.';
COMMENT ON COLUMN pgqueue.session.label         IS 'Host, process id and name of the process, for people.';
