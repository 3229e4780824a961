-- Sessions, and what they observe.

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
COMMENT ON COLUMN pgqueue.session.identity      IS 'Sessions of one identity settle each other''s tasks and inherit each other''s takes: session.sql.';
COMMENT ON COLUMN pgqueue.session.backend_pid   IS 'The connection that holds its lock; 0: it was closed, and is kept for who may join its identity.';
COMMENT ON COLUMN pgqueue.session.label         IS 'Host, process id and name of the process, for people.';

CREATE UNLOGGED TABLE pgqueue.observer (
    queue_id    int         NOT NULL,
    session_id  int         NOT NULL,
    PRIMARY KEY (queue_id, session_id)
);
COMMENT ON TABLE  pgqueue.observer        IS 'Which sessions are told of every change of a queue''s tasks.';
