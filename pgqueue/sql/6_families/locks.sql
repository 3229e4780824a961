-- Locks by name: advisory locks of a session's own connection, granted in the order of arrival.
--
-- Theory of operation
-- -------------------
-- A lock is held as the session-level advisory lock hashtextextended(name, 0), shared or exclusive, on the connection
-- that holds the session. So the server itself excludes others, and frees the lock milliseconds after the holder dies.
-- The tables add facts that the lock manager does not know:
--
--   lock_holder   the requests that were granted. A lock does not exclude its own connection, which all threads of a
--                 client share: a row of the same session does. A row is stale if its backend is not this session's
--                 any more.
--   lock_ticket   the requests that wait, in the order of ids. Those of a session with a free session lock do not
--                 count: it is dead.
--
--   ask_lock(token)      granted, unless a conflicting ticket is ahead of it, or the lock is taken
--        |    '------->  else a ticket; LISTEN; look again by the same call, when called and from time to time
--   drop_lock(token)     the lock is free, or the ticket is gone: call the next in line
--
-- No waiter is left asleep. A waiter W looks after its ticket is committed, and the drop_lock of the holder H frees the
-- lock before it looks for tickets in a newer snapshot: either H sees W's ticket and calls W, or W looks after the
-- unlock. A holder that has died calls no waiter: the first in line looks every 50 ms, and those behind it less often.
-- No call blocks: a lock call that waits would pin vacuum's horizon, and stall the listener that owns the connection.
--
-- The call is a NOTIFY on the channel of the waiter's session, with the token as its payload: a free lock wakes one
-- waiter, and not all of them.
--
-- ask_lock may be repeated: a token that has the lock or a ticket keeps it. So a request is safe to send again after
-- its answer was lost, and drop_lock undoes it in any state.
--
-- A lock belongs to this connection's own session: a connection whose setting pgqueue.session names another session
-- locks as one without a session (session.sql).
--
-- The fence is a number of a logged sequence. nextval does not write to the WAL at each call, and a listener commits
-- without waiting for the WAL; after a crash the sequence could step back to numbers that were given out. So a grant
-- writes a message of its own to the WAL, and its commit waits for that.

CREATE OR REPLACE FUNCTION pgqueue._unlock_key(name text, shared boolean) RETURNS boolean
LANGUAGE sql VOLATILE RETURN
    CASE WHEN shared THEN pg_advisory_unlock_shared(hashtextextended(name, 0))
         ELSE pg_advisory_unlock(hashtextextended(name, 0)) END IS TRUE;

CREATE OR REPLACE FUNCTION pgqueue._lock_channel(session int) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 'pgqueue:lock:' || session;

