-- The sweep: finds dead sessions and gives back the tasks that they held; and the other periodic work: promote_all,
-- next_due; clean_up is in cleaning.sql. A listener calls the sweep at each tick, unless another one has just done so
-- (ticks.sql). Of several at once the first one sweeps, and if it does not end, others go on (_begin_work).
--
-- If the sweep can share a session's lock, no process holds it. The process may be reconnecting, so the session gets
-- its grace from the first time that it was found missing; after a restart of the server, which frees every lock at
-- once, at least 10 seconds. Then the sweep tries CLAIMING(id): as long as a claim of that session is under way, the
-- sweep retries at a later tick (session.sql). It also retries later while another session joins the identity, and may
-- then inherit (identity.sql). SESSION(id) stays shared until the commit, so the process cannot resume the session
-- while the sweep ends it.
--
-- Clocks. A grace is measured by the server's clock, which may step. A time in the future means that the clock has
-- stepped back since: a session that was found missing then is missing as of now, and a start of the server then does
-- not count. So a step back delays the end of a session by one grace at most.
--
-- The sweep never scans pg_locks (that locks all lock partitions), waits for a lock (a call that waits pins the horizon
-- that vacuum needs), or releases all takes at start-up (that would take work away from living processes). Rows that
-- are locked are skipped, and so is work on tables that are locked (2_base/nowait.sql): a transaction that called
-- close_session(), and stays open, holds up that session and no other.

-- End everything else that lives as long as a session.
CREATE OR REPLACE FUNCTION pgqueue._session_ended(session int, died boolean) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue._free_locks(session);
    PERFORM pgqueue._free_nodes(session);
    PERFORM pgqueue._free_routes(session, died);
    PERFORM pgqueue._free_observers(session);
    PERFORM pgqueue._leave_lines(session);
    PERFORM pgqueue._free_workers(session);
END $$;

-- End the sessions within one that ends. Their takes are moved to the ending session, and so end as the takes of one
-- process (suspect.sql). One statement serves all of them, since there may be thousands; _free_routes then deletes all
-- queues and exchanges that have lost their session. A take that a transaction is settling keeps its session, for the
-- next sweep.
CREATE OR REPLACE FUNCTION pgqueue._free_within(parent int, died boolean) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    inner_id int;
BEGIN
    UPDATE pgqueue.take SET session_id = _free_within.parent
     WHERE ctid = ANY (ARRAY (SELECT k.ctid FROM pgqueue.take k JOIN pgqueue.session s ON s.id = k.session_id
                               WHERE s.parent = _free_within.parent FOR UPDATE OF k SKIP LOCKED));
    IF NOT died THEN
        DELETE FROM pgqueue.will w USING pgqueue.session s
         WHERE s.id = w.session_id AND s.parent = _free_within.parent;
    END IF;
    FOR inner_id IN
        SELECT s.id FROM pgqueue.session s
         WHERE s.parent = _free_within.parent
           AND (EXISTS (SELECT FROM pgqueue.node n WHERE n.session_id = s.id)
                OR EXISTS (SELECT FROM pgqueue.observer o WHERE o.session_id = s.id)
                OR EXISTS (SELECT FROM pgqueue.worker w WHERE w.session_id = s.id))
    LOOP
        PERFORM pgqueue._free_nodes(inner_id), pgqueue._free_observers(inner_id), pgqueue._free_workers(inner_id);
    END LOOP;
    DELETE FROM pgqueue.session s
     WHERE s.parent = _free_within.parent
       AND NOT EXISTS (SELECT FROM pgqueue.take k WHERE k.session_id = s.id)
       AND NOT EXISTS (SELECT FROM pgqueue.node n WHERE n.session_id = s.id);
END $$;

-- End the takes of a session: its heir gets them if there is one (identity.sql), else their tasks are ready. With a
-- reason the session died, and one of the tasks may be charged for it (suspect.sql). A take that a transaction T1 is
-- settling at this moment is left to T1, and the session's row stays, so that the next sweep looks again: waiting here
-- would last as long as T1, and lock in another order than T1. Returns how many tasks were given back; NULL: the heir
-- cannot be given takes now.
CREATE OR REPLACE FUNCTION pgqueue._free_session(session int, reason text) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    heir  CONSTANT int := pgqueue._heir(session);
    outer_of CONSTANT boolean := EXISTS (SELECT FROM pgqueue.session s WHERE s.parent = _free_session.session);
    queues int[];
    ids    bigint[] := '{}'::bigint[];
    began  timestamptz[] := '{}'::timestamptz[];
