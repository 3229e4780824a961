-- The numbers of each queue, from the counters of stats.sql, for the roles that may look into the queue or monitor it.

-- Usually the oldest task is the queue's first one: if no task has a larger priority, and none a ready_at. This
-- function reads such a queue by three index probes. Calling _find_oldest for each queue made the stats of 10,000
-- queues three times as expensive.
CREATE OR REPLACE FUNCTION pgqueue._queue_stats(ids int[])
RETURNS TABLE (id int, queue text, total bigint, ready bigint, delayed bigint, taken bigint, buried bigint,
               blocked bigint, done bigint, kept bigint, oldest_ready_age interval, calls jsonb)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    verbs  CONSTANT jsonb := '{"put": 0, "take": 0, "ack": 0, "release": 0, "bury": 0, "kick": 0, "delete": 0,
                               "touch": 0, "delay": 0, "ttr": 0, "ttl": 0, "maxlen": 0}'::jsonb;
    moment CONSTANT timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
        SELECT q.id, q.name, s.ready + s.delayed + s.taken + s.buried + s.blocked,
               s.ready, s.delayed, s.taken, s.buried, s.blocked,
               coalesce((c.calls ->> 'ack')::bigint, 0) + coalesce((c.calls ->> 'delete')::bigint, 0),
               c.kept,
               CASE WHEN s.ready > 0 THEN
                   moment - pgqueue._readable(least(due.ready_since,
                                                    -- Nothing was ready at that time: all ready tasks became so later.
                                                    CASE WHEN o.looked_at IS NOT NULL
                                                         THEN coalesce(o.ready_since, o.looked_at)
                                                         WHEN head.is_oldest THEN head.created_at
                                                         ELSE pgqueue._find_oldest(q.id) END)) END,
               verbs || c.calls
          FROM pgqueue._counts(ids) c
          JOIN pgqueue.queue q ON q.id = c.queue_id
         CROSS JOIN LATERAL (
               SELECT count(*) AS n, min(t.run_at) AS ready_since FROM pgqueue.task t
                WHERE c.delayed > 0 AND t.queue_id = c.queue_id AND t.state = 'D' AND t.run_at <= moment) due
         CROSS JOIN LATERAL (
               SELECT count(*) AS n FROM pgqueue.take k
                WHERE c.taken > 0 AND k.queue_id = c.queue_id
                  AND k.deadline < 'infinity' AND k.deadline <= moment) overdue
         CROSS JOIN LATERAL (
               SELECT count(*) FILTER (WHERE t.state IN ('R', 'C')) AS ready,
                      count(*) FILTER (WHERE t.state = 'B') AS buried,
                      count(*) FILTER (WHERE t.state IN ('L', 'W')) AS blocked
                 FROM pgqueue.task t
                WHERE t.queue_id = c.queue_id AND t.state <> 'D' AND t.expires_at <= moment
                  AND (SELECT k.task_id FROM pgqueue.take k
                        WHERE k.task_id = t.id AND k.deadline > moment) IS NULL) expired
         CROSS JOIN LATERAL (
               SELECT c.standing - (c.taken - overdue.n) - expired.ready + due.n AS ready, c.delayed - due.n AS delayed,
                      c.taken - overdue.n AS taken, c.buried - expired.buried AS buried,
                      c.blocked - expired.blocked AS blocked) s
          LEFT JOIN LATERAL (
               SELECT n.looked_at, n.ready_since FROM pgqueue.oldest n
                WHERE n.queue_id = c.queue_id AND n.looked_at > moment - greatest('10 s', 40 * n.took)
                ORDER BY n.looked_at DESC LIMIT 1) o ON true
          LEFT JOIN LATERAL (
               SELECT first.created_at,
                      first.ready_at IS NULL
                  AND (SELECT t.id FROM pgqueue.task t
                        WHERE t.queue_id = c.queue_id AND t.state = 'R' AND t.priority > first.priority
                        ORDER BY t.priority, t.id LIMIT 1) IS NULL
                  AND (SELECT t.id FROM pgqueue.task t
                        WHERE t.queue_id = c.queue_id AND t.state = 'R' AND t.ready_at IS NOT NULL
                        ORDER BY t.ready_at LIMIT 1) IS NULL AS is_oldest
                 FROM (SELECT t.priority, t.created_at, t.ready_at FROM pgqueue.task t
                        WHERE s.ready > 0 AND o.looked_at IS NULL AND t.queue_id = c.queue_id AND t.state = 'R'
                          AND (t.expires_at IS NULL OR t.expires_at > moment)
                          AND (SELECT k.task_id FROM pgqueue.take k
                                WHERE k.task_id = t.id AND k.deadline > moment) IS NULL
                        ORDER BY t.priority, t.id LIMIT 1) first) head ON true;
