-- Sessions: one advisory lock ties all takes of a client to its life.
--
-- Theory of operation
-- -------------------
-- A session is a client's registration in the database: a row here, and a session-level advisory lock SESSION(id) on
-- one dedicated connection. Each Client has a session, so a process may have several. A psql connection that takes
-- tasks is a client as well. Takes carry the session's id and may be made on any connection, through a transaction
-- pooler too. The server frees the lock milliseconds after the process dies, and the sweep (sweep.sql) then can share
-- the lock. One lock for each client, not one for each task: locks per task fill the lock table and tie a task
-- to a connection.
--
--   SESSION(id)   exclusive, by the living client; tried in share mode by the sweep and by every claim.
--   CLAIMING(id)  shared by a claim until it commits; taken exclusively by the sweep before it looks for takes.
--   KEY(token)    shared by a claim until it commits; kept exclusively by undo_take (5_verbs/take/undo.sql).
--
-- A claim waits for CLAIMING for a second. Opening a session again waits for SESSION and CLAIMING, and closing one for
-- CLAIMING, for two seconds each (_await_lock in advisory.sql). All other attempts are tries.
--
-- Without CLAIMING a claim C could commit a take just after the sweep S collected the takes of C's dead session, and no
-- later sweep would give it back. With CLAIMING: if C got its share before S, S finds the lock taken and tries again at
-- its next tick; if C comes after S, it finds SESSION free and is refused.
--
-- A broken connection does not end the session. The client connects again and opens the session by its id: it takes
-- the lock first and then looks for the row. If the row is there, no sweep gave the session up, and all takes live on.
-- If the row is gone, the takes are lost, and a new session begins. A sweep holds SESSION(id) until it commits, so
-- there is no third case.
--
-- A claim does not probe its connection's own session: a connection's own locks do not conflict with it. But that
-- session may have ended: pg_advisory_unlock_all() frees SESSION, and a sweep then gives the session up. A claim for it
-- would be a take without an owner. So such a claim looks for the row, once it has CLAIMING, which keeps the sweep
-- away, and opens a new session if there is none. The row is locked, because at REPEATABLE READ the snapshot may be
-- older than the row's end. If the row was deleted by hand, clean_up finds the takes without a session, and the
-- client's next sweep tells it that its session is gone.
--
-- Sessions within a session
-- -------------------------
-- A client may serve several holders, for example the connections of another protocol. Each is a session with a parent,
-- the client's. It has no lock, and is alive as long as its parent's lock is held. A claim for it has CLAIMING(parent)
-- as well, and then looks for the row: if that is there, neither its own end, which has CLAIMING(id), nor its parent's,
-- which has CLAIMING(parent), gets past before the claim has committed. It ends by close_session() on any connection of
-- its role, or with its parent (_free_within in sweep.sql).
--
-- Rights
-- ------
-- A session belongs to the role that opened it: session.role. Views show its id, and every role can set the setting
-- pgqueue.session. Neither is a credential, so every function with a session argument checks the role:
--
--   _session_right   the rule: the caller is the session's role, inherits from it, or is the owner of the schema
--   _named_session   the session that a call names, by its argument or by the setting; 42501 if another role has it
--   _check_session   the same for a claim, which needs a session with a row
--   _own_session     where only this connection's own session makes sense (locks, close_session)
--
-- A session is its connection's own if the setting names it and its row has backend_pid = pg_backend_pid(). If the
-- setting names the session of another connection, the call runs as with that session as its argument.
--
-- A session without a row belongs to no role and is refused: otherwise, since every role of the database can take the
-- advisory lock SESSION(id) of any id, a role could claim from an exclusive queue that a server crash left behind with
-- that id.
--
-- So a transaction at REPEATABLE READ cannot use a session that was opened after its snapshot: the snapshot does not
-- show the session's role.
--
-- A call that presents a token (settle.sql) needs no session. The sweep runs for every role, and for all sessions.

-- A setting that is no id counts as none: a plain cast would make every call of the connection fail.
CREATE OR REPLACE FUNCTION pgqueue.own_session() RETURNS int
LANGUAGE sql STABLE PARALLEL RESTRICTED
RETURN CASE WHEN current_setting('pgqueue.session', true) ~ '^-?[0-9]{1,10}$'
            THEN CASE WHEN current_setting('pgqueue.session', true)::bigint BETWEEN -2147483648 AND 2147483647
                      THEN current_setting('pgqueue.session', true)::int END END;
