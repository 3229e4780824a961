-- Nodes: a tree of small values, as in ZooKeeper. Ephemeral nodes live as long as a session.
--
-- Theory of operation
-- -------------------
-- A node is a row. A change locks rows until its transaction ends:
--
--   create       the parent, so that it cannot be deleted; other transactions can still create below it
--   sequential   the parent's counter: sequential nodes below one parent are created one after the other
--   set, delete  the node; a delete waits for transactions that create below it, and then looks for children
--
-- In a transaction at REPEATABLE READ that look is as old as the transaction: there the foreign key refuses the delete.
--
-- An ephemeral node is created as a task is claimed (session.sql): marked as under way, and refused if the session is
-- dead. So the sweep that ends a session finds all of its nodes, and none is committed afterwards. A node that another
-- transaction has locked then is left to _clean_nodes, for the sweep must not wait. _clean_nodes also removes ephemeral
-- nodes that a server crash left: session is UNLOGGED, and a session without a row can never be resumed.
--
-- A node belongs to the role that created it, an ephemeral one to the role of its session. Only that role, its members
-- and the owner of the schema set and delete it (_is_callers in caller.sql). Every role with the verb share reads it
-- and creates nodes below it. The root belongs to the owner, and the node of a group to the role of its first member.
--
-- Watching. Every change sends a NOTIFY at its commit, on the channel of the path, and on the parent's if the list of
-- children changed. The payload is the event and the transaction's id. A watcher believes it, so the channel's name is
-- secret (2_base/secret.sql), and watch_node returns it. Once its LISTEN is committed, the watcher reads the node
-- together with the snapshot of that read. It hears every change that is committed after the read, and the snapshot
-- tells it which notifications are older. So an event counts even if it was undone before the watcher looked again.

CREATE OR REPLACE FUNCTION pgqueue._check_path(path text) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF path IS NULL OR length(path) > 1024 OR octet_length(path) > 2048     -- an index has room for no more
       OR path <> '/' AND (path !~ '^(/[^/]+)+$' OR path ~ '/\.\.?(/|$)') THEN
        RAISE EXCEPTION 'not a path: %', coalesce(quote_literal(left(path, 100)), 'NULL') USING ERRCODE = 'PQ001',
            HINT = 'A path is / or as /a/b, of 1024 characters and 2048 bytes at most; no part of it is empty, . or ..';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._node_channel(path text) RETURNS text
LANGUAGE sql STABLE RETURN pgqueue._secret_channel('node', path);

CREATE OR REPLACE FUNCTION pgqueue.watch_node(path text) RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM pgqueue._check_path(path);
    RETURN pgqueue._node_channel(path);
END $$;
COMMENT ON FUNCTION pgqueue.watch_node IS
    'For clients: the channel for LISTEN on which changes of a node, and of its list of children, are sent; the node '
    'need not exist.';

