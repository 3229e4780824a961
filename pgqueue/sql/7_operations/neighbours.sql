-- The neighbours of a task: tasks that share its lane or its limit, and so decide when it begins.
--
-- Only the nearest ones, since a lane or a limit may have a million tasks. The queries repeat the conditions of the
-- index of lanes or of meters, and so use it.

CREATE OR REPLACE FUNCTION pgqueue.neighbours(id bigint, n int DEFAULT 5)
RETURNS TABLE (shares text, task bigint, state text, priority int, holder text, taken_at timestamptz)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    t pgqueue.task;
BEGIN
    PERFORM pgqueue._check_count('n', n);
    SELECT * INTO t FROM pgqueue.task one
     WHERE one.id = neighbours.id AND one.queue_id IN (SELECT seen.id FROM pgqueue._seen seen);
    IF NOT FOUND THEN
        PERFORM pgqueue._check_server(id);
    END IF;
    RETURN QUERY
        SELECT near.shares, seen.id, seen.state, seen.priority, seen.holder, seen.taken_at
          FROM (
               -- its lane: the taken task, and the tasks before and behind this one
               (SELECT 'lane' AS shares, k.task_id AS id FROM pgqueue.take k
                 WHERE k.queue_id = t.queue_id AND k.lane = t.lane AND k.deadline > now())
               UNION
               (SELECT 'lane', o.id FROM pgqueue._in_lane o
                 WHERE o.queue_id = t.queue_id AND o.lane = t.lane AND (o.priority, o.id) < (t.priority, t.id)
                 ORDER BY o.priority DESC, o.id DESC LIMIT n)
               UNION
               (SELECT 'lane', o.id FROM pgqueue._in_lane o
                 WHERE o.queue_id = t.queue_id AND o.lane = t.lane AND (o.priority, o.id) > (t.priority, t.id)
                 ORDER BY o.priority, o.id LIMIT n)
               UNION
               -- its limit: the tasks with a slot, and the tasks that wait before and behind this one
               (SELECT 'limit', o.id FROM pgqueue.task o
                 WHERE o.queue_id = t.queue_id AND o.meter = t.meter AND o.state = 'R' AND t.state <> 'F'
                 ORDER BY o.priority, o.id LIMIT n)
               UNION
               (SELECT 'limit', o.id FROM pgqueue.task o
                 WHERE o.queue_id = t.queue_id AND o.meter = t.meter AND o.state = 'C' AND t.state <> 'F'
                 ORDER BY o.priority, o.id LIMIT n)
               UNION
               (SELECT 'limit', o.id FROM pgqueue.task o
                 WHERE o.queue_id = t.queue_id AND o.meter = t.meter AND o.state = 'W' AND t.state <> 'F'
                   AND (o.priority, o.id) < (t.priority, t.id)
                 ORDER BY o.priority DESC, o.id DESC LIMIT n)
               UNION
               (SELECT 'limit', o.id FROM pgqueue.task o
                 WHERE o.queue_id = t.queue_id AND o.meter = t.meter AND o.state = 'W' AND t.state <> 'F'
                   AND (o.priority, o.id) > (t.priority, t.id)
                 ORDER BY o.priority, o.id LIMIT n)
               ) near
         CROSS JOIN LATERAL (SELECT * FROM pgqueue._tasks o WHERE o.id = near.id OFFSET 0) seen
         WHERE seen.id <> t.id
         ORDER BY near.shares, seen.taken_at IS NULL, seen.priority, seen.id;
END $$;
COMMENT ON FUNCTION pgqueue.neighbours IS
    'The tasks nearest to a task that share its lane or its limit, in the order in which they begin: those that run '
    '(of a limit, the first n, and as many of those that were cancelled), n that wait before it, and n behind it. A '
    'task that shares both is there twice. Also for monitors.';
