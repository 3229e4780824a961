-- The cleaning: deletes expired and left-over rows. Listeners call it periodically.

-- Takes of sessions that have no row. No call leaves one behind, but a session's row can be deleted by hand, and a
-- claim for the own session of a connection may have an old snapshot (session.sql). Takes have no index by session, so
-- this reads a part of the table: about 240,000 takes, in 30 ms. In one snapshot a take is there only if its session
-- is.
CREATE OR REPLACE FUNCTION pgqueue._clean_takes() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    part record;
    lost int;
BEGIN
    SELECT * INTO part FROM pgqueue._part_to_clean('pgqueue.take');
    FOR lost IN
        SELECT DISTINCT k.session_id FROM pgqueue.take k
         WHERE k.ctid >= part.low AND k.ctid < part.high
           AND k.session_id NOT IN (SELECT s.id FROM pgqueue.session s UNION ALL SELECT 0)
         LIMIT 100
    LOOP
        IF pg_try_advisory_xact_lock(pgqueue._claiming_lock(), lost) THEN
            PERFORM pgqueue._free_session(lost, 'its taker left: session ' || lost);
        END IF;
    END LOOP;
END $$;

-- Sessions whose parent was deleted by hand.
CREATE OR REPLACE FUNCTION pgqueue._clean_within() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    lost pgqueue.session;
BEGIN
    FOR lost IN
        SELECT s.* FROM pgqueue.session s
         WHERE s.parent IS NOT NULL AND NOT EXISTS (SELECT FROM pgqueue.session o WHERE o.id = s.parent) LIMIT 100
           FOR UPDATE OF s SKIP LOCKED
    LOOP
        IF pg_try_advisory_xact_lock(pgqueue._claiming_lock(), lost.id)
           AND pg_try_advisory_xact_lock(pgqueue._claiming_lock(), lost.parent) THEN
            PERFORM pgqueue._free_session(lost.id, 'its taker left: ' || lost.label);
        END IF;
    END LOOP;
END $$;

-- The part of clean_up for tables that no session needs.
CREATE OR REPLACE FUNCTION pgqueue._clean_data() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF pgqueue._can_write('payload') THEN
        PERFORM pgqueue._clean_payloads();
    END IF;
    IF pgqueue._can_write('status') THEN
        PERFORM pgqueue._clean_statuses();
    END IF;
    IF pgqueue._can_write('recent_key') THEN
        PERFORM pgqueue._clean_recent_keys();
    END IF;
    IF pgqueue._can_write('result', 'progress', 'take') THEN
        PERFORM pgqueue._clean_results();
    END IF;
    IF pgqueue._can_write('step', 'task') THEN
        PERFORM pgqueue._clean_steps();
    END IF;
    IF pgqueue._can_write('batch', 'batch_part', 'member', 'dependency') THEN
        PERFORM pgqueue._clean_batches();
    END IF;
    IF pgqueue._can_write('latch', 'queue') THEN
        PERFORM pgqueue._clean_latches();
    END IF;
    IF pgqueue._can_write('tally_part', 'tally', 'queue') THEN
        PERFORM pgqueue._fold_tallies();
    END IF;
    IF pgqueue._can_write('history', 'history_mark', 'queue') THEN
        PERFORM pgqueue._fold_history(), pgqueue._clean_history();
    END IF;
    IF pgqueue._can_write('audit_entry') THEN
        PERFORM pgqueue._clean_audit();
    END IF;
    IF pgqueue._can_write('unmatched', 'exchange') THEN
        PERFORM pgqueue._fold_unmatched();
    END IF;
END $$;

-- The rest of clean_up.
CREATE OR REPLACE FUNCTION pgqueue._clean_sessions() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF pgqueue._can_end_sessions() THEN
        PERFORM pgqueue._clean_within(), pgqueue._clean_takes();
        PERFORM pgqueue._clean_nodes();
        PERFORM pgqueue._clean_routes();
        PERFORM pgqueue._clean_unused();
        PERFORM pgqueue._clean_counts();
        PERFORM pgqueue._clean_buckets();
        PERFORM pgqueue._clean_observers();
        PERFORM pgqueue._clean_workers();
        PERFORM pgqueue._clean_done();
        PERFORM pgqueue._clean_attempts();
        PERFORM pgqueue._clean_cancellations();
        PERFORM pgqueue._set_guards();
        IF pgqueue._can_write('schedule') THEN
            PERFORM pgqueue._follow_renames();
        END IF;
        PERFORM pgqueue._stamp('pgqueue.last_cleaning');
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.clean_up() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    work record;
BEGIN
    SELECT * INTO work FROM pgqueue._begin_work(pgqueue._cleaning_lock(), 'pgqueue.begun_cleaning');
    IF work.goes_on AND work.alone THEN
        PERFORM pgqueue._clean_data(), pgqueue._clean_sessions();
    ELSIF work.goes_on THEN
        PERFORM pgqueue._do_beside('pgqueue._clean_data()'), pgqueue._do_beside('pgqueue._clean_sessions()');
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.clean_up IS
    'Remove expired and left-over rows: every listener calls it periodically.';