END $$;

-- The numbers of each queue that the checks of health compare. Counters are read as a set. They are the answer where no
-- task waits for a tick, and the oldest task is the first one where all have the same priority; only special queues pay
-- for _queue_stats. The view stats would cost three times as much. limited: the blocked tasks of a queue with limits.
CREATE OR REPLACE FUNCTION pgqueue._health_stats()
RETURNS TABLE (queue text, created_at timestamptz, capacity int, draining boolean, paused boolean,
               total bigint, ready bigint, buried bigint, limited bigint, ready_since timestamptz)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    every  CONSTANT boolean := pgqueue._may_see_all('monitor');
    exact  CONSTANT boolean := NOT pgqueue._is_counted();
    slow   CONSTANT int[] := ARRAY (SELECT o.queue_id FROM pgqueue.oldest o);
    ttls   CONSTANT boolean := (SELECT t.id FROM pgqueue.task t
                                 WHERE t.state <> 'D' AND t.expires_at IS NOT NULL LIMIT 1) IS NOT NULL;
    -- Where it takes long to find the oldest task, dead rows may slow down these probes too.
    moved  CONSTANT boolean := slow <> '{}' OR (SELECT t.id FROM pgqueue.task t
                                 WHERE t.state = 'R' AND t.ready_at IS NOT NULL LIMIT 1) IS NOT NULL;
BEGIN
    RETURN QUERY
        WITH k AS (
            SELECT q.id, q.name, q.created_at, q.capacity, q.draining, q.metered,
                   q.paused_until IS NOT NULL AND q.paused_until > now() AS paused,
                   c.standing, c.taken, c.delayed, c.buried, c.blocked
              FROM pgqueue.queue q JOIN pgqueue._totals() c ON c.queue_id = q.id
             WHERE every OR q.id IN (SELECT seen.id FROM pgqueue._seen seen)),
        x AS MATERIALIZED (
            SELECT k.*, head.created_at AS ready_since,
                   exact OR k.id = ANY (slow)
                OR k.standing > k.taken AND coalesce(head.is_mixed, true)
                OR k.delayed > 0 AND (
                       SELECT t.id FROM pgqueue.task t
                        WHERE t.queue_id = k.id AND t.state = 'D' AND t.run_at <= moment LIMIT 1) IS NOT NULL
                OR k.taken > 0 AND (
                       SELECT h.task_id FROM pgqueue.take h
                        WHERE h.queue_id = k.id AND h.deadline < 'infinity' AND h.deadline <= moment
                        LIMIT 1) IS NOT NULL
                OR ttls AND (
                       SELECT t.id FROM pgqueue.task t
                        WHERE t.queue_id = k.id AND t.state <> 'D' AND t.expires_at <= moment LIMIT 1) IS NOT NULL
                OR moved AND (
                       SELECT t.id FROM pgqueue.task t
                        WHERE t.queue_id = k.id AND t.state = 'R' AND t.ready_at IS NOT NULL LIMIT 1) IS NOT NULL
                   AS is_special
              FROM k
              LEFT JOIN LATERAL (
                   SELECT first.created_at,
                          (SELECT t.id FROM pgqueue.task t
                            WHERE t.queue_id = k.id AND t.state = 'R' AND t.priority > first.priority
                            ORDER BY t.priority, t.id LIMIT 1) IS NOT NULL AS is_mixed
                     FROM (SELECT t.priority, t.created_at FROM pgqueue.task t
                            WHERE k.standing > k.taken AND NOT exact AND k.id <> ALL (slow)
                              AND t.queue_id = k.id AND t.state = 'R'
                              AND (SELECT h.task_id FROM pgqueue.take h
                                    WHERE h.task_id = t.id AND h.deadline > moment) IS NULL
                            ORDER BY t.priority, t.id LIMIT 1) first) head ON true)
        SELECT x.name, x.created_at, x.capacity, x.draining, x.paused,
               x.standing + x.delayed + x.buried + x.blocked, x.standing - x.taken, x.buried,
               CASE WHEN x.metered THEN x.blocked ELSE 0 END, x.ready_since
          FROM x WHERE NOT x.is_special
         UNION ALL
        SELECT x.name, x.created_at, x.capacity, x.draining, x.paused,
               s.total, s.ready, s.buried, CASE WHEN x.metered THEN s.blocked ELSE 0 END, moment - s.oldest_ready_age
          FROM (SELECT array_agg(x.id) AS ids FROM x WHERE x.is_special HAVING count(*) > 0) special,
               pgqueue._queue_stats(special.ids) s JOIN x ON x.id = s.id;
