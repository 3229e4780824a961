-- Tasks: the view of them; which are in a lane; which queues have something due; and tasks without a take.

-- The tasks that are in a lane; the first of them is its head (lanes.sql). It is a view, so that PostgreSQL plans it
-- into the statements that use it.
CREATE OR REPLACE VIEW pgqueue._in_lane AS
SELECT t.id, t.queue_id, t.lane, t.priority, t.state, t.expires_at, t.xmin AS writer
  FROM pgqueue.task t
 WHERE (t.state IN ('R', 'L', 'C') OR t.state = 'D' AND t.holds_lane) AND t.lane IS NOT NULL;

-- Which queues have something due. It is a view, so that PostgreSQL plans it into the statements that use it. It asks
-- for the start of the statement: clock_timestamp() is volatile, and a volatile bound cannot use an index. Not EXISTS:
-- the planner may answer it for all queues at once, with a hash of everything that is delayed or ready anywhere.
CREATE OR REPLACE VIEW pgqueue._queue_due AS
SELECT q.id, q.name, q.special, q.guarded, q.restricted, q.metered, q.lanes OR q.metered AS by_heads,
       (SELECT t.run_at FROM pgqueue.task t
         WHERE t.queue_id = q.id AND t.state = 'D' AND t.run_at <= statement_timestamp()
         ORDER BY t.run_at LIMIT 1) IS NOT NULL
       OR q.flows AND (SELECT c.id FROM pgqueue.flow_check c WHERE c.queue_id = q.id LIMIT 1) IS NOT NULL AS delay_over,
       (SELECT k.deadline FROM pgqueue.take k
         WHERE k.queue_id = q.id AND k.deadline < 'infinity' AND k.deadline <= statement_timestamp()
         ORDER BY k.deadline LIMIT 1) IS NOT NULL AS ttr_over,
       (SELECT t.expires_at FROM pgqueue.task t
         WHERE t.queue_id = q.id AND t.state <> 'D' AND t.expires_at <= statement_timestamp()
         ORDER BY t.expires_at LIMIT 1) IS NOT NULL AS ttl_over
  FROM pgqueue.queue q;

-- For how long a task has been ready. It is 0 while the task is delayed.
CREATE OR REPLACE FUNCTION pgqueue._age(t pgqueue.task) RETURNS interval
LANGUAGE sql VOLATILE
RETURN greatest(clock_timestamp() - pgqueue._readable(coalesce(t.run_at, t.ready_at, t.created_at)), '0');

-- How long a task lives, counted from when it is ready; a claim and a touch may extend the ttl of its put.
-- NULL: it never expires.
CREATE OR REPLACE FUNCTION pgqueue._ttl(t pgqueue.task) RETURNS interval
LANGUAGE sql IMMUTABLE
RETURN pgqueue._readable(t.expires_at) - pgqueue._readable(coalesce(t.run_at, t.ready_at, t.created_at));

-- The deadline of a take that is made at this moment; NULL: none. A ttr or an expires_at out of bounds, which
-- only raw SQL can write, counts as none: it must not keep takers from the tasks around it.
CREATE OR REPLACE FUNCTION pgqueue._deadline(moment timestamptz, ttr interval, expires_at timestamptz)
RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE
RETURN least(moment + CASE WHEN ttr > '0' AND ttr <= pgqueue._longest() THEN ttr END,
             CASE WHEN expires_at < timestamptz '9999-12-30 00:00+00' THEN expires_at END);

-- For how many seconds a task was ready at this moment. date_part, since extract makes a numeric of it first.
CREATE OR REPLACE FUNCTION pgqueue._waited(moment timestamptz, ready_at timestamptz, created_at timestamptz)
RETURNS float8
LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE WHEN isfinite(coalesce(ready_at, created_at))
            THEN greatest(date_part('epoch', moment - coalesce(ready_at, created_at)), 0) ELSE 0 END;

CREATE OR REPLACE FUNCTION pgqueue._new_token() RETURNS bigint
LANGUAGE sql VOLATILE RETURN hashtextextended(gen_random_uuid()::text, 0);

