-- Queues, tasks, takes and claims.

CREATE TABLE pgqueue.queue (
    id              int         GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name            text        NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 200),
    role            name        NOT NULL DEFAULT current_user,
    role_id         oid         GENERATED ALWAYS AS (pgqueue._role_id(role)) STORED,
    session_id      int,
    type            text        CHECK (type IN ('fifo', 'fifottl', 'utube', 'utubettl', 'limfifottl')),
    priority        int         NOT NULL DEFAULT 0,
    delay           interval    NOT NULL DEFAULT '0' CHECK (delay BETWEEN '0' AND '1000000000 s'),
    ttr             interval    CHECK (ttr > '0' AND ttr <= '1000000000 s'),
    ttl             interval    CHECK (ttl > '0' AND ttl <= '1000000000 s'),
    maxlen          int         CHECK (maxlen > 0),
    capacity        int         CHECK (capacity > 0),
    max_size        int         CHECK (max_size > 0),
    max_takes       int         CHECK (max_takes > 0),
    dead_letter     text        CHECK (octet_length(dead_letter) <= 255),
    dead_letter_key text        CHECK (dead_letter_key IS NULL
                                       OR octet_length(dead_letter_key) <= 255 AND dead_letter IS NOT NULL),
    keep_done       interval    CHECK (keep_done > '0' AND keep_done <= '1000000000 s'),
    expires         interval    CHECK (expires > '0' AND expires <= '1000000000 s'),
    exclusive       boolean     NOT NULL DEFAULT false CHECK (session_id IS NOT NULL OR NOT exclusive),
    auto_delete     boolean     NOT NULL DEFAULT false,
    listed          boolean     NOT NULL DEFAULT false,
    metadata        jsonb,
    paused_until    timestamptz,
    draining        boolean     NOT NULL DEFAULT false,
    restricted      boolean     NOT NULL DEFAULT false,
    guarded         boolean     NOT NULL DEFAULT false,
    dead_letter_role name,
    dead_letter_role_id oid     GENERATED ALWAYS AS (pgqueue._role_id(dead_letter_role)) STORED,
    created_at      timestamptz NOT NULL DEFAULT now(),
    lanes           boolean     NOT NULL DEFAULT false,
    metered         boolean     NOT NULL DEFAULT false,
    observed        boolean     NOT NULL DEFAULT false,
    flows           boolean     NOT NULL DEFAULT false,
    special         boolean     NOT NULL GENERATED ALWAYS AS (
        type IS NOT NULL OR maxlen IS NOT NULL OR capacity IS NOT NULL OR max_size IS NOT NULL OR keep_done IS NOT NULL
        OR paused_until IS NOT NULL OR session_id IS NOT NULL
        OR auto_delete OR draining OR lanes OR metered OR listed OR observed OR expires IS NOT NULL) STORED
);
COMMENT ON TABLE  pgqueue.queue IS 'A named container of tasks, with the defaults of its puts.';
COMMENT ON COLUMN pgqueue.queue.role IS
    'The role that created it. roles.sql says why it is stored twice.';
COMMENT ON COLUMN pgqueue.queue.session_id IS 'The queue is deleted when this session ends. NULL: permanent.';
COMMENT ON COLUMN pgqueue.queue.type IS
    'A type of Tarantool''s queue: its tasks cannot have options that such a queue lacks. NULL: all options.';
COMMENT ON COLUMN pgqueue.queue.priority IS 'Default priority of a put; the lowest number is taken first.';
COMMENT ON COLUMN pgqueue.queue.ttr IS
    'Default time to run: a task that was taken longer ago is given back. NULL: no limit.';
COMMENT ON COLUMN pgqueue.queue.ttl IS
    'Default time to live: a task that is not taken for this long expires. NULL: never.';
COMMENT ON COLUMN pgqueue.queue.maxlen IS
    'The number of ready tasks that the queue keeps; the oldest beyond it are removed.';
