-- The servers of a cluster: 7_operations/servers.sql has the theory.

CREATE TABLE pgqueue.cluster (
    only_one    boolean     PRIMARY KEY DEFAULT true CHECK (only_one),
    id          uuid        NOT NULL,
    version     bigint      NOT NULL CHECK (version > 0)
);
COMMENT ON TABLE  pgqueue.cluster         IS 'Which cluster this server belongs to. No row: to none.';
COMMENT ON COLUMN pgqueue.cluster.id      IS 'Made with the cluster. A copy of another cluster''s table is refused.';
COMMENT ON COLUMN pgqueue.cluster.version IS 'Of the table server: it grows by 1 with each change.';

CREATE TABLE pgqueue.server (
    number      int         PRIMARY KEY CHECK (number BETWEEN 0 AND 1023),
    dsn         text        NOT NULL CHECK (octet_length(dsn) BETWEEN 1 AND 2000),
    listen_dsn  text        CHECK (octet_length(listen_dsn) BETWEEN 1 AND 2000),
    state       text        NOT NULL CHECK (state IN ('active', 'draining', 'gone')),
    is_home     boolean     NOT NULL,
    CHECK (NOT is_home OR state = 'active')
);
COMMENT ON TABLE  pgqueue.server            IS 'The servers of the cluster. Each of them has a copy.';
COMMENT ON COLUMN pgqueue.server.dsn        IS 'How clients connect to it, without a password.';
COMMENT ON COLUMN pgqueue.server.listen_dsn IS
    'How the connections that wait reach it, if dsn leads through a transaction pooler.';
COMMENT ON COLUMN pgqueue.server.state      IS
    'active: it gets tasks. draining: it gives those that it has. gone: it is left; its number stays taken.';
COMMENT ON COLUMN pgqueue.server.is_home    IS
    'It has locks, schedules and channels for the whole cluster, and this table is changed there.';

CREATE UNIQUE INDEX server_home ON pgqueue.server (is_home) WHERE is_home;
