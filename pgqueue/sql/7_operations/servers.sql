-- The table of servers: the members of a cluster, for clients that were told one of them.
--
-- One server is the home server: the first that was added. The table is changed there and nowhere else, and each change
-- raises its version by 1. The command that changes it then copies it to the other servers, so that each of them can
-- name the members while the home server is away. A copy replaces an older one as a whole (copy_servers). So two copies
-- of one version are equal, and a server that was away during a change gets it with the next copy. Rows with versions
-- of their own do not work: a client that reads a half-copied table would see a cluster that never existed.
--
-- No server connects to another one. A trigger or a foreign table that copies the row would need passwords in the
-- database, and a change would fail while any server is away.
--
-- A row stays when its server is gone: its number is in the ids of tasks that programs may still hold, so no other
-- server gets it.
--
-- Every role that uses queues reads the table, since it has to connect. So a DSN has no password; libpq finds that in
-- the file of PGPASSFILE or of a service, or the server trusts a certificate.
--
-- Each change notifies `pgqueue:servers` with the version. Any role can send such a notification, so it is a hint:
-- clients read the table. All functions but servers() are for the owner of the schema alone and run as their caller.

CREATE OR REPLACE FUNCTION pgqueue.servers()
RETURNS TABLE (number int, dsn text, listen_dsn text, state text, is_home boolean, version bigint, cluster uuid)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
        SELECT s.number, s.dsn, s.listen_dsn, s.state, s.is_home, c.version, c.id
          FROM pgqueue.server s CROSS JOIN pgqueue.cluster c ORDER BY s.number;
END $$;
COMMENT ON FUNCTION pgqueue.servers IS
    'The servers of the cluster by this server''s copy of the table, with the table''s version. No row: it belongs to '
    'no cluster. For every role that uses queues.';