COMMENT ON COLUMN pgqueue.queue.capacity IS
    'The number of tasks in any state that the queue holds; a put into a full queue waits or is refused.';
COMMENT ON COLUMN pgqueue.queue.max_size IS 'The largest data of a task, in bytes of JSON text.';
COMMENT ON COLUMN pgqueue.queue.max_takes IS
    'A task that came back this often, as a failed attempt, dies: it is not taken again. Takes are not counted.';
COMMENT ON COLUMN pgqueue.queue.dead_letter IS
    'The exchange that gets tasks that die in this queue; empty: the default one.';
COMMENT ON COLUMN pgqueue.queue.dead_letter_key IS
    'The key of dead letters. NULL: the key that the task was published with, else the name of this queue.';
COMMENT ON COLUMN pgqueue.queue.keep_done IS 'How long a task is kept as done after its ack. NULL: the ack deletes it.';
COMMENT ON COLUMN pgqueue.queue.expires IS
    'The queue is deleted after this time without use: expiry.sql. NULL: never.';
COMMENT ON COLUMN pgqueue.queue.exclusive IS 'Only the session of session_id may take from the queue.';
COMMENT ON COLUMN pgqueue.queue.auto_delete IS
    'The queue is deleted when the last session that took from it has ended.';
COMMENT ON COLUMN pgqueue.queue.listed IS
    'Its tasks can be listed page by page, without missing a late commit: messages.sql.';
COMMENT ON COLUMN pgqueue.queue.metadata IS 'Data of the application about the queue.';
COMMENT ON COLUMN pgqueue.queue.paused_until IS 'No task is taken before this time.';
COMMENT ON COLUMN pgqueue.queue.draining IS 'Puts are refused.';
COMMENT ON COLUMN pgqueue.queue.restricted IS 
    'Only privileges of this queue itself count for it, and the verb monitor of patterns.';
COMMENT ON COLUMN pgqueue.queue.guarded IS
    'Calls check the privileges of their role: rights.sql. If false, EXECUTE on the functions is enough.';
COMMENT ON COLUMN pgqueue.queue.dead_letter_role IS
    'The role that set dead_letter: dead letters reach only queues into which this role may put.';
COMMENT ON COLUMN pgqueue.queue.lanes IS 'There may be tasks in lanes: claims use lanes.sql.';
COMMENT ON COLUMN pgqueue.queue.metered IS
    'It has limits of its tasks: claims admit waiting ones. See limits/meters.sql.';
COMMENT ON COLUMN pgqueue.queue.observed IS 'Each change of a task is sent to a channel: changes.sql.';
COMMENT ON COLUMN pgqueue.queue.flows IS
    'There may be tasks that wait for others: claims look at checks (flows/waiting.sql).';
COMMENT ON COLUMN pgqueue.queue.special IS
    'The queue has an option beyond the defaults of a put. If false, put, take and ack pay only one test for it.';

CREATE INDEX queue_role ON pgqueue.queue (role_id);
CREATE INDEX queue_expires ON pgqueue.queue (id) WHERE expires IS NOT NULL;

CREATE TABLE pgqueue.privilege (
    role        name        NOT NULL,
    role_id     oid         GENERATED ALWAYS AS (pgqueue._role_id(role)) STORED,
    verb        text        NOT NULL CHECK (verb IN ('put', 'take', 'look', 'manage', 'share', 'monitor')),
    queue_id    int         CHECK ((queue_id IS NULL) <> (pattern IS NULL)),
    pattern     text        COLLATE "C",
    mask        text        COLLATE "C"
);
COMMENT ON TABLE  pgqueue.privilege         IS
    'The privileges of each role: a verb, for one queue or for a pattern of names. See rights.sql.';
COMMENT ON COLUMN pgqueue.privilege.queue_id IS
    'The queue. If it was deleted, the row stays until a grant or a revoke takes back EXECUTE as well: grants.sql.';
