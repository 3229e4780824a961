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
--   blocked   'L'          no              whoever finds that its lane is free: see lane.sql
--   done      'F'          no              the end of the queue's keep_done
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
    ttl         interval    CHECK (ttl > '0'),
    maxlen      int         CHECK (maxlen > 0),
    max_takes   int         CHECK (max_takes > 0),
    session_id  int,
    exclusive   boolean     NOT NULL DEFAULT false CHECK (session_id IS NOT NULL OR NOT exclusive),
    auto_delete boolean     NOT NULL DEFAULT false,
    created_at  timestamptz NOT NULL DEFAULT now(),
    dead_letter text        CHECK (octet_length(dead_letter) <= 255),
    dead_letter_key text    CHECK (dead_letter_key IS NULL OR octet_length(dead_letter_key) <= 255 AND dead_letter IS NOT NULL),
    type        text        CHECK (type IN ('fifo', 'fifottl', 'utube', 'utubettl', 'limfifottl')),
    capacity    int         CHECK (capacity > 0),
    max_size    int         CHECK (max_size > 0),
    keep_done   interval    CHECK (keep_done > '0'),
    paused_until timestamptz,
    draining    boolean     NOT NULL DEFAULT false,
    lanes       boolean     NOT NULL DEFAULT false,
    listed      boolean     NOT NULL DEFAULT false,
    observed    boolean     NOT NULL DEFAULT false,
    restricted  boolean     NOT NULL DEFAULT false,
    metadata    jsonb,
    special     boolean     NOT NULL GENERATED ALWAYS AS (
        type IS NOT NULL OR maxlen IS NOT NULL OR capacity IS NOT NULL OR max_size IS NOT NULL OR keep_done IS NOT NULL
        OR paused_until IS NOT NULL OR session_id IS NOT NULL
        OR auto_delete OR draining OR lanes OR listed OR observed OR restricted) STORED
);
COMMENT ON TABLE  pgqueue.queue             IS 'A named container of tasks, with the defaults of its puts.';
COMMENT ON COLUMN pgqueue.queue.priority    IS 'Default priority of a put; lower is taken first.';
COMMENT ON COLUMN pgqueue.queue.ttr         IS 'Default time to run: a take older than this is given back. NULL: no limit.';
COMMENT ON COLUMN pgqueue.queue.ttl         IS 'Default time to live: a task that nobody takes for so long expires. NULL: never.';
COMMENT ON COLUMN pgqueue.queue.maxlen      IS 'How many ready tasks it keeps; beyond that the oldest go.';
COMMENT ON COLUMN pgqueue.queue.max_takes   IS 'A task that came back so often goes, and is not taken again.';
COMMENT ON COLUMN pgqueue.queue.session_id  IS 'Whose end is also its own. NULL: nobody''s.';
COMMENT ON COLUMN pgqueue.queue.exclusive   IS 'Only that session may take from it.';
COMMENT ON COLUMN pgqueue.queue.auto_delete IS 'It goes when the last session that took from it has ended.';
COMMENT ON COLUMN pgqueue.queue.type        IS 'As in Tarantool''s queue: its tasks cannot have what a queue of this type lacks. NULL: they can have anything.';
COMMENT ON COLUMN pgqueue.queue.capacity    IS 'How many tasks it holds in all, in whatever state; a put into a full one waits or is refused.';
COMMENT ON COLUMN pgqueue.queue.max_size    IS 'The largest data of a task, in bytes of JSON text.';
COMMENT ON COLUMN pgqueue.queue.keep_done   IS 'For how long a task that was acked is kept as done. NULL: it goes at once.';
COMMENT ON COLUMN pgqueue.queue.paused_until IS 'Until then nothing is taken.';
COMMENT ON COLUMN pgqueue.queue.draining    IS 'Nothing is put any more.';
COMMENT ON COLUMN pgqueue.queue.lanes       IS 'There may be tasks in lanes: claims go by lane.sql.';
COMMENT ON COLUMN pgqueue.queue.listed      IS 'Its tasks carry what a listing needs that misses no late commit: message.sql.';
COMMENT ON COLUMN pgqueue.queue.observed    IS 'Each change of a task is told on a channel: change.sql.';
COMMENT ON COLUMN pgqueue.queue.restricted  IS 'Only roles in queue_grant may use it.';
COMMENT ON COLUMN pgqueue.queue.metadata    IS 'Whatever its users want to keep with it.';
COMMENT ON COLUMN pgqueue.queue.special     IS 'Has any option beyond a put''s defaults: what is false here costs put, take and ack one test.';
COMMENT ON COLUMN pgqueue.queue.dead_letter IS 'The exchange that gets what dies here; empty: the default one.';
COMMENT ON COLUMN pgqueue.queue.dead_letter_key IS 'Under which key; NULL: the key that the task was published with, else this queue''s name.';

