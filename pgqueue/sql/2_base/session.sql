-- Sessions: one advisory lock ties all takes of a client to its life. And identities: sessions that act as one.
--
-- Theory of operation
-- -------------------
-- A session is a client's registration in the database: a row here, and a session-level advisory lock SESSION(id) on
-- one dedicated connection. Each Client has a session, so a process may have several. A psql connection that takes is a
-- client as well. Takes carry the session's id and may be made on any connection, through a transaction pooler too. The
-- server frees the lock milliseconds after the process dies, and the sweep (sweep.sql) learns it by sharing the lock.
-- One lock for each client, not one for each task: locks per task fill the lock table and tie a task to a connection.
--
--   SESSION(id)   exclusive, by the living client; tried in share mode by the sweep and by every claim.
--   CLAIMING(id)  shared by a claim until it commits; taken exclusively by the sweep before it looks for takes.
--
-- Without CLAIMING a claim C could commit a take just after the sweep S collected the takes of C's dead session, and no
-- later sweep would give it back. With CLAIMING: if C got its share before S, S finds the lock taken and tries again at
-- its next tick; if C comes after S, it finds SESSION free and is refused.
--
-- A connection that breaks is not a death. The client connects anew and opens the session again by its id: it takes
-- the lock first and then looks for the row. If the row is there, no sweep gave the session up, and all takes live on.
-- If the row is gone, the takes are lost, and a new session begins. A sweep holds SESSION(id) until it commits, so
-- there is no third case.
--
-- Identities
-- ----------
-- A session may have an identity, a uuid, as with Tarantool's queue.identify. Other sessions join it by that uuid: more
-- connections of one application, or a process that was started again. The members of an identity settle each other's
-- tasks by id (a token needs no identity), and inherit each other's takes:
--
--     a member dies, or is closed  --its grace is over-->  another member is left:  that one gets its takes
--                                                          it was the last one:     its takes are given back
--
-- So the takes are kept until the last member has been gone for its grace. A member that is dead, but in its grace, is
-- an heir as well: a process that joins in time finds it, and inherits from it in turn. Closing a session leaves its
-- row and its takes behind for that; without a grace, closing passes the takes on, or gives them back, at once.
--
-- Races:
--   T1 joins an identity, T2 ends its last member   T1 holds the rows of the members by key shares until its commit,
--                                                   so that none is deleted. T2 locks the row of its session first,
--                                                   and looks for heirs after that, in a new snapshot.
--   T1 gives takes to an heir that T2 ends          A take that came to the heir after T2 last looked at its takes
--                                                   would stay for ever, as with a claim, and the cure is the same:
--                                                   T1 shares the heir's CLAIMING until its commit. T1 only tries:
--                                                   two members may be about to end at once.

CREATE OR REPLACE FUNCTION pgqueue.open_session(
    resume int      DEFAULT NULL,
    grace  interval DEFAULT '0.5 s',
    label  text     DEFAULT NULL,
    identity uuid   DEFAULT NULL             -- of the session to resume; a new session gets it if that was given up
) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    id    int := resume;
    tries int := 0;
BEGIN
    IF id IS NOT NULL THEN
        -- A sweep may be deciding about this session: wait until it has committed. And until this transaction ends, no
        -- claim may see the lock and take for a session that was swept.
        PERFORM pg_advisory_xact_lock(pgqueue._claiming_lock(), id);
        PERFORM pg_advisory_lock(pgqueue._session_lock(), id);
        UPDATE pgqueue.session s
           SET missing_since = NULL, epoch = pg_postmaster_start_time(), backend_pid = pg_backend_pid()
         WHERE s.id = open_session.resume;
        IF FOUND THEN
            DELETE FROM pgqueue.lock_holder h WHERE h.session_id = resume;  -- they were freed with the old connection
        ELSE
            PERFORM pg_advisory_unlock(pgqueue._session_lock(), id);
            id := NULL;
        END IF;
    END IF;
    WHILE id IS NULL LOOP                          -- random: a sequence can step back after a fail-over
        -- Without a label it is the connection's own session, with an id below 0: a transaction that rolls back removes
        -- the row and leaves the lock, and the next call finds that lock again instead of leaving one more.
        id := CASE WHEN label IS NULL AND tries = 0 THEN -pg_backend_pid()
                   ELSE 1 + floor(random() * 2147483646)::int END;
        tries := tries + 1;
        IF pg_try_advisory_lock(pgqueue._session_lock(), id) THEN
            INSERT INTO pgqueue.session (id, grace, epoch, identity, backend_pid, label)
            VALUES (id, open_session.grace, pg_postmaster_start_time(), open_session.identity, pg_backend_pid(),
                    coalesce(open_session.label,
                             format('%s, backend %s', current_setting('application_name'), pg_backend_pid())))
            ON CONFLICT DO NOTHING;
            CONTINUE WHEN FOUND;
            PERFORM pg_advisory_unlock(pgqueue._session_lock(), id);
        END IF;
        id := NULL;
    END LOOP;
    PERFORM set_config('pgqueue.session', id::text, false);
    RETURN id;
END $$;
COMMENT ON FUNCTION pgqueue.open_session IS
    'Tie a session to this connection, or resume one on it; returns its id, which is a new one if the old session was '
    'given up meanwhile.';

