-- Looking: tasks, and what is next in a queue; and kick.

CREATE OR REPLACE VIEW pgqueue.tasks AS
SELECT t.id,
       q.name AS queue,
       CASE WHEN k.task_id IS NOT NULL THEN 'taken'
            WHEN t.state = 'B' THEN 'buried'
            WHEN t.state = 'F' THEN 'done'
            WHEN t.state = 'L' THEN 'blocked'
            WHEN t.state = 'R' AND t.lane IS NOT NULL                 -- not the head of its lane, or that is busy: lane.sql
             AND ((SELECT o.task_id FROM pgqueue.take o
                    WHERE o.queue_id = t.queue_id AND o.lane = t.lane AND o.deadline > now()) IS NOT NULL
                  OR (SELECT h.id FROM pgqueue.task h
                       WHERE h.queue_id = t.queue_id AND h.lane = t.lane AND h.state IN ('R', 'L')
                         AND (h.priority, h.id) < (t.priority, t.id) AND (h.expires_at IS NULL OR h.expires_at > now())
                       ORDER BY h.priority, h.id LIMIT 1) IS NOT NULL) THEN 'blocked'
            WHEN t.run_at > now() THEN 'delayed'
            ELSE 'ready'
       END AS state,
       t.priority, t.attempts, t.created_at, t.run_at, t.ttr, t.error, t.data,
       k.taken_at,
       nullif(k.deadline, 'infinity') AS deadline,
       k.session_id AS session,
       coalesce(s.label, CASE k.session_id WHEN 0 THEN 'a claim' ELSE 'session ' || k.session_id END) AS holder,
       t.expires_at, t.routing_key, t.deaths, t.lane, t.key, t.done_at, t.sender,
       coalesce(t.releases, 0) AS releases, coalesce(t.timeouts, 0) AS timeouts,
       coalesce(t.buries, 0) AS buries, coalesce(t.kicks, 0) AS kicks,
       t.queue_id, t.state AS stored
  FROM pgqueue.task t
  JOIN pgqueue.queue q ON q.id = t.queue_id
  LEFT JOIN pgqueue.take k ON k.task_id = t.id AND k.deadline > now()
  LEFT JOIN pgqueue.session s ON s.id = k.session_id;
COMMENT ON VIEW pgqueue.tasks IS 'Every task with its state, and who holds it. For a page of a queue in one state: find_tasks.';
COMMENT ON COLUMN pgqueue.tasks.stored IS 'R, D, B, L or F, as the task''s row has it: what an index can be asked for. The state is found out from several rows.';

-- A page of a queue's tasks in one state, whatever the backlog: the planner is told constants, by which it finds the
-- index of that state and needs no sort. Each state in the order that is its own.
CREATE OR REPLACE FUNCTION pgqueue.find_tasks(
    queue     text,
    state     text,
    n         int     DEFAULT 100,
    skip      int     DEFAULT 0,              -- walks over them
    backwards boolean DEFAULT false
) RETURNS SETOF pgqueue.tasks
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    q        CONSTANT int    := (SELECT named.id FROM pgqueue.queue named WHERE named.name = find_tasks.queue);
    down     CONSTANT text   := CASE WHEN backwards THEN ' DESC' ELSE '' END;
    likely   CONSTANT text[] := CASE state                          -- rows that may be in this state
        WHEN 'ready'   THEN ARRAY [$s$t.stored = 'R'$s$, $s$t.stored = 'D' AND t.run_at <= now()$s$]
        WHEN 'taken'   THEN ARRAY ['t.id = ANY (ARRAY (SELECT k.task_id FROM pgqueue.take k WHERE k.queue_id = $1'
                                   ' AND k.deadline > now() ORDER BY k.taken_at' || down || ' LIMIT $3::int8 + $4))']
        WHEN 'delayed' THEN ARRAY [$s$t.stored = 'D'$s$]
        WHEN 'buried'  THEN ARRAY [$s$t.stored = 'B'$s$]
        WHEN 'blocked' THEN ARRAY [$s$t.stored IN ('R', 'L') AND t.lane IS NOT NULL$s$]
        WHEN 'done'    THEN ARRAY [$s$t.stored = 'F'$s$] END;
    ordering CONSTANT text   := replace(CASE state
        WHEN 'taken'   THEN 't.taken_at'
        WHEN 'delayed' THEN 't.run_at'
        WHEN 'blocked' THEN 't.lane, t.priority, t.id'
        WHEN 'done'    THEN 't.done_at'
        ELSE                't.priority, t.id' END, ',', down || ',') || down;
