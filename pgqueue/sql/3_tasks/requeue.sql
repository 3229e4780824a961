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
    stored   "char";
BEGIN
    IF of_queue IS NULL THEN
        SELECT * INTO state, problem, holder FROM pgqueue._explain_refusal(id);
        RETURN;
    END IF;
    UPDATE pgqueue.task t
       SET id = DEFAULT, state = CASE WHEN t.lane IS NULL THEN 'R' ELSE 'L' END,
           suspect = NULL, killed_after = NULL, releases = coalesce(t.releases, 0) + 1
     WHERE t.id = requeue.id AND t.followed IS NULL
    RETURNING t.id, CASE WHEN t.lane IS NULL THEN 'ready' ELSE 'blocked' END INTO new_id, state;
    IF FOUND THEN
        UPDATE pgqueue.attempt a SET task_id = new_id WHERE a.task_id = requeue.id;
        UPDATE pgqueue.step SET task_id = new_id WHERE task_id = requeue.id;
    ELSE                                           -- other rows refer to a followed task by its id: keep it
        UPDATE pgqueue.task t
           SET state = CASE WHEN t.state = 'C' THEN 'C' ELSE pgqueue._ready_state(t) END,
               suspect = NULL, killed_after = NULL, releases = coalesce(t.releases, 0) + 1
         WHERE t.id = requeue.id
        RETURNING t.id, t.state, CASE t.state WHEN 'R' THEN 'ready' WHEN 'L' THEN 'blocked' WHEN 'W' THEN 'waiting'
                                              ELSE 'cancelled' END INTO new_id, stored, state;
        IF stored = 'C' THEN
            PERFORM pgqueue._note(of_queue, 'release', ARRAY [id]), pgqueue._end_cancelled(of_queue, ARRAY [id]);
            RETURN;
        END IF;
    END IF;
    PERFORM pgqueue._note(of_queue, 'release', ARRAY [new_id]), pgqueue._signal(of_queue, 1);
    IF state = 'blocked' THEN                      -- until _note has opened its lane, if no other task is in it
        SELECT seen.state INTO state FROM pgqueue._tasks seen WHERE seen.id = new_id;
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.requeue IS
    'Give a task back behind all other tasks of its priority, under a new id, which is returned. A task that waited '
    'for others, or for which others wait, keeps its id and its place. state cancelled: it was cancelled while taken.';
