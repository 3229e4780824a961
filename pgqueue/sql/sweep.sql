-- The sweep: finds dead sessions and gives back what they held. Every listener calls it at every tick; the first wins.
--
-- A session whose lock can be shared has nobody behind it. It may be reconnecting, so it gets its grace from the first
-- time that it was found missing; after a restart of the server, which frees every lock at once, at least 10 seconds.
-- Then CLAIMING(id) is tried: as long as a claim of that session is under way the sweep comes back later (session.sql).
-- SESSION(id) stays shared until the commit, so the owner cannot come back in the middle of the verdict.
--
-- Never: scanning pg_locks (it stops all lock partitions), waiting for a lock (a blocked call pins the horizon that
-- vacuum needs), or a blanket release at start-up (it takes work away from the living).

CREATE OR REPLACE FUNCTION pgqueue.sweep(OUT freed int, OUT again double precision)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    class         CONSTANT int         := 1885827331;
    claiming      CONSTANT int         := 1885827332;
    sweeping      CONSTANT int         := 1885827333;
    restart_grace CONSTANT interval    := '10 s';
    moment        CONSTANT timestamptz := clock_timestamp();
    s    pgqueue.session;
    grace_left interval;
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
        ELSIF pg_try_advisory_xact_lock(claiming, s.id) THEN
            freed := freed + pgqueue.free_session(s.id, 'its taker died: ' || s.label);
            CONTINUE;
        ELSE
            grace_left := '10 ms';
        END IF;
        again := least(again, extract(epoch FROM grace_left));
    END LOOP;
END $$;
COMMENT ON FUNCTION pgqueue.sweep IS 'Give back the takes of dead sessions. Returns how many tasks, and in how many seconds another call is worth while.';

-- What else lives as long as a session.
CREATE OR REPLACE FUNCTION pgqueue.session_ended(session int, died boolean) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue.free_locks(session);
    PERFORM pgqueue.free_nodes(session);
    PERFORM pgqueue.free_routes(session, died);
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
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.clean_up IS 'Remove what has had its time: every listener calls it now and then.';
