-- The numbers of each queue, from the counters of stats.sql, for the roles that may look into the queue or monitor it.

CREATE OR REPLACE FUNCTION pgqueue._queue_stats(ids int[])
RETURNS TABLE (queue text, total bigint, ready bigint, delayed bigint, taken bigint, buried bigint, blocked bigint,
               done bigint, kept bigint, oldest_ready_age interval, calls jsonb)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    verbs  CONSTANT jsonb := '{"put": 0, "take": 0, "ack": 0, "release": 0, "bury": 0, "kick": 0, "delete": 0,
                               "touch": 0, "delay": 0, "ttr": 0, "ttl": 0}'::jsonb;
    moment CONSTANT timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
        SELECT q.name, s.ready + s.delayed + s.taken + s.buried + s.blocked,
               s.ready, s.delayed, s.taken, s.buried, s.blocked,
               coalesce((c.calls ->> 'ack')::bigint, 0) + coalesce((c.calls ->> 'delete')::bigint, 0),
               c.kept,
               CASE WHEN s.ready > 0 THEN
                   moment - pgqueue._readable(least(due.ready_since,
                                                    CASE WHEN o.looked_at IS NULL THEN pgqueue._find_oldest(q.id)
                                                         ELSE o.ready_since END)) END,
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
               SELECT count(*) FILTER (WHERE t.state = 'R') AS ready, count(*) FILTER (WHERE t.state = 'B') AS buried,
                      count(*) FILTER (WHERE t.state = 'L') AS blocked
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
                ORDER BY n.looked_at DESC LIMIT 1) o ON true;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.queue_stats(name text DEFAULT NULL)
RETURNS TABLE (queue text, total bigint, ready bigint, delayed bigint, taken bigint, buried bigint, blocked bigint,
               done bigint, kept bigint, oldest_ready_age interval, calls jsonb)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF name IS NULL THEN
        RETURN QUERY SELECT s.* FROM pgqueue._queue_stats(NULL) s JOIN pgqueue._seen seen ON seen.name = s.queue;
    ELSE
        RETURN QUERY
            SELECT * FROM pgqueue._queue_stats(
                       ARRAY (SELECT seen.id FROM pgqueue._seen seen WHERE seen.name = queue_stats.name));
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.queue_stats IS 'The view pgqueue.stats for one queue.';

CREATE OR REPLACE VIEW pgqueue.stats AS SELECT * FROM pgqueue.queue_stats();
COMMENT ON VIEW pgqueue.stats IS
    'For each queue the number of tasks in each state, the calls of each verb, and the age of the oldest ready task: '
    'from counters, whatever the backlog. total: all tasks that are not done; done: how many were acked or deleted, or '
    'expired, in all, since the server''s last crash; kept: how many done tasks are still stored (keep_done).';
