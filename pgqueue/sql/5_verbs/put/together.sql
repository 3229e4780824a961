-- Putting many tasks at once: tasks for one queue, or one task for each of several queues.

-- Put a task for each of these queues and each of the items, of which only the data differ: one INSERT, in the order of
-- the items. The tasks were checked. lanes, places and meters: those of each task (_places). Returns the ids. Copies of
-- a dead letter keep the time of its put and count as no put; the caller signals their queues (dead.sql).
--
-- The statement that puts the tasks also writes the rows of the statistics, one for each queue. Calls of _count_new and
-- _note for each queue would cost three times as much as the INSERT of the task.
CREATE OR REPLACE FUNCTION pgqueue._put_together(
    queue_ids int[], s pgqueue.specification, items jsonb,
    lanes text[] DEFAULT NULL, places "char"[] DEFAULT NULL, meters text[] DEFAULT NULL
) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    moment  CONSTANT timestamptz := clock_timestamp();
    total   CONSTANT int         := jsonb_array_length(items);
    blocked int := 0;
    new     record;
BEGIN
    IF total = 0 THEN
        RETURN '{}'::bigint[];
    ELSIF places IS NOT NULL THEN
        blocked := cardinality(array_positions(places, 'L')) + cardinality(array_positions(places, 'W'));
    END IF;
    WITH q AS MATERIALIZED (
        SELECT u.id, u.observed, u.maxlen IS NOT NULL AS bounded, u.later,
               CASE WHEN u.later IS NULL THEN total END AS ready,
               coalesce(s.priority, u.priority) AS priority, coalesce(s.ttr, u.ttr) AS ttr,
               coalesce(s.created_at, CASE WHEN u.life IS NULL THEN now() ELSE moment END) AS created_at,
               CASE WHEN u.later IS NULL AND s.deaths IS NOT NULL THEN moment END AS ready_at,
               coalesce(u.later, moment) + u.life AS expires_at,
               s.sender, s.routing_key, s.error, s.deaths, CASE WHEN s.batch IS NOT NULL THEN true END AS followed,
               CASE WHEN u.listed THEN pg_current_xact_id() END AS xid
          FROM (SELECT named.id, named.observed, named.maxlen, named.priority, named.ttr, named.listed,
                       coalesce(s.ttl, named.ttl) AS life,
                       CASE WHEN coalesce(s.delay, named.delay) > '0'
                            THEN coalesce(s.run_at, moment + coalesce(s.delay, named.delay)) END AS later
                  FROM pgqueue.queue named WHERE named.id = ANY (queue_ids) OFFSET 0) u),
    put AS (
        INSERT INTO pgqueue.task
               (queue_id, state, run_at, created_at, ready_at, expires_at, priority, ttr, data, lane, sender, meter,
                followed, routing_key, error, deaths, xid)
        SELECT q.id, CASE WHEN q.later IS NULL THEN coalesce(item.place, 'R') ELSE 'D' END, q.later, q.created_at,
               q.ready_at, q.expires_at, q.priority, q.ttr, item.data, item.lane, q.sender, item.meter, q.followed,
               q.routing_key, q.error, q.deaths, q.xid
          FROM q, ROWS FROM (jsonb_array_elements(items), unnest(lanes), unnest(places), unnest(meters))
                  item(data, lane, place, meter)
        RETURNING task.id),
    counted AS (
        INSERT INTO pgqueue.delta (queue_id, standing, delayed, blocked, verb, calls)
        SELECT q.id, coalesce(q.ready - blocked, 0), CASE WHEN q.ready IS NULL THEN total ELSE 0 END,
               CASE WHEN q.ready IS NULL THEN 0 ELSE blocked END,
               CASE WHEN q.deaths IS NULL THEN 'put' END, CASE WHEN q.deaths IS NULL THEN total ELSE 0 END
          FROM q)
    SELECT t.*, w.* INTO new
      FROM (SELECT array_agg(put.id) AS ids FROM put) t,
           (SELECT array_agg(q.id) AS queues, array_agg(q.ready) AS ready, bool_or(q.observed) AS observed,
                   bool_or(q.bounded) AS bounded FROM q) w;
    IF s.deaths IS NOT NULL THEN
        RETURN new.ids;
    ELSIF blocked > 0 THEN
        INSERT INTO pgqueue.meter_check (queue_id, meter)
        SELECT DISTINCT queue_ids [1], u.meter FROM unnest(places, meters) u(place, meter) WHERE u.place = 'W';
        PERFORM pgqueue._tell_lanes(array_agg(queue_ids [1]), array_agg(u.lane), array_agg(false))
           FROM unnest(places, lanes) u(place, lane) WHERE u.place = 'L' HAVING count(*) > 0;
    END IF;
    IF new.observed THEN
        PERFORM pgqueue._tell_change(t.queue_id, 'put', array_agg(t.id ORDER BY t.id))
           FROM pgqueue.task t WHERE t.id = ANY (new.ids) GROUP BY t.queue_id;
    END IF;
    PERFORM pgqueue._signal(u.id, u.ready) FROM unnest(new.queues, new.ready) u(id, ready);
    IF new.bounded THEN
        PERFORM pgqueue._trim_queue(q.id, q.maxlen)
           FROM pgqueue.queue q WHERE q.id = ANY (queue_ids) AND q.maxlen IS NOT NULL;
    END IF;
    RETURN coalesce(new.ids, '{}');
