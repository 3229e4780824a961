-- Putting a task with special options: a lane, a key, a capacity, or another option of the queue.
--
-- Keys. A partial unique index over the tasks that are not done decides. A put T1 that meets a task of an open
-- transaction T2 waits until T2 ends, which decides whether that task exists.
--
-- An expired task is never taken again, so it must not block a put: T1 ends it first, as a tick would have done, and
-- puts its own.
--
-- Above READ COMMITTED a snapshot may still show a task that has been acked since, and a put that is ignored because of
-- it would be lost. So T1 looks for the key before it inserts only at READ COMMITTED. At the other levels the INSERT
-- comes first, for it checks the index, which has the newest state: it succeeds if the task is gone; it fails with a
-- serialization failure if there is a task that the snapshot does not show; and otherwise the snapshot shows the task
-- that has the key. The order INSERT, then look-up, would do at READ COMMITTED too, but each ignored put would use up
-- an id, and a full queue would have to be told apart from an existing key.
--
-- Replacing. A put T1 that has the task's row may look for a take, in a newer snapshot: a claim T2 that had the row
-- before has committed its take by then, and no claim can begin. A taken task is not replaced, for its taker would ack
-- the new one. Both looks need READ COMMITTED.
--
-- Capacity. It is exact, so producers of such a queue put one after another: a put holds an advisory lock (_lock_room)
-- until its transaction ends. A transaction that frees room signals the queue's other channel, pgqueue._signal(-id)
-- (count.sql), on which puts wait. The lock precedes all others: before the queue's row; before a key's row, which
-- stays locked even if it has lost the key by then; and, in the order of the queues, before the task of an ack that
-- puts follow-up tasks.

CREATE OR REPLACE FUNCTION pgqueue._check_put(q pgqueue.queue, s pgqueue.specification) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF q.guarded THEN
        PERFORM pgqueue._check_right(q.id, 'put');
    END IF;
    IF q.draining THEN
        RAISE EXCEPTION 'queue "%" is draining: nothing is put any more', q.name USING ERRCODE = 'PQ035';
    ELSIF s.if_exists IS NULL OR s.if_exists NOT IN ('ignore', 'error', 'replace') THEN
        RAISE EXCEPTION 'if_exists is ignore, error or replace, not %', pgqueue._shown(s.if_exists)
            USING ERRCODE = 'PQ002';
    ELSIF octet_length(s.lane) NOT BETWEEN 1 AND 255 OR octet_length(s.key) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'a lane and a key have 1 to 255 bytes: the lane has %, the key has %',
            octet_length(s.lane), octet_length(s.key) USING ERRCODE = 'PQ001';
    END IF;
    IF q.type IS NOT NULL THEN
        PERFORM pgqueue._check_type(q.type, s.priority, s.delay, s.ttr, s.ttl, s.lane);
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed'
       AND (q.capacity IS NOT NULL OR s.key IS NOT NULL AND s.if_exists = 'replace') THEN
        RAISE EXCEPTION
            'a put into a queue with a capacity, or that replaces a task, must run at READ COMMITTED, not at %',
            upper(current_setting('transaction_isolation')) USING ERRCODE = 'PQ002';
    END IF;
END $$;