BEGIN
    IF outer_of AND heir IS NOT NULL THEN
        PERFORM pgqueue._free_within(session, reason IS NOT NULL);
    END IF;
    IF heir > 0 THEN
        UPDATE pgqueue.take SET session_id = heir
         WHERE ctid = ANY (ARRAY (SELECT k.ctid FROM pgqueue.take k
                                   WHERE k.session_id = _free_session.session FOR UPDATE SKIP LOCKED));
    ELSIF heir = 0 THEN
        SELECT u.queues, coalesce(u.ids, '{}'), coalesce(u.began, '{}') INTO queues, ids, began
          FROM pgqueue._untake(ARRAY (SELECT k.ctid FROM pgqueue.take k
                                       WHERE k.session_id = _free_session.session FOR UPDATE SKIP LOCKED)) u;
        PERFORM pgqueue._given_back(queues, ids, 'release');
    ELSE
        RETURN NULL;
    END IF;
    IF reason IS NOT NULL THEN
        PERFORM pgqueue._count_death(ids, reason, began, session);
    END IF;
    PERFORM pgqueue._session_ended(session, reason IS NOT NULL);
    DELETE FROM pgqueue.session s
     WHERE s.id = session
       AND NOT EXISTS (SELECT FROM pgqueue.take k WHERE k.session_id = s.id)
       AND NOT EXISTS (SELECT FROM pgqueue.node n WHERE n.session_id = s.id)
       AND NOT (outer_of AND EXISTS (SELECT FROM pgqueue.session i WHERE i.parent = s.id));
    RETURN cardinality(ids);
END $$;

CREATE OR REPLACE FUNCTION pgqueue.close_session(session int DEFAULT NULL) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    me       int     := pgqueue._named_session(session);
    is_here  CONSTANT boolean := coalesce(me = pgqueue._own_session(), false);
    is_within CONSTANT boolean := EXISTS (SELECT FROM pgqueue.session s WHERE s.id = me AND s.parent IS NOT NULL);
    own      pgqueue.session;
    freed    int     := 0;
BEGIN
    IF me IS NULL THEN                             -- a sweep gave it up, with all its takes
        me := coalesce(session, pgqueue.own_session());
        IF me = pgqueue.own_session() THEN
            PERFORM pg_advisory_unlock(pgqueue._session_lock(), me), set_config('pgqueue.session', '', false);
        END IF;
        RETURN 0;
    ELSIF NOT is_here AND NOT is_within AND pgqueue._session_alive(me) THEN
        RAISE EXCEPTION 'session % is alive, and another connection has it: only that one closes it', me
            USING ERRCODE = 'PQ002',
                  HINT = 'Close its client, or end its connection: the view pgqueue.sessions has its backend_pid.';
    END IF;
    IF NOT pg_try_advisory_xact_lock(pgqueue._claiming_lock(), me) THEN            -- wait for claims under way
        PERFORM pgqueue._await_lock(pgqueue._claiming_lock(), me, false, false, '2 s', 'closing session ' || me);
    END IF;
    SELECT * INTO own FROM pgqueue.session s WHERE s.id = me FOR UPDATE;
    -- An older snapshot does not show all heirs: then the sweep ends the session.
    IF own.identity IS NOT NULL
       AND (own.grace > '0' OR current_setting('transaction_isolation') <> 'read committed') THEN
        PERFORM pgqueue._free_within(me, false), pgqueue._session_ended(me, false);
        UPDATE pgqueue.session s SET missing_since = clock_timestamp(), backend_pid = 0 WHERE s.id = me;
    ELSE
        freed := coalesce(pgqueue._free_session(me, NULL), 0);
    END IF;
    IF is_here THEN
        PERFORM pg_advisory_unlock(pgqueue._session_lock(), me), set_config('pgqueue.session', '', false);
    END IF;
    RETURN freed;
END $$;
COMMENT ON FUNCTION pgqueue.close_session IS
    'Give back all tasks of the session, and end it; returns how many tasks. A session with an identity leaves its '
    'takes to the other sessions of the identity, or for its grace to a session that joins. The sessions within it end '
    'too. PQ002: the session is alive on another connection; one that is within another is closed from any connection. '
    '42501: it belongs to another role.';

-- Make tasks of all queues ready that are due; returns how many.
CREATE OR REPLACE FUNCTION pgqueue._promote_due() RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT coalesce(sum(pgqueue._promote(q.id)), 0)
              FROM pgqueue._queue_due q WHERE q.delay_over OR q.ttr_over OR q.ttl_over);
END $$;

CREATE OR REPLACE FUNCTION pgqueue.promote_all() RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    fresh CONSTANT boolean := pg_current_xact_id_if_assigned() IS NULL;
    work  record;
    n     int := 0;
