-- Putting many tasks at once, with special options (special.sql).

-- Many tasks that differ only in their data, and wait for no limit.
CREATE OR REPLACE FUNCTION pgqueue._put_alike(
    q pgqueue.queue, data jsonb, later timestamptz, fresh timestamptz, sender uuid, followed boolean
) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    place CONSTANT "char" := CASE WHEN later IS NULL THEN 'R' ELSE 'D' END;
    ids   bigint[];
BEGIN
    WITH new AS (
        INSERT INTO pgqueue.task
               (queue_id, state, run_at, created_at, expires_at, priority, ttr, data, sender, followed, xid)
        SELECT q.id, place, later, coalesce(fresh, now()), coalesce(later, fresh) + q.ttl, q.priority, q.ttr, item,
               _put_alike.sender, _put_alike.followed, CASE WHEN q.listed THEN pg_current_xact_id() END
          FROM jsonb_array_elements(_put_alike.data) item
        RETURNING task.id)
    SELECT array_agg(new.id) INTO ids FROM new;
    IF ids IS NOT NULL THEN
        PERFORM pgqueue._count_places(ARRAY [q.id], ARRAY [place], ARRAY [cardinality(ids)::bigint]),
                pgqueue._note(q.id, 'put', ids),
                pgqueue._signal(q.id, CASE WHEN later IS NULL THEN cardinality(ids) END);
    END IF;
    RETURN coalesce(ids, '{}');
END $$;

-- Many tasks without keys: one INSERT. Only the first task of a lane can be its head, for all have one priority.
CREATE OR REPLACE FUNCTION pgqueue._put_together(
    q pgqueue.queue, data jsonb, later timestamptz, lanes text[], sender uuid, followed boolean DEFAULT NULL
) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    one    CONSTANT boolean := cardinality(lanes) = 1;
    first  CONSTANT text    := lanes [1];
    total  CONSTANT int     := jsonb_array_length(data);
    fresh  timestamptz;
    ids    bigint[];
    places "char"[];
    among  text[];
    meters text[];
BEGIN
    IF q.max_size IS NOT NULL THEN
        PERFORM pgqueue._check_size(q, e.data) FROM jsonb_array_elements(_put_together.data) e(data);
    END IF;
    IF q.ttl IS NOT NULL AND later IS NULL THEN
        fresh := clock_timestamp();
    END IF;
    IF lanes IS NULL AND NOT q.metered THEN
        RETURN pgqueue._put_alike(q, data, later, fresh, sender, followed);
    END IF;
    WITH new AS (
        INSERT INTO pgqueue.task
               (queue_id, state, run_at, created_at, expires_at, priority, ttr, data, lane, sender, meter, followed,
                xid)
        SELECT q.id,
               CASE WHEN later IS NOT NULL THEN 'D'
                    WHEN item.meter IS NOT NULL THEN 'W'
                    WHEN item.lane IS NULL THEN 'R'
                    WHEN item.first THEN pgqueue._enter_lane(q.id, item.lane, q.priority)
                    ELSE 'L' END,
               later, coalesce(fresh, now()), coalesce(later, fresh) + q.ttl, q.priority, q.ttr, item.data, item.lane,
               _put_together.sender, item.meter, _put_together.followed,
               CASE WHEN q.listed THEN pg_current_xact_id() END
          FROM (SELECT l.data, l.lane, l.n, row_number() OVER (PARTITION BY l.lane ORDER BY l.n) = 1 AS first,
                       CASE WHEN q.metered THEN pgqueue._meter_of_put(q, l.data, l.lane) END AS meter
                  FROM (SELECT e.data, e.n, CASE WHEN one THEN first ELSE e.lane END AS lane
                          FROM ROWS FROM (jsonb_array_elements(_put_together.data), unnest(lanes))
                               WITH ORDINALITY e(data, lane, n)
                         WHERE e.n <= total) l) item
         ORDER BY item.n
        RETURNING task.id, task.state, task.lane, task.meter)
    SELECT array_agg(new.id), array_agg(new.state), array_agg(new.lane),
           array_agg(new.meter) FILTER (WHERE new.state = 'W')
      INTO ids, places, among, meters FROM new;
    IF ids IS NOT NULL THEN
        INSERT INTO pgqueue.meter_check (queue_id, meter) SELECT DISTINCT q.id, m FROM unnest(meters) m;
        PERFORM pgqueue._count_new(array_fill(q.id, ARRAY [cardinality(ids)]), places, among),
                pgqueue._note(q.id, 'put', ids),
                pgqueue._signal(q.id, CASE WHEN later IS NULL THEN cardinality(ids) END);
    END IF;
    RETURN coalesce(ids, '{}');