CREATE TABLE pgqueue.queue_grant (
    queue_id    int         NOT NULL REFERENCES pgqueue.queue ON DELETE CASCADE,
    role        regrole     NOT NULL,
    PRIMARY KEY (queue_id, role)
);
COMMENT ON TABLE  pgqueue.queue_grant IS 'Which roles may use a restricted queue: manage.sql.';

CREATE TABLE pgqueue.draining (
    since       timestamptz NOT NULL
);
COMMENT ON TABLE  pgqueue.draining IS 'With a row in it, every queue that is made is draining from its start: manage.sql.';

-- Without CHECKs: PostgreSQL reads each one anew from its stored text at every INSERT statement, which makes a put 4 %
-- dearer for each. run_at is set in the state D and only there, done_at in F; whoever is L has a lane.
CREATE TABLE pgqueue.task (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    created_at  timestamptz NOT NULL DEFAULT now(),
    run_at      timestamptz,
    expires_at  timestamptz,
    queue_id    int         NOT NULL,
    priority    int         NOT NULL DEFAULT 0,
    attempts    int         NOT NULL DEFAULT 0,
    state       "char"      NOT NULL DEFAULT 'R',
    ttr         interval,
    error       text,
    data        jsonb       NOT NULL,
    routing_key text,
    deaths      jsonb,
    lane        text        COLLATE "C",
    key         text,
    done_at     timestamptz,
    sender      uuid,
    xid         xid8,
    releases    int,
    timeouts    int,
    buries      int,
    kicks       int
) WITH (
    -- A queue's table turns over many times a day: vacuum by the number of dead rows, not by their share.
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0
);
COMMENT ON TABLE  pgqueue.task             IS 'One row a task; it is not touched by a take.';
COMMENT ON COLUMN pgqueue.task.run_at      IS 'When a delayed task becomes ready; NULL in every other state.';
COMMENT ON COLUMN pgqueue.task.expires_at  IS 'From then on it is not taken any more. NULL: never.';
COMMENT ON COLUMN pgqueue.task.attempts    IS 'How often it came back: failed, past its deadline, or its taker died.';
COMMENT ON COLUMN pgqueue.task.error       IS 'What the last failed attempt or the burial said.';
COMMENT ON COLUMN pgqueue.task.routing_key IS 'The key that it was published with; NULL if it was put.';
COMMENT ON COLUMN pgqueue.task.deaths      IS 'Where it died before: [{queue, reason, count, time}], the last death first.';
COMMENT ON COLUMN pgqueue.task.lane        IS 'Tasks of a lane are handled strictly one after another. NULL: in none.';
COMMENT ON COLUMN pgqueue.task.key         IS 'Unique among the tasks of the queue that are not done. NULL: it has none.';
COMMENT ON COLUMN pgqueue.task.done_at     IS 'When it was acked, where done tasks are kept.';
COMMENT ON COLUMN pgqueue.task.sender      IS 'Who put it, where that was said: a listing can leave out one''s own.';
COMMENT ON COLUMN pgqueue.task.xid         IS 'The transaction that put it, in a queue that is listed.';
COMMENT ON COLUMN pgqueue.task.releases    IS 'How often it was released; so with timeouts (its time to run was over), buries and kicks. NULL: never.';

