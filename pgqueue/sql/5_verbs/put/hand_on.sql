-- Handing on: tasks that a call puts besides its own work, given as JSON. An ack hands its follow-up tasks on, a batch
-- the tasks that wait for it; a graph has nothing else (graphs.sql), and a schedule has the options of one put.

-- Read the puts of a JSON array: [{queue, data, priority, delay, ttr, ttl, lane, key, if_exists, sender, run_at,
-- unique_for, unique_data, after, on_failure, batch}], durations in seconds. unique_data: the key is data_key(data).
-- All are read before the first is put: a caller must be able to tell a malformed element from a put that fails.
CREATE OR REPLACE FUNCTION pgqueue._read_puts(
    puts jsonb, on_failure text DEFAULT 'wait', what text DEFAULT 'puts',
    OUT queues text[], OUT specs pgqueue.specification[]
)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM pgqueue._check_items('puts', puts);
    SELECT array_agg(r.queue),
           array_agg(pgqueue._specify(
               coalesce(r.data, 'null'), r.priority, make_interval(secs => r.delay), make_interval(secs => r.ttr),
               make_interval(secs => r.ttl), r.lane,
               CASE WHEN r.key IS NULL AND r.unique_data THEN pgqueue.data_key(coalesce(r.data, 'null')) ELSE r.key END,
               coalesce(r.if_exists, 'ignore'), r.sender, r.run_at, make_interval(secs => r.unique_for),
               r.after, coalesce(r.on_failure, _read_puts.on_failure), r.batch))
      INTO queues, specs
      FROM jsonb_to_recordset(puts)
           r(queue text, data jsonb, priority int, delay float8, ttr float8, ttl float8, lane text, key text,
             if_exists text, sender uuid, run_at timestamptz, unique_for float8, unique_data boolean,
             after bigint[], on_failure text, batch bigint);
EXCEPTION WHEN data_exception THEN
    RAISE EXCEPTION '%: %', what, SQLERRM USING ERRCODE = 'PQ002';
END $$;

-- Lock the rooms of all queues into which an ack puts, before it locks any task, and in the order of the queues' ids:
-- otherwise two acks T1 and T2 that put into the same two queues could wait for each other. An ack of a task that is
-- not the caller's puts nothing, but keeps the rooms until its transaction ends. So the right is checked here, too.
CREATE OR REPLACE FUNCTION pgqueue._lock_rooms(queues text[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM CASE WHEN q.guarded THEN pgqueue._check_right(q.id, 'put') END, pgqueue._lock_room(q)
       FROM (SELECT * FROM pgqueue.queue named
              WHERE named.name = ANY (queues) ORDER BY named.id) q;
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

-- Put them all. In `after`, -1 is the first of these tasks, -2 the second, and so on. A put without options takes the
-- short way of put. alone: the caller's transaction ends with this call (put_flow).
CREATE OR REPLACE FUNCTION pgqueue._put_all(
    queues text[], specs pgqueue.specification[], alone boolean DEFAULT false
) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    ids bigint[] := '{}'::bigint[];
    s   pgqueue.specification;
    new record;
BEGIN
    FOR i IN 1 .. coalesce(cardinality(specs), 0) LOOP
        s := specs [i];
        IF s = pgqueue._specify(s.data, on_failure => s.on_failure) THEN
            SELECT p.id, p.state INTO new FROM pgqueue.put(queues [i], s.data) p;
        ELSE
            IF s.after IS NOT NULL THEN
                s.after := pgqueue._named_before(s.after, ids);
            END IF;
            IF (pg_column_size(s.data) > pgqueue._most_data()) IS NOT FALSE THEN
                PERFORM pgqueue._check_data('data', s.data);
            END IF;
            new := pgqueue._put_task(pgqueue._queue_of_put(queues [i]), s, alone);
        END IF;
        IF new.state = 'full' THEN
            RAISE EXCEPTION 'queue "%" is full: nothing was handed on to it', queues [i] USING ERRCODE = 'PQ037';
        END IF;
        ids := ids || new.id;
    END LOOP;
    RETURN ids;
END $$;
