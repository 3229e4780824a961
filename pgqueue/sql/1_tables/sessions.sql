-- Sessions, and the queues that they observe.

CREATE UNLOGGED TABLE pgqueue.session (
    id            int         PRIMARY KEY,
    role          regrole     NOT NULL,
    label         text        NOT NULL,
    identity      uuid,
    grace         interval    NOT NULL,
    started_at    timestamptz NOT NULL DEFAULT now(),
    missing_since timestamptz,
    seen_at       timestamptz,
    backend_pid   int         NOT NULL,
    epoch         timestamptz NOT NULL,
    suspects      bigint[],
    parent        int
);
COMMENT ON TABLE  pgqueue.session               IS
    'One row for each client that takes: its registration, which lives exactly as long as its advisory lock is held. '
    'And one for each further holder in a client, which lives as long as the client''s.';
COMMENT ON COLUMN pgqueue.session.role          IS
    'The role that opened it: calls of other roles may not name the session. See session.sql.';
COMMENT ON COLUMN pgqueue.session.label         IS 'Host, process id and program of the client, for people.';
COMMENT ON COLUMN pgqueue.session.identity      IS
    'Sessions of one role and identity settle each other''s tasks and inherit each other''s takes: identity.sql.';
COMMENT ON COLUMN pgqueue.session.grace         IS
    'How long the session may be missing before its takes are given back.';
COMMENT ON COLUMN pgqueue.session.missing_since IS 'When a sweep first found the lock free.';
COMMENT ON COLUMN pgqueue.session.seen_at       IS
    'Of a missing session: when a sweep last knew it to be there.';
COMMENT ON COLUMN pgqueue.session.backend_pid   IS
    'The connection that holds the lock. 0: the session was closed, and is kept for sessions that may join its '
    'identity.';
COMMENT ON COLUMN pgqueue.session.epoch         IS
    'Start of the server on which the lock was last taken: a restart frees every lock at once.';
COMMENT ON COLUMN pgqueue.session.suspects      IS
    'The suspects (suspect.sql) that the session took and may still hold.';
COMMENT ON COLUMN pgqueue.session.parent        IS
    'The session with whose lock it lives: session.sql. NULL: it has a lock of its own.';

CREATE UNLOGGED TABLE pgqueue.observer (
    queue_id    int         NOT NULL,
    session_id  int         NOT NULL,
    PRIMARY KEY (queue_id, session_id)
);
COMMENT ON TABLE  pgqueue.observer IS 'The sessions that are notified of every change of a queue''s tasks.';
