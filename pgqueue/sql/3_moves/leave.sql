-- The ends of tasks. Every task leaves the table here, except those that an ack deletes inline (ack.sql). A task that
-- is done and kept becomes so here. moves.sql has the table of all moves.

-- Delete tasks. how: how they ended, for _follow (follow.sql).
CREATE OR REPLACE FUNCTION pgqueue._delete_tasks(ids bigint[], how text DEFAULT 'deleted') RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    gone record;
BEGIN
    WITH deleted AS (
        DELETE FROM pgqueue.task t WHERE t.id = ANY (ids)
        RETURNING t.id, t.queue_id, t.state, t.lane, t.holds_lane, t.followed, t.meter)
    SELECT place.*, free.*, slot.*, mark.* INTO gone
      FROM (SELECT array_agg(p.queue_id) AS queues, array_agg(p.state) AS states, array_agg(p.n) AS n
              FROM (SELECT d.queue_id, d.state, -count(*) AS n FROM deleted d GROUP BY d.queue_id, d.state) p) place,
           (SELECT array_agg(d.queue_id) AS lanes_of, array_agg(d.lane) AS lanes, array_agg(true) AS freed
              FROM deleted d
             WHERE (d.state IN ('R', 'C') OR d.state = 'D' AND d.holds_lane) AND d.lane IS NOT NULL) free,
           (SELECT array_agg(d.queue_id) AS meters_of, array_agg(d.meter) AS meters
              FROM deleted d WHERE d.state IN ('R', 'C') AND d.meter IS NOT NULL) slot,
           (SELECT array_agg(d.queue_id) AS followed_in, array_agg(d.id) AS followed
              FROM deleted d WHERE d.followed) mark;
    IF gone.queues IS NOT NULL THEN
        PERFORM pgqueue._count_places(gone.queues, gone.states, gone.n);
    END IF;
    IF gone.lanes IS NOT NULL THEN
        PERFORM pgqueue._tell_lanes(gone.lanes_of, gone.lanes, gone.freed);
    END IF;
    IF gone.meters IS NOT NULL THEN
        PERFORM pgqueue._tell_meters(gone.meters_of, gone.meters);
    END IF;
    IF gone.followed IS NOT NULL THEN
        DELETE FROM pgqueue.cancellation c WHERE c.task_id = ANY (gone.followed);
        PERFORM pgqueue._follow_each(gone.followed_in, gone.followed, how);
    END IF;
END $$;

-- Keep tasks of a queue that are done.
CREATE OR REPLACE FUNCTION pgqueue._keep_tasks(queue_id int, ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    marked bigint[];
BEGIN
    SELECT array_agg(t.id) FILTER (WHERE t.followed) INTO marked
      FROM (SELECT n.id, n.followed FROM pgqueue.task n WHERE n.id = ANY (ids) ORDER BY n.id FOR UPDATE) t;
    UPDATE pgqueue.task SET state = 'F', done_at = clock_timestamp(), run_at = NULL, expires_at = NULL, followed = NULL
     WHERE task.id = ANY (ids);
    DELETE FROM pgqueue.cancellation c WHERE c.task_id = ANY (marked);
    PERFORM pgqueue._follow(queue_id, marked, 'done');
END $$;

-- End tasks that are done and have no take any more, in a queue with options or followed: keep them, or delete them.
-- Counting them (count.sql) also notifies lanes, and puts that wait for room. A mark that another transaction sets must
-- not be missed (follow.sql): the DELETE returns it, and before the UPDATE, which removes it, the rows are locked.
CREATE OR REPLACE FUNCTION pgqueue._end_tasks(ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    q record;
BEGIN
    FOR q IN
        SELECT t.queue_id AS id, array_agg(t.id) AS ids,
               (SELECT named.keep_done FROM pgqueue.queue named WHERE named.id = t.queue_id) IS NOT NULL AS keep
          FROM pgqueue.task t WHERE t.id = ANY (_end_tasks.ids) AND t.state <> 'F'
         GROUP BY t.queue_id
    LOOP
        PERFORM pgqueue._note(q.id, 'ack', q.ids);      -- before: an observer may still look
        IF q.keep THEN
            PERFORM pgqueue._keep_tasks(q.id, q.ids);
        ELSE
            PERFORM pgqueue._delete_tasks(q.ids, 'done');
        END IF;
    END LOOP;
END $$;

-- Remove a task. The caller has locked its row.
CREATE OR REPLACE FUNCTION pgqueue._remove_task(id bigint, queue_id int) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    -- Before the task is deleted: an observer may still read it.
    PERFORM pgqueue._note(queue_id, 'delete', ARRAY [id]);
    PERFORM pgqueue._delete_tasks(ARRAY [id]);
    PERFORM pgqueue._untake_tasks(ARRAY [id]);
END $$;

CREATE OR REPLACE FUNCTION pgqueue._remove_batch(ids bigint[]) RETURNS int
LANGUAGE plpgsql AS $$
BEGIN
    IF ids <> '{}' THEN
        PERFORM pgqueue._delete_tasks(ids), pgqueue._untake_tasks(ids);
    END IF;
    RETURN cardinality(ids);
END $$;

-- Remove all tasks of a queue, or `most` of them. By cursors: a new query with a LIMIT for each batch would walk over
-- all rows that this transaction has already deleted. Blocked tasks are deleted first; otherwise each batch of heads
-- would make the tasks behind them ready. The loop runs again until it finds no task that was put or changed since its
-- last run.
CREATE OR REPLACE FUNCTION pgqueue._remove_tasks(queue_id int, most int DEFAULT NULL) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    batch   CONSTANT int := 1000;
    removed int := 0;
    before  int;
    state   "char";
    one     bigint;
    ids     bigint[] := '{}'::bigint[];
BEGIN
    LOOP
        before := removed;
        FOREACH state IN ARRAY '{L,W,R,D,B,C,F}'::"char"[] LOOP
            FOR one IN
                EXECUTE format('SELECT id FROM pgqueue.task WHERE queue_id = $1 AND state = %L%s '
                               'LIMIT $2 FOR UPDATE SKIP LOCKED',
                               state, CASE state WHEN 'L' THEN ' AND lane IS NOT NULL' END)
                  USING queue_id, most - removed
            LOOP
                ids := ids || one;
                IF cardinality(ids) = batch THEN
                    removed := removed + pgqueue._remove_batch(ids);
                    ids := '{}';
                END IF;
            END LOOP;
            removed := removed + pgqueue._remove_batch(ids);
            ids := '{}';
        END LOOP;
        EXIT WHEN removed = before OR removed >= most;
    END LOOP;
    RETURN removed;
END $$;