CREATE OR REPLACE FUNCTION pgqueue._node_event(path text, event text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue._notify(pgqueue._node_channel(path), event || ' ' || pg_current_xact_id());
END $$;

-- A transaction T1 that locks a row which has been updated since its snapshot locks the row's versions one after the
-- other, and T2, which begins at the other end, can meet T1 in the middle: a deadlock, although each locks only one
-- node. So the victim releases its locks and tries again. The strength is the final one: upgrading a lock while T2
-- waits for it would be another deadlock.
CREATE OR REPLACE FUNCTION pgqueue._lock_node(path text, strength text) RETURNS pgqueue.node
LANGUAGE plpgsql AS $$
DECLARE
    node pgqueue.node;
BEGIN
    FOR attempt IN 1..5 LOOP
        BEGIN
            IF strength = 'key share' THEN
                SELECT n.* INTO node FROM pgqueue.node n WHERE n.path = _lock_node.path FOR KEY SHARE;
            ELSIF strength = 'no key update' THEN
                SELECT n.* INTO node FROM pgqueue.node n WHERE n.path = _lock_node.path FOR NO KEY UPDATE;
            ELSE
                SELECT n.* INTO node FROM pgqueue.node n WHERE n.path = _lock_node.path FOR UPDATE;
            END IF;
            EXIT;
        EXCEPTION WHEN deadlock_detected THEN
            IF attempt = 5 THEN      -- a deadlock with other locks of the caller's transaction
                RAISE;
            END IF;
        END;
    END LOOP;
    RETURN node;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._check_node(node pgqueue.node) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT coalesce(pgqueue._is_callers(node.role_id), pgqueue._is_owner()) THEN
        RAISE EXCEPTION 'node "%" belongs to %', node.path,
            coalesce('role "' || node.role || '"', 'the owner of the schema')
            USING ERRCODE = 'insufficient_privilege', HINT = 'Only the role that created a node sets and deletes it.';
    END IF;
END $$;

-- The node, locked, if it is the caller's: also checked before the lock, so that another role cannot make its owner
-- wait.
CREATE OR REPLACE FUNCTION pgqueue._lock_own_node(path text, strength text, id bigint DEFAULT NULL) RETURNS pgqueue.node
LANGUAGE plpgsql AS $$
DECLARE
    node pgqueue.node;
BEGIN
    PERFORM pgqueue._check_node(n) FROM pgqueue.node n
      WHERE n.path = _lock_own_node.path AND (n.id = _lock_own_node.id) IS NOT FALSE;
    node := pgqueue._lock_node(path, strength);
    IF node.path IS NOT NULL AND (node.id = id) IS NOT FALSE THEN
        PERFORM pgqueue._check_node(node);         -- another role may have created the path again since
    END IF;
    RETURN node;
END $$;

CREATE OR REPLACE VIEW pgqueue.nodes AS
SELECT n.path, CASE WHEN (SELECT pgqueue._may_see_all('share')) THEN n.data END AS data, n.version,
       n.session_id IS NOT NULL AS ephemeral,
       coalesce(s.label, 'session ' || n.session_id) AS holder,
       n.created_at, n.updated_at, n.parent, n.id
  FROM pgqueue.node n
  LEFT JOIN pgqueue.session s ON s.id = n.session_id
 WHERE (SELECT pgqueue._may_see_all('share') OR pgqueue._may_see_all('monitor'));
COMMENT ON VIEW pgqueue.nodes IS
    'Every node with its data, and its holder if it is ephemeral, for roles that may share; for monitors without the '
    'data.';

CREATE OR REPLACE FUNCTION pgqueue.create_node(
    INOUT path       text,
    data             jsonb   DEFAULT 'null',
    ephemeral        boolean DEFAULT false,
    sequential       boolean DEFAULT false,
    session          int     DEFAULT NULL,
    OUT   problem    text,
    OUT   version    int,
    OUT   holder     text,
    OUT   created_at timestamptz,
    OUT   id         bigint
)
LANGUAGE plpgsql AS $$
DECLARE
    above  text;
    parent pgqueue.node;
    me     int;
    number int;
    role   name := pgqueue._caller();
BEGIN
    PERFORM pgqueue._check_path(path), pgqueue._check_data('data', data, nulls => true);
    IF path = '/' THEN
        problem := 'exists';
        RETURN;
    END IF;
    IF ephemeral THEN
        me := pgqueue._enter_claim(session);
        SELECT s.label, pg_get_userbyid(s.role) INTO holder, role FROM pgqueue.session s WHERE s.id = me;
    END IF;
    above := coalesce(nullif(regexp_replace(path, '/[^/]+$', ''), ''), '/');
    IF EXISTS (SELECT FROM pgqueue.node n WHERE n.path = above AND n.session_id IS NOT NULL) THEN
        problem := 'ephemeral parent';            -- before the lock, which only the end of the transaction releases
        RETURN;
    END IF;
    parent := pgqueue._lock_node(above, CASE WHEN sequential THEN 'no key update' ELSE 'key share' END);
    IF parent.path IS NULL OR parent.session_id IS NOT NULL THEN
        problem := CASE WHEN parent.path IS NULL THEN 'no parent' ELSE 'ephemeral parent' END;
        RETURN;
    END IF;
    IF sequential THEN
        UPDATE pgqueue.node n SET next_number = n.next_number + 1 WHERE n.path = above
        RETURNING n.next_number - 1 INTO number;
        path := path || to_char(number, 'FM0000000000');
        PERFORM pgqueue._check_path(path);
    END IF;
    PERFORM pgqueue._check_quota('nodes');
    INSERT INTO pgqueue.node AS n (path, parent, data, role, session_id)
    VALUES (create_node.path, above, coalesce(create_node.data, 'null'), role, me)
    ON CONFLICT DO NOTHING
    RETURNING n.version, n.created_at, n.id INTO version, created_at, id;
    IF NOT FOUND THEN
        problem := 'exists';
        RETURN;
    END IF;
    PERFORM pgqueue._node_event(path, 'created'), pgqueue._node_event(above, 'children');
END $$;
COMMENT ON FUNCTION pgqueue.create_node IS
    'Create a node; returns its path; sequential adds ten digits to it. An ephemeral node is removed with its '
    'session, by default this connection''s. problem: exists, no parent, or ephemeral parent.';

CREATE OR REPLACE FUNCTION pgqueue.set_node(
    INOUT path       text,
    data             jsonb,
    INOUT version    int DEFAULT NULL,
    OUT   problem    text,
    OUT   ephemeral  boolean,
    OUT   holder     text,
    OUT   created_at timestamptz,
    OUT   updated_at timestamptz,
    OUT   id         bigint
)
LANGUAGE plpgsql AS $$
DECLARE
    node pgqueue.node;
BEGIN
    PERFORM pgqueue._check_path(path), pgqueue._check_data('data', data, nulls => true);
    node := pgqueue._lock_own_node(path, 'no key update');
    IF node.path IS NULL THEN
        problem := 'not found';
    ELSIF version <> node.version THEN
        problem := 'version';
    ELSE
        UPDATE pgqueue.node n
           SET data = coalesce(set_node.data, 'null'), version = n.version + 1, updated_at = now()
         WHERE n.path = set_node.path
        RETURNING n.* INTO node;
        PERFORM pgqueue._node_event(path, 'changed');
    END IF;
    version := node.version;
    ephemeral := node.session_id IS NOT NULL;
    holder := coalesce((SELECT s.label FROM pgqueue.session s WHERE s.id = node.session_id),
                       'session ' || node.session_id);
    created_at := node.created_at;
    updated_at := node.updated_at;
    id := node.id;
END $$;
COMMENT ON FUNCTION pgqueue.set_node IS
    'Change a node''s data, if the node is still at that version; returns its new version. problem: not '
    'found, or version. 42501: the node belongs to another role.';

CREATE OR REPLACE FUNCTION pgqueue.delete_node(
    path        text,
    INOUT version int  DEFAULT NULL,
    id          bigint DEFAULT NULL,
    OUT problem text
)
LANGUAGE plpgsql AS $$
DECLARE
    node pgqueue.node;
BEGIN
    PERFORM pgqueue._check_path(path);
    IF path = '/' THEN
        RAISE EXCEPTION 'the root cannot be deleted' USING ERRCODE = 'PQ002';
    END IF;
    node := pgqueue._lock_own_node(path, 'update', id);
    IF node.path IS NULL OR id <> node.id THEN
        problem := 'not found';
    ELSIF version <> node.version THEN
        problem := 'version';
    ELSIF EXISTS (SELECT FROM pgqueue.node n WHERE n.parent = delete_node.path) THEN
        problem := 'not empty';
    ELSE
        DELETE FROM pgqueue.node n WHERE n.path = delete_node.path;
        PERFORM pgqueue._node_event(path, 'deleted'), pgqueue._node_event(node.parent, 'children');
    END IF;
    version := node.version;
END $$;
COMMENT ON FUNCTION pgqueue.delete_node IS
    'Remove a node, if it still has that version and that id. problem: not found, version, or not '
    'empty. 42501: the node belongs to another role.';

CREATE OR REPLACE FUNCTION pgqueue.children(path text) RETURNS SETOF text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM pgqueue._check_path(path);
    RETURN QUERY SELECT regexp_replace(n.path, '^.*/', '') FROM pgqueue.node n
                  WHERE n.parent = children.path ORDER BY n.path;
END $$;
COMMENT ON FUNCTION pgqueue.children IS 'The names of a node''s children, sorted.';

-- A group is a node below /groups, and its members are ephemeral nodes below that. Both are created as they are needed;
-- in a loop, for another transaction may delete an empty group at the same time. While the transaction that has created
-- the group, or its newest numbered member, is open, the next one waits; it fails with 55P03 after a second,
-- so that no transaction holds up others for longer.
CREATE OR REPLACE FUNCTION pgqueue.join_group(
    name           text,
    data           jsonb DEFAULT 'null',
    member         text  DEFAULT NULL,
    session        int   DEFAULT NULL,
    OUT path       text,
    OUT problem    text,
    OUT version    int,
    OUT holder     text,
    OUT created_at timestamptz,
    OUT id         bigint
)
LANGUAGE plpgsql AS $$
DECLARE
    patience CONSTANT text := current_setting('lock_timeout');
BEGIN
    IF name IS NULL OR strpos(name, '/') > 0 OR strpos(member, '/') > 0 THEN
        RAISE EXCEPTION 'a name in a path has no slash: %', pgqueue._shown(concat_ws(', ', name, member))
            USING ERRCODE = 'PQ001';
    END IF;
    PERFORM set_config('lock_timeout', '1s', true);
    LOOP
        SELECT * INTO path, problem, version, holder, created_at, id
          FROM pgqueue.create_node('/groups/' || join_group.name || '/' || coalesce(member, 'member-'), data,
                                   ephemeral => true, sequential => member IS NULL, session => session);
        EXIT WHEN problem IS DISTINCT FROM 'no parent';
        PERFORM pgqueue.create_node('/groups');
        PERFORM pgqueue.create_node('/groups/' || join_group.name);
    END LOOP;
    PERFORM pgqueue._restore_patience(patience);
END $$;
COMMENT ON FUNCTION pgqueue.join_group IS
    'Add a member to a group, under a given name, or member- and a number, until its session ends. problem: '
    'exists. 55P03: another transaction has been joining the group for a second and is still open; try again.';

CREATE OR REPLACE FUNCTION pgqueue._free_nodes(session int) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    gone record;
BEGIN
    FOR gone IN DELETE FROM pgqueue.node n
                 WHERE n.path = ANY (ARRAY (SELECT e.path FROM pgqueue.node e WHERE e.session_id = _free_nodes.session
                                             ORDER BY e.path FOR UPDATE SKIP LOCKED))
             RETURNING n.path, n.parent LOOP
        PERFORM pgqueue._node_event(gone.path, 'deleted'), pgqueue._node_event(gone.parent, 'children');
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._clean_nodes() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    lost int;
BEGIN
    FOR lost IN SELECT DISTINCT n.session_id FROM pgqueue.node n
                 WHERE n.session_id IS DISTINCT FROM pgqueue.own_session()
                   AND NOT EXISTS (SELECT FROM pgqueue.session s WHERE s.id = n.session_id)
                   AND n.session_id IS NOT NULL LOOP
        IF pg_try_advisory_xact_lock_shared(pgqueue._session_lock(), lost)
           AND pg_try_advisory_xact_lock(pgqueue._claiming_lock(), lost) THEN
            PERFORM pgqueue._free_nodes(lost);
        END IF;
    END LOOP;
END $$;