-- The same for many tasks, each with its lane and its key.
CREATE OR REPLACE FUNCTION pgqueue._check_put_many(
    q pgqueue.queue, s pgqueue.specification, lanes text[], keys text[]
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    name record;
BEGIN
    PERFORM pgqueue._check_put(q, s);
    FOR name IN
        SELECT DISTINCT lane, NULL AS key FROM unnest(lanes) lane UNION SELECT NULL, key FROM unnest(keys) key
    LOOP
        s.lane := name.lane;
        s.key := name.key;
        PERFORM pgqueue._check_put(q, s);
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._check_size(q pgqueue.queue, data jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF octet_length(data::text) > q.max_size THEN
        RAISE EXCEPTION 'the data has % bytes, the tasks of queue "%" have at most %',
            octet_length(data::text), q.name, q.max_size USING ERRCODE = 'PQ036';
    END IF;
END $$;

-- End an expired task; false if its holder is settling it now. The function waits for a transaction T2 that has the
-- task's row. It is also true if T2 has ended or changed the task: the caller looks again.
CREATE OR REPLACE FUNCTION pgqueue._end_expired(q pgqueue.queue, id bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN      -- only a newer snapshot shows a late take
        RAISE EXCEPTION 'task % of queue "%" has the key of this put; it has expired and is not removed yet', id, q.name
            USING ERRCODE = 'serialization_failure',
                  HINT = 'Put at READ COMMITTED, which removes it, or repeat the transaction a second later.';
    END IF;
    PERFORM FROM pgqueue.task t
      WHERE t.id = _end_expired.id AND t.queue_id = q.id AND t.state <> 'D' AND t.state <> 'F'
        AND (t.expires_at <= clock_timestamp() OR t.state = 'C') FOR UPDATE;
    IF FOUND THEN
        IF pgqueue._is_held(id) THEN
            RETURN false;
        ELSIF (SELECT t.state FROM pgqueue.task t WHERE t.id = _end_expired.id) = 'C' THEN
            PERFORM pgqueue._end_cancelled(q.id, ARRAY [id]);
            RETURN true;
        END IF;
        PERFORM pgqueue._note(q.id, 'ttl', ARRAY [id]), pgqueue._die(ARRAY [id], 'expired');
    END IF;
    RETURN true;
END $$;

-- The task that already has the key, and the outcome of the put; its id is NULL if no task has the key.
CREATE OR REPLACE FUNCTION pgqueue._meet_key(
    q pgqueue.queue, s pgqueue.specification, later timestamptz
) RETURNS pgqueue.put_outcome
LANGUAGE plpgsql AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    t      record;
    met    pgqueue.put_outcome;
BEGIN
    IF s.if_exists = 'replace' THEN
        SELECT task.id, task.data, task.state = 'C' OR task.state <> 'D' AND task.expires_at <= moment AS expired
          INTO t FROM pgqueue.task
         WHERE task.queue_id = q.id AND task.key = s.key AND task.state <> 'F' FOR UPDATE;
    ELSE
        SELECT task.id, task.data, task.state = 'C' OR task.state <> 'D' AND task.expires_at <= moment AS expired
          INTO t FROM pgqueue.task
         WHERE task.queue_id = q.id AND task.key = s.key AND task.state <> 'F';
    END IF;
    IF NOT FOUND OR (CASE WHEN t.expired THEN pgqueue._end_expired(q, t.id) END) THEN
        RETURN NULL;
    ELSIF s.if_exists = 'error' THEN
        RAISE EXCEPTION 'queue "%" has a task with the key "%" already: task %', q.name, s.key, t.id
            USING ERRCODE = 'PQ038';
    ELSIF s.if_exists = 'replace' THEN
        IF pgqueue._is_held(t.id) THEN
            RAISE EXCEPTION 'task % of queue "%" has the key "%" and is taken: it cannot be replaced',
                t.id, q.name, s.key USING ERRCODE = 'PQ039';
        END IF;
        PERFORM pgqueue._put_over(t.id, q, s, later);
    ELSIF NOT q.guarded OR pgqueue._may(q.id, 'look') THEN
        met.kept := t.data;
    END IF;
    met.id := t.id;
    met.existed := true;
    SELECT seen.state INTO met.state FROM pgqueue._tasks seen WHERE seen.id = t.id;
    RETURN met;
END $$;

-- Put a task that was checked, once its key and its flow are. later: when it is ready; NULL: now. A task that waits for
-- others is delayed, and its ttl counts, from their end (flows/waiting.sql).
CREATE OR REPLACE FUNCTION pgqueue._put_special(
    q pgqueue.queue, s pgqueue.specification, later timestamptz
) RETURNS pgqueue.put_outcome
LANGUAGE plpgsql AS $$
DECLARE
    urgency CONSTANT int      := coalesce(s.priority, q.priority);
    waits   CONSTANT boolean  := coalesce(s.after <> '{}', false);
    life    CONSTANT interval := CASE WHEN NOT waits THEN coalesce(s.ttl, q.ttl) END;
    place   "char" := 'R';
    fresh   timestamptz;
    meter   text;
    met     pgqueue.put_outcome;
    new_id  bigint;
BEGIN
    IF q.max_size IS NOT NULL OR q.capacity IS NOT NULL THEN
        PERFORM pgqueue._check_size(q, s.data), pgqueue._lock_room(q);
    END IF;
    IF s.lane IS NOT NULL AND NOT q.lanes THEN
        PERFORM pgqueue.allow_lanes(q.name);
    END IF;
    IF q.metered THEN
        meter := pgqueue._meter_of_put(q, s.data, s.lane);
    END IF;
    IF s.key IS NOT NULL AND current_setting('transaction_isolation') = 'read committed' THEN
        met := pgqueue._meet_key(q, s, later);
        IF met.id IS NOT NULL THEN
            RETURN met;
        END IF;
    END IF;
    IF q.capacity IS NOT NULL AND pgqueue._queue_length(q.id) >= q.capacity THEN
        RETURN (NULL, 'full', false, NULL)::pgqueue.put_outcome;
    END IF;
    IF waits THEN
        place := 'W';
        meter := NULL;
    ELSIF later IS NOT NULL THEN
        place := 'D';
    ELSIF s.lane IS NOT NULL THEN
        place := pgqueue._enter_lane(q.id, s.lane, urgency);
    ELSIF meter IS NOT NULL THEN
        place := 'W';                              -- a claim admits it: limits/meters.sql
    END IF;
    IF life IS NOT NULL AND later IS NULL THEN
        fresh := clock_timestamp();
    END IF;
    LOOP
        INSERT INTO pgqueue.task
               (queue_id, state, run_at, created_at, expires_at, priority, ttr, data, lane, key, sender, meter,
                followed, xid)
        VALUES (q.id, place, later, coalesce(fresh, now()), coalesce(later, fresh) + life, urgency,
                coalesce(s.ttr, q.ttr), s.data, s.lane, s.key, s.sender, meter,
                CASE WHEN waits OR s.batch IS NOT NULL THEN true END, CASE WHEN q.listed THEN pg_current_xact_id() END)
        ON CONFLICT DO NOTHING RETURNING task.id INTO new_id;
        EXIT WHEN FOUND;
        met := pgqueue._meet_key(q, s, later);
        IF met.id IS NOT NULL THEN
            RETURN met;
        END IF;
    END LOOP;
    IF place = 'W' AND NOT waits THEN
        INSERT INTO pgqueue.meter_check (queue_id, meter) VALUES (q.id, meter);
    END IF;
    -- As _count_new and _note, in one row.
    INSERT INTO pgqueue.delta (queue_id, standing, delayed, blocked, verb, calls)
    VALUES (q.id, (place = 'R')::int, (place = 'D')::int, (place IN ('L', 'W'))::int, 'put', 1);
    IF place = 'L' THEN
        PERFORM pgqueue._tell_lanes(ARRAY [q.id], ARRAY [s.lane], ARRAY [false]);
    END IF;
    IF q.observed THEN
        PERFORM pgqueue._tell_change(q.id, 'put', ARRAY [new_id]);
    END IF;
    IF NOT waits THEN
        PERFORM pgqueue._signal(q.id, CASE WHEN place <> 'D' THEN 1 END);
    END IF;
    IF q.maxlen IS NOT NULL THEN
        PERFORM pgqueue._trim_queue(q.id, q.maxlen);
    END IF;
    RETURN (new_id, CASE place WHEN 'R' THEN 'ready' WHEN 'D' THEN 'delayed' WHEN 'W' THEN 'waiting' ELSE 'blocked' END,
            false, NULL)::pgqueue.put_outcome;
END $$;

-- Check a message against the options of all queues that it is routed to, before any of them gets it. Dead letters and
-- wills are not checked: no caller could get an error.
CREATE OR REPLACE FUNCTION pgqueue._check_publish(queue_ids int[], s pgqueue.specification) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    q pgqueue.queue;
BEGIN
    FOR q IN SELECT * FROM pgqueue.queue named WHERE named.id = ANY (queue_ids) AND (named.special OR named.guarded)
              ORDER BY named.id LOOP
        PERFORM pgqueue._check_put(q, s), pgqueue._check_size(q, s.data), pgqueue._lock_room(q);
        IF q.metered THEN
            PERFORM pgqueue._meter_of_put(q, s.data, NULL);
        END IF;
        IF q.capacity IS NOT NULL AND pgqueue._queue_length(q.id) >= q.capacity THEN
            RAISE EXCEPTION 'queue "%" is full: it holds % tasks at most, and nothing was published', q.name, q.capacity
                USING ERRCODE = 'PQ037';
        END IF;
    END LOOP;
END $$;
