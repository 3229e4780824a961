-- Time: delays that end, deadlines that pass, and when the next will.
--
-- Nobody keeps timers in the database. What is due is made ready by whoever comes first: a claim at the head of the
-- queue, or any listener's tick for all queues. A taker that found nothing sleeps until next_due.
--
-- A task that has expired is passed over by every claim, from that very moment; the ticks remove it, or make a dead
-- letter of it (dead.sql). One that is taken is left alone until it comes back.

-- Which queues have something due. A view, so that it is planned into the statements that ask, and by the start of the
-- statement: clock_timestamp() is volatile, and a volatile bound cannot use an index. Not EXISTS, which the planner
-- likes to answer for all queues at once, with a hash of everything that is delayed or ready anywhere.
CREATE OR REPLACE VIEW pgqueue.queue_due AS
SELECT q.id, q.name, q.special, q.lanes,
       (SELECT t.run_at FROM pgqueue.task t
         WHERE t.queue_id = q.id AND t.state = 'D' AND t.run_at <= statement_timestamp()
         ORDER BY t.run_at LIMIT 1) IS NOT NULL AS delay_over,
       (SELECT k.deadline FROM pgqueue.take k
         WHERE k.queue_id = q.id AND k.deadline < 'infinity' AND k.deadline <= statement_timestamp()
         ORDER BY k.deadline LIMIT 1) IS NOT NULL AS ttr_over,
       (SELECT t.expires_at FROM pgqueue.task t
         WHERE t.queue_id = q.id AND t.state <> 'D' AND t.expires_at <= statement_timestamp()
         ORDER BY t.expires_at LIMIT 1) IS NOT NULL AS ttl_over
  FROM pgqueue.queue q;

CREATE OR REPLACE FUNCTION pgqueue.promote(queue_id int) RETURNS int
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    ids bigint[];
    n   int;
BEGIN
    WITH due AS (
        UPDATE pgqueue.task SET state = CASE WHEN lane IS NULL THEN 'R' ELSE 'L' END, run_at = NULL
         WHERE id = ANY (ARRAY (SELECT t.id FROM pgqueue.task t
                                 WHERE t.queue_id = promote.queue_id AND t.state = 'D' AND t.run_at <= moment
                                 ORDER BY t.run_at LIMIT 1000 FOR UPDATE SKIP LOCKED))
        RETURNING task.id)
    SELECT array_agg(due.id), count(*) INTO ids, n FROM due;
    IF n > 0 THEN
        PERFORM pgqueue.note(queue_id, 'delay', ids);
    END IF;
    WITH gone AS (
        DELETE FROM pgqueue.take
         WHERE ctid = ANY (ARRAY (SELECT k.ctid FROM pgqueue.take k
                                   WHERE k.queue_id = promote.queue_id
                                     AND k.deadline < 'infinity' AND k.deadline <= moment
                                   ORDER BY k.deadline LIMIT 1000 FOR UPDATE SKIP LOCKED))
        RETURNING take.task_id)
    SELECT array_agg(gone.task_id) INTO ids FROM gone;
    IF ids IS NOT NULL THEN
        INSERT INTO pgqueue.delta (queue_id, taken) VALUES (promote.queue_id, -cardinality(ids));
        PERFORM pgqueue.note(queue_id, 'ttr', ids), pgqueue.count_attempt(ids, 'the time to run was over', timeouts => 1);
        n := n + cardinality(ids);
    END IF;
    ids := ARRAY (SELECT t.id FROM pgqueue.task t
                   WHERE t.queue_id = promote.queue_id AND t.state <> 'D' AND t.state <> 'F' AND t.expires_at <= moment
                     AND (SELECT k.task_id FROM pgqueue.take k WHERE k.task_id = t.id) IS NULL
                   ORDER BY t.expires_at LIMIT 1000 FOR UPDATE SKIP LOCKED);
    IF ids <> '{}' THEN
        ids := pgqueue.untaken(ids);
        PERFORM pgqueue.note(queue_id, 'ttl', ids), pgqueue.die(ids, 'expired');
    END IF;
    IF n > 0 THEN
        PERFORM pgqueue.signal(queue_id);
    END IF;
    RETURN n;
END $$;
COMMENT ON FUNCTION pgqueue.promote IS 'Make ready what is due in a queue, and remove what has expired, up to 1000 of each kind; returns how many became ready.';

CREATE OR REPLACE FUNCTION pgqueue.promote_all() RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    promoting CONSTANT int := 1885827334;
    n int;
