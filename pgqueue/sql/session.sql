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

CREATE OR REPLACE FUNCTION pgqueue.open_session(
    resume int      DEFAULT NULL,
    grace  interval DEFAULT '0.5 s',
    label  text     DEFAULT NULL,
    identity uuid   DEFAULT NULL             -- of the session to resume, for a new one if that was given up
) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    class    CONSTANT int := 1885827331;
    claiming CONSTANT int := 1885827332;
    id    int := resume;
    tries int := 0;
BEGIN
    IF id IS NOT NULL THEN
        -- A sweep may be deciding about us: wait for its verdict. Until ours, no claim may see the lock and believe in
        -- a session that was swept.
        PERFORM pg_advisory_xact_lock(claiming, id);
        PERFORM pg_advisory_lock(class, id);
        UPDATE pgqueue.session s
           SET missing_since = NULL, epoch = pg_postmaster_start_time(), backend_pid = pg_backend_pid()
         WHERE s.id = open_session.resume;
        IF FOUND THEN
            DELETE FROM pgqueue.lock_holder h WHERE h.session_id = resume;  -- the server freed them with the connection
        ELSE
            PERFORM pg_advisory_unlock(class, id);
            id := NULL;
        END IF;
    END IF;
    WHILE id IS NULL LOOP                          -- random, not a sequence: one can step back after a fail-over
        -- Without a label it is a connection's own, and below 0: a transaction that rolls back takes the row away and
        -- leaves the lock, which the next one then finds again instead of leaving one more.
        id := CASE WHEN label IS NULL AND tries = 0 THEN -pg_backend_pid() ELSE 1 + floor(random() * 2147483646)::int END;
        tries := tries + 1;
        IF pg_try_advisory_lock(class, id) THEN
            INSERT INTO pgqueue.session (id, grace, epoch, identity, backend_pid, label)
            VALUES (id, open_session.grace, pg_postmaster_start_time(), open_session.identity, pg_backend_pid(),
                    coalesce(open_session.label,
                             format('%s, backend %s', current_setting('application_name'), pg_backend_pid())))
            ON CONFLICT DO NOTHING;
            CONTINUE WHEN FOUND;
            PERFORM pg_advisory_unlock(class, id);
        END IF;
        id := NULL;
    END LOOP;
    PERFORM set_config('pgqueue.session', id::text, false);
    RETURN id;
END $$;
COMMENT ON FUNCTION pgqueue.open_session IS
    'Tie a session to this connection, or tie one to it again; returns its id, which is another one if the old session was given up meanwhile.';

CREATE OR REPLACE FUNCTION pgqueue.close_session(session int DEFAULT NULL) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    me       CONSTANT int := coalesce(session, pgqueue.own_session());
    class    CONSTANT int := 1885827331;
    claiming CONSTANT int := 1885827332;
    own      pgqueue.session;
    freed    int := 0;
BEGIN
    IF pg_advisory_xact_lock(claiming, me) IS NULL THEN END IF;    -- claims under way end first
    SELECT * INTO own FROM pgqueue.session s WHERE s.id = me FOR UPDATE;
    -- An older snapshot does not tell who is there to inherit: a sweep has to see to that.
    IF own.identity IS NOT NULL AND (own.grace > '0' OR current_setting('transaction_isolation') <> 'read committed') THEN
        PERFORM pgqueue.session_ended(me, false);
        UPDATE pgqueue.session s SET missing_since = clock_timestamp(), backend_pid = 0 WHERE s.id = me;
    ELSE
        freed := coalesce(pgqueue.free_session(me, NULL), 0);
    END IF;
    IF me = pgqueue.own_session() THEN
        PERFORM pg_advisory_unlock(class, me), set_config('pgqueue.session', '', false);
    END IF;
    RETURN freed;
END $$;
COMMENT ON FUNCTION pgqueue.close_session IS 'Give back all that the session took, and end it; returns how many tasks. One with an identity leaves its takes to the others, or for its grace to who joins.';

CREATE OR REPLACE FUNCTION pgqueue.own_session() RETURNS int
LANGUAGE sql STABLE PARALLEL RESTRICTED RETURN nullif(current_setting('pgqueue.session', true), '')::int;
COMMENT ON FUNCTION pgqueue.own_session IS 'The session that was opened on this connection, if any.';

