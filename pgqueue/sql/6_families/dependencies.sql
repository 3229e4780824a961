-- Reading flows: the predecessors of a task with their results, and the progress of batches; and the cleaning of flows.
--
-- The result of a task for which another one waits is kept until that one is gone, whatever time was set. It is kept by
-- its expires_at: a cleaning that looked for dependencies would walk over all such results each time.
-- kept_until has the time that was set, and _forget_dependants (links.sql) restores it.

CREATE OR REPLACE FUNCTION pgqueue.predecessors(
    id      bigint,
    token   bigint DEFAULT NULL,
    session int    DEFAULT NULL
) RETURNS TABLE (on_id bigint, state text, queue text, result jsonb, error text)
LANGUAGE plpgsql AS $$
BEGIN
    session := CASE WHEN token IS NULL THEN pgqueue._named_session(session) END;
    PERFORM FROM pgqueue.take k
      WHERE k.task_id = predecessors.id AND k.deadline > clock_timestamp()
        AND (k.token = predecessors.token
             OR predecessors.token IS NULL AND pgqueue._is_ours(k.session_id, predecessors.session));
    IF NOT FOUND THEN                              -- not the holder, which may see them as it may see the task's data
        PERFORM pgqueue._check_guarded(t.queue_id, 'look', is_named => false)
           FROM pgqueue.task t WHERE t.id = predecessors.id;
        PERFORM pgqueue._check_server(id);
    END IF;
    RETURN QUERY
        SELECT d.on_id,
               CASE d.state WHEN 'D' THEN 'done' WHEN 'F' THEN 'failed' WHEN 'G' THEN coalesce(
                    CASE WHEN NOT seen.looks THEN NULL WHEN r.cancelled THEN 'cancelled'
                         WHEN r.error IS NOT NULL THEN 'failed' END, 'gone')
                    ELSE 'open' END,
               CASE WHEN seen.looks THEN q.name END,
               CASE WHEN b.id IS NOT NULL
                    THEN jsonb_build_object(
                             'total', b.total,
                             'failed', (SELECT count(*) FROM pgqueue.member m
                                         WHERE m.batch_id = b.id AND m.state <> 'O'))
                    WHEN seen.looks THEN r.value END,
               CASE WHEN seen.looks THEN coalesce(r.error, CASE WHEN d.state = 'F' THEN t.error END) END
          FROM pgqueue.dependency d
          LEFT JOIN pgqueue.task t ON t.id = d.on_id
          LEFT JOIN pgqueue.batch b ON b.id = d.on_id
          LEFT JOIN pgqueue.result r ON r.task_id = d.on_id
          LEFT JOIN pgqueue.queue q ON q.id = coalesce(t.queue_id, r.queue_id)
         -- For a queue that is gone, no row says which roles might look into it: only the owner may.
         CROSS JOIN LATERAL (
               SELECT CASE WHEN q.guarded THEN pgqueue._may(q.id, 'look')
                           ELSE q.id IS NOT NULL OR pgqueue._is_owner() END AS looks OFFSET 0) seen
         WHERE d.task_id = predecessors.id
         ORDER BY d.position;
END $$;
COMMENT ON FUNCTION pgqueue.predecessors IS
    'The tasks and batches that a task was put after, in their order, with their results, if their holders kept any. '
    'For its holder, and for roles that may look into its queue; results, errors and names of queues for roles that '
    'may look into the queue of each.';

CREATE OR REPLACE VIEW pgqueue.dependencies WITH (security_barrier) AS
SELECT d.task_id AS id, q.name AS queue, d.on_id,
       CASE d.state WHEN 'D' THEN 'done' WHEN 'F' THEN 'failed' WHEN 'G' THEN 'gone' ELSE 'open' END AS state,
       CASE w.on_failure WHEN 'w' THEN 'wait' WHEN 'b' THEN 'bury' ELSE 'run' END AS on_failure
  FROM pgqueue.dependency d
  JOIN pgqueue.dependant w ON w.task_id = d.task_id
  JOIN pgqueue.task t ON t.id = d.task_id
  JOIN pgqueue._seen q ON q.id = t.queue_id;
COMMENT ON VIEW pgqueue.dependencies IS
    'The dependencies of tasks that are not gone: the task id waits, or waited, for the task or batch on_id.';

-- The batches that the reader of a view may see.
CREATE OR REPLACE VIEW pgqueue._seen_batches AS
SELECT b.* FROM pgqueue.batch b
 WHERE (SELECT pgqueue._may_see_all('monitor'))
    OR b.role_id = ANY (ARRAY (SELECT o.oid FROM pgqueue._own_roles o));