BEGIN
    IF NOT pgqueue._can_move_tasks() THEN
        RETURN 0;
    END IF;
    SELECT * INTO work FROM pgqueue._begin_work(pgqueue._promoting_lock(), 'pgqueue.begun_promotion');
    IF work.goes_on AND work.alone THEN
        PERFORM pgqueue._go_on_listing(), pgqueue._go_on_limits(fresh);        -- first: see listed.sql
        n := pgqueue._promote_due();
        PERFORM pgqueue._settle_flows(0), pgqueue._end_left();
        PERFORM pgqueue._check_all_lanes();
        PERFORM pgqueue._call_again();
        IF pgqueue._can_write('oldest', 'sample') THEN
            PERFORM pgqueue._look_for_oldest(pgqueue._fold_deltas());
            PERFORM pgqueue._take_sample();
            PERFORM pgqueue._write_history();
            PERFORM pgqueue._stamp('pgqueue.last_promotion');
        END IF;
    ELSIF work.goes_on THEN                        -- the other one does the statistics
        PERFORM pgqueue._do_beside('pgqueue._go_on_listing()'),
                pgqueue._do_beside(format('pgqueue._go_on_limits(%L)', fresh)),
                pgqueue._do_beside('pgqueue._promote_due()'),
                pgqueue._do_beside('pgqueue._settle_flows(0)'),
                pgqueue._do_beside('pgqueue._end_left()'),
                pgqueue._do_beside('pgqueue._check_all_lanes()'),
                pgqueue._do_beside('pgqueue._call_again(alone => false)'),
                pgqueue._stamp('pgqueue.last_promotion');
    END IF;
    RETURN n;
END $$;
COMMENT ON FUNCTION pgqueue.promote_all IS
    'The tick of every listener: make tasks of all queues ready that are due, remove expired ones, and fold the '
    'statistics, unless another transaction has begun to do so within the last two seconds.';

CREATE OR REPLACE FUNCTION pgqueue.next_due(queues text[], ids int[] DEFAULT NULL)
RETURNS TABLE (queue text, seconds double precision)
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue._check_array('queues', queues, nulls => true),
            pgqueue._check_array('ids', ids, nulls => true);
    RETURN QUERY
        SELECT q.name,
               CASE WHEN q.paused_until > clock_timestamp()
                    THEN extract(epoch FROM q.paused_until - clock_timestamp())::double precision
                    WHEN q.lanes AND pgqueue._lanes_due(q.id) OR q.metered AND pgqueue._limits_due(q.id)
                      OR (SELECT t.id FROM pgqueue.task t
                           WHERE t.queue_id = q.id AND t.state = 'R' AND t.lane IS NULL
                             AND (t.expires_at IS NULL OR t.expires_at > clock_timestamp())
                             AND (SELECT k.task_id FROM pgqueue.take k WHERE k.task_id = t.id) IS NULL
                           ORDER BY t.priority, t.id LIMIT 1) IS NOT NULL
                    THEN 0
                    -- Seconds in the past are 0; greatest() alone would turn NULL into 0 as well.
                    ELSE (SELECT greatest(0, extract(epoch FROM pgqueue._readable(next.due) - clock_timestamp())
                                         )::double precision
                            FROM (SELECT least(
                                     (SELECT t.run_at FROM pgqueue.task t
                                       WHERE t.queue_id = q.id AND t.state = 'D' ORDER BY t.run_at LIMIT 1),
                                     (SELECT k.deadline FROM pgqueue.take k
                                       WHERE k.queue_id = q.id AND k.deadline < 'infinity'
                                       ORDER BY k.deadline LIMIT 1),
                                     (SELECT b.due_at FROM pgqueue.bucket b
                                       WHERE b.queue_id = q.id AND b.due_at IS NOT NULL
                                       ORDER BY b.due_at LIMIT 1))) next(due)
                           WHERE next.due IS NOT NULL)
               END
          FROM pgqueue.queue q
         WHERE q.name = ANY (queues) AND (next_due.ids IS NULL OR q.id = ANY (next_due.ids))
           AND CASE WHEN NOT q.guarded OR pgqueue._may(q.id, 'take')
                    THEN q.expires IS NULL OR pgqueue._note_use(q.id) ELSE false END;
END $$;
COMMENT ON FUNCTION pgqueue.next_due IS
    'In how many seconds a queue may have something to take. 0: now; a transaction that may yet roll back has locked '
    'it. NULL: not before the next put. With the ids that a taker knows, a queue that was deleted and created again '
    'has no row. A taker that waits calls this every ten seconds or more often: it counts as a use of a queue with '
    'expires.';

