-- Sessions: one advisory lock ties all takes of a process to its life.
--
-- Theory of operation
-- -------------------
-- A process that takes has one session: a row here, and a session-level advisory lock SESSION(id) on one dedicated
-- connection. Takes carry the session's id and may be made on any connection, through a transaction pooler too. The
-- server frees the lock milliseconds after the process dies; a sweep (sweep.sql) that can share it knows.
-- One lock a process, not one a task: locks per task fill the lock table and tie a task to a connection.
--
--   SESSION(id)   exclusive, by the living process; tried in share mode by the sweep and by every claim.
--   CLAIMING(id)  shared by a claim until it commits; taken exclusively by the sweep before it looks for takes.
--
-- Without CLAIMING a take could be committed just after the sweep collected the takes of a dead session, and nobody
-- would ever give it back. With it: a claim that got its share before the sweep is waited for (the sweep tries again
-- at its next tick), and one that comes after finds SESSION free and is refused.
--
-- A connection that breaks is not a death. The process connects anew and opens the session again by its id: it takes
-- the lock first and then looks for the row. Row there: nobody swept it, and all takes live on. Row gone: the
-- takes are lost, and a new session begins. A sweep holds SESSION(id) until it commits, so there is no third case.
--
-- Identities: sessions that act as one, as Tarantool's queue.identify has it.
--
-- Theory of operation
-- -------------------
-- A session may have an identity, a uuid. Others join it by that uuid: more connections of one application, or a
-- process that was started again. Members of an identity settle each other's tasks by id (with a token anybody may
-- settle), and inherit each other's takes:
--
--     a member dies, or is closed  --its grace is over-->  another member is left?  its takes become that one's
--                                                          it was the last?         they are given back
--
-- So the takes are kept until the last member has been gone for its grace. A member that is dead, and in its grace, is
-- as good an heir as any: a process that joins in time finds it, and inherits from it in turn. Closing leaves the
-- session's row and takes behind for that; without a grace to wait for it gives them on, or back, at once.
--
-- Races:
--   joining and the last member's end   who joins holds the rows of the members by key shares until its commit, so
--                                       that none is deleted; who ends a session locks its row first, and looks for
--                                       heirs after that, in a new snapshot.
--   inheriting and the heir's own end   a take that came to a session after the last look at its takes would belong to
--                                       nobody, as with a claim (session.sql), and the cure is the same: its CLAIMING
--                                       is shared until the commit. It is tried: two may be about to end at once.

CREATE OR REPLACE FUNCTION pgqueue.open_session(
    resume int      DEFAULT NULL,
    grace  interval DEFAULT '0.5 s',
    label  text     DEFAULT NULL,
    identity uuid   DEFAULT NULL             -- of the session to resume, for a new one if that was given up
) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    id    int := resume;
    tries int := 0;
BEGIN
    IF id IS NOT NULL THEN
        -- A sweep may be deciding about us: wait for its verdict. Until ours, no claim may see the lock and believe in
        -- a session that was swept.
        PERFORM pg_advisory_xact_lock(pgqueue._claiming_lock(), id);
        PERFORM pg_advisory_lock(pgqueue._session_lock(), id);
        UPDATE pgqueue.session s
           SET missing_since = NULL, epoch = pg_postmaster_start_time(), backend_pid = pg_backend_pid()
         WHERE s.id = open_session.resume;
        IF FOUND THEN
            DELETE FROM pgqueue.lock_holder h WHERE h.session_id = resume;  -- the server freed them with the connection
        ELSE
            PERFORM pg_advisory_unlock(pgqueue._session_lock(), id);
            id := NULL;
        END IF;
    END IF;
    WHILE id IS NULL LOOP                          -- random, not a sequence: one can step back after a fail-over
        -- Without a label it is a connection's own, and below 0: a transaction that rolls back takes the row away and
        -- leaves the lock, which the next one then finds again instead of leaving one more.
        id := CASE WHEN label IS NULL AND tries = 0 THEN -pg_backend_pid() ELSE 1 + floor(random() * 2147483646)::int END;
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
    'Tie a session to this connection, or tie one to it again; returns its id, which is another one if the old '
    'session was given up meanwhile.';

CREATE OR REPLACE FUNCTION pgqueue.own_session() RETURNS int
LANGUAGE sql STABLE PARALLEL RESTRICTED RETURN nullif(current_setting('pgqueue.session', true), '')::int;
COMMENT ON FUNCTION pgqueue.own_session IS 'The session that was opened on this connection, if any.';

-- First in every claim: marks it as under way, and refuses it if the session is dead. See the head of this file.
CREATE OR REPLACE FUNCTION pgqueue._enter_claim(session int) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    own      int := pgqueue.own_session();
    me       int := coalesce(session, own);
BEGIN
    IF me IS NULL THEN
        me := pgqueue.open_session();
        own := me;
    END IF;
    IF pg_advisory_xact_lock_shared(pgqueue._claiming_lock(), me) IS NULL THEN END IF;
    -- A connection's own lock does not refuse it, so the probe is for other connections' sessions only.
    IF me IS DISTINCT FROM own AND pg_try_advisory_xact_lock_shared(pgqueue._session_lock(), me) THEN
        RAISE EXCEPTION 'session % is not alive: nothing can be taken for it', me
            USING ERRCODE = 'PQ004', HINT = 'Open a session with pgqueue.open_session() on a connection that stays open.';
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
            RAISE EXCEPTION 'there is no identity %: nobody has it, or who had it was gone for too long', identity
                USING ERRCODE = 'PQ070', HINT = 'Make a new one with pgqueue.identify().';
        END IF;
    END IF;
    UPDATE pgqueue.session s SET identity = coalesce(identify.identity, s.identity, gen_random_uuid())
     WHERE s.id = me RETURNING s.identity INTO mine;
    RETURN mine;
END $$;
COMMENT ON FUNCTION pgqueue.identify IS
    'The identity of a session, made if it has none; or, with one, join it: its members settle each other''s tasks '
    'and inherit each other''s takes. PQ070: nobody has it any more.';

-- Whether a take of `holder` may be settled by the session without its token.
CREATE OR REPLACE FUNCTION pgqueue._is_ours(holder int, session int) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
DECLARE
    me CONSTANT int := coalesce(session, pgqueue.own_session());
BEGIN
    IF holder = me THEN                            -- apart from the query below, which hardly anybody needs
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
        OR CASE WHEN pg_try_advisory_lock_shared(pgqueue._session_lock(), session) THEN NOT pg_advisory_unlock_shared(pgqueue._session_lock(), session)
                ELSE true END;
END $$;

-- Who inherits the takes of a session that ends, and can be given some until this transaction commits; 0: nobody does;
-- NULL: there is somebody, but not now. The session's row is locked by the caller, in an earlier statement.
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

-- Takes are not indexed by their session, and this walks over those of all that have a deadline: whoever asks, pays.
CREATE OR REPLACE FUNCTION pgqueue.session_deadline(session int) RETURNS double precision
LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT extract(epoch FROM min(k.deadline) - clock_timestamp())::double precision
              FROM pgqueue.take k
             WHERE k.session_id = session_deadline.session AND k.deadline < 'infinity' AND k.deadline > clock_timestamp());
END $$;
COMMENT ON FUNCTION pgqueue.session_deadline IS
    'In how many seconds the first take of a session ends; NULL: none does.';