COMMENT ON FUNCTION pgqueue.own_session IS 'The session that was opened on this connection, if any.';

-- The rule. A view, so that PostgreSQL plans it into the claims that use it. The comparison of names nearly always
-- decides, and costs a claim less than a call of _is_callers.
CREATE OR REPLACE VIEW pgqueue._session_right AS
SELECT s.id, pg_get_userbyid(s.role) = pgqueue._caller() OR pgqueue._is_callers(s.role) AS is_callers
  FROM pgqueue.session s;

-- The session that a call names, by its argument or else by the setting. NULL: none, or one that is gone.
CREATE OR REPLACE FUNCTION pgqueue._named_session(session int) RETURNS int
LANGUAGE plpgsql STABLE AS $$
DECLARE
    me CONSTANT int := coalesce(session, pgqueue.own_session());
    is_mine boolean;
BEGIN
    IF me IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT r.is_callers INTO is_mine FROM pgqueue._session_right r WHERE r.id = me;
    IF NOT is_mine THEN
        RAISE EXCEPTION 'session % belongs to another role', me
            USING ERRCODE = 'insufficient_privilege',
                  HINT = format('pgqueue.open_session() opens a session of the role "%s".', pgqueue._caller());
    END IF;
    RETURN CASE WHEN is_mine THEN me END;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._check_session(session int) RETURNS void
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF pgqueue._named_session(session) IS NULL THEN
        RAISE EXCEPTION 'session % is not alive: nothing can belong to it', session
            USING ERRCODE = 'PQ004', HINT = 'A snapshot that is older than the session does not show it either.';
    END IF;
END $$;

-- For an object that is tied to a session: whether the session is the caller's. If it is gone only the owner of the
-- schema passes, until the next clean_up removes the object: else a crash would open exclusive queues to all.
CREATE OR REPLACE FUNCTION pgqueue._is_callers_session(session int) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN coalesce((SELECT r.is_callers FROM pgqueue._session_right r WHERE r.id = session), pgqueue._is_owner());
END $$;

-- The session of this connection. NULL if there is none, or if the setting names the session of another connection
-- or of another role. A session that is gone is returned too: its client learns of the loss from its sweep.
CREATE OR REPLACE FUNCTION pgqueue._own_session() RETURNS int
LANGUAGE plpgsql STABLE AS $$
DECLARE
    me CONSTANT int := pgqueue.own_session();
BEGIN
    IF EXISTS (SELECT FROM pgqueue.session s JOIN pgqueue._session_right r ON r.id = s.id
                WHERE s.id = me AND NOT (r.is_callers AND s.backend_pid = pg_backend_pid())) THEN
        RETURN NULL;
    END IF;
    RETURN me;
END $$;

-- A sweep, or the opening or closing of the session, has CLAIMING: for milliseconds.
CREATE OR REPLACE FUNCTION pgqueue._await_claiming(session int) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue._await_lock(pgqueue._claiming_lock(), session, true, false, '1 s', 'claims of session ' || session);
END $$;

-- CLAIMING(parent), shared: a sweep that ends the parent finds this session too.
CREATE OR REPLACE FUNCTION pgqueue._open_within(parent int, label text) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    outer_one pgqueue.session;
    id        int;