-- Call the first in line, and if it asks for a shared lock, also those right behind it that do.
CREATE OR REPLACE FUNCTION pgqueue._call_next(name text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    t     pgqueue.lock_ticket;
    first boolean := true;
BEGIN
    FOR t IN SELECT * FROM pgqueue.lock_ticket k WHERE k.name = _call_next.name ORDER BY k.id LOOP
        CONTINUE WHEN NOT pgqueue._session_alive(t.session_id);
        EXIT WHEN NOT (first OR t.shared);
        PERFORM pgqueue._notify(pgqueue._lock_channel(t.session_id), t.token::text);
        EXIT WHEN NOT t.shared;
        first := false;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.ask_lock(
    name   text,
    shared boolean,
    token  bigint,
    wait   boolean,
    OUT fence   bigint,
    OUT ahead   int,
    OUT channel text
)
LANGUAGE plpgsql AS $$
DECLARE
    me      int := coalesce(pgqueue._own_session(), pgqueue.open_session());
    ticket  bigint;
    granted boolean;
BEGIN
    IF name IS NULL OR length(name) NOT BETWEEN 1 AND 200 THEN
        RAISE EXCEPTION 'a lock''s name has 1 to 200 characters, this one has %', coalesce(length(name), 0)
            USING ERRCODE = 'PQ001';
    ELSIF shared IS NULL OR token IS NULL OR wait IS NULL THEN
        RAISE EXCEPTION 'shared, token and wait cannot be NULL' USING ERRCODE = 'PQ002';
    ELSIF EXISTS (SELECT FROM pgqueue.lock_holder h WHERE h.token = ask_lock.token AND h.session_id <> me)
       OR EXISTS (SELECT FROM pgqueue.lock_ticket t WHERE t.token = ask_lock.token AND t.session_id <> me) THEN
        -- The call of a waiter is a NOTIFY, and so every role can hear its token.
        RAISE EXCEPTION 'the token % is of a request of another session', token USING ERRCODE = 'PQ002';
    END IF;
    channel := pgqueue._lock_channel(me);
    ahead := 0;
    DELETE FROM pgqueue.lock_holder h WHERE h.session_id = me AND h.backend_pid <> pg_backend_pid();
    SELECT h.fence INTO fence FROM pgqueue.lock_holder h WHERE h.token = ask_lock.token;
    IF FOUND THEN
        RETURN;
    END IF;
    SELECT t.id INTO ticket FROM pgqueue.lock_ticket t WHERE t.token = ask_lock.token;
    SELECT count(*) INTO ahead
      FROM pgqueue.lock_ticket t
     WHERE t.name = ask_lock.name AND (ticket IS NULL OR t.id < ticket) AND NOT (t.shared AND ask_lock.shared)
       AND pgqueue._session_alive(t.session_id);
    granted := CASE WHEN ahead > 0 OR EXISTS (SELECT FROM pgqueue.lock_holder h
                                               WHERE h.session_id = me AND h.name = ask_lock.name
                                                 AND NOT (h.shared AND ask_lock.shared)) THEN false
                    WHEN shared THEN pg_try_advisory_lock_shared(hashtextextended(name, 0))
                    ELSE pg_try_advisory_lock(hashtextextended(name, 0)) END;
    IF granted THEN
        BEGIN
            fence := nextval('pgqueue.fence');
            PERFORM pg_logical_emit_message(true, 'pgqueue', '');
            IF current_setting('synchronous_commit') = 'off' THEN
                PERFORM set_config('synchronous_commit', 'on', true);
            END IF;
            INSERT INTO pgqueue.lock_holder (fence, token, name, session_id, shared, locked_at, backend_pid)
            VALUES (fence, token, name, me, shared, clock_timestamp(), pg_backend_pid());
            DELETE FROM pgqueue.lock_ticket t WHERE t.id = ticket;
        EXCEPTION WHEN query_canceled OR OTHERS THEN       -- a rollback does not free the lock
            PERFORM pgqueue._unlock_key(name, shared);
            RAISE;
        END;
    ELSIF wait AND ticket IS NULL THEN
        INSERT INTO pgqueue.lock_ticket (token, name, shared, session_id, since)
        VALUES (token, name, shared, me, clock_timestamp());
    ELSIF NOT wait AND ticket IS NOT NULL THEN
        DELETE FROM pgqueue.lock_ticket t WHERE t.id = ticket;
        PERFORM pgqueue._call_next(name);
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.ask_lock IS
    'For clients (see try_lock): take the lock if it is this request''s turn; else take a ticket (wait), or give the '
    'ticket back. ahead: how many requests are ahead. channel: where the token is called.';

CREATE OR REPLACE FUNCTION pgqueue.drop_lock(token bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    me   CONSTANT int := pgqueue._own_session();
    h    pgqueue.lock_holder;
    held boolean := false;
    line text;
BEGIN
    DELETE FROM pgqueue.lock_holder k WHERE k.token = drop_lock.token AND k.session_id = me
    RETURNING k.* INTO h;
    DELETE FROM pgqueue.lock_ticket t WHERE t.token = drop_lock.token AND t.session_id = me
    RETURNING t.name INTO line;
    -- Last, after everything that may fail: an error rolls back the rows and not the unlock, and the next attempt would
    -- find a lock that is no longer held.
    IF h.backend_pid = pg_backend_pid() THEN
        held := pgqueue._unlock_key(h.name, h.shared);
    END IF;
    IF held OR line IS NOT NULL THEN
        PERFORM pgqueue._call_next(coalesce(line, h.name));
    END IF;
    RETURN held;
END $$;
COMMENT ON FUNCTION pgqueue.drop_lock IS
    'For clients: undo a request by its token. Release its lock, or leave the line. True if it held the lock.';

CREATE OR REPLACE FUNCTION pgqueue.try_lock(name text, shared boolean DEFAULT false) RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT a.fence FROM pgqueue.ask_lock(name, shared, floor(random() * 2 ^ 53)::bigint, false) a);
END $$;
COMMENT ON FUNCTION pgqueue.try_lock IS
    'Take a lock for this connection, until unlock() or its end; returns the fence, or NULL if the lock is taken, '
    'also by this connection, or another session waits for it. A rollback does not release it.';

-- The advisory locks by name that are held. It locks the lock manager's partitions while it reads: for people, not for
-- loops.
CREATE OR REPLACE FUNCTION pgqueue._advisory_locks() RETURNS TABLE (pid int, key bigint, shared boolean)
LANGUAGE sql VOLATILE AS $$
    SELECT l.pid, l.classid::bigint << 32 | l.objid::bigint, l.mode = 'ShareLock'
      FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_database d ON d.oid = l.database
     WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND d.datname = pg_catalog.current_database()
$$;

-- A lock outlives a rollback, but its row does not: locks without a row are released with the last lock of the name.
CREATE OR REPLACE FUNCTION pgqueue.unlock(name text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    me   CONSTANT int := pgqueue._own_session();
    mine bigint;
    freed boolean := false;
    left_over boolean;
BEGIN
    SELECT h.token INTO mine FROM pgqueue.lock_holder h WHERE h.name = unlock.name AND h.session_id = me
     ORDER BY h.fence DESC LIMIT 1;
    IF FOUND THEN
        freed := pgqueue.drop_lock(mine);
    END IF;
    IF NOT EXISTS (SELECT FROM pgqueue.lock_holder h WHERE h.name = unlock.name AND h.session_id = me) THEN
        LOOP
            SELECT l.shared INTO left_over FROM pgqueue._advisory_locks() l
             WHERE l.pid = pg_backend_pid() AND l.key = hashtextextended(unlock.name, 0);
            EXIT WHEN NOT FOUND OR NOT pgqueue._unlock_key(name, left_over);
            freed := true;
        END LOOP;
        IF freed THEN
            PERFORM pgqueue._call_next(name);
        END IF;
    END IF;
    RETURN freed;
END $$;
COMMENT ON FUNCTION pgqueue.unlock IS
    'Release a lock that try_lock gave this connection; false if it has none of this name.';

CREATE OR REPLACE VIEW pgqueue.locks WITH (security_barrier) AS
SELECT h.name,
       CASE WHEN h.shared THEN 'shared' ELSE 'exclusive' END AS mode,
       coalesce(s.label, 'backend ' || h.backend_pid) AS holder,
       h.backend_pid,
       h.session_id AS session,
       h.locked_at,
       clock_timestamp() - h.locked_at AS age,
       h.fence,
       (SELECT count(*) FROM pgqueue.lock_ticket t
         WHERE t.name = h.name AND pgqueue._session_alive(t.session_id)) AS waiters
  FROM pgqueue.lock_holder h
  LEFT JOIN pgqueue.session s ON s.id = h.session_id
 WHERE EXISTS (SELECT FROM pgqueue._advisory_locks() l
                WHERE l.pid = h.backend_pid AND l.key = hashtextextended(h.name, 0) AND l.shared = h.shared)
   AND (pgqueue._is_callers(s.role) OR (SELECT pgqueue._may_see_all('monitor')));
COMMENT ON VIEW pgqueue.locks IS
    'Every lock that is held, its holder, and how many requests wait for it. Monitors see all; other roles see those '
    'of their own sessions.';

-- Free the locks of a session that ends. The server has already freed those of a dead session; those of a closed
-- session are freed here. Rows that another transaction is changing stay: without their session they do not count.
CREATE OR REPLACE FUNCTION pgqueue._free_locks(session int) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    h     pgqueue.lock_holder;
    names text[];
BEGIN
    FOR h IN DELETE FROM pgqueue.lock_holder k
              WHERE k.fence = ANY (ARRAY (SELECT o.fence FROM pgqueue.lock_holder o
                                           WHERE o.session_id = _free_locks.session FOR UPDATE SKIP LOCKED))
             RETURNING k.* LOOP
        IF h.backend_pid = pg_backend_pid() THEN
            PERFORM pgqueue._unlock_key(h.name, h.shared);
        END IF;
        names := names || h.name;
    END LOOP;
    WITH gone AS (
        DELETE FROM pgqueue.lock_ticket t
         WHERE t.id = ANY (ARRAY (SELECT o.id FROM pgqueue.lock_ticket o
                                   WHERE o.session_id = _free_locks.session FOR UPDATE SKIP LOCKED))
        RETURNING t.name)
    SELECT names || array_agg(gone.name) INTO names FROM gone;
    PERFORM pgqueue._call_next(n) FROM (SELECT DISTINCT unnest(names)) u(n);
END $$;