BEGIN
    IF likely IS NULL THEN
        RAISE EXCEPTION 'no task is ever "%": the states are ready, delayed, taken, buried, blocked and done', state
            USING ERRCODE = 'PQ002';
    END IF;
    RETURN QUERY EXECUTE (
        SELECT format('SELECT * FROM (%s) t ORDER BY %s LIMIT $3 OFFSET $4',
                      string_agg(format('(SELECT * FROM pgqueue.tasks t WHERE t.queue_id = $1 AND t.state = $2 AND %s'
                                        ' ORDER BY %s LIMIT $3::int8 + $4)', rows, ordering), ' UNION ALL '), ordering)
          FROM unnest(likely) rows)
        USING q, state, n, skip;
END $$;
COMMENT ON FUNCTION pgqueue.find_tasks IS
    'n tasks of a queue in one state, behind the first `skip`, fast with millions: ready and buried by (priority, id), taken by taken_at, delayed by run_at, blocked by (lane, priority, id), done by done_at; or backwards.';

CREATE OR REPLACE FUNCTION pgqueue.kick(queue text, n int DEFAULT 1, delayed boolean DEFAULT false) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    q   int;
    ids bigint[];
BEGIN
    IF n < 1 OR n IS NULL THEN
        RAISE EXCEPTION 'cannot kick % tasks', n USING ERRCODE = 'PQ002';
    END IF;
    SELECT named.id INTO q FROM pgqueue.queue named WHERE named.name = kick.queue;
    PERFORM pgqueue.check_right(q);
    ids := ARRAY (SELECT t.id FROM pgqueue.task t
                   WHERE t.queue_id = q AND t.state = 'B'
                   ORDER BY t.priority, t.id LIMIT kick.n FOR UPDATE SKIP LOCKED);
    IF ids = '{}' AND delayed THEN
        ids := ARRAY (SELECT t.id FROM pgqueue.task t
                       WHERE t.queue_id = q AND t.state = 'D'
                         AND (SELECT b.id FROM pgqueue.task b
                               WHERE b.queue_id = q AND b.state = 'B' ORDER BY b.priority, b.id LIMIT 1) IS NULL
                       ORDER BY t.run_at LIMIT kick.n FOR UPDATE SKIP LOCKED);
    END IF;
    UPDATE pgqueue.task t
       SET state = CASE WHEN t.lane IS NULL THEN 'R' ELSE 'L' END, run_at = NULL, kicks = coalesce(t.kicks, 0) + 1
     WHERE t.id = ANY (ids);
    IF ids <> '{}' THEN
        PERFORM pgqueue.note(q, 'kick', ids), pgqueue.signal(q);
    END IF;
    RETURN cardinality(ids);
END $$;
COMMENT ON FUNCTION pgqueue.kick IS 'Make up to n buried tasks ready, lowest (priority, id) first; returns how many. With delayed, those that are delayed if none is buried, the next that is due first: as beanstalkd''s kick.';

CREATE OR REPLACE FUNCTION pgqueue.first_task(queue text, state text) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    q CONSTANT int := (SELECT named.id FROM pgqueue.queue named WHERE named.name = first_task.queue);
BEGIN
    RETURN CASE state
        WHEN 'ready' THEN
            (SELECT t.id FROM pgqueue.task t
              WHERE t.queue_id = q AND t.state = 'R' AND (t.expires_at IS NULL OR t.expires_at > clock_timestamp())
                AND (SELECT k.task_id FROM pgqueue.take k WHERE k.task_id = t.id AND k.deadline > clock_timestamp()) IS NULL
              ORDER BY t.priority, t.id LIMIT 1)
        WHEN 'delayed' THEN
            (SELECT t.id FROM pgqueue.task t
              WHERE t.queue_id = q AND t.state = 'D' AND t.run_at > clock_timestamp() ORDER BY t.run_at LIMIT 1)
        WHEN 'buried' THEN
            (SELECT t.id FROM pgqueue.task t WHERE t.queue_id = q AND t.state = 'B' ORDER BY t.priority, t.id LIMIT 1)
    END;
END $$;
COMMENT ON FUNCTION pgqueue.first_task IS 'The task of a queue that is next to be taken (ready), to become ready (delayed) or to be kicked (buried); NULL if there is none. As beanstalkd''s peek-ready, peek-delayed, peek-buried.';

CREATE OR REPLACE FUNCTION pgqueue.urgent_priority(queue text) RETURNS int
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    q      pgqueue.queue;
    lowest int;
BEGIN
    SELECT * INTO q FROM pgqueue.queue named WHERE named.name = urgent_priority.queue;
    SELECT t.priority INTO lowest FROM pgqueue.task t
     WHERE t.queue_id = q.id AND t.state = 'R' ORDER BY t.priority, t.id LIMIT 1;
    RETURN greatest(least(lowest, q.priority, 0)::bigint - 1, -2147483648);
END $$;
COMMENT ON FUNCTION pgqueue.urgent_priority IS 'A priority that comes before all that is ready in a queue.';
