-- Acks: a task is done. It is deleted, or kept for a time, and its follow-up tasks are put in the same statement.
--
-- The short way is for a task that is not followed (follow.sql), in a queue without options: delete the take and the
-- task, and write one row for the statistics. The DELETE itself checks both, since a check in a statement of its own
-- would cost more. All other tasks end in _end_tasks.

CREATE OR REPLACE FUNCTION pgqueue.ack(
    id          bigint,
    token       bigint DEFAULT NULL,
    session     int    DEFAULT NULL,
    puts        jsonb  DEFAULT NULL,       -- follow-up tasks to put: an array, as for _read_puts
    OUT state   text,
    OUT problem text,
    OUT holder  text,
    OUT ids     bigint[]
)
LANGUAGE plpgsql AS $$
DECLARE
    of_queue int;
    handed   record;
BEGIN
    IF puts IS NOT NULL THEN
        handed := pgqueue._read_puts(puts);
        PERFORM pgqueue._lock_rooms(handed.queues);
    END IF;
    IF token IS NULL THEN
        session := pgqueue._named_session(session);
    END IF;
    -- The same as _drop_take, without the call.
    DELETE FROM pgqueue.take k
     WHERE k.task_id = ack.id AND k.deadline > clock_timestamp()
       AND (k.token = ack.token OR ack.token IS NULL AND pgqueue._is_ours(k.session_id, ack.session))
    RETURNING k.queue_id INTO of_queue;
    IF FOUND THEN
        DELETE FROM pgqueue.task t
         WHERE t.id = ack.id AND t.followed IS NULL
           AND (SELECT q.special FROM pgqueue.queue q WHERE q.id = t.queue_id) IS NOT TRUE;
        IF FOUND THEN
            INSERT INTO pgqueue.delta (queue_id, standing, taken, verb, calls) VALUES (of_queue, -1, -1, 'ack', 1);
        ELSE
            INSERT INTO pgqueue.delta (queue_id, taken) VALUES (of_queue, -1);
            PERFORM pgqueue._end_tasks(ARRAY [id]);
        END IF;
        IF puts IS NOT NULL THEN
            ids := pgqueue._put_all(handed.queues, handed.specs);
        END IF;
        state := 'done';
    ELSE
        SELECT * INTO state, problem, holder FROM pgqueue._explain_refusal(id);
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.ack IS
    'The task is done: delete it, or keep it as the queue says, and put its follow-up tasks in the same statement. '
    'problem: not found, not taken, or taken by another (then with its holder).';

CREATE OR REPLACE FUNCTION pgqueue.ack_many(
    ids     bigint[],
    tokens  bigint[] DEFAULT NULL,
    session int      DEFAULT NULL
) RETURNS TABLE (id bigint, state text, problem text, holder text)
LANGUAGE plpgsql AS $$
DECLARE
    dropped bigint[];
    low     int;
    high    int;
    q       record;
    n       int := 0;
BEGIN
    SELECT * INTO dropped, low, high FROM pgqueue._drop_takes(ids, tokens, session);
    SELECT d.special, d.flows INTO q FROM pgqueue.queue d WHERE d.id = low;
    -- Nearly always all tasks are of one queue without options: one statement suffices. Else one queue after another.
    IF low = high AND q.special IS NOT TRUE THEN
        -- If one task is followed then usually all are: the tasks of a batch.
        IF q.flows IS NOT TRUE OR (SELECT t.followed FROM pgqueue.task t WHERE t.id = dropped [1]) IS NOT TRUE THEN
            DELETE FROM pgqueue.task t WHERE t.id = ANY (dropped) AND t.followed IS NULL;
            GET DIAGNOSTICS n = ROW_COUNT;
        END IF;
        INSERT INTO pgqueue.delta (queue_id, standing, taken, verb, calls)
        VALUES (low, -n, -cardinality(dropped), 'ack', CASE n WHEN 0 THEN cardinality(dropped) ELSE n END);
        IF n = 0 THEN
            PERFORM pgqueue._delete_tasks(dropped, 'done');
        ELSIF n < cardinality(dropped) THEN
            PERFORM pgqueue._end_tasks(dropped);
        END IF;
    ELSIF low IS NOT NULL THEN
        INSERT INTO pgqueue.delta (queue_id, taken)
        SELECT t.queue_id, -count(*) FROM pgqueue.task t WHERE t.id = ANY (dropped) GROUP BY t.queue_id;
        PERFORM pgqueue._end_tasks(dropped);
    END IF;
    IF cardinality(dropped) < cardinality(ids) THEN
        RETURN QUERY SELECT * FROM pgqueue._explain_refusals(ids, dropped);
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.ack_many IS 'Ack many tasks; returns the tasks that could not be acked, and the reasons.';

-- Part of clean_up: delete done tasks whose time is over, or whose queue keeps no done tasks any more.
CREATE OR REPLACE FUNCTION pgqueue._clean_done() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    q record;
BEGIN
    FOR q IN SELECT named.id, clock_timestamp() - coalesce(named.keep_done, '0') AS since FROM pgqueue.queue named LOOP
        PERFORM pgqueue._delete_tasks(ARRAY (
                    SELECT t.id FROM pgqueue.task t
                     WHERE t.queue_id = q.id AND t.state = 'F' AND t.done_at <= q.since
                     ORDER BY t.done_at LIMIT 10000 FOR UPDATE SKIP LOCKED));
    END LOOP;
END $$;
