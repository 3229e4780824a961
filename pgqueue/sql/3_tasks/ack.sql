-- Acks: a task is done. It is deleted, or kept for a time, and its follow-up tasks are put in the same statement.
--
-- The short way is for a task that is not followed (follow.sql), in a queue without options: delete the take and the
-- task, and write one row for the statistics. The DELETE itself checks both, since a check in a statement of its own
-- would cost more. All other tasks end in _end_tasks.

-- Tasks to put: [{queue, data, priority, delay, ttr, ttl, lane, key, if_exists, sender, run_at, unique_for,
-- unique_data, after, on_failure, batch}], durations in seconds. unique_data: the key is data_key(data). In `after`, -1
-- is the first of these tasks, -2 the second, and so on.
CREATE OR REPLACE FUNCTION pgqueue._check_puts(puts jsonb) RETURNS void
LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM pgqueue._check_items('puts', puts);
    -- All are read before the first is put: a caller must be able to tell a malformed element from a put that fails.
    PERFORM count(make_interval(secs => r.delay)), count(make_interval(secs => r.ttr)),
            count(make_interval(secs => r.ttl)), count(make_interval(secs => r.unique_for))
       FROM jsonb_to_recordset(puts) r(queue text, data jsonb, priority int, delay float8, ttr float8, ttl float8,
                                       lane text, key text, if_exists text, sender uuid, run_at timestamptz,
                                       unique_for float8, unique_data boolean,
                                       after bigint[], on_failure text, batch bigint);
EXCEPTION WHEN data_exception THEN
    RAISE EXCEPTION 'puts: %', SQLERRM USING ERRCODE = 'PQ002';
END $$;

-- Lock the rooms of all queues into which an ack puts, before it locks any task, and in the order of the queues' ids:
-- otherwise two acks T1 and T2 that put into the same two queues could wait for each other. An ack of a task that is
-- not the caller's puts nothing, but keeps the rooms until its transaction ends. So the right is checked here, too.
CREATE OR REPLACE FUNCTION pgqueue._lock_rooms(puts jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM CASE WHEN q.guarded THEN pgqueue._check_right(q.id, 'put') END, pgqueue._lock_room(q)
       FROM (SELECT * FROM pgqueue.queue named
              WHERE named.name IN (SELECT p ->> 'queue' FROM jsonb_array_elements(puts) p) ORDER BY named.id) q;
END $$;

-- The ids that `after` names; -n names the nth task that the same call has put.
CREATE OR REPLACE FUNCTION pgqueue._named_before(after bigint[], ids bigint[]) RETURNS bigint[]
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    wrong CONSTANT bigint := (SELECT a.n FROM unnest(after) a(n) WHERE a.n < 0 AND -a.n > cardinality(ids) LIMIT 1);
BEGIN
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'after: %, but only % tasks were put before in this call', wrong, cardinality(ids)
            USING ERRCODE = 'PQ044', HINT = 'Put a task before those that wait for it. Circles cannot be put.';
    END IF;
    RETURN ARRAY (SELECT CASE WHEN a.n < 0 THEN ids [-a.n] ELSE a.n END
                    FROM unnest(after) WITH ORDINALITY a(n, place) ORDER BY a.place);
END $$;

-- alone: the caller's transaction ends with this call (put_flow).
CREATE OR REPLACE FUNCTION pgqueue._put_all(puts jsonb, alone boolean DEFAULT false) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    ids bigint[] := '{}'::bigint[];
    p   record;
    new record;
BEGIN
    FOR p IN
        SELECT *
          FROM jsonb_to_recordset(puts) r(queue text, data jsonb, priority int, delay float8, ttr float8, ttl float8,
                                          lane text, key text, if_exists text, sender uuid, run_at timestamptz,
                                          unique_for float8, unique_data boolean,
                                          after bigint[], on_failure text, batch bigint)
    LOOP
        p.data := coalesce(p.data, 'null');
        IF p.unique_data AND p.key IS NULL THEN
            p.key := pgqueue.data_key(p.data);
        END IF;
        IF p.after IS NULL AND p.batch IS NULL THEN
            SELECT * INTO new
              FROM pgqueue.put(queue => p.queue, data => p.data, priority => p.priority,
                               delay => make_interval(secs => p.delay), ttr => make_interval(secs => p.ttr),
                               ttl => make_interval(secs => p.ttl), lane => p.lane, key => p.key,
                               if_exists => coalesce(p.if_exists, 'ignore'), sender => p.sender, run_at => p.run_at,
                               unique_for => make_interval(secs => p.unique_for));
        ELSIF p.unique_for IS NOT NULL THEN
            RAISE EXCEPTION 'a put that waits for others, or belongs to a batch, cannot be unique for a time'
                USING ERRCODE = 'PQ002';
        ELSE
            SELECT * INTO new
              FROM pgqueue.put_flow(queue => p.queue, data => p.data,
                                    after => pgqueue._named_before(p.after, ids),
                                    on_failure => coalesce(p.on_failure, 'wait'), batch => p.batch,
                                    priority => p.priority, delay => make_interval(secs => p.delay),
                                    ttr => make_interval(secs => p.ttr), ttl => make_interval(secs => p.ttl),
                                    lane => p.lane, key => p.key, if_exists => coalesce(p.if_exists, 'ignore'),
                                    sender => p.sender, run_at => p.run_at, alone => alone);
        END IF;
        IF new.state = 'full' THEN
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
    puts        jsonb  DEFAULT NULL,       -- follow-up tasks to put: an array, as for _put_all
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
         WHERE t.id = ack.id AND t.followed IS NULL
           AND (SELECT q.special FROM pgqueue.queue q WHERE q.id = t.queue_id) IS NOT TRUE;
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
