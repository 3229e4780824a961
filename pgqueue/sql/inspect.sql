-- Looking, and the operator's verbs: views, peek, kick, delete.

CREATE OR REPLACE VIEW pgqueue.tasks AS
SELECT t.id,
       q.name AS queue,
       CASE WHEN k.task_id IS NOT NULL THEN 'taken'
            WHEN t.state = 'B' THEN 'buried'
            WHEN t.run_at > now() THEN 'delayed'
            ELSE 'ready'
       END AS state,
       t.priority, t.attempts, t.created_at, t.run_at, t.ttr, t.error, t.data,
       k.taken_at,
       nullif(k.deadline, 'infinity') AS deadline,
       k.session_id AS session,
       coalesce(s.label, 'session ' || k.session_id) AS holder,
       t.expires_at, t.routing_key, t.deaths
  FROM pgqueue.task t
  JOIN pgqueue.queue q ON q.id = t.queue_id
  LEFT JOIN pgqueue.take k ON k.task_id = t.id AND k.deadline > now()
  LEFT JOIN pgqueue.session s ON s.id = k.session_id;
COMMENT ON VIEW pgqueue.tasks IS 'Every task with its state, and who holds it.';

CREATE OR REPLACE VIEW pgqueue.sessions AS
SELECT s.id, s.label, s.backend_pid, s.started_at, s.grace, s.missing_since,
       (SELECT count(*) FROM pgqueue.take k WHERE k.session_id = s.id) AS taken
  FROM pgqueue.session s;
COMMENT ON VIEW pgqueue.sessions IS 'Every process that takes. missing_since: its connection is gone, and its grace is running.';

CREATE OR REPLACE VIEW pgqueue.stats AS
SELECT q.name AS queue,
       c.ready + c.delayed + c.buried AS total,
       c.ready - c.taken AS ready,
       c.delayed, c.taken, c.buried
  FROM pgqueue.queue q,
       LATERAL (SELECT
           (SELECT count(*) FROM pgqueue.task t WHERE t.queue_id = q.id AND t.state = 'R')
         + (SELECT count(*) FROM pgqueue.task t WHERE t.queue_id = q.id AND t.state = 'D' AND t.run_at <= now()) AS ready,
           (SELECT count(*) FROM pgqueue.task t WHERE t.queue_id = q.id AND t.state = 'D' AND t.run_at > now()) AS delayed,
           (SELECT count(*) FROM pgqueue.task t WHERE t.queue_id = q.id AND t.state = 'B') AS buried,
           (SELECT count(*) FROM pgqueue.take k WHERE k.queue_id = q.id AND k.deadline > now()) AS taken) c;
COMMENT ON VIEW pgqueue.stats IS 'How many tasks of each queue are in which state: counted from the indexes, so its cost grows with the backlog.';

CREATE OR REPLACE FUNCTION pgqueue.kick(queue text, n int DEFAULT 1) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    q      int;
    kicked int;
BEGIN
    SELECT named.id INTO q FROM pgqueue.queue named WHERE named.name = kick.queue;
    UPDATE pgqueue.task SET state = 'R'
     WHERE id = ANY (ARRAY (SELECT t.id FROM pgqueue.task t
                             WHERE t.queue_id = q AND t.state = 'B'
                             ORDER BY t.priority, t.id LIMIT kick.n FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS kicked = ROW_COUNT;
    IF kicked > 0 THEN
        PERFORM pgqueue.signal(q);
    END IF;
    RETURN kicked;
END $$;
COMMENT ON FUNCTION pgqueue.kick IS 'Make up to n buried tasks ready, lowest (priority, id) first; returns how many.';

CREATE OR REPLACE FUNCTION pgqueue.delete(id bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    deleted boolean;
BEGIN
    DELETE FROM pgqueue.take k WHERE k.task_id = delete.id;
    DELETE FROM pgqueue.task t WHERE t.id = delete.id;
    deleted := FOUND;
    PERFORM pgqueue.drop_late_take(id);
    RETURN deleted;
END $$;
COMMENT ON FUNCTION pgqueue.delete IS 'Remove a task in whatever state, its take too; false if there is none.';
