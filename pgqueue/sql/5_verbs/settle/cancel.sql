-- The verb cancel: cancelling tasks, and notifying their holders. cancelled.sql has the theory.

-- How a task that no longer exists has ended: done, failed or cancelled, if the caller may see its result.
CREATE OR REPLACE FUNCTION pgqueue._ended_as(id bigint) RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT CASE WHEN r.cancelled THEN 'cancelled' WHEN r.error IS NULL THEN 'done' ELSE 'failed' END
              FROM pgqueue.result r LEFT JOIN pgqueue.queue q ON q.id = r.queue_id
             WHERE r.task_id = _ended_as.id AND r.expires_at > clock_timestamp()
               AND (q.guarded IS FALSE OR pgqueue._may(r.queue_id, 'manage')));
END $$;

CREATE OR REPLACE FUNCTION pgqueue.cancel_many(ids bigint[], reason text DEFAULT NULL)
RETURNS TABLE (id bigint, state text, problem text)
LANGUAGE plpgsql AS $$
DECLARE
    gone   bigint[] := '{}'::bigint[];
    told   bigint[] := '{}'::bigint[];
    q      record;
BEGIN
    PERFORM pgqueue._check_read_committed('cancel');
    PERFORM pgqueue._check_array('ids', ids), pgqueue._check_text('a reason', reason);
    PERFORM pgqueue._check_tasks(ids, 'manage');
    PERFORM FROM pgqueue.task t WHERE t.id = ANY (ids) ORDER BY t.id FOR UPDATE;
    PERFORM pgqueue._check_tasks(ids, 'manage');
    -- A new statement, whose snapshot shows the takes of all claims that had these rows.
    FOR q IN
        WITH live AS MATERIALIZED (
            SELECT t.id, t.queue_id, t.state, pgqueue._is_held(t.id) AS is_held
              FROM pgqueue.task t WHERE t.id = ANY (ids) AND t.state <> 'F')
        SELECT l.queue_id AS id, array_agg(l.id ORDER BY l.id) FILTER (WHERE NOT l.is_held) AS free,
               array_agg(l.id ORDER BY l.id) FILTER (WHERE l.is_held) AS held,
               array_agg(l.id ORDER BY l.id) FILTER (WHERE l.is_held AND l.state <> 'C') AS new
          FROM live l GROUP BY l.queue_id
    LOOP
        PERFORM pgqueue._end_cancelled(q.id, q.free, cancel_many.reason),
                pgqueue._ask_holders(q.new, cancel_many.reason),
                pgqueue._record_tasks('cancel', q.id, q.free || q.new);
        gone := gone || q.free;
        told := told || q.held;
    END LOOP;
    RETURN QUERY
        SELECT a.id, e.state,
               CASE WHEN e.live THEN NULL WHEN e.state IS NULL THEN pgqueue._absent(a.id) ELSE 'ended' END
          FROM unnest(ids) WITH ORDINALITY a(id, place),
               LATERAL (SELECT CASE WHEN a.id = ANY (gone) THEN 'cancelled' WHEN a.id = ANY (told) THEN 'cancelling'
                                    WHEN EXISTS (SELECT FROM pgqueue.task t WHERE t.id = a.id) THEN 'done'
                                    ELSE pgqueue._ended_as(a.id) END,
                               a.id = ANY (gone || told)) e(state, live)
         ORDER BY a.place;
END $$;
COMMENT ON FUNCTION pgqueue.cancel_many IS
    'Cancel tasks, in any state; a row for each id. state cancelled: it is gone, and its outcome is kept for an hour. '
    'cancelling: it is taken, its holder was notified, and it is never taken again. problem ended: it had ended '
    'before, and the state is that of its result: done, failed or cancelled. Without a result the problem is not '
    'found.';

CREATE OR REPLACE FUNCTION pgqueue.cancel(id bigint, reason text DEFAULT NULL, OUT state text, OUT problem text)
LANGUAGE plpgsql AS $$
BEGIN
    SELECT c.state, c.problem INTO state, problem FROM pgqueue.cancel_many(ARRAY [cancel.id], reason) c;
END $$;
COMMENT ON FUNCTION pgqueue.cancel IS 'Cancel a task; see cancel_many.';

CREATE OR REPLACE FUNCTION pgqueue.cancel_key(
    queue text, key text, reason text DEFAULT NULL, OUT id bigint, OUT state text, OUT problem text
)
LANGUAGE plpgsql AS $$
DECLARE
    q CONSTANT int := (pgqueue._known_queue(queue, 'manage')).id;
BEGIN
    SELECT t.id INTO id FROM pgqueue.task t
     WHERE t.queue_id = q AND t.key = cancel_key.key AND t.state <> 'F';
    IF NOT FOUND THEN
        problem := 'not found';
        RETURN;
    END IF;
    SELECT c.state, c.problem INTO state, problem FROM pgqueue.cancel_many(ARRAY [id], reason) c;
END $$;
COMMENT ON FUNCTION pgqueue.cancel_key IS
    'Cancel the task of a queue that has the key and is not done; see cancel_many. PQ032: there is no such queue.';

CREATE OR REPLACE FUNCTION pgqueue.cancelled_takes(ids bigint[], tokens bigint[])
RETURNS TABLE (id bigint, reason text)
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue._check_takes(ids, tokens);
    RETURN QUERY
        SELECT k.task_id, c.reason
          FROM unnest(cancelled_takes.ids, cancelled_takes.tokens) asked(id, token), pgqueue.take k,
               pgqueue.cancellation c
         WHERE k.task_id = asked.id AND k.token = asked.token AND c.task_id = k.task_id;
END $$;
COMMENT ON FUNCTION pgqueue.cancelled_takes IS
    'The takes, among these, whose tasks were cancelled, and why. Their holders should stop, and release the tasks.';

CREATE OR REPLACE VIEW pgqueue.cancellations WITH (security_barrier) AS
SELECT c.task_id AS id, q.name AS queue, c.asked_at, c.role, CASE WHEN q.looks THEN c.reason END AS reason,
       k.session_id AS session, coalesce(s.label, CASE k.session_id WHEN 0 THEN 'a claim' END) AS holder
  FROM pgqueue.cancellation c
  JOIN pgqueue.task t ON t.id = c.task_id
  JOIN pgqueue._seen q ON q.id = t.queue_id
  LEFT JOIN pgqueue.take k ON k.task_id = c.task_id
  LEFT JOIN pgqueue.session s ON s.id = k.session_id
 WHERE t.state = 'C';
COMMENT ON VIEW pgqueue.cancellations IS
    'Tasks that were cancelled while they were taken, until their takes end: since when, by which role, and their '
    'holders. Monitors do not see the reason.';

-- Part of clean_up: rows of tasks that raw SQL deleted.
CREATE OR REPLACE FUNCTION pgqueue._clean_cancellations() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM pgqueue.cancellation
     WHERE ctid = ANY (ARRAY (SELECT c.ctid FROM pgqueue.cancellation c
                               WHERE c.asked_at < clock_timestamp() - interval '1 min'
                                 AND (SELECT t.id FROM pgqueue.task t WHERE t.id = c.task_id AND t.state = 'C') IS NULL
                               LIMIT 5000 FOR UPDATE SKIP LOCKED));
END $$;