-- End a dead session. Returns how many tasks were given back; NULL: not now, since a claim is under way, or another
-- session is joining its identity.
CREATE OR REPLACE FUNCTION pgqueue._end_session(s pgqueue.session) RETURNS int
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT pg_try_advisory_xact_lock(pgqueue._claiming_lock(), s.id) THEN
        RETURN NULL;
    END IF;
    PERFORM FROM pgqueue.session k WHERE k.id = s.id FOR UPDATE SKIP LOCKED;
    IF NOT FOUND OR EXISTS (SELECT k.id FROM pgqueue.session k WHERE k.parent = s.id
                            EXCEPT
                            SELECT k.id FROM (SELECT i.id FROM pgqueue.session i WHERE i.parent = s.id
                                                 FOR UPDATE SKIP LOCKED) k) THEN
        RETURN NULL;                               -- close_session() is under way, for this one or one within it
    END IF;
    RETURN pgqueue._free_session(
               s.id, CASE s.backend_pid WHEN 0 THEN 'its taker left: ' ELSE 'its taker died: ' END || s.label);
END $$;

-- How much of its grace a missing session has left.
CREATE OR REPLACE FUNCTION pgqueue._grace_left(s pgqueue.session, moment timestamptz) RETURNS interval
LANGUAGE plpgsql STABLE AS $$
DECLARE
    restart_grace CONSTANT interval    := interval '10 s';
    started       CONSTANT timestamptz := pg_postmaster_start_time();
BEGIN
    -- From the server's start at the earliest: a restart may have taken longer than the grace.
    RETURN greatest(least(s.missing_since, moment), CASE WHEN started <= moment THEN started END) - moment
         + CASE WHEN s.epoch = started THEN s.grace ELSE greatest(s.grace, restart_grace) END;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.sweep(
    OUT freed int, OUT again double precision, OUT alive boolean, OUT clients bigint
)
LANGUAGE plpgsql AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    me     CONSTANT int         := pgqueue.own_session();
    -- When the last stamped sweep ran: it found no newly missing session.
    quiet  CONSTANT timestamptz := (SELECT to_timestamp(last_value / 1e6) FROM pgqueue.last_sweep);
    s          pgqueue.session;
    grace_left interval;
    given_back int;
BEGIN
    freed := 0;
    alive := true;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'sweep must run at READ COMMITTED: it looks again after it has waited' USING ERRCODE = 'PQ002';
    END IF;
    IF NOT pgqueue._can_write('session') THEN
        RETURN;
    END IF;
    alive := me IS NULL OR EXISTS (SELECT FROM pgqueue.session own WHERE own.id = me);
    IF NOT (pgqueue._begin_work(pgqueue._sweeping_lock(), 'pgqueue.begun_sweep')).goes_on THEN
        RETURN;
    END IF;
    clients := CASE WHEN me IS NULL THEN 0 ELSE 1 END;
    FOR s IN SELECT * FROM pgqueue.session WHERE id IS DISTINCT FROM me AND parent IS NULL LOOP
        IF NOT pg_try_advisory_xact_lock_shared(pgqueue._session_lock(), s.id) THEN
            clients := clients + 1;
            CONTINUE;
        END IF;
        IF s.missing_since IS NULL OR s.missing_since > moment THEN
            s.missing_since := moment;
            UPDATE pgqueue.session SET missing_since = moment, seen_at = greatest(started_at, least(moment, quiet))
             WHERE ctid = (SELECT k.ctid FROM pgqueue.session k WHERE k.id = s.id FOR UPDATE SKIP LOCKED);
        END IF;
        grace_left := pgqueue._grace_left(s, moment);
        IF grace_left <= '0' THEN
            IF NOT pgqueue._can_end_sessions() THEN
                again := least(again, 0.2);        -- soon: work that is left out leaves no stamp (ticks.sql)
                CONTINUE;
            END IF;
            given_back := pgqueue._end_session(s);
            freed := freed + coalesce(given_back, 0);
            CONTINUE WHEN given_back IS NOT NULL;
            grace_left := interval '10 ms';
        END IF;
        again := least(again, extract(epoch FROM grace_left));
    END LOOP;
    PERFORM pgqueue._stamp('pgqueue.last_sweep', again), setval('pgqueue.clients', greatest(clients, 1));
END $$;
COMMENT ON FUNCTION pgqueue.sweep IS
    'Give back the takes of dead sessions. freed: how many tasks; again: after how many seconds to call it again; '
    'alive: false if the session that was opened on this connection is not registered any more; clients: how many '
    'sessions live, NULL if another transaction has just begun to sweep, or the table of sessions is locked.';
