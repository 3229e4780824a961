-- Giving a task back to the end of its queue.

-- The place of a task in its queue is (priority, id), so moving a task to the end gives it a new id. All else stays.
CREATE OR REPLACE FUNCTION pgqueue.requeue(
    id          bigint,
    token       bigint DEFAULT NULL,
    session     int    DEFAULT NULL,
    OUT new_id  bigint,
    OUT state   text,
    OUT problem text,
    OUT holder  text
)
LANGUAGE plpgsql AS $$
DECLARE
    of_queue CONSTANT int := (pgqueue._drop_take(id, token, session)).queue_id;
    stored      "char";
    keeps_place boolean;
BEGIN
    IF of_queue IS NULL THEN
        SELECT * INTO state, problem, holder FROM pgqueue._explain_refusal(id);
        RETURN;
    END IF;
    SELECT moved.new_id, moved.stored INTO new_id, stored FROM pgqueue._move_behind(id) moved;
    keeps_place := new_id IS NULL;
    IF keeps_place THEN
        new_id := id;
        stored := pgqueue._come_back(id);
    END IF;
    PERFORM pgqueue._note(of_queue, 'release', ARRAY [new_id]);
    IF stored = 'C' THEN
        PERFORM pgqueue._end_cancelled(of_queue, ARRAY [id]);
        state := 'cancelled';
        RETURN;
    END IF;
    PERFORM pgqueue._signal(of_queue, 1);
    state := 'ready';
    IF keeps_place OR stored = 'L' THEN            -- it may wait for others, or be blocked in its lane
        SELECT seen.state INTO state FROM pgqueue._tasks seen WHERE seen.id = new_id;
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.requeue IS
    'Give a task back behind all other tasks of its priority, under a new id, which is returned. A task in a flow or '
    'a batch keeps its id and its place. state cancelled: it was cancelled while taken.';