END $$;

-- For each of these tasks its lane, its first state and its meter. Only the first task of a lane can be its head, for
-- all have one priority.
CREATE OR REPLACE FUNCTION pgqueue._places(
    q pgqueue.queue, s pgqueue.specification, data jsonb,
    INOUT lanes text[], OUT places "char"[], OUT meters text[]
)
LANGUAGE plpgsql AS $$
DECLARE
    one     CONSTANT boolean := cardinality(lanes) = 1;
    shared  CONSTANT text    := lanes [1];
    delayed CONSTANT boolean := coalesce(s.delay, q.delay) > '0';
    urgency CONSTANT int     := coalesce(s.priority, q.priority);
BEGIN
    SELECT array_agg(item.lane ORDER BY item.n),
           array_agg(CASE WHEN delayed THEN 'D'
                          WHEN item.meter IS NOT NULL THEN 'W'
                          WHEN item.lane IS NULL THEN 'R'
                          WHEN item.first THEN pgqueue._enter_lane(q.id, item.lane, urgency)
                          ELSE 'L' END ORDER BY item.n),
           array_agg(item.meter ORDER BY item.n)
      INTO lanes, places, meters
      FROM (SELECT l.lane, l.n, row_number() OVER (PARTITION BY l.lane ORDER BY l.n) = 1 AS first,
                   CASE WHEN q.metered THEN pgqueue._meter_of_put(q, l.data, l.lane) END AS meter
              FROM (SELECT e.data, e.n, CASE WHEN one THEN shared ELSE e.lane END AS lane
                      FROM ROWS FROM (jsonb_array_elements(_places.data), unnest(_places.lanes))
                           WITH ORDINALITY e(data, lane, n)
                     WHERE e.n <= jsonb_array_length(_places.data)) l) item;
END $$;

-- Many tasks one after another, in the order of their keys, so that two calls with the same keys cannot deadlock.
CREATE OR REPLACE FUNCTION pgqueue._put_each(
    q pgqueue.queue, s pgqueue.specification, data jsonb, lanes text[], keys text[], alone boolean,
    OUT ids bigint[], OUT added int
)
LANGUAGE plpgsql AS $$
DECLARE
    total  CONSTANT int         := jsonb_array_length(data);
    one    CONSTANT boolean     := cardinality(lanes) = 1;
    shared CONSTANT text        := lanes [1];
    later  CONSTANT timestamptz := CASE WHEN coalesce(s.delay, q.delay) > '0'
                                        THEN coalesce(s.run_at, clock_timestamp() + coalesce(s.delay, q.delay)) END;
    item record;
    new  pgqueue.put_outcome;
BEGIN
    ids := array_fill(NULL::bigint, ARRAY [total]);
    added := 0;
    FOR item IN
        SELECT e.data, e.n::int, CASE WHEN one THEN shared ELSE e.lane END AS lane,
               CASE WHEN e.key IS NULL AND s.unique_for IS NOT NULL THEN pgqueue.data_key(e.data) ELSE e.key END AS key
          FROM ROWS FROM (jsonb_array_elements(_put_each.data), unnest(keys), unnest(lanes))
               WITH ORDINALITY e(data, key, lane, n)
         WHERE e.n <= total
         ORDER BY key, e.n
    LOOP
        s.data := item.data;
        s.lane := item.lane;
        s.key := item.key;
        new := pgqueue._put_checked(q, s, later, alone);
        added := added + (NOT new.existed)::int;
        ids [item.n] := new.id;
    END LOOP;
