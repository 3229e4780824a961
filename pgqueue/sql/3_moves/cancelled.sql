-- The end of cancelled tasks. The verb is in cancel.sql.
--
-- Theory of operation
-- -------------------
-- A task that is not taken is cancelled at once: its row is deleted, and the outcome `cancelled` is kept as a result.
-- A taken task cannot be deleted: its holder is at work. It becomes C (cancelling) and followed, a row in
-- `cancellation` has the reason, and its holder is notified. From then on no claim can get the task, and it ends with
-- its take:
--
--   acked by its holder              done: the work was finished
--   released, failed, requeued       cancelled
--   deadline, session's death, undo  cancelled
--   buried, also by another          cancelled
--   deleted                          gone, as any task that is deleted
--
-- Every statement that ends a take without an ack checks for followed tasks, and passes them to _given_back, or updates
-- the task's row anyway and reads the resulting state. So a task that is not followed pays nothing.
--
-- Races. Transaction T1 cancels; T2 ends the take of the same task.
--
--   T2 updates or deletes the row    ack, release, fail, bury, requeue, delete. T1 has the row's lock: T2 waits for it,
--                                    reads the row again (EvalPlanQual), and sees C: its SET keeps the C, and its
--                                    RETURNING tells T2 to end the task. T2 has the row: T1 waits, and sees the state
--                                    of the task.
--   T2 only drops the take           deadline, dead session, release_many, undo. T1 locks the take too, if that needs
--                                    no wait: then T2 skips the take, or waits and drops it in a snapshot that shows
--                                    C. If T2 had the take first, T1 may make the task C after T2 looked for C. Then a
--                                    task is left that is C without a take. No claim can have it, and the next tick
--                                    ends it (_end_left).
--
-- T1 never waits for a take, since T1 has the task's row (1_tables/schema.sql). If it locked the take first, as delete
-- does, a cancel would wait for a holder that acks in a long transaction of its own.
--
-- After a crash of the server the takes are gone, and tasks that were C are ended by the first tick.

-- End tasks of a queue as cancelled. The caller has locked their rows, and they have no take. Without a reason each
-- gets that of its cancellation.
CREATE OR REPLACE FUNCTION pgqueue._end_cancelled(queue_id int, ids bigint[], reason text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    keep   CONSTANT interval    := interval '1 h';
    moment CONSTANT timestamptz := clock_timestamp();
BEGIN
    IF cardinality(ids) > 0 THEN
        INSERT INTO pgqueue.result AS r
               (task_id, finished_at, expires_at, queue_id, attempts, error, cancelled)
        SELECT t.id, moment, moment + keep, t.queue_id, t.attempts,
               coalesce(_end_cancelled.reason,
                        (SELECT c.reason FROM pgqueue.cancellation c WHERE c.task_id = t.id), 'it was cancelled'), true
          FROM pgqueue.task t WHERE t.id = ANY (ids) ORDER BY t.id
            ON CONFLICT (task_id) DO UPDATE
           SET finished_at = excluded.finished_at, expires_at = excluded.expires_at, queue_id = excluded.queue_id,
               attempts = excluded.attempts, value = NULL, error = excluded.error, cancelled = true;
        PERFORM pgqueue._note(queue_id, 'delete', ids), pgqueue._delete_tasks(ids, 'cancelled'),
                pgqueue._tell_ends(ids);
    END IF;
END $$;

-- Part of every tick: end cancelled tasks that have lost their takes, where no other call could.
CREATE OR REPLACE FUNCTION pgqueue._end_left() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    ids bigint[];
BEGIN
    ids := ARRAY (SELECT t.id FROM pgqueue.task t
                   WHERE t.state = 'C' AND (SELECT k.task_id FROM pgqueue.take k WHERE k.task_id = t.id) IS NULL
                   LIMIT 1000 FOR UPDATE SKIP LOCKED);
    IF ids <> '{}' THEN
        PERFORM pgqueue._end_cancelled(q.queue_id, array_agg(q.id))
           FROM (SELECT t.queue_id, t.id FROM unnest(pgqueue._untaken(ids)) u(id) JOIN pgqueue.task t ON t.id = u.id) q
          GROUP BY q.queue_id;
    END IF;
END $$;
