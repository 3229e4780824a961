-- The sweep: finds dead sessions and gives back what they held. Every listener calls it at every tick; the first wins.
--
-- A session whose lock can be shared has nobody behind it. It may be reconnecting, so it gets its grace from the first
-- time that it was found missing; after a restart of the server, which frees every lock at once, at least 10 seconds.
-- Then CLAIMING(id) is tried: as long as a claim of that session is under way the sweep comes back later (session.sql).
-- So it does while somebody joins its identity, who may then inherit (identity.sql).
-- SESSION(id) stays shared until the commit, so the owner cannot come back in the middle of the verdict.
--
-- Never: scanning pg_locks (it stops all lock partitions), waiting for a lock (a blocked call pins the horizon that
-- vacuum needs), or a blanket release at start-up (it takes work away from the living).

CREATE OR REPLACE FUNCTION pgqueue.sweep(OUT freed int, OUT again double precision)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    class         CONSTANT int         := 1885827331;
    sweeping      CONSTANT int         := 1885827333;
    restart_grace CONSTANT interval    := '10 s';
    moment        CONSTANT timestamptz := clock_timestamp();
    s          pgqueue.session;
    grace_left interval;
    given_back int;
BEGIN
    freed := 0;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'sweep must run at READ COMMITTED: it looks again after it has waited' USING ERRCODE = 'PQ002';
    END IF;
    IF NOT pg_try_advisory_xact_lock(sweeping, 0) THEN
        RETURN;
    END IF;
    FOR s IN SELECT * FROM pgqueue.session WHERE id IS DISTINCT FROM pgqueue.own_session() LOOP
        CONTINUE WHEN NOT pg_try_advisory_xact_lock_shared(class, s.id);      -- alive
        -- From the server's start at the earliest: a restart may have taken longer than the grace.
        grace_left := greatest(coalesce(s.missing_since, moment), pg_postmaster_start_time()) - moment
                + CASE WHEN s.epoch = pg_postmaster_start_time() THEN s.grace ELSE greatest(s.grace, restart_grace) END;
        IF grace_left > '0' THEN
            UPDATE pgqueue.session SET missing_since = moment WHERE id = s.id AND missing_since IS NULL;
        ELSE
            given_back := pgqueue.end_session(s);
            freed := freed + coalesce(given_back, 0);
            CONTINUE WHEN given_back IS NOT NULL;
            grace_left := '10 ms';
        END IF;
        again := least(again, extract(epoch FROM grace_left));
    END LOOP;
END $$;
COMMENT ON FUNCTION pgqueue.sweep IS 'Give back the takes of dead sessions. Returns how many tasks, and in how many seconds another call is worth while.';

-- How many tasks were given back; NULL: not now. A claim is under way, or somebody is joining its identity.
CREATE OR REPLACE FUNCTION pgqueue.end_session(s pgqueue.session) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    claiming CONSTANT int := 1885827332;
BEGIN
    IF NOT pg_try_advisory_xact_lock(claiming, s.id) THEN
        RETURN NULL;
    END IF;
    PERFORM FROM pgqueue.session k WHERE k.id = s.id FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN pgqueue.free_session(s.id, CASE s.backend_pid WHEN 0 THEN 'its taker left: ' ELSE 'its taker died: ' END || s.label);
END $$;

-- What else lives as long as a session.
CREATE OR REPLACE FUNCTION pgqueue.session_ended(session int, died boolean) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue.free_locks(session);
    PERFORM pgqueue.free_nodes(session);
    PERFORM pgqueue.free_routes(session, died);
    PERFORM pgqueue.free_observers(session);
END $$;

CREATE OR REPLACE FUNCTION pgqueue.clean_up() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    cleaning CONSTANT int := 1885827335;
BEGIN
    IF pg_try_advisory_xact_lock(cleaning, 0) THEN
        PERFORM pgqueue.clean_payloads();
        PERFORM pgqueue.clean_statuses();
        PERFORM pgqueue.clean_nodes();
        PERFORM pgqueue.clean_routes();
        PERFORM pgqueue.clean_counts();
        PERFORM pgqueue.clean_observers();
        PERFORM pgqueue.clean_done();
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.clean_up IS 'Remove what has had its time: every listener calls it now and then.';
