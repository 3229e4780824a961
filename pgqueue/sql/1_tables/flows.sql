-- Flows: tasks that wait for other tasks, batches, and the steps of a task. 4_rules/flows/waiting.sql has the theory.

CREATE TABLE pgqueue.dependant (
    task_id     bigint      PRIMARY KEY,
    run_at      timestamptz,
    delay       interval,
    ttl         interval,
    on_failure  "char"      NOT NULL,
    opened      boolean     NOT NULL DEFAULT false,
    role        name        NOT NULL,
    role_id     oid         GENERATED ALWAYS AS (pgqueue._role_id(role)) STORED
);
COMMENT ON TABLE  pgqueue.dependant            IS 'Tasks that were put after others, until they are gone.';
COMMENT ON COLUMN pgqueue.dependant.run_at     IS
    'Not before this time. run_at, delay and ttl are those of its put; delay and ttl count from the end of the others.';
COMMENT ON COLUMN pgqueue.dependant.on_failure IS 'If one of the others fails: w wait, b bury, r run.';
COMMENT ON COLUMN pgqueue.dependant.opened     IS 'It waits no more: later changes of the others do not matter.';
COMMENT ON COLUMN pgqueue.dependant.role       IS
    'The role that put it. It follows only tasks that this role may look at.';

CREATE TABLE pgqueue.dependency (
    task_id     bigint      NOT NULL,
    on_id       bigint      NOT NULL,
    position    int         NOT NULL,
    state       "char"      NOT NULL,
    PRIMARY KEY (task_id, on_id)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 2000);
COMMENT ON TABLE  pgqueue.dependency            IS 'The tasks and batches that a dependant waits for, one a row.';
COMMENT ON COLUMN pgqueue.dependency.position   IS 'Its place among those of its task, as they were given.';
COMMENT ON COLUMN pgqueue.dependency.state      IS
    'N not followed yet, O open, D done, F failed, but it may yet be done, G gone without having been done.';

CREATE INDEX dependency_on     ON pgqueue.dependency (on_id);
CREATE INDEX dependency_open   ON pgqueue.dependency (task_id) WHERE state IN ('N', 'O');
CREATE INDEX dependency_failed ON pgqueue.dependency (task_id) WHERE state IN ('F', 'G');

CREATE TABLE pgqueue.batch (
    id          bigint      PRIMARY KEY,
    role        name        NOT NULL DEFAULT current_user,
    role_id     oid         GENERATED ALWAYS AS (pgqueue._role_id(role)) STORED,
    name        text        CHECK (octet_length(name) BETWEEN 1 AND 255),
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    closed_at   timestamptz,
    ended_at    timestamptz,
    total       bigint,
    failed      boolean
);
COMMENT ON TABLE  pgqueue.batch           IS 'Sets of tasks that others wait for as for one task.';
COMMENT ON COLUMN pgqueue.batch.id        IS 'From the sequence of tasks: no task and no batch have the same id.';
COMMENT ON COLUMN pgqueue.batch.role      IS 'The role that made it, and may add to it.';
COMMENT ON COLUMN pgqueue.batch.closed_at IS 'Since when no task is added to it. NULL: it is open, and cannot end.';
COMMENT ON COLUMN pgqueue.batch.total     IS 'The number of its tasks, once it is closed.';
COMMENT ON COLUMN pgqueue.batch.failed    IS 'Whether some of its tasks have failed, once it has ended.';

CREATE INDEX batch_created ON pgqueue.batch (created_at);
CREATE INDEX batch_role    ON pgqueue.batch (role_id) WHERE closed_at IS NULL;             -- for the quota
CREATE INDEX batch_watched ON pgqueue.batch (id) WHERE ended_at IS NULL OR failed;      -- for batch_stats

CREATE TABLE pgqueue.batch_part (
    batch_id    bigint      NOT NULL,
    added       bigint      NOT NULL
);
COMMENT ON TABLE pgqueue.batch_part IS 'How many tasks each put added to an open batch.';

CREATE INDEX batch_part_batch ON pgqueue.batch_part (batch_id);

CREATE TABLE pgqueue.member (
    task_id     bigint      PRIMARY KEY,
    batch_id    bigint      NOT NULL,
    state       "char"      NOT NULL DEFAULT 'O'
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 2000);
COMMENT ON TABLE  pgqueue.member       IS 'The tasks of a batch that are not done.';
COMMENT ON COLUMN pgqueue.member.state IS 'O open, F failed, G gone without having been done.';

CREATE INDEX member_open   ON pgqueue.member (batch_id, task_id) WHERE state = 'O';
CREATE INDEX member_failed ON pgqueue.member (batch_id, task_id) WHERE state <> 'O';

CREATE TABLE pgqueue.flow_check (
    xid         xid8        NOT NULL DEFAULT pg_current_xact_id(),
    id          bigint      NOT NULL,
    queue_id    int         NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
COMMENT ON TABLE  pgqueue.flow_check          IS
    'Dependants and batches to look at, since a task or batch has ended: flows/waiting.sql.';
COMMENT ON COLUMN pgqueue.flow_check.xid      IS 'The transaction that left the check, and so must not drop it.';
COMMENT ON COLUMN pgqueue.flow_check.queue_id IS 'The queue whose next claim looks at it. 0: the next tick does.';

CREATE INDEX flow_check_queue ON pgqueue.flow_check (queue_id);

CREATE TABLE pgqueue.step (
    task_id     bigint      NOT NULL,
    recorded_at timestamptz NOT NULL,
    name        text        COLLATE "C" NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 255),
    value       jsonb       NOT NULL,
    PRIMARY KEY (task_id, name)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 2000);
COMMENT ON TABLE  pgqueue.step       IS
    'The steps that a task has already done: named results that its holders recorded.';
COMMENT ON COLUMN pgqueue.step.value IS 'The value that the step returned; JSON null for none.';
