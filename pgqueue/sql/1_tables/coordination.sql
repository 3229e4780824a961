-- Nodes and locks.

CREATE TABLE pgqueue.node (
    path        text        COLLATE "C" PRIMARY KEY CHECK (length(path) BETWEEN 1 AND 1024),
    parent      text        COLLATE "C" REFERENCES pgqueue.node (path) CHECK ((parent IS NULL) = (path = '/')),
    role        name,
    role_id     oid         GENERATED ALWAYS AS (pgqueue._role_id(role)) STORED,
    session_id  int,
    data        jsonb       NOT NULL DEFAULT 'null',
    version     int         NOT NULL DEFAULT 0,
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now(),
    id          bigint      GENERATED ALWAYS AS IDENTITY,
    next_number int         NOT NULL DEFAULT 0
);
COMMENT ON TABLE  pgqueue.node             IS 'A tree of small values, as in ZooKeeper.';
COMMENT ON COLUMN pgqueue.node.role        IS
    'The role that created it, or of its session if it is ephemeral: only it may set and delete the node. NULL: the '
    'owner of the schema.';
COMMENT ON COLUMN pgqueue.node.session_id  IS
    'The node is ephemeral: it is removed when this session dies or is closed. NULL: permanent.';
COMMENT ON COLUMN pgqueue.node.version     IS 'How often its data was set.';
COMMENT ON COLUMN pgqueue.node.id          IS 'Tells a node from an earlier one of the same path.';
COMMENT ON COLUMN pgqueue.node.next_number IS
    'The number of the next sequential node below this one; no number is given twice.';

CREATE INDEX node_parent  ON pgqueue.node (parent);
CREATE INDEX node_role    ON pgqueue.node (role_id);
CREATE INDEX node_session ON pgqueue.node (session_id) WHERE session_id IS NOT NULL;

INSERT INTO pgqueue.node (path) VALUES ('/');

CREATE SEQUENCE pgqueue.fence;
COMMENT ON SEQUENCE pgqueue.fence IS 'Rises with every grant of any lock, also over a crash: see locks.sql.';

CREATE UNLOGGED TABLE pgqueue.lock_holder (
    fence       bigint      PRIMARY KEY,
    token       bigint      NOT NULL UNIQUE,
    name        text        NOT NULL,
    session_id  int         NOT NULL,
    shared      boolean     NOT NULL,
    locked_at   timestamptz NOT NULL,
    backend_pid int         NOT NULL
);
COMMENT ON TABLE  pgqueue.lock_holder             IS
    'The granted locks, for people, and for other threads of a session. The advisory lock alone excludes others.';
COMMENT ON COLUMN pgqueue.lock_holder.token       IS
    'Random, one for each request: names the request before its answer is known.';
COMMENT ON COLUMN pgqueue.lock_holder.backend_pid IS
    'The connection that has the advisory lock: a session may come back on another connection, without the lock.';

CREATE INDEX lock_holder_session ON pgqueue.lock_holder (session_id);

CREATE UNLOGGED TABLE pgqueue.lock_ticket (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    token       bigint      NOT NULL UNIQUE,
    name        text        NOT NULL,
    session_id  int         NOT NULL,
    shared      boolean     NOT NULL,
    since       timestamptz NOT NULL
);
COMMENT ON TABLE  pgqueue.lock_ticket       IS
    'The requests that wait for a lock, served in the order of ids. The ticket of a session that is gone does not '
    'count.';
COMMENT ON COLUMN pgqueue.lock_ticket.token IS 'Random, one for each request; becomes the token of the holder.';

CREATE INDEX lock_ticket_line ON pgqueue.lock_ticket (name, id);

CREATE TABLE pgqueue.secret (
    id    boolean PRIMARY KEY DEFAULT true CHECK (id),
    value text    NOT NULL DEFAULT gen_random_uuid()::text || gen_random_uuid()
);
COMMENT ON TABLE  pgqueue.secret       IS 'One row. No role but the owner may read it.';
COMMENT ON COLUMN pgqueue.secret.value IS 'Random: the names of channels that carry facts derive from it (secret.sql).';

INSERT INTO pgqueue.secret DEFAULT VALUES;
