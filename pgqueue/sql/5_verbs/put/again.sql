-- Putting tasks again: new tasks with the data and options of old ones.
--
-- The old tasks stay as they are. A new task has the data, priority, lane and time to run of the old one. It has no
-- key: the old task, or a later one, may still have the key, and the put would be ignored. It is in no flow and no
-- batch: these count the old task.

-- Put these tasks of a queue again, in this order; tasks that are gone are left out. Returns the new ids. The caller
-- has checked the right to manage the queue; put checks the right to put, and the room.
CREATE OR REPLACE FUNCTION pgqueue._put_again(queue_id int, ids bigint[]) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    name    CONSTANT text := (SELECT q.name FROM pgqueue.queue q WHERE q.id = _put_again.queue_id);
    old     record;
    new     record;
    old_ids bigint[] := '{}'::bigint[];
    new_ids bigint[] := '{}'::bigint[];
BEGIN
    FOR old IN
        SELECT t.id, t.data, t.priority, t.lane, t.ttr
          FROM unnest(ids) WITH ORDINALITY asked(id, place)
          JOIN pgqueue.task t ON t.id = asked.id AND t.queue_id = _put_again.queue_id
         ORDER BY asked.place
    LOOP
        SELECT * INTO new
          FROM pgqueue.put(queue => name, data => old.data, priority => old.priority, delay => '0', ttr => old.ttr,
                           lane => old.lane);
        IF new.state = 'full' THEN
            RAISE EXCEPTION 'queue "%" is full: it has no room for the tasks that are put again', name
                USING ERRCODE = 'PQ037';
        END IF;
        old_ids := old_ids || old.id;
        new_ids := new_ids || new.id;
    END LOOP;
    PERFORM pgqueue._record_tasks('put_again', queue_id, old_ids);
    RETURN new_ids;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.put_again(id bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    of_queue CONSTANT int := (SELECT t.queue_id FROM pgqueue.task t WHERE t.id = put_again.id);
BEGIN
    IF of_queue IS NULL THEN
        PERFORM pgqueue._check_server(id);
    END IF;
    PERFORM pgqueue._check_guarded(of_queue, 'manage', is_named => false);
    RETURN (pgqueue._put_again(of_queue, ARRAY [id])) [1];
END $$;
COMMENT ON FUNCTION pgqueue.put_again IS
    'Put a new task with the data, priority, lane and time to run of this one, which may be in any state and stays; '
    'without its key. Returns the new id; NULL: there is no such task. The caller needs the verbs manage and put. '
    'PQ037: the queue is full.';