-- libpq decodes the names of a URI's parameters, so one that is written with %xx is refused.
CREATE OR REPLACE FUNCTION pgqueue._check_dsn(name text, dsn text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    longest CONSTANT int := 2000;
BEGIN
    IF octet_length(dsn) NOT BETWEEN 1 AND longest THEN
        RAISE EXCEPTION '% has 1 to % bytes, not %', name, longest, octet_length(dsn) USING ERRCODE = 'PQ002';
    ELSIF dsn ~* '(^|[\s?&''])(ssl)?password\s*='
       OR dsn ~* '^postgres(ql)?://[^/?@]*:[^/?]*@'
       OR dsn ~* '^postgres(ql)?://.*[?&][^=&]*%[^=&]*=' THEN
        RAISE EXCEPTION '% has a password, and every role that uses queues can read the table of servers: leave it '
                        'out, and let clients have it in a password file (PGPASSFILE) or a service file', name
            USING ERRCODE = 'PQ002';
    END IF;
END $$;

-- The version of the change that begins, under a lock that orders changes and copies. Raises if this is not the home
-- server.
CREATE OR REPLACE FUNCTION pgqueue._change_servers() RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    home    int;
    changed bigint;
BEGIN
    LOCK TABLE pgqueue.server IN EXCLUSIVE MODE;    -- before the row of cluster, as copy_servers
    UPDATE pgqueue.cluster c SET version = c.version + 1 RETURNING c.version INTO changed;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'this server belongs to no cluster: add it first, as its home server' USING ERRCODE = 'PQ049';
    END IF;
    SELECT s.number INTO home FROM pgqueue.server s WHERE s.is_home;
    IF home <> pgqueue.server_number() THEN
        RAISE EXCEPTION 'the table of servers is changed on its home server %, and this is server %',
            home, pgqueue.server_number() USING ERRCODE = 'PQ049';
    END IF;
    PERFORM pg_notify('pgqueue:servers', changed::text);
    RETURN changed;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._known_server(number int) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    present CONSTANT text := (SELECT s.state FROM pgqueue.server s WHERE s.number = _known_server.number);
BEGIN
    IF present IS NULL THEN
        RAISE EXCEPTION 'the cluster has no server %', coalesce(number::text, 'NULL') USING ERRCODE = 'PQ049';
    END IF;
    RETURN present;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.add_server(number int, dsn text, listen_dsn text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    ours  CONSTANT int := pgqueue.server_number();
    first boolean;
    changed bigint;
BEGIN
    IF (number BETWEEN 0 AND 1023) IS NOT TRUE OR dsn IS NULL THEN
        RAISE EXCEPTION 'a server has a number from 0 to 1023 and a dsn, not % and %', coalesce(number::text, 'NULL'),
            CASE WHEN dsn IS NULL THEN 'NULL' ELSE 'a dsn' END USING ERRCODE = 'PQ002';
    END IF;
    PERFORM pgqueue._check_dsn('dsn', dsn), pgqueue._check_dsn('listen_dsn', listen_dsn);
    LOCK TABLE pgqueue.server IN EXCLUSIVE MODE;    -- two that begin a cluster: one finds the other's row
    first := NOT EXISTS (SELECT FROM pgqueue.cluster);
    IF first AND number <> ours THEN
        RAISE EXCEPTION 'this is server %, so server % cannot be added before it: the first server that is added is '
                        'the home server, and is added on itself', ours, number USING ERRCODE = 'PQ049';
    ELSIF first THEN
        INSERT INTO pgqueue.cluster (id, version) VALUES (gen_random_uuid(), 1);
        PERFORM pg_notify('pgqueue:servers', '1');
        changed := 1;
    ELSE
        changed := pgqueue._change_servers();
    END IF;
    INSERT INTO pgqueue.server AS s (number, dsn, listen_dsn, state, is_home)
    VALUES (add_server.number, add_server.dsn, add_server.listen_dsn, 'active', first)
        ON CONFLICT ON CONSTRAINT server_pkey DO UPDATE SET dsn = excluded.dsn, listen_dsn = excluded.listen_dsn
     WHERE s.state <> 'gone';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'server % is gone, and its number stays taken: a new server gets a number of its own', number
            USING ERRCODE = 'PQ049';
    END IF;
    PERFORM pgqueue._record('add_server', object => number::text, detail => dsn);
    RETURN changed;
END $$;
COMMENT ON FUNCTION pgqueue.add_server IS
    'Add a server to the cluster, or give one another dsn and listen_dsn; on the home server, which is the first that '
    'is added, on itself. Returns the version of the table. Only the owner of the schema may call it. PQ002: a DSN has '
    'a password. PQ049: this is not the home server, or the server is gone.';

CREATE OR REPLACE FUNCTION pgqueue.set_server_state(number int, state text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    changed bigint;
    present text;
BEGIN
    IF (state IN ('active', 'draining')) IS NOT TRUE THEN
        RAISE EXCEPTION 'a server is set active or draining, not %: remove_server has it gone',
            coalesce(left(state, 50), 'NULL') USING ERRCODE = 'PQ002';
    END IF;
    changed := pgqueue._change_servers();
    present := pgqueue._known_server(number);
    IF present = 'gone' THEN
        RAISE EXCEPTION 'server % is gone, so it cannot become %', number, state USING ERRCODE = 'PQ049';
    ELSIF state = 'draining' AND number = pgqueue.server_number() THEN
        RAISE EXCEPTION 'server % is the home server, which stays: locks, schedules and this table are there', number
            USING ERRCODE = 'PQ049';
    END IF;
    UPDATE pgqueue.server s SET state = set_server_state.state WHERE s.number = set_server_state.number;
    PERFORM pgqueue._record('set_server_state', object => number::text, detail => state);
    RETURN changed;
END $$;
COMMENT ON FUNCTION pgqueue.set_server_state IS
    'Set a server draining, so that it gets no more tasks than it has to, or active again; on the home server. Returns '
    'the version of the table. Only the owner of the schema may call it. PQ049: there is no such server, or it is gone '
    'or the home server.';

CREATE OR REPLACE FUNCTION pgqueue.remove_server(number int) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    changed CONSTANT bigint := pgqueue._change_servers();
    present CONSTANT text := pgqueue._known_server(number);
BEGIN
    IF present <> 'draining' THEN
        RAISE EXCEPTION 'server % is %: a server is drained before it is removed', number, present
            USING ERRCODE = 'PQ049';
    END IF;
    UPDATE pgqueue.server s SET state = 'gone' WHERE s.number = remove_server.number;
    PERFORM pgqueue._record('remove_server', object => number::text);
    RETURN changed;
END $$;
COMMENT ON FUNCTION pgqueue.remove_server IS
    'Have clients leave a draining server, also one that still has tasks; on the home server. Its number stays taken. '
    'Returns the version of the table. Only the owner of the schema may call it. PQ049: it is not draining.';

CREATE OR REPLACE FUNCTION pgqueue.copy_servers(cluster uuid, version bigint, servers jsonb) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    present pgqueue.cluster;
    ours    CONSTANT int := pgqueue.server_number();
BEGIN
    IF cluster IS NULL OR (version > 0) IS NOT TRUE OR jsonb_typeof(servers) IS DISTINCT FROM 'array' THEN
        RAISE EXCEPTION 'a copy has the id of its cluster, a version, and an array of servers' USING ERRCODE = 'PQ002';
    END IF;
    LOCK TABLE pgqueue.server IN EXCLUSIVE MODE;
    SELECT * INTO present FROM pgqueue.cluster c;
    IF present.id <> cluster THEN
        RAISE EXCEPTION 'server % belongs to another cluster', ours USING ERRCODE = 'PQ049';
    ELSIF present.version >= version THEN
        RETURN false;
    END IF;
    DELETE FROM pgqueue.server;
    BEGIN
        INSERT INTO pgqueue.server (number, dsn, listen_dsn, state, is_home)
        SELECT one.number, one.dsn, one.listen_dsn, one.state, one.is_home
          FROM jsonb_to_recordset(servers) one(number int, dsn text, listen_dsn text, state text, is_home boolean);
    EXCEPTION WHEN data_exception OR integrity_constraint_violation THEN
        RAISE EXCEPTION 'this is no copy of the table of servers: %', sqlerrm USING ERRCODE = 'PQ002';
    END;
    PERFORM pgqueue._check_dsn('dsn', s.dsn), pgqueue._check_dsn('listen_dsn', s.listen_dsn) FROM pgqueue.server s;
    IF NOT EXISTS (SELECT FROM pgqueue.server s WHERE s.number = ours) THEN
        RAISE EXCEPTION 'this is server %, which the copy does not have', ours USING ERRCODE = 'PQ049';
    END IF;
    INSERT INTO pgqueue.cluster AS c (id, version) VALUES (copy_servers.cluster, copy_servers.version)
        ON CONFLICT ON CONSTRAINT cluster_pkey DO UPDATE SET version = excluded.version;
    PERFORM pg_notify('pgqueue:servers', version::text),
            pgqueue._record('copy_servers', detail => 'version ' || version);
    RETURN true;
END $$;
COMMENT ON FUNCTION pgqueue.copy_servers IS
    'Replace this server''s copy of the table of servers, if the given one is newer; true if it was. Each server is an '
    'object with the columns of servers(). Only the owner of the schema may call it. PQ049: this server belongs to '
    'another cluster, or is not in the copy.';