BEGIN
    IF NOT pg_try_advisory_xact_lock_shared(pgqueue._claiming_lock(), parent) THEN
        PERFORM pgqueue._await_claiming(parent);
    END IF;
    PERFORM pgqueue._check_session(parent);
    SELECT * INTO outer_one FROM pgqueue.session s WHERE s.id = _open_within.parent FOR KEY SHARE;
    IF outer_one.parent IS NOT NULL THEN
        RAISE EXCEPTION 'session % is within session % itself', parent, outer_one.parent
            USING ERRCODE = 'PQ002', HINT = format('Open the new session within session %s.', outer_one.parent);
    END IF;
    PERFORM pgqueue._check_quota('sessions');
    LOOP
        id := 1 + floor(random() * 2147483646)::int;
        INSERT INTO pgqueue.session (id, role, grace, epoch, backend_pid, label, parent)
        VALUES (id, outer_one.role, outer_one.grace, outer_one.epoch, outer_one.backend_pid,
                coalesce(_open_within.label, outer_one.label), outer_one.id)
        ON CONFLICT DO NOTHING;
        EXIT WHEN FOUND;
    END LOOP;
    RETURN id;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.open_session(
    resume int      DEFAULT NULL,
    grace  interval DEFAULT '0.5 s',
    label  text     DEFAULT NULL,
    identity uuid   DEFAULT NULL,            -- of the session to resume; a new session gets it if that was given up
    parent int      DEFAULT NULL             -- the session within which a new one lives; see above
) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    id    int := CASE WHEN resume IS NOT NULL THEN pgqueue._named_session(resume) END;   -- refused before any lock
    tries int := 0;