END $$;

-- Many tasks with keys: one after another, in the order of the keys, so that two calls with the same keys cannot
-- deadlock.
CREATE OR REPLACE FUNCTION pgqueue._put_by_key(
    q pgqueue.queue, s pgqueue.specification, data jsonb, later timestamptz, lanes text[], keys text[],
    OUT ids bigint[], OUT added int
)
LANGUAGE plpgsql AS $$
DECLARE
    one   CONSTANT boolean := cardinality(lanes) = 1;
    first CONSTANT text    := lanes [1];
    item record;
    done record;
BEGIN
    ids := array_fill(NULL::bigint, ARRAY [cardinality(keys)]);
    added := 0;
    FOR item IN
        SELECT e.data, e.key, CASE WHEN one THEN first ELSE e.lane END AS lane, e.n::int
          FROM ROWS FROM (jsonb_array_elements(_put_by_key.data), unnest(keys), unnest(lanes))
               WITH ORDINALITY e(data, key, lane, n)
         WHERE e.n <= cardinality(ids)
         ORDER BY e.key, e.n
    LOOP
        s.data := item.data;
        s.lane := item.lane;
        s.key := item.key;
        SELECT * INTO done FROM pgqueue._put_special(q, s, later);
        added := added + (NOT done.existed)::int;
        ids [item.n] := done.id;
    END LOOP;
END $$;

-- Many tasks at once. The queue's tasks are counted once and trimmed once: doing so at each put would read all earlier
-- puts of this transaction, which is quadratic.
CREATE OR REPLACE FUNCTION pgqueue._put_special_many(
    q pgqueue.queue, s pgqueue.specification, data jsonb, later timestamptz, lanes text[], keys text[],
    followed boolean DEFAULT NULL
) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    total CONSTANT int := jsonb_array_length(data);
    limits CONSTANT pgqueue.queue := q;
    ids   bigint[];
    added int;
BEGIN
    IF cardinality(lanes) NOT IN (1, total) OR cardinality(keys) <> total THEN
        RAISE EXCEPTION 'lanes and keys go with the tasks: % tasks, % lanes, % keys',
            total, cardinality(lanes), cardinality(keys) USING ERRCODE = 'PQ002';
    END IF;
    IF limits.capacity IS NOT NULL THEN
        PERFORM pgqueue._lock_room(limits);
    END IF;
    q.capacity := NULL;
    q.maxlen := NULL;
    IF NOT q.lanes AND array_remove(lanes, NULL) <> '{}' THEN
        q.lanes := true;
        PERFORM pgqueue.allow_lanes(q.name);
    END IF;
    IF keys IS NULL THEN
        ids := pgqueue._put_together(q, data, later, lanes, s.sender, followed);
        added := total;
    ELSE
        SELECT * INTO ids, added FROM pgqueue._put_by_key(q, s, data, later, lanes, keys);
    END IF;
    IF limits.capacity IS NOT NULL AND added > 0 THEN          -- else the length, which is expensive, is not needed
        IF pgqueue._queue_length(q.id) > limits.capacity THEN
            RAISE EXCEPTION 'queue "%" has no room for % tasks', q.name, total USING ERRCODE = 'PQ037';
        END IF;
    END IF;
    IF limits.maxlen IS NOT NULL THEN
        PERFORM pgqueue._trim_queue(q.id, limits.maxlen);
    END IF;
    RETURN ids;
END $$;