-- The tasks without a take, among tasks whose rows the caller has just locked. Only a newer snapshot can tell, so at
-- REPEATABLE READ the answer is empty, and no task dies: the next listener's tick runs at READ COMMITTED.
CREATE OR REPLACE FUNCTION pgqueue._untaken(ids bigint[]) RETURNS bigint[]
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN '{}'::bigint[];
    END IF;
    RETURN ARRAY (SELECT u.id FROM unnest(ids) u(id)
                   WHERE (SELECT k.task_id FROM pgqueue.take k WHERE k.task_id = u.id) IS NULL);
END $$;

-- Why a task in this state could not be settled. A state of NULL: there is no such task.
CREATE OR REPLACE FUNCTION pgqueue._problem(id bigint, state text) RETURNS text
LANGUAGE sql STABLE
RETURN CASE WHEN state IS NULL THEN pgqueue._absent(id) WHEN state IN ('taken', 'cancelling') THEN 'taken by another'
            ELSE 'not taken' END;

-- Every task. For functions, which check rights themselves.
CREATE OR REPLACE VIEW pgqueue._tasks AS
SELECT t.id,
       q.name AS queue,
       CASE WHEN t.state = 'C' THEN 'cancelling'
            WHEN k.task_id IS NOT NULL THEN 'taken'
            WHEN t.state = 'B' THEN 'buried'
            WHEN t.state = 'F' THEN 'done'
            WHEN t.state = 'L' THEN 'blocked'
            WHEN t.state = 'W' THEN 'waiting'
            WHEN t.state = 'R' AND t.lane IS NOT NULL      -- not the head of its lane, or the lane is busy: lanes.sql
             AND ((SELECT o.task_id FROM pgqueue.take o
                    WHERE o.queue_id = t.queue_id AND o.lane = t.lane AND o.deadline > now()) IS NOT NULL
                  OR (SELECT h.id FROM pgqueue._in_lane h
                       WHERE h.queue_id = t.queue_id AND h.lane = t.lane
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
       t.queue_id, t.state AS stored,
       CASE WHEN t.state NOT IN ('D', 'W') THEN coalesce(t.ready_at, t.created_at) WHEN t.run_at <= now() THEN t.run_at
       END AS ready_since,
       t.buried_at
  FROM pgqueue.task t
  JOIN pgqueue.queue q ON q.id = t.queue_id
  LEFT JOIN pgqueue.take k ON k.task_id = t.id AND k.deadline > now()
  LEFT JOIN pgqueue.session s ON s.id = k.session_id;

CREATE OR REPLACE VIEW pgqueue.tasks WITH (security_barrier) AS
SELECT t.id, t.queue, t.state, t.priority, t.attempts, t.created_at, t.run_at, t.ttr,
       CASE WHEN q.looks THEN t.error END AS error, CASE WHEN q.looks THEN t.data END AS data,
       t.taken_at, t.deadline, t.session, t.holder, t.expires_at,
       CASE WHEN q.looks THEN t.routing_key END AS routing_key, t.deaths, CASE WHEN q.looks THEN t.lane END AS lane,
       CASE WHEN q.looks THEN t.key END AS key, t.done_at, t.sender, t.releases, t.timeouts, t.buries, t.kicks,
       t.queue_id, t.stored, t.ready_since, t.buried_at
  FROM pgqueue._tasks t JOIN pgqueue._seen q ON q.id = t.queue_id;
COMMENT ON VIEW pgqueue.tasks IS
    'Every task with its state and its holder. Monitors see no data, error, key, lane and routing_key. For a page of a '
    'queue''s tasks in one state: find_tasks.';
COMMENT ON COLUMN pgqueue.tasks.ready_since IS
    'Since when the task could be taken: its put, or later the end of its delay or a kick. A task that comes back from '
    'a take keeps it. NULL while the task is delayed or waiting.';
COMMENT ON COLUMN pgqueue.tasks.stored IS
    'R, D, B, L, W, C or F, as in the task''s row, so that a query can use its indexes. The state depends on several '
    'rows.';