-- No more indexes than these: each one is write-ahead log on every put. All but two cost a plain put nothing.
CREATE INDEX task_ready    ON pgqueue.task (queue_id, priority, id) WHERE state = 'R';
CREATE INDEX task_delayed  ON pgqueue.task (queue_id, run_at)       WHERE state = 'D';
CREATE INDEX task_buried   ON pgqueue.task (queue_id, priority, id) WHERE state = 'B';
CREATE INDEX task_expiring ON pgqueue.task (queue_id, expires_at)   WHERE state <> 'D' AND expires_at IS NOT NULL;
CREATE INDEX task_lane     ON pgqueue.task (queue_id, lane, priority, id) WHERE state IN ('R', 'L') AND lane IS NOT NULL;
CREATE INDEX task_done     ON pgqueue.task (queue_id, done_at)      WHERE state = 'F';
CREATE INDEX task_listed   ON pgqueue.task (queue_id, xid, id)      WHERE xid IS NOT NULL AND state <> 'F';
CREATE UNIQUE INDEX task_key ON pgqueue.task (queue_id, key)        WHERE key IS NOT NULL AND state <> 'F';

CREATE UNLOGGED TABLE pgqueue.take (
    task_id     bigint      PRIMARY KEY,
    token       bigint      NOT NULL,
    taken_at    timestamptz NOT NULL,
    deadline    timestamptz NOT NULL,
    queue_id    int         NOT NULL,
    session_id  int         NOT NULL,
    lane        text        COLLATE "C"
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0
);
COMMENT ON TABLE  pgqueue.take          IS 'Who holds which task, since when, until when. Empty after a crash of the server.';
COMMENT ON COLUMN pgqueue.take.token    IS 'Random, one a claim. Whoever settles the task presents it: the fence against a late holder.';
COMMENT ON COLUMN pgqueue.take.session_id IS 'Whose death ends it. 0: nobody''s, it ends at its deadline (a claim, message.sql).';
COMMENT ON COLUMN pgqueue.take.deadline IS 'Past it the take counts for nothing. infinity: no time to run was set.';

CREATE INDEX take_deadline ON pgqueue.take (queue_id, deadline) WHERE deadline < 'infinity';
CREATE UNIQUE INDEX take_lane ON pgqueue.take (queue_id, lane) WHERE lane IS NOT NULL;