BEGIN
    PERFORM pgqueue._check_given('grace', grace), pgqueue._check_time('grace', grace, zero => true),
            pgqueue._check_text('a label', label, 1000);
    IF parent IS NOT NULL THEN
        RETURN pgqueue._open_within(parent, label);
    END IF;
    IF id IS NOT NULL THEN
        -- A sweep may be deciding about this session: wait until it has committed. And until this transaction ends, no
        -- claim may see the lock and take for a session that was swept.
        IF NOT pg_try_advisory_xact_lock(pgqueue._claiming_lock(), id) THEN
            PERFORM pgqueue._await_lock(
                        pgqueue._claiming_lock(), id, false, false, '2 s', 'opening session ' || id);
        END IF;
        IF NOT pg_try_advisory_lock(pgqueue._session_lock(), id) THEN
            PERFORM pgqueue._await_lock(pgqueue._session_lock(), id, false, true, '2 s', 'the life of session ' || id);
        END IF;
        UPDATE pgqueue.session s
           SET missing_since = NULL, epoch = pg_postmaster_start_time(), backend_pid = pg_backend_pid()
         WHERE s.id = open_session.resume AND pgqueue._is_callers(s.role);     -- the id may be another session's by now
        IF FOUND THEN
            UPDATE pgqueue.session s SET epoch = pg_postmaster_start_time(), backend_pid = pg_backend_pid()
             WHERE s.parent = open_session.resume;
            DELETE FROM pgqueue.lock_holder h WHERE h.session_id = resume;  -- they were freed with the old connection
            PERFORM pgqueue._leave_lines(resume);
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
            INSERT INTO pgqueue.session (id, role, grace, epoch, identity, backend_pid, label)
            VALUES (id, pgqueue._caller_role(), open_session.grace, pg_postmaster_start_time(), open_session.identity,
                    pg_backend_pid(),
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
    'Tie a session to this connection, or resume one on it; returns its id, which is a new one if the old session has '
    'been given up. With a parent: add a session that lives as long as that one, with takes of its own, and leave this '
    'connection as it is. 42501: the old session, or the parent, belongs to another role. PQ004: the parent is gone.';

-- For a claim of this connection's own session: that session if it is still registered, else a new one. The claim is
-- marked as under way. NULL: the session belongs to another connection, although the setting names it.
CREATE OR REPLACE FUNCTION pgqueue._enter_own(session int) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    me      int := session;
    missing timestamptz;
    pid     int;
    role    regrole;
BEGIN
    LOOP
        IF NOT pg_try_advisory_xact_lock_shared(pgqueue._claiming_lock(), me) THEN
            PERFORM pgqueue._await_claiming(me);
        END IF;
        SELECT s.missing_since, s.backend_pid, s.role INTO missing, pid, role
          FROM pgqueue.session s WHERE s.id = me FOR KEY SHARE;
        IF pid <> pg_backend_pid() THEN
            RETURN NULL;
        END IF;
        EXIT WHEN FOUND AND missing IS NULL;
        me := pgqueue.open_session(resume => me);      -- a sweep found the lock free: this takes it again
    END LOOP;
    IF NOT pgqueue._is_callers(role) THEN              -- another role opened it: SET ROLE
        PERFORM pgqueue._named_session(me);
    END IF;
    RETURN me;
END $$;

-- For a claim of a session within another one: whether that can be given takes until this transaction ends. A plain
-- read suffices only if each statement has a new snapshot; with a lock the end of the row is a serialization failure.
CREATE OR REPLACE FUNCTION pgqueue._enter_within(session int) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    outer_id CONSTANT int := (SELECT s.parent FROM pgqueue.session s WHERE s.id = session);
BEGIN
    IF outer_id IS NULL THEN
        RETURN false;
    END IF;
    IF NOT pg_try_advisory_xact_lock_shared(pgqueue._claiming_lock(), outer_id) THEN
        PERFORM pgqueue._await_claiming(outer_id);
    END IF;
    IF current_setting('transaction_isolation') = 'read committed' THEN
        PERFORM FROM pgqueue.session s WHERE s.id = session;
    ELSE
        PERFORM FROM pgqueue.session s WHERE s.id = session FOR KEY SHARE;
    END IF;
    RETURN FOUND;
END $$;

-- The first step of every claim: mark the claim as under way, and refuse it if the session is dead or another role's,
-- or the claim was undone. With `checked` the caller itself reads _session_right, as a part of a statement that it runs
-- anyway. See the head of this file.
CREATE OR REPLACE FUNCTION pgqueue._enter_claim(
    session int, token bigint DEFAULT NULL, checked boolean DEFAULT false
) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    own int := pgqueue.own_session();
    me  int := coalesce(session, own);
BEGIN
    IF me IS NULL THEN
        me := pgqueue.open_session();
        own := me;
    END IF;
    IF me = own THEN
        own := pgqueue._enter_own(me);
        me := coalesce(own, me);
    END IF;
    IF own IS DISTINCT FROM me THEN
        IF NOT pg_try_advisory_xact_lock_shared(pgqueue._claiming_lock(), me) THEN
            PERFORM pgqueue._await_claiming(me);
        END IF;
        IF pg_try_advisory_xact_lock_shared(pgqueue._session_lock(), me) AND NOT pgqueue._enter_within(me) THEN
            RAISE EXCEPTION 'session % is not alive: nothing can be taken for it', me
                USING ERRCODE = 'PQ004',
                      HINT = 'Open a session with pgqueue.open_session() on a connection that stays open.';
        ELSIF NOT checked THEN
            PERFORM pgqueue._check_session(me);
        END IF;
    END IF;
    IF token IS NOT NULL AND NOT pg_try_advisory_xact_lock_shared(pgqueue._token_lock(token)) THEN
        RAISE EXCEPTION 'the claim with the token % was undone: nothing is taken', token
            USING ERRCODE = 'PQ005', HINT = 'Claim again under another token.';
    END IF;
    RETURN me;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._live_session(session int) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    me CONSTANT int := coalesce(session, pgqueue.own_session(), pgqueue.open_session());
BEGIN
    PERFORM pgqueue._check_session(me);
    RETURN me;
END $$;

-- Whether a session with a lock of its own is alive: of one within another it is asked of the parent.
CREATE OR REPLACE FUNCTION pgqueue._session_alive(session int) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    -- Its own lock is invisible to a session. The probe takes and frees it in one expression.
    RETURN session IS NOT DISTINCT FROM pgqueue.own_session()
        OR CASE WHEN pg_try_advisory_lock_shared(pgqueue._session_lock(), session)
                THEN NOT pg_advisory_unlock_shared(pgqueue._session_lock(), session) ELSE true END;
END $$;

-- Takes have no index by session, so this walks over all takes with a deadline: the index would cost every take.
CREATE OR REPLACE FUNCTION pgqueue.session_deadline(session int) RETURNS double precision
LANGUAGE plpgsql AS $$
DECLARE
    me CONSTANT int := pgqueue._named_session(session);
BEGIN
    RETURN (SELECT extract(epoch FROM min(k.deadline) - clock_timestamp())::double precision
              FROM pgqueue.take k
             WHERE k.session_id = me
               AND k.deadline < 'infinity' AND k.deadline > clock_timestamp());
END $$;
COMMENT ON FUNCTION pgqueue.session_deadline IS
    'In how many seconds the first take of a session passes its deadline; NULL: none does.';