CREATE OR REPLACE FUNCTION pgqueue.own_session() RETURNS int
LANGUAGE sql STABLE PARALLEL RESTRICTED RETURN nullif(current_setting('pgqueue.session', true), '')::int;
COMMENT ON FUNCTION pgqueue.own_session IS 'The session that was opened on this connection, if any.';

-- First in every claim: marks the claim as under way, and refuses it if the session is dead. See the head of this file.
CREATE OR REPLACE FUNCTION pgqueue._enter_claim(session int) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    own int := pgqueue.own_session();
    me  int := coalesce(session, own);
BEGIN
    IF me IS NULL THEN
        me := pgqueue.open_session();
        own := me;
    END IF;
    IF pg_advisory_xact_lock_shared(pgqueue._claiming_lock(), me) IS NULL THEN END IF;
    -- A connection's own lock does not refuse it, so the probe is for other connections' sessions only.
    IF me IS DISTINCT FROM own AND pg_try_advisory_xact_lock_shared(pgqueue._session_lock(), me) THEN
        RAISE EXCEPTION 'session % is not alive: nothing can be taken for it', me
            USING ERRCODE = 'PQ004',
                  HINT = 'Open a session with pgqueue.open_session() on a connection that stays open.';
    END IF;
    RETURN me;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._live_session(session int) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    me CONSTANT int := coalesce(session, pgqueue.own_session(), pgqueue.open_session());
BEGIN
    IF NOT EXISTS (SELECT FROM pgqueue.session s WHERE s.id = me) THEN
        RAISE EXCEPTION 'session % is not alive: nothing can belong to it', me USING ERRCODE = 'PQ004';
    END IF;
    RETURN me;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.identify(identity uuid DEFAULT NULL, session int DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql AS $$
DECLARE
    me    CONSTANT int := pgqueue._live_session(session);
    mine  uuid;
BEGIN
    IF identity IS NOT NULL THEN
        PERFORM FROM pgqueue.session s WHERE s.identity = identify.identity FOR KEY SHARE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'there is no identity %: no session has it, or its last one was gone for too long', identity
                USING ERRCODE = 'PQ070', HINT = 'Make a new one with pgqueue.identify().';
        END IF;
    END IF;
    UPDATE pgqueue.session s SET identity = coalesce(identify.identity, s.identity, gen_random_uuid())
     WHERE s.id = me RETURNING s.identity INTO mine;
    RETURN mine;
END $$;
COMMENT ON FUNCTION pgqueue.identify IS
    'The identity of a session, which gets a new one if it has none; with a uuid, join that identity: its sessions '
    'settle each other''s tasks and inherit each other''s takes. PQ070: no session has it any more.';

-- Whether a take of `holder` may be settled by the session without its token.
CREATE OR REPLACE FUNCTION pgqueue._is_ours(holder int, session int) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
DECLARE
    me CONSTANT int := coalesce(session, pgqueue.own_session());
BEGIN
    IF holder = me THEN                            -- nearly always: without the query below
        RETURN true;
    END IF;
    RETURN EXISTS (SELECT FROM pgqueue.session s JOIN pgqueue.session o ON o.identity = s.identity
                    WHERE s.id = me AND o.id = holder);
END $$;

CREATE OR REPLACE FUNCTION pgqueue._session_alive(session int) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    -- Its own lock is invisible to a session. The probe takes and frees it in one expression.
    RETURN session IS NOT DISTINCT FROM pgqueue.own_session()
        OR CASE WHEN pg_try_advisory_lock_shared(pgqueue._session_lock(), session)
                THEN NOT pg_advisory_unlock_shared(pgqueue._session_lock(), session) ELSE true END;
END $$;

-- The session that inherits the takes of a session that ends; it can be given takes until this transaction commits. 0:
-- there is no heir. NULL: there is one, but it cannot be given any now. The caller has locked the row of the session
-- that ends, in an earlier statement.
CREATE OR REPLACE FUNCTION pgqueue._heir(session int) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    other int;
BEGIN
    FOR other IN
        SELECT o.id FROM pgqueue.session s JOIN pgqueue.session o ON o.identity = s.identity AND o.id <> s.id
         WHERE s.id = _heir.session
         ORDER BY pgqueue._session_alive(o.id) DESC
    LOOP
        IF pg_try_advisory_xact_lock_shared(pgqueue._claiming_lock(), other)
           AND EXISTS (SELECT FROM pgqueue.session o WHERE o.id = other) THEN
            RETURN other;
        END IF;
    END LOOP;
    RETURN CASE WHEN other IS NULL THEN 0 END;
END $$;

-- Takes are not indexed by their session, and this walks over all takes with a deadline: the caller pays, not each
-- take.
CREATE OR REPLACE FUNCTION pgqueue.session_deadline(session int) RETURNS double precision
LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT extract(epoch FROM min(k.deadline) - clock_timestamp())::double precision
              FROM pgqueue.take k
             WHERE k.session_id = session_deadline.session
               AND k.deadline < 'infinity' AND k.deadline > clock_timestamp());
END $$;
COMMENT ON FUNCTION pgqueue.session_deadline IS
    'In how many seconds the first take of a session passes its deadline; NULL: none does.';