BEGIN
    IF pg_try_advisory_xact_lock(promoting, 0) THEN
        SELECT sum(pgqueue.promote(q.id)) INTO n FROM pgqueue.queue_due q WHERE q.delay_over OR q.ttr_over OR q.ttl_over;
        PERFORM pgqueue.check_all_lanes();
        PERFORM pgqueue.look_for_oldest(pgqueue.fold_deltas());
        PERFORM pgqueue.take_sample();
    END IF;
    RETURN coalesce(n, 0);
END $$;
COMMENT ON FUNCTION pgqueue.promote_all IS 'promote for every queue and fold what was counted, unless somebody is at it: the tick of every listener.';

CREATE OR REPLACE FUNCTION pgqueue.next_due(queues text[], ids int[] DEFAULT NULL)
RETURNS TABLE (queue text, seconds double precision)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
BEGIN
    RETURN QUERY
        SELECT q.name,
               CASE WHEN q.paused_until > clock_timestamp()
                    THEN extract(epoch FROM q.paused_until - clock_timestamp())::double precision
                    WHEN q.lanes AND pgqueue.lanes_due(q.id)
                      OR (SELECT t.id FROM pgqueue.task t
                           WHERE t.queue_id = q.id AND t.state = 'R' AND t.lane IS NULL
                             AND (t.expires_at IS NULL OR t.expires_at > clock_timestamp())
                             AND (SELECT k.task_id FROM pgqueue.take k WHERE k.task_id = t.id) IS NULL
                           ORDER BY t.priority, t.id LIMIT 1) IS NOT NULL
                    THEN 0
                    -- Seconds in the past are 0; greatest() alone would say so of a NULL as well.
                    ELSE (SELECT greatest(0, extract(epoch FROM next.due - clock_timestamp()))::double precision
                            FROM (SELECT least(
                                     (SELECT t.run_at FROM pgqueue.task t
                                       WHERE t.queue_id = q.id AND t.state = 'D' ORDER BY t.run_at LIMIT 1),
                                     (SELECT k.deadline FROM pgqueue.take k
                                       WHERE k.queue_id = q.id AND k.deadline < 'infinity'
                                       ORDER BY k.deadline LIMIT 1))) next(due)
                           WHERE next.due IS NOT NULL)
               END
          FROM pgqueue.queue q
         WHERE q.name = ANY (queues) AND (next_due.ids IS NULL OR q.id = ANY (next_due.ids));
END $$;
COMMENT ON FUNCTION pgqueue.next_due IS
    'In how many seconds a queue may have something to take. 0: now, it is locked by a transaction that may yet roll back. NULL: not until somebody puts. With the ids that a taker knows: no row for a queue that is not that one any more.';

-- Takes are not indexed by their session, and this walks over those of all that have a deadline: whoever asks, pays.
CREATE OR REPLACE FUNCTION pgqueue.session_deadline(session int) RETURNS double precision
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT extract(epoch FROM min(k.deadline) - clock_timestamp())::double precision
              FROM pgqueue.take k
             WHERE k.session_id = session_deadline.session AND k.deadline < 'infinity' AND k.deadline > clock_timestamp());
END $$;
COMMENT ON FUNCTION pgqueue.session_deadline IS 'In how many seconds the first take of a session ends; NULL: none does.';

-- Tasks that come back by no will of their holder. Never waits: a row that is locked goes uncounted. Those for which it
-- was the last time that the queue's max_takes allows do not come back.
CREATE OR REPLACE FUNCTION pgqueue.count_attempt(ids bigint[], reason text, timeouts int DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    last bigint[];
BEGIN
    WITH counted AS (
        UPDATE pgqueue.task 
           SET attempts = attempts + 1, error = reason, timeouts = nullif(coalesce(task.timeouts, 0) + coalesce(count_attempt.timeouts, 0), 0)
         WHERE id = ANY (ARRAY (SELECT t.id FROM pgqueue.task t WHERE t.id = ANY (ids) FOR UPDATE SKIP LOCKED))
        RETURNING task.id, task.queue_id, task.attempts)
    SELECT array_agg(c.id) INTO last
      FROM counted c WHERE c.attempts >= (SELECT q.max_takes FROM pgqueue.queue q WHERE q.id = c.queue_id);
    IF last IS NOT NULL THEN
        PERFORM pgqueue.die(last, 'delivery_limit');
    END IF;
END $$;
