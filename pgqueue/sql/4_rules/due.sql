-- Time: delays that end and deadlines that pass.
--
-- There are no timers in the database. Due tasks are made ready by the first of two callers: a claim at the head of the
-- queue, or a listener's tick (promote_all, sweep.sql) for all queues. A taker that finds no task sleeps until
-- next_due.
--
-- Every claim passes over an expired task, from the moment of its expiry; a tick removes the task, or makes a dead
-- letter of it (dead.sql). A task that is taken is left alone until it comes back.

-- Count an attempt of tasks that come back without a settling. It never waits: a task with a locked row is not counted.
-- Tasks that have reached their queue's max_takes die. `began` and `takers` are the beginnings of the ended takes, and
-- the labels of their sessions.
CREATE OR REPLACE FUNCTION pgqueue._count_attempt(
    ids bigint[], reason text, began timestamptz[], takers text[], timeouts int DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    counted record;
BEGIN
    WITH counted AS (
        UPDATE pgqueue.task 
           SET attempts = attempts + 1, error = reason,
               timeouts = nullif(coalesce(task.timeouts, 0) + coalesce(_count_attempt.timeouts, 0), 0)
         WHERE id = ANY (ARRAY (SELECT t.id FROM pgqueue.task t
                             WHERE t.id = ANY (ids) AND t.state <> 'C' FOR UPDATE SKIP LOCKED))
        RETURNING task.id, task.queue_id, task.attempts)
    SELECT array_agg(c.id) AS ids, array_agg(u.began) AS began, array_agg(u.taker) AS takers,
           array_agg(c.id) FILTER (
               WHERE c.attempts >= (SELECT q.max_takes FROM pgqueue.queue q WHERE q.id = c.queue_id)) AS last
      INTO counted
      FROM counted c JOIN unnest(ids, began, takers) u(id, began, taker) ON u.id = c.id;
    IF counted.ids IS NOT NULL THEN
        PERFORM pgqueue._record_attempts(counted.ids, counted.began, counted.takers,
                                         CASE WHEN timeouts > 0 THEN 'timeout' ELSE 'died' END, reason);
    END IF;
    IF counted.last IS NOT NULL THEN
        PERFORM pgqueue._die(counted.last, 'delivery_limit');
    END IF;
END $$;

-- Make tasks of a queue ready that are due, and remove tasks that have expired, up to 1000 of each kind; returns how
-- many became ready.
CREATE OR REPLACE FUNCTION pgqueue._promote(queue_id int) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    ids bigint[];
    n    int;
    late tid[];
    over record;
BEGIN
    PERFORM pgqueue._settle_flows(queue_id);
    n := pgqueue._make_ready(queue_id, verb => 'delay', ids => ARRAY (
             SELECT t.id FROM pgqueue.task t
              WHERE t.queue_id = _promote.queue_id AND t.state = 'D' AND t.run_at <= moment
              ORDER BY t.run_at LIMIT 1000 FOR UPDATE SKIP LOCKED));
    late := ARRAY (SELECT k.ctid FROM pgqueue.take k
                    WHERE k.queue_id = _promote.queue_id AND k.deadline < 'infinity' AND k.deadline <= moment
                    ORDER BY k.deadline LIMIT 1000 FOR UPDATE SKIP LOCKED);
    IF late <> '{}' THEN
        SELECT * INTO over FROM pgqueue._untake(late);
        PERFORM pgqueue._given_back(over.queues, over.ids, 'ttr'),
                pgqueue._count_attempt(
                    over.ids, 'the time to run was over', over.began,
                    ARRAY (SELECT pgqueue._label_of(taker) FROM unnest(over.takers) taker), timeouts => 1);
        n := n + cardinality(over.ids);
    END IF;
    ids := ARRAY (SELECT t.id FROM pgqueue.task t
                   WHERE t.queue_id = _promote.queue_id AND t.state <> 'D' AND t.state NOT IN ('F', 'C')
                     AND t.expires_at <= moment
                     AND (SELECT k.task_id FROM pgqueue.take k WHERE k.task_id = t.id) IS NULL
                   ORDER BY t.expires_at LIMIT 1000 FOR UPDATE SKIP LOCKED);
    IF ids <> '{}' THEN
        ids := pgqueue._untaken(ids);
        PERFORM pgqueue._note(queue_id, 'ttl', ids), pgqueue._die(ids, 'expired');
    END IF;
    RETURN n;
END $$;

-- For a claim: as _promote. But if no task is ready while another transaction T1 is making the due tasks ready, wait
-- for T1, for 250 ms at most. Otherwise a claim finds the queue empty while T1, usually a tick, has the rows locked,
-- although a task was due before the claim began: the first take of a client met the client's own first tick. T1 may be
-- a long transaction of the application, hence the limit, which also ends a deadlock of two such claims. A claim that
-- finds another task does not wait.
CREATE OR REPLACE FUNCTION pgqueue._promote_or_wait(queue_id int) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    moment   CONSTANT timestamptz := clock_timestamp();
    patience CONSTANT text := current_setting('lock_timeout');
    n        int           := pgqueue._promote(queue_id);
BEGIN
    IF n > 0 OR current_setting('transaction_isolation') <> 'read committed'    -- above it the wait ends in an error
       OR (SELECT t.id FROM pgqueue.task t
            WHERE t.queue_id = _promote_or_wait.queue_id AND t.state = 'R'
              AND (SELECT k.task_id FROM pgqueue.take k WHERE k.task_id = t.id) IS NULL
            ORDER BY t.priority, t.id LIMIT 1) IS NOT NULL THEN
        RETURN n;
    END IF;
    IF patience::interval NOT BETWEEN '1 ms' AND '250 ms' THEN
        PERFORM set_config('lock_timeout', '250ms', true);
    END IF;
    PERFORM FROM pgqueue.task t
      WHERE t.queue_id = _promote_or_wait.queue_id AND t.state = 'D' AND t.run_at <= moment
      ORDER BY t.run_at LIMIT 1 FOR UPDATE;
    PERFORM FROM pgqueue.take k
      WHERE k.queue_id = _promote_or_wait.queue_id AND k.deadline < 'infinity' AND k.deadline <= moment
      ORDER BY k.deadline LIMIT 1 FOR UPDATE;
    PERFORM set_config('lock_timeout', patience, true);
    RETURN pgqueue._promote(queue_id);              -- the tasks of T1, if it was rolled back
EXCEPTION WHEN lock_not_available THEN              -- which also sets the timeout back
    RETURN n;
END $$;