END $$;

-- Many tasks for one queue that differ only in their data and lanes.
CREATE OR REPLACE FUNCTION pgqueue._put_alike(
    q pgqueue.queue, s pgqueue.specification, data jsonb, lanes text[]
) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    line record;
    ids  bigint[];
BEGIN
    IF s.after IS NOT NULL OR s.batch IS NOT NULL THEN
        PERFORM pgqueue._enter_flow(q, s);
    END IF;
    IF q.max_size IS NOT NULL THEN
        PERFORM pgqueue._check_size(q, e.data) FROM jsonb_array_elements(_put_alike.data) e(data);
    END IF;
    IF lanes IS NULL AND NOT q.metered THEN
        ids := pgqueue._put_together(ARRAY [q.id], s, data);
    ELSE
        line := pgqueue._places(q, s, data, lanes);
        ids := pgqueue._put_together(ARRAY [q.id], s, data, line.lanes, line.places, line.meters);
    END IF;
    IF s.batch IS NOT NULL THEN
        PERFORM pgqueue._add_members(s.batch, ids);
    END IF;
    RETURN ids;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._check_room(q pgqueue.queue, more int, total int) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF pgqueue._queue_length(q.id) + more > q.capacity AND total > 0 THEN
        RAISE EXCEPTION 'queue "%" has no room for % tasks', q.name, total USING ERRCODE = 'PQ037';
    END IF;
END $$;

-- Many tasks for one queue, with any option. Of tasks with keys, the queue's tasks are counted once and trimmed once:
-- doing so at each put would read all earlier puts of this transaction, which is quadratic.
CREATE OR REPLACE FUNCTION pgqueue._put_many(
    q pgqueue.queue, s pgqueue.specification, data jsonb, lanes text[], keys text[], alone boolean DEFAULT false
) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    total  CONSTANT int           := jsonb_array_length(data);
    limits CONSTANT pgqueue.queue := q;
    alike  CONSTANT boolean       := keys IS NULL AND s.unique_for IS NULL AND coalesce(s.after, '{}') = '{}';
    each   record;
BEGIN
    PERFORM pgqueue._check_array('lanes', lanes, nulls => true), pgqueue._check_array('keys', keys, nulls => true);
    IF cardinality(lanes) NOT IN (1, total) OR cardinality(keys) <> total THEN
        RAISE EXCEPTION 'lanes and keys go with the tasks: % tasks, % lanes, % keys',
            total, cardinality(lanes), cardinality(keys) USING ERRCODE = 'PQ002';
    END IF;
    IF s.run_at IS NOT NULL THEN
        s.delay := pgqueue._delay_until(s.run_at, s.delay);
    END IF;
    PERFORM pgqueue._check_times(s.delay, s.ttr, s.ttl), pgqueue._check_put_many(q, s, lanes, keys);
    IF q.capacity IS NOT NULL THEN
        PERFORM pgqueue._lock_room(q), CASE WHEN alike THEN pgqueue._check_room(q, total, total) END;
    END IF;
    IF NOT q.lanes AND array_remove(lanes, NULL) <> '{}' THEN
        q.lanes := true;
        PERFORM pgqueue.allow_lanes(q.name);
    END IF;
    IF alike THEN
        RETURN pgqueue._put_alike(q, s, data, lanes);
    END IF;
    q.capacity := NULL;
    q.maxlen := NULL;
    each := pgqueue._put_each(q, s, data, lanes, keys, alone);
    IF limits.capacity IS NOT NULL AND each.added > 0 THEN     -- else the length, which is expensive, is not needed
        PERFORM pgqueue._check_room(limits, 0, total);
    END IF;
    IF limits.maxlen IS NOT NULL THEN
        PERFORM pgqueue._trim_queue(q.id, limits.maxlen);
    END IF;
    RETURN each.ids;
END $$;
