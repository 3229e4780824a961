-- Emptying a queue: of all its tasks, or of those in some states.
--
-- With states it proceeds as act_on_tasks: find.sql has the argument about tasks that other transactions take in
-- between.

-- Remove the tasks of a queue in these states, or at most `most` of them. As in _remove_tasks, blocked and waiting
-- tasks are deleted first: otherwise each batch of ready ones would make the tasks behind them ready.
CREATE OR REPLACE FUNCTION pgqueue._remove_states(queue_id int, states text[], most int) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    batch   CONSTANT int := 1000;
    removed int := 0;
    state   text;
    ids     bigint[];
    next    jsonb;
BEGIN
    PERFORM pgqueue._check_array('states', states, nulls => true), pgqueue._check_read_committed('truncate_queue');
    FOR state IN
        SELECT s FROM unnest(states) s GROUP BY s ORDER BY s IN ('blocked', 'waiting') DESC, s
    LOOP
        next := NULL;
        LOOP
            SELECT s.ids, s.next INTO ids, next
              FROM pgqueue._search(queue_id, state, least(batch, most - removed), NULL, NULL, NULL, NULL, NULL, NULL,
                                   after => next, within => NULL) s;
            removed := removed + pgqueue._remove_batch(pgqueue._locked_in_state(queue_id, ids, state));
            IF removed >= most THEN
                RETURN removed;
            END IF;
            EXIT WHEN next IS NULL;
        END LOOP;
    END LOOP;
    RETURN removed;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.truncate_queue(
    queue  text,
    n      int    DEFAULT NULL,               -- the most tasks to remove
    states text[] DEFAULT NULL                -- only tasks in these states, for example {ready,delayed}; NULL: in any
) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    q       CONSTANT int := (pgqueue._known_queue(queue, 'manage')).id;
    removed int;
BEGIN
    IF n IS NOT NULL THEN
        PERFORM pgqueue._check_count('n', n);
    END IF;
    removed := CASE WHEN states IS NULL THEN pgqueue._remove_tasks(q, n) ELSE pgqueue._remove_states(q, states, n) END;
    IF removed > 0 THEN
        PERFORM pgqueue._record('truncate', queue, count => removed, detail => array_to_string(states, ', '));
    END IF;
    RETURN removed;
END $$;
COMMENT ON FUNCTION pgqueue.truncate_queue IS
    'Remove all tasks of a queue in any state, also those that are taken, or at most n of them; returns how many. A '
    'task that another transaction is taking or settling at this moment stays. Acks of the removed tasks wait for the '
    'end of the transaction: empty a long queue by n tasks at a time, until it returns less. states: only '
    'tasks in these states, as find_tasks has them, and at READ COMMITTED; without taken, no ack waits.';