-- Takes of a session go, to an heir if there is one (identity.sql), else their tasks are ready. With a reason it was a
-- death and counts as an attempt. A take that some transaction is settling at this moment is left to it, and the
-- session's row stays for the next sweep to look again: waiting here would be for as long as that transaction likes,
-- and in another order than its own. Returns how many were given back; NULL: its heir cannot be given any now.
CREATE OR REPLACE FUNCTION pgqueue.free_session(session int, reason text) RETURNS int
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    heir  CONSTANT int := pgqueue.heir(session);
    ids   bigint[] := '{}';
    q     record;
BEGIN
    IF heir > 0 THEN
        UPDATE pgqueue.take SET session_id = heir
         WHERE ctid = ANY (ARRAY (SELECT k.ctid FROM pgqueue.take k
                                   WHERE k.session_id = free_session.session FOR UPDATE SKIP LOCKED));
    ELSIF heir = 0 THEN
        FOR q IN
            WITH gone AS (
                DELETE FROM pgqueue.take
                 WHERE ctid = ANY (ARRAY (SELECT k.ctid FROM pgqueue.take k
                                           WHERE k.session_id = free_session.session FOR UPDATE SKIP LOCKED))
                RETURNING take.task_id, take.queue_id)
            SELECT gone.queue_id AS id, array_agg(gone.task_id) AS ids FROM gone GROUP BY gone.queue_id
        LOOP
            ids := ids || q.ids;
            INSERT INTO pgqueue.delta (queue_id, taken) VALUES (q.id, -cardinality(q.ids));
            PERFORM pgqueue.note(q.id, 'release', q.ids), pgqueue.signal(q.id);
        END LOOP;
    ELSE
        RETURN NULL;
    END IF;
    IF reason IS NOT NULL THEN
        PERFORM pgqueue.count_attempt(ids, reason);
    END IF;
    PERFORM pgqueue.session_ended(session, reason IS NOT NULL);
    DELETE FROM pgqueue.session s
     WHERE s.id = session
       AND NOT EXISTS (SELECT FROM pgqueue.take k WHERE k.session_id = s.id)
       AND NOT EXISTS (SELECT FROM pgqueue.node n WHERE n.session_id = s.id);
    RETURN cardinality(ids);
END $$;

-- A claim whose answer never arrived (cancelled, connection lost) may have been committed, or may yet be.
-- By its token alone: if the session was given up meanwhile, its heir has the take.
CREATE OR REPLACE FUNCTION pgqueue.undo_take(session int, token bigint) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    claiming CONSTANT int := 1885827332;
    queues   int[];
BEGIN
    IF pg_advisory_xact_lock(claiming, session) IS NULL THEN END IF;   -- wait for claims under way, ours among them
    WITH gone AS (
        DELETE FROM pgqueue.take k WHERE k.token = undo_take.token RETURNING k.queue_id)
    SELECT array_agg(queue_id) INTO queues FROM gone;
    PERFORM pgqueue.count_takes(queues, -1);
    PERFORM pgqueue.signal(q) FROM (SELECT DISTINCT unnest(queues)) u(q);
    RETURN coalesce(cardinality(queues), 0);
END $$;
COMMENT ON FUNCTION pgqueue.undo_take IS 'Give back whatever was taken under this token, once no claim of the session is under way; returns how many tasks.';

-- First in every claim: marks it as under way, and refuses it if the session is dead. See the head of this file.
CREATE OR REPLACE FUNCTION pgqueue.enter_claim(session int) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    class    CONSTANT int := 1885827331;
    claiming CONSTANT int := 1885827332;
    own      int := pgqueue.own_session();
    me       int := coalesce(session, own);
BEGIN
    IF me IS NULL THEN
        me := pgqueue.open_session();
        own := me;
    END IF;
    IF pg_advisory_xact_lock_shared(claiming, me) IS NULL THEN END IF;
    -- A connection's own lock does not refuse it, so the probe is for other connections' sessions only.
    IF me IS DISTINCT FROM own AND pg_try_advisory_xact_lock_shared(class, me) THEN
        RAISE EXCEPTION 'session % is not alive: nothing can be taken for it', me
            USING ERRCODE = 'PQ004', HINT = 'Open a session with pgqueue.open_session() on a connection that stays open.';
    END IF;
    RETURN me;
END $$;
