-- Acks: a task is done. It is deleted, or kept for a while; and the tasks that it hands on to are put in the same
-- statement.
--
-- The short way is for a queue without options: delete the take and the task, and write one row for the statistics. The
-- DELETE itself asks whether the queue has options, since one more statement costs more than the answer. Tasks of
-- queues with options end in _end_tasks.

-- End tasks that are done and have no take any more, in a queue with options: keep them, or delete them. Counting them
-- (count.sql) also serves lanes and puts that wait for them.
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
            UPDATE pgqueue.task SET state = 'F', done_at = clock_timestamp(), run_at = NULL, expires_at = NULL
             WHERE task.id = ANY (q.ids);
        ELSE
            PERFORM pgqueue._delete_tasks(q.ids);
        END IF;
    END LOOP;
END $$;

-- The tasks that an acked task hands on to: [{queue, data, priority, delay, ttr, ttl, lane, key, if_exists, sender,
-- run_at}], durations in seconds.
CREATE OR REPLACE FUNCTION pgqueue._check_puts(puts jsonb) RETURNS void
LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM pgqueue._check_items('puts', puts);
    -- All are read before the first is put: an error in the middle has to be told from an error of a put.
    PERFORM count(make_interval(secs => r.delay)), count(make_interval(secs => r.ttr)),
            count(make_interval(secs => r.ttl))
       FROM jsonb_to_recordset(puts) r(queue text, data jsonb, priority int, delay float8, ttr float8, ttl float8,
                                       lane text, key text, if_exists text, sender uuid, run_at timestamptz);
EXCEPTION WHEN data_exception THEN
    RAISE EXCEPTION 'puts: %', SQLERRM USING ERRCODE = 'PQ002';
END $$;

-- The rooms of all queues that an ack hands tasks on to, before it locks any task, and in the order of the queues' ids:
-- otherwise T1 and T2 that hand on to the same two queues could wait for each other. An ack of a task that is not the
-- caller's puts nothing, but keeps the rooms until its transaction ends. So the right is asked for here, too.
CREATE OR REPLACE FUNCTION pgqueue._lock_rooms(puts jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM CASE WHEN q.guarded THEN pgqueue._check_right(q.id, 'put') END, pgqueue._lock_room(q)
       FROM (SELECT * FROM pgqueue.queue named
              WHERE named.name IN (SELECT p ->> 'queue' FROM jsonb_array_elements(puts) p) ORDER BY named.id) q;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._put_all(puts jsonb) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    ids bigint[] := '{}'::bigint[];
    p   record;
    new record;
BEGIN
    FOR p IN
        SELECT *
          FROM jsonb_to_recordset(puts) r(queue text, data jsonb, priority int, delay float8, ttr float8, ttl float8,
                                          lane text, key text, if_exists text, sender uuid, run_at timestamptz)
    LOOP
        SELECT * INTO new
          FROM pgqueue.put(queue => p.queue, data => coalesce(p.data, 'null'), priority => p.priority,
                           delay => make_interval(secs => p.delay), ttr => make_interval(secs => p.ttr),
                           ttl => make_interval(secs => p.ttl), lane => p.lane, key => p.key,
                           if_exists => coalesce(p.if_exists, 'ignore'), sender => p.sender, run_at => p.run_at);
        IF new.id IS NULL THEN
            RAISE EXCEPTION 'queue "%" is full: nothing was handed on to it', p.queue USING ERRCODE = 'PQ037';
        END IF;
        ids := ids || new.id;
    END LOOP;
    RETURN ids;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.ack(
    id          bigint,
    token       bigint DEFAULT NULL,
    session     int    DEFAULT NULL,
    puts        jsonb  DEFAULT NULL,       -- tasks that this one hands on to: an array, as for _put_all
    OUT state   text,
    OUT problem text,
    OUT holder  text,
    OUT ids     bigint[]
)
LANGUAGE plpgsql AS $$
DECLARE
    of_queue int;
BEGIN
    IF puts IS NOT NULL THEN
        PERFORM pgqueue._check_puts(puts), pgqueue._lock_rooms(puts);
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
         WHERE t.id = ack.id AND (SELECT q.special FROM pgqueue.queue q WHERE q.id = t.queue_id) IS NOT TRUE;
        IF FOUND THEN
            INSERT INTO pgqueue.delta (queue_id, standing, taken, verb, calls) VALUES (of_queue, -1, -1, 'ack', 1);
        ELSE
            INSERT INTO pgqueue.delta (queue_id, taken) VALUES (of_queue, -1);
            PERFORM pgqueue._end_tasks(ARRAY [id]);
        END IF;
        IF puts IS NOT NULL THEN
            ids := pgqueue._put_all(puts);
        END IF;
        state := 'done';
    ELSE
        SELECT * INTO state, problem, holder FROM pgqueue._explain_refusal(id);
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.ack IS
    'The task is done: delete it, or keep it as the queue says, and put the tasks that it hands on to in the same '
    'statement. problem: not found, not taken, or taken by another (then with its holder).';

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
    n       int;
BEGIN
    SELECT * INTO dropped, low, high FROM pgqueue._drop_takes(ids, tokens, session);
    -- All of one queue without options, as nearly always: the statement itself suffices. Else one queue after another.
    IF low = high AND NOT EXISTS (SELECT FROM pgqueue.queue q WHERE q.id = low AND q.special) THEN
        DELETE FROM pgqueue.task t WHERE t.id = ANY (dropped);
        GET DIAGNOSTICS n = ROW_COUNT;
        INSERT INTO pgqueue.delta (queue_id, standing, taken, verb, calls)
        VALUES (low, -n, -cardinality(dropped), 'ack', n);
    ELSIF low IS NOT NULL THEN
        INSERT INTO pgqueue.delta (queue_id, taken)
        SELECT t.queue_id, -count(*) FROM pgqueue.task t WHERE t.id = ANY (dropped) GROUP BY t.queue_id;
        PERFORM pgqueue._end_tasks(dropped);
    END IF;
    IF cardinality(dropped) < cardinality(ids) THEN
        RETURN QUERY SELECT * FROM pgqueue._explain_refusals(ids, dropped);
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.ack_many IS 'Ack many tasks; returns those that could not be acked, and why.';

-- Part of clean_up: delete done tasks that were kept for long enough, or belong to a queue that keeps none any more.
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