COMMENT ON COLUMN pgqueue.privilege.pattern IS 'Names of queues, where * stands for any characters, also for none.';
COMMENT ON COLUMN pgqueue.privilege.mask    IS 'The pattern, for LIKE.';

CREATE UNIQUE INDEX privilege_key ON pgqueue.privilege (role_id, verb, coalesce(queue_id, 0), coalesce(pattern, ''));
CREATE INDEX privilege_queue ON pgqueue.privilege (queue_id) WHERE queue_id IS NOT NULL;

CREATE TABLE pgqueue.listing (
    queue_id    int         PRIMARY KEY REFERENCES pgqueue.queue ON DELETE CASCADE,
    altered     xid8,
    ended       xid8
);
COMMENT ON TABLE  pgqueue.listing         IS
    'Queues that became listed, and may still get tasks of puts that do not see it: listed.sql.';
COMMENT ON COLUMN pgqueue.listing.altered IS
    'The transaction that altered the queue. NULL: every snapshot sees it.';
COMMENT ON COLUMN pgqueue.listing.ended   IS
    'When all transactions up to this one have ended, there are no such puts any more.';

CREATE TABLE pgqueue.draining (
    since       timestamptz NOT NULL
);
COMMENT ON TABLE  pgqueue.draining IS
    'With a row in it, each new queue is draining from its start: draining.sql.';

-- Without CHECKs: PostgreSQL parses the stored text of each one again at every INSERT statement, which makes a put 4 %
-- slower for each. run_at is set in the state D and only there, buried_at in B, done_at in F; a task in L has a lane.
-- ready_at stays NULL in a plain put, which so writes no byte for it.
CREATE TABLE pgqueue.task (
    id          bigint      GENERATED ALWAYS AS IDENTITY (MAXVALUE 8796093022207) PRIMARY KEY,      -- server.sql
    queue_id    int         NOT NULL,
    priority    int         NOT NULL DEFAULT 0,
    created_at  timestamptz NOT NULL DEFAULT now(),
    run_at      timestamptz,
    ready_at    timestamptz,
    expires_at  timestamptz,
    buried_at   timestamptz,
    done_at     timestamptz,
    ttr         interval,
    attempts    int         NOT NULL DEFAULT 0,
    state       "char"      NOT NULL DEFAULT 'R',
    suspect     int,
    killed_after interval,
    data        jsonb       NOT NULL,
    lane        text        COLLATE "C",
    key         text,
    sender      uuid,
    routing_key text,
    error       text,
    deaths      jsonb,
    xid         xid8,
    releases    int,
    timeouts    int,
    buries      int,
    kicks       int,
    holds_lane  boolean,
    followed    boolean,
    meter       text        COLLATE "C"
) WITH (
    -- A queue's table turns over many times a day: vacuum by the number of dead rows, not by their share.
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0
);
COMMENT ON TABLE  pgqueue.task             IS 'One row for each task; a take does not change it.';
COMMENT ON COLUMN pgqueue.task.run_at      IS 'When a delayed task becomes ready; NULL in every other state.';
COMMENT ON COLUMN pgqueue.task.ready_at    IS
    'When its delay was over, or it was kicked or moved here; NULL: it was ready from created_at on.';
COMMENT ON COLUMN pgqueue.task.expires_at  IS 'The task is not taken after this time. NULL: it never expires.';
COMMENT ON COLUMN pgqueue.task.buried_at   IS 'Since when it is buried.';
COMMENT ON COLUMN pgqueue.task.done_at     IS 'When it was acked, if its queue keeps done tasks.';
COMMENT ON COLUMN pgqueue.task.attempts    IS
    'How often it failed, passed its deadline, or was charged with a death, since it was put or buried and kicked.';
COMMENT ON COLUMN pgqueue.task.suspect     IS
    'Two sessions died that held it: how many such tasks a session may hold at once. NULL: no limit. See suspect.sql.';
COMMENT ON COLUMN pgqueue.task.killed_after IS
    'How long a session had lived that died with it: a longer take clears the task. NULL: none died.';