END $$;

-- For a page of queues: one call for each queue reads the deltas as often as there are queues.
CREATE OR REPLACE FUNCTION pgqueue.queue_stats(names text[])
RETURNS TABLE (queue text, total bigint, ready bigint, delayed bigint, taken bigint, buried bigint, blocked bigint,
               done bigint, kept bigint, oldest_ready_age interval, calls jsonb)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    ids int[];                                    -- NULL: of all queues
BEGIN
    PERFORM pgqueue._check_array('names', names, nulls => true);
    IF names IS NOT NULL THEN
        ids := ARRAY (SELECT seen.id FROM pgqueue._seen seen WHERE seen.name = ANY (queue_stats.names));
    END IF;
    IF names IS NOT NULL OR pgqueue._may_see_all('monitor') THEN       -- then _seen has all queues
        RETURN QUERY
            SELECT s.queue, s.total, s.ready, s.delayed, s.taken, s.buried, s.blocked, s.done, s.kept,
                   s.oldest_ready_age, s.calls
              FROM pgqueue._queue_stats(ids) s;
    ELSE
        RETURN QUERY
            SELECT s.queue, s.total, s.ready, s.delayed, s.taken, s.buried, s.blocked, s.done, s.kept,
                   s.oldest_ready_age, s.calls
              FROM pgqueue._queue_stats(NULL) s JOIN pgqueue._seen seen ON seen.id = s.id;
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.queue_stats(text[]) IS
    'The view pgqueue.stats for these queues; NULL: for all. Much cheaper for a page of them than the view.';

CREATE OR REPLACE FUNCTION pgqueue.queue_stats(name text DEFAULT NULL)
RETURNS TABLE (queue text, total bigint, ready bigint, delayed bigint, taken bigint, buried bigint, blocked bigint,
               done bigint, kept bigint, oldest_ready_age interval, calls jsonb)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
        SELECT * FROM pgqueue.queue_stats(CASE WHEN queue_stats.name IS NOT NULL THEN ARRAY [queue_stats.name] END);
END $$;
COMMENT ON FUNCTION pgqueue.queue_stats(text) IS 'The view pgqueue.stats for one queue.';

CREATE OR REPLACE VIEW pgqueue.stats AS SELECT * FROM pgqueue.queue_stats();
COMMENT ON VIEW pgqueue.stats IS
    'For each queue the number of tasks in each state, the calls of each verb, and the age of the oldest ready task: '
    'from counters, whatever the backlog. total: all tasks that are not done; done: how many were acked or deleted, or '
    'expired, in all, since the server''s last crash; kept: how many done tasks are still stored (keep_done). '
    'Waiting tasks count as blocked, cancelling ones as taken.';

-- Each change of a count writes a delta, and a fold replaces deltas by counters: the number of deltas since the last
-- fold, and the number of that fold, say whether anything has changed. Comparing the counts themselves would read the
-- counters of all queues.
CREATE OR REPLACE FUNCTION pgqueue.count_version(queue text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    last CONSTANT pgqueue.fold := pgqueue._last_fold();
    ids  int[];                                   -- NULL: all queues
BEGIN
    IF queue IS NOT NULL OR NOT pgqueue._may_see_all('monitor') THEN
        ids := ARRAY (SELECT seen.id FROM pgqueue._seen seen
                       WHERE count_version.queue IS NULL OR seen.name = count_version.queue);
        IF ids = '{}' THEN
            RETURN NULL;
        END IF;
    END IF;
    RETURN format('%s/%s', CASE WHEN ids IS NULL THEN last.id
                                ELSE (SELECT max(c.version) FROM pgqueue.counter c WHERE c.queue_id = ANY (ids)) END,
                  (SELECT count(*) FROM pgqueue.delta d
                    WHERE (ids IS NULL OR d.queue_id = ANY (ids)) AND d.xid >= coalesce(last.since, '0'::xid8))
                + (SELECT count(*) FROM pgqueue.delta d
                    WHERE (ids IS NULL OR d.queue_id = ANY (ids)) AND d.xid = ANY (last.late)
                      AND d.xid < last.since));
END $$;
COMMENT ON FUNCTION pgqueue.count_version IS
    'A text that changes when tasks of the queue are put, taken, settled or moved to another state; without a queue, '
    'tasks of any queue that the role sees. NULL if it sees none. Much cheaper than the counts, for pages that show '
    'them and poll often.';