CREATE TABLE pgqueue.lane_check (
    xid         xid8        NOT NULL DEFAULT pg_current_xact_id(),
    queue_id    int         NOT NULL,
    lane        text        COLLATE "C" NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
COMMENT ON TABLE  pgqueue.lane_check     IS 'Lanes whose first task may be blocked by nothing: lane.sql.';
COMMENT ON COLUMN pgqueue.lane_check.xid IS 'Who left it, and so must not drop it.';

CREATE INDEX lane_check_queue ON pgqueue.lane_check (queue_id, lane);

CREATE UNLOGGED TABLE pgqueue.claim (
    token       bigint      PRIMARY KEY,
    queue_id    int         NOT NULL,
    ttl         interval    NOT NULL,
    grace       interval    NOT NULL,
    renewed_at  timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL,
    task_ids    bigint[]    NOT NULL
);
COMMENT ON TABLE  pgqueue.claim            IS 'Takes that were made together and live under one id, their token, for a time: Zaqar''s claims.';
COMMENT ON COLUMN pgqueue.claim.renewed_at IS 'When it was made or renewed: its age counts from there.';
COMMENT ON COLUMN pgqueue.claim.task_ids   IS 'What it held at first. It still holds those that have a take with its token.';

CREATE INDEX claim_expires ON pgqueue.claim (expires_at);

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
COMMENT ON TABLE  pgqueue.delta          IS 'What transactions changed in the counts of a queue, until it is folded into `counter`: count.sql.';
COMMENT ON COLUMN pgqueue.delta.standing IS 'Tasks in the state R: ready and taken.';
COMMENT ON COLUMN pgqueue.delta.kept     IS 'Tasks in the state F: done, and kept.';
COMMENT ON COLUMN pgqueue.delta.verb     IS 'Whose calls are counted in this row.';

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
COMMENT ON TABLE  pgqueue.counter         IS 'The counts of a queue up to a fold; the newest version counts: stats.sql.';
COMMENT ON COLUMN pgqueue.counter.version IS 'The fold that made it.';
COMMENT ON COLUMN pgqueue.counter.calls   IS 'How many tasks each verb was called for: {verb: number}.';

CREATE UNLOGGED TABLE pgqueue.fold (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    folded_at   timestamptz NOT NULL,
    since       xid8        NOT NULL,
    late        xid8[]      NOT NULL
);
COMMENT ON TABLE  pgqueue.fold     IS 'Where unfolded deltas may be: of transactions `since`, and of earlier ones that ended `late`. The newest row counts.';

CREATE UNLOGGED TABLE pgqueue.recount (
    asked_at    timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE  pgqueue.recount  IS 'Not empty: the counters are wrong, and the next fold counts anew.';

CREATE UNLOGGED TABLE pgqueue.sample (
    sampled_at  timestamptz PRIMARY KEY,
    calls       jsonb       NOT NULL
);
COMMENT ON TABLE  pgqueue.sample       IS 'What the calls of all queues added up to, every ten seconds of the last three minutes: rates come from the difference.';
COMMENT ON COLUMN pgqueue.sample.calls IS '{queue''s id: {verb: number}}. One row for all queues: under a held snapshot every row that was is walked over.';

CREATE UNLOGGED TABLE pgqueue.oldest (
    queue_id    int         NOT NULL,
    looked_at   timestamptz NOT NULL,
    took        interval    NOT NULL,
    created_at  timestamptz,
    PRIMARY KEY (queue_id, looked_at)
);
COMMENT ON TABLE  pgqueue.oldest            IS 'The oldest ready task of queues in which it takes long to find.';
COMMENT ON COLUMN pgqueue.oldest.created_at IS 'Of that task; NULL: nothing was ready.';

CREATE UNLOGGED TABLE pgqueue.session (
    id            int         PRIMARY KEY,
    grace         interval    NOT NULL,
    epoch         timestamptz NOT NULL,
    started_at    timestamptz NOT NULL DEFAULT now(),
    missing_since timestamptz,
    identity      uuid,
    backend_pid   int         NOT NULL,
    label         text        NOT NULL
);
COMMENT ON TABLE  pgqueue.session               IS 'One row a process that takes; alive exactly as long as its advisory lock is held.';
COMMENT ON COLUMN pgqueue.session.epoch         IS 'Start of the server that the lock was last taken on: a restart frees every lock at once.';
COMMENT ON COLUMN pgqueue.session.missing_since IS 'When a sweep first found the lock free.';
COMMENT ON COLUMN pgqueue.session.identity      IS 'Sessions of one identity settle each other''s tasks and inherit each other''s takes: identity.sql.';
COMMENT ON COLUMN pgqueue.session.backend_pid   IS 'The connection that holds its lock; 0: it was closed, and is kept for who may join its identity.';
COMMENT ON COLUMN pgqueue.session.label         IS 'Host, process id and name of the process, for people.';

CREATE UNLOGGED TABLE pgqueue.observer (
    queue_id    int         NOT NULL,
    session_id  int         NOT NULL,
    PRIMARY KEY (queue_id, session_id)
);
COMMENT ON TABLE  pgqueue.observer        IS 'Which sessions are told of every change of a queue''s tasks.';

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

CREATE TABLE pgqueue.node (
    path        text        COLLATE "C" PRIMARY KEY CHECK (length(path) BETWEEN 1 AND 1024),
    parent      text        COLLATE "C" REFERENCES pgqueue.node (path) CHECK ((parent IS NULL) = (path = '/')),
    id          bigint      GENERATED ALWAYS AS IDENTITY,
    version     int         NOT NULL DEFAULT 0,
    next_number int         NOT NULL DEFAULT 0,
    session_id  int,
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now(),
    data        jsonb       NOT NULL DEFAULT 'null'
);
COMMENT ON TABLE  pgqueue.node             IS 'A tree of small values, as ZooKeeper has it.';
COMMENT ON COLUMN pgqueue.node.id          IS 'Tells a node from an earlier one of the same path.';
COMMENT ON COLUMN pgqueue.node.version     IS 'How often its data was set.';
COMMENT ON COLUMN pgqueue.node.next_number IS 'What the next sequential node below this one gets; no number is given twice.';
COMMENT ON COLUMN pgqueue.node.session_id  IS 'Whose death or close removes it: an ephemeral node.';

CREATE INDEX node_parent  ON pgqueue.node (parent);
CREATE INDEX node_session ON pgqueue.node (session_id) WHERE session_id IS NOT NULL;

INSERT INTO pgqueue.node (path) VALUES ('/');

CREATE TABLE pgqueue.exchange (
    name        text        PRIMARY KEY CHECK (octet_length(name) BETWEEN 1 AND 255),
    type        text        NOT NULL CHECK (type IN ('fanout', 'direct', 'topic', 'mqtt')),
    session_id  int,
    bound_at    timestamptz,
    created_at  timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE  pgqueue.exchange            IS 'Where tasks are published; its bindings say which queues they go to.';
COMMENT ON COLUMN pgqueue.exchange.session_id IS 'Whose end is also its own; NULL: it is durable.';
COMMENT ON COLUMN pgqueue.exchange.bound_at   IS 'Of the last bind, which orders binds and retained messages; see route.sql.';

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

CREATE SEQUENCE pgqueue.fence;
COMMENT ON SEQUENCE pgqueue.fence IS 'Rises with every grant of any lock, also over a crash: see lock.sql.';

CREATE UNLOGGED TABLE pgqueue.lock_holder (
    fence       bigint      PRIMARY KEY,
    token       bigint      NOT NULL UNIQUE,
    name        text        NOT NULL,
    shared      boolean     NOT NULL,
    session_id  int         NOT NULL,
    backend_pid int         NOT NULL,
    locked_at   timestamptz NOT NULL
);
COMMENT ON TABLE  pgqueue.lock_holder             IS 'Who was granted which lock, for people, and for others of the same session. What counts is the advisory lock.';
COMMENT ON COLUMN pgqueue.lock_holder.token       IS 'Random, one a request: names it before its answer is known.';
COMMENT ON COLUMN pgqueue.lock_holder.backend_pid IS 'The connection that has the advisory lock: a session may come back on another one, without it.';

CREATE INDEX lock_holder_session ON pgqueue.lock_holder (session_id);

CREATE UNLOGGED TABLE pgqueue.lock_ticket (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    token       bigint      NOT NULL UNIQUE,
    name        text        NOT NULL,
    shared      boolean     NOT NULL,
    session_id  int         NOT NULL,
    since       timestamptz NOT NULL
);
COMMENT ON TABLE  pgqueue.lock_ticket       IS 'Who waits for which lock. Served in the order of ids; one whose session is gone does not count.';
COMMENT ON COLUMN pgqueue.lock_ticket.token IS 'Random, one a request; becomes the holder''s.';

CREATE INDEX lock_ticket_line ON pgqueue.lock_ticket (name, id);