COMMENT ON COLUMN pgqueue.task.lane        IS 'Tasks of a lane are handled strictly one after another. NULL: none.';
COMMENT ON COLUMN pgqueue.task.key         IS 'Unique among the tasks of the queue that are not done. NULL: none.';
COMMENT ON COLUMN pgqueue.task.sender      IS
    'The client that put it, if it gave its id: a listing can leave out its own tasks.';
COMMENT ON COLUMN pgqueue.task.routing_key IS 'The key that it was published with; NULL if it was put.';
COMMENT ON COLUMN pgqueue.task.error       IS 'The error of the last failed attempt, or of the burial.';
COMMENT ON COLUMN pgqueue.task.deaths      IS
    'The queues in which it died: [{queue, reason, count, time}], the last death first.';
COMMENT ON COLUMN pgqueue.task.xid         IS
    'The transaction that put it, in a queue that is listed; or that gave it a place in the listing: listed.sql.';
COMMENT ON COLUMN pgqueue.task.releases    IS
    'How often it was released; likewise timeouts (its time to run was over), buries and kicks. NULL: never.';
COMMENT ON COLUMN pgqueue.task.holds_lane  IS
    'Of a delayed task: its lane waits for it. NULL: it does not. Without a meaning in other states.';
COMMENT ON COLUMN pgqueue.task.followed    IS
    'Its end matters to other rows, so its ack takes the long way: follow.sql. NULL: it does not.';

COMMENT ON COLUMN pgqueue.task.meter       IS
    'The tasks of one meter are counted together: the limit''s id and a value. NULL: the task has no limit, or none '
    'was looked for. See limits/meters.sql.';

-- No more indexes than these: each one writes to the WAL on every put. All but two cost a plain put nothing.
CREATE INDEX task_ready    ON pgqueue.task (queue_id, priority, id) WHERE state = 'R';
CREATE INDEX task_ready_at ON pgqueue.task (queue_id, ready_at)     WHERE state = 'R' AND ready_at IS NOT NULL;
CREATE INDEX task_delayed  ON pgqueue.task (queue_id, run_at, id)   WHERE state = 'D';
CREATE INDEX task_buried   ON pgqueue.task (queue_id, priority, id) WHERE state = 'B';
CREATE INDEX task_expiring ON pgqueue.task (queue_id, expires_at)   WHERE state <> 'D' AND expires_at IS NOT NULL;
CREATE INDEX task_lane     ON pgqueue.task (queue_id, lane, priority, id)
 WHERE (state IN ('R', 'L', 'C') OR state = 'D' AND holds_lane) AND lane IS NOT NULL;
CREATE INDEX task_waiting  ON pgqueue.task (queue_id, priority, id) WHERE state = 'W';
CREATE INDEX task_cancelling ON pgqueue.task (queue_id, id)         WHERE state = 'C';
CREATE INDEX task_meter    ON pgqueue.task (queue_id, meter, state, priority, id)
 WHERE meter IS NOT NULL AND state <> 'F';
CREATE INDEX task_done     ON pgqueue.task (queue_id, done_at, id)  WHERE state = 'F';
CREATE INDEX task_listed   ON pgqueue.task (queue_id, xid, id)      WHERE xid IS NOT NULL AND state <> 'F';
CREATE UNIQUE INDEX task_key ON pgqueue.task (queue_id, key)        WHERE key IS NOT NULL AND state <> 'F';

CREATE TYPE pgqueue.specification AS (
    data        jsonb,
    priority    int,
    delay       interval,
    ttr         interval,
    ttl         interval,
    lane        text,
    key         text,
    if_exists   text,
    sender      uuid,
    run_at      timestamptz,
    unique_for  interval,
    after       bigint[],
    on_failure  text,
    batch       bigint,
    routing_key text,
    created_at  timestamptz,
    error       text,
    deaths      jsonb
);
COMMENT ON TYPE pgqueue.specification IS
    'A task to put with its options. NULL: as the queue says. The last four: of a published message, and of the copy '
    'of a dead letter. See specification.sql.';