CREATE OR REPLACE VIEW pgqueue.batches WITH (security_barrier) AS
SELECT b.id, b.name,
       CASE WHEN b.closed_at IS NULL THEN 'open' WHEN b.ended_at IS NULL THEN 'running' WHEN b.failed THEN 'failed'
            ELSE 'done' END AS state,
       n.total, n.total - n.open - n.failed AS done, n.failed, n.open, b.created_at, b.closed_at, b.ended_at,
       b.role::text AS role
  FROM pgqueue._seen_batches b
 CROSS JOIN LATERAL (
       SELECT coalesce(b.total, (SELECT coalesce(sum(p.added), 0)::bigint FROM pgqueue.batch_part p
                                  WHERE p.batch_id = b.id)) AS total,
              (SELECT count(*) FROM pgqueue.member m WHERE m.batch_id = b.id AND m.state = 'O') AS open,
              (SELECT count(*) FROM pgqueue.member m WHERE m.batch_id = b.id AND m.state <> 'O') AS failed OFFSET 0) n;
COMMENT ON VIEW pgqueue.batches IS
    'Every batch, until a day after its end: how many tasks it has, and how many of them are done, have failed and are '
    'open. A role sees its own; monitors see all.';

-- For monitors: without the batches that are done, since there may be all those of a day.
CREATE OR REPLACE VIEW pgqueue.batch_stats WITH (security_barrier) AS
  WITH b AS MATERIALIZED (
       SELECT c.id, CASE WHEN c.closed_at IS NULL THEN 'open' WHEN c.ended_at IS NULL THEN 'running'
                         ELSE 'failed' END AS state
         FROM pgqueue._seen_batches c WHERE c.ended_at IS NULL OR c.failed),
       n AS (
       SELECT b.state, count(*) AS batches FROM b GROUP BY b.state),
       t AS (
       SELECT b.state, count(*) FILTER (WHERE m.state = 'O') AS open, count(*) FILTER (WHERE m.state <> 'O') AS failed
         FROM b JOIN pgqueue.member m ON m.batch_id = b.id GROUP BY b.state)
SELECT s.state, coalesce(n.batches, 0) AS batches, coalesce(t.open, 0) AS open, coalesce(t.failed, 0) AS failed
  FROM (VALUES ('open'), ('running'), ('failed')) s(state)
  LEFT JOIN n ON n.state = s.state
  LEFT JOIN t ON t.state = s.state;
COMMENT ON VIEW pgqueue.batch_stats IS
    'How many batches are open, running or, since less than a day, failed, and how many of their tasks are open or '
    'have failed. A role counts its own; monitors count all.';

CREATE OR REPLACE VIEW pgqueue.batch_failures WITH (security_barrier) AS
SELECT m.batch_id AS batch, m.task_id AS id, q.name AS queue,
       CASE WHEN t.id IS NULL THEN 'gone' ELSE 'failed' END AS state,
       CASE WHEN q.looks THEN coalesce(t.error, r.error) END AS error
  FROM pgqueue.member m
  LEFT JOIN pgqueue.task t ON t.id = m.task_id
  LEFT JOIN pgqueue.result r ON r.task_id = m.task_id
  JOIN pgqueue._seen q ON q.id = coalesce(t.queue_id, r.queue_id)
 WHERE m.state <> 'O';
COMMENT ON VIEW pgqueue.batch_failures IS
    'The failed tasks of batches, and those that are gone without having been done and left an outcome.';

-- Keep the results of tasks for which others wait until these are gone. Called when results are kept, which this
-- transaction has just stored. No tick sees them yet; so none may delete the last dependency meanwhile.
CREATE OR REPLACE FUNCTION pgqueue._keep_for_dependants(ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE pgqueue.result r SET kept_until = r.expires_at, expires_at = timestamptz '9999-12-30 00:00+00'
      FROM (SELECT DISTINCT u.id FROM unnest(ids) u(id)) k,
           LATERAL (SELECT FROM pgqueue.dependency d WHERE d.on_id = k.id LIMIT 1 FOR KEY SHARE) waiting
     WHERE r.task_id = k.id AND r.expires_at < timestamptz '9999-12-30 00:00+00';
END $$;

-- Part of clean_up: delete batches that ended, or were left open, a day ago, and for which no task waits.
CREATE OR REPLACE FUNCTION pgqueue._clean_batches() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    since   CONSTANT timestamptz := clock_timestamp() - interval '1 day';
    portion CONSTANT int         := 1000;
    old     CONSTANT bigint[]    := ARRAY (
        SELECT b.id FROM pgqueue.batch b
         WHERE b.created_at < since
           AND CASE WHEN b.closed_at IS NULL THEN true ELSE b.ended_at < since END
           AND NOT EXISTS (SELECT FROM pgqueue.dependency d WHERE d.on_id = b.id)
         ORDER BY b.created_at LIMIT portion FOR UPDATE SKIP LOCKED);
BEGIN
    IF old <> '{}' THEN
        DELETE FROM pgqueue.batch_part p WHERE p.batch_id = ANY (old);
        DELETE FROM pgqueue.batch b WHERE b.id = ANY (old);
    END IF;
    DELETE FROM pgqueue.member
     WHERE ctid = ANY (ARRAY (SELECT m.ctid FROM pgqueue.member m
                               WHERE m.state <> 'O' AND NOT EXISTS (SELECT FROM pgqueue.batch b WHERE b.id = m.batch_id)
                               LIMIT 10000 FOR UPDATE SKIP LOCKED));
END $$;
