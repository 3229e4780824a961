-- Followed tasks: those whose end matters to other rows. For example, tasks that depend on this one may become ready.
--
-- Theory of operation
-- -------------------
-- Hardly any task is followed, and the ack of any other must cost nothing extra. So the mark is in the task's own row
-- (task.followed), where the short way of an ack checks it in the statement that deletes the row anyway: it deletes
-- only tasks that are not followed. A followed task takes the long way (_end_tasks, leave.sql), which calls `_follow`.
-- Without the mark each ack would need an index probe in the table of cancellations and one in the table of
-- dependencies.
--
-- The mark may be set at any time. Transaction T1 marks a task that T2 is acking:
--
--   T1 has the row, uncommitted   the DELETE of T2 waits for T1, and then reads the row again (EvalPlanQual): it sees
--                                 the mark, does not delete, and T2 takes the long way.
--   T2 has deleted, uncommitted   the UPDATE of T1 waits for T2, and finds no row: the task is done. T1 sees that its
--                                 UPDATE marked nothing.
--
-- A mark in a table of its own would need a lock for this. Hence the rule: a transaction that adds a row about a
-- task marks the task first (UPDATE ... SET followed = true), and takes the task as ended if no row was updated. A mark
-- may outlive its reason; then the ack takes the long way, and no harm is done.
--
-- `_follow` is called in the transaction in which followed tasks of one queue end:
--
--   done        acked, or popped; also if the queue keeps it
--   deleted     by a delete, a truncated or removed queue, or maxlen
--   cancelled   cancelled.sql
--   expired     its ttl was over, and it is gone
--   buried      it is in the state B now
--   dead        it has left the queue as a dead letter: the row is in another queue, or gone
--
-- The hook for flows is in flows/deciding.sql, since it needs later functions. Limits need none: limits/meters.sql.

CREATE OR REPLACE FUNCTION pgqueue._follow(queue_id int, ids bigint[], how text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF cardinality(ids) > 0 THEN
        PERFORM pgqueue._follow_tasks(queue_id, ids, how);
    END IF;
END $$;

-- The same for tasks of several queues: queues [i] is the queue of ids [i].
CREATE OR REPLACE FUNCTION pgqueue._follow_each(queues int[], ids bigint[], how text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue._follow(f.queue_id, array_agg(f.id ORDER BY f.id), how)
       FROM unnest(queues, ids) f(queue_id, id) GROUP BY f.queue_id;
END $$;

-- The state of a followed task that would be ready now: W if it has to wait for other tasks. Each statement that makes
-- tasks ready calls this, but only for followed ones.
CREATE OR REPLACE FUNCTION pgqueue._ready_state(t pgqueue.task) RETURNS "char"
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN CASE WHEN pgqueue._waits_for_tasks(t) THEN 'W'
                WHEN t.lane IS NOT NULL THEN 'L' ELSE 'R' END;
END $$;