CREATE TYPE pgqueue.put_outcome AS (
    id          bigint,
    state       text,
    existed     boolean,
    kept        jsonb
);
COMMENT ON TYPE pgqueue.put_outcome IS 'The result of one put, as put returns it.';

CREATE UNLOGGED TABLE pgqueue.take (
    task_id     bigint      PRIMARY KEY,
    queue_id    int         NOT NULL,
    session_id  int         NOT NULL,
    token       bigint      NOT NULL,
    taken_at    timestamptz NOT NULL,
    deadline    timestamptz NOT NULL,
    lane        text        COLLATE "C"
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0
);
COMMENT ON TABLE  pgqueue.take IS
    'The tasks that are taken: by which session, since when, until when. Empty after a crash of the server.';
COMMENT ON COLUMN pgqueue.take.session_id IS
    'The session whose death ends the take. 0: a claim (claims.sql), which ends at its deadline.';
COMMENT ON COLUMN pgqueue.take.token      IS
    'Random, one for each claim. A settling presents it: the fence against a late holder.';
COMMENT ON COLUMN pgqueue.take.deadline   IS 'After it the take does not count. infinity: no time to run was set.';

CREATE INDEX take_deadline ON pgqueue.take (queue_id, deadline) WHERE deadline < 'infinity';
CREATE UNIQUE INDEX take_lane ON pgqueue.take (queue_id, lane) WHERE lane IS NOT NULL;

CREATE TABLE pgqueue.cancellation (
    task_id     bigint      PRIMARY KEY,
    asked_at    timestamptz NOT NULL,
    role        name        NOT NULL,
    reason      text
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
COMMENT ON TABLE  pgqueue.cancellation      IS
    'Tasks that were cancelled while they were taken, until their takes end: cancelled.sql.';
COMMENT ON COLUMN pgqueue.cancellation.role IS 'The role that cancelled the task.';

CREATE TABLE pgqueue.lane_check (
    xid         xid8        NOT NULL DEFAULT pg_current_xact_id(),
    queue_id    int         NOT NULL,
    lane        text        COLLATE "C" NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
COMMENT ON TABLE  pgqueue.lane_check     IS 'Lanes whose first task may be blocked without need: lanes.sql.';
COMMENT ON COLUMN pgqueue.lane_check.xid IS 'The transaction that left the check, and so must not drop it.';

CREATE INDEX lane_check_queue ON pgqueue.lane_check (queue_id, lane);

CREATE TABLE pgqueue.latch (
    queue_id    int         NOT NULL,
    number      int         NOT NULL,
    PRIMARY KEY (queue_id, number)
);
COMMENT ON TABLE pgqueue.latch IS
    'Rows that only claims lock, in queues with lanes or limits, and that never change: latches.sql.';

CREATE UNLOGGED TABLE pgqueue.claim (
    token       bigint      PRIMARY KEY,
    role        regrole     NOT NULL,
    queue_id    int         NOT NULL,
    ttl         interval    NOT NULL,
    grace       interval    NOT NULL,
    renewed_at  timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL,
    task_ids    bigint[]    NOT NULL
);
COMMENT ON TABLE  pgqueue.claim            IS
    'Sets of takes that were made together, with one id, their token, and one deadline: Zaqar''s claims.';
COMMENT ON COLUMN pgqueue.claim.role       IS
    'The role that made it: to other roles the claim does not exist. See claims.sql.';
COMMENT ON COLUMN pgqueue.claim.renewed_at IS 'When the claim was made or last renewed: its age counts from there.';
COMMENT ON COLUMN pgqueue.claim.task_ids   IS
    'The tasks that it held at first. It still holds those that have a take with its token.';

CREATE INDEX claim_expires ON pgqueue.claim (expires_at);
