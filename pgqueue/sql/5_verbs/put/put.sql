-- Putting tasks. A put is one statement in the caller's transaction: the task exists if and when that commits.
--
-- A queue without options, and a task without a lane or a key, take the short way: one INSERT, one row for the
-- statistics, one signal to waiting takers (pgqueue._signal, wake.sql). All other puts of one task use _put_task, which
-- takes a specification: the task and the options of its put. It leads to the INSERT of special.sql. All other puts of
-- many tasks use _put_many, which leads to the INSERT of together.sql or, one by one, to that of special.sql.

-- Put one task as its specification says, and say what became of it: the way of each put that has options. The row of
-- the queue has the queue's own options. A schedule sets its `guarded` to false, since it has checked the rights of
-- another role. alone: the caller's transaction ends with this call (put_flow).
--
-- The functions of this way return one composite value, which PL/pgSQL assigns without a query. SELECT ... INTO from a
-- function with OUT parameters runs a query, and keeps its row in a store of tuples.
CREATE OR REPLACE FUNCTION pgqueue._put_task(
    q pgqueue.queue, s pgqueue.specification, alone boolean DEFAULT false
) RETURNS pgqueue.put_outcome
LANGUAGE plpgsql AS $$
DECLARE
    later timestamptz;
BEGIN
    IF s.run_at IS NOT NULL THEN
        s.delay := pgqueue._delay_until(s.run_at, s.delay);
    END IF;
    IF s.delay IS NOT NULL OR s.ttr IS NOT NULL OR s.ttl IS NOT NULL THEN
        PERFORM pgqueue._check_times(s.delay, s.ttr, s.ttl);
    END IF;
    PERFORM pgqueue._check_put(q, s);
    IF coalesce(s.delay, q.delay) > '0' THEN
        later := coalesce(s.run_at, clock_timestamp() + coalesce(s.delay, q.delay));
    END IF;
    RETURN pgqueue._put_checked(q, s, later, alone);
END $$;

-- More of the task that has the key of an ignored put.
CREATE OR REPLACE FUNCTION pgqueue._there(id bigint) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT jsonb_build_array(t.priority, t.attempts, t.lane, t.deadline)
              FROM pgqueue._tasks t WHERE t.id = _there.id);
END $$;

CREATE OR REPLACE FUNCTION pgqueue.put(
    queue       text,
    data        jsonb,
    priority    int      DEFAULT NULL,
    delay       interval DEFAULT NULL,
    ttr         interval DEFAULT NULL,
    ttl         interval DEFAULT NULL,
    lane        text     DEFAULT NULL,
    key         text     DEFAULT NULL,
    if_exists   text     DEFAULT 'ignore',   -- a task with that key exists: ignore this put, error, or replace the task
    sender      uuid     DEFAULT NULL,
    run_at      timestamptz DEFAULT NULL,    -- in place of a delay; a moment that has passed is now
    unique_for  interval DEFAULT NULL,       -- how long the key, by default data_key(data), counts, also once done
    OUT id      bigint,
    OUT state   text,                        -- full: no task was put, the queue is at its capacity
    OUT existed boolean,
    OUT kept    jsonb,                       -- the data of that task, if this put was ignored and the caller may look
    OUT there   jsonb                        -- and more of it: [priority, attempts, lane, deadline]
)
LANGUAGE plpgsql AS $$
DECLARE
    q     record;                              -- the fields of the queue that a put needs
    new   pgqueue.put_outcome;
    later timestamptz;
BEGIN
    IF (pg_column_size(data) > pgqueue._most_data()) IS NOT FALSE THEN
        PERFORM pgqueue._check_data('data', data);
    END IF;
    SELECT d.id, d.priority, d.delay, d.ttr, d.ttl, d.guarded, d.restricted INTO q
      FROM pgqueue.queue d WHERE d.name = put.queue AND NOT d.special;
    IF NOT FOUND OR lane IS NOT NULL OR key IS NOT NULL OR sender IS NOT NULL OR unique_for IS NOT NULL THEN
        new := pgqueue._put_task(
                   pgqueue._queue_of_put(queue),
                   pgqueue._specify(data, priority, delay, ttr, ttl, lane, key, if_exists, sender, run_at, unique_for));
        id := new.id;
        state := new.state;
        existed := new.existed;
        kept := new.kept;
        IF kept IS NOT NULL THEN
            there := pgqueue._there(id);
        END IF;
        RETURN;
    END IF;
    IF run_at IS NOT NULL THEN
        delay := pgqueue._delay_until(run_at, delay);
    END IF;
    IF q.guarded THEN                              -- the first query of _may, which the queue's row makes cheaper
        PERFORM FROM pgqueue.privilege p
          WHERE p.role_id = pgqueue._caller_role() AND p.verb = 'put'
            AND (p.queue_id = q.id OR NOT q.restricted AND queue LIKE p.mask);
        IF NOT FOUND AND NOT pgqueue._may(q.id, 'put') THEN
            PERFORM pgqueue._refuse('put', queue);
        END IF;
    END IF;
    IF priority IS NOT NULL OR delay IS NOT NULL OR ttr IS NOT NULL OR ttl IS NOT NULL THEN
        PERFORM pgqueue._check_times(delay, ttr, ttl);
        q.priority := coalesce(priority, q.priority);
        q.delay := coalesce(delay, q.delay);
        q.ttr := coalesce(ttr, q.ttr);
        q.ttl := coalesce(ttl, q.ttl);
    END IF;
    IF q.delay > '0' THEN
        later := coalesce(run_at, clock_timestamp() + q.delay);
    END IF;
    -- Age and ttl of a task count from one moment.
    INSERT INTO pgqueue.task (queue_id, state, run_at, created_at, expires_at, priority, ttr, data)
    VALUES (q.id, CASE WHEN later IS NULL THEN 'R' ELSE 'D' END, later,
            CASE WHEN q.ttl IS NULL THEN now() ELSE statement_timestamp() END,
            coalesce(later, statement_timestamp()) + q.ttl, q.priority, q.ttr, put.data)
    RETURNING task.id INTO put.id;
    IF later IS NULL THEN
        state := 'ready';
        INSERT INTO pgqueue.delta (queue_id, standing, verb, calls) VALUES (q.id, 1, 'put', 1);
    ELSE
        state := 'delayed';
        INSERT INTO pgqueue.delta (queue_id, delayed, verb, calls) VALUES (q.id, 1, 'put', 1);
    END IF;
    PERFORM pgqueue._signal(q.id, CASE WHEN later IS NULL THEN 1 END);
END $$;
COMMENT ON FUNCTION pgqueue.put IS
    'Add a task. Options that are left out are the queue''s. run_at replaces a delay. A key belongs to at most '
    'one task of the queue that is neither done nor expired; if one exists already, the answer says which task stays.';

CREATE OR REPLACE FUNCTION pgqueue.put_many(
    queue     text,
    data      jsonb,
    priority  int      DEFAULT NULL,
    delay     interval DEFAULT NULL,
    ttr       interval DEFAULT NULL,
    ttl       interval DEFAULT NULL,
    lanes     text[]   DEFAULT NULL,         -- one for each task, or a single one for all
    keys      text[]   DEFAULT NULL,         -- one for each task
    if_exists text     DEFAULT 'ignore',
    sender    uuid     DEFAULT NULL,
    run_at    timestamptz DEFAULT NULL,      -- as for put
    unique_for interval DEFAULT NULL         -- as for put
) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    q     record;                                  -- the fields of the queue that the short way needs
    later timestamptz;
    fresh timestamptz;
    ids   bigint[];
BEGIN
    PERFORM pgqueue._check_items('data', data);
    SELECT d.id, d.priority, d.delay, d.ttr, d.ttl, d.guarded INTO q
      FROM pgqueue.queue d WHERE d.name = queue AND NOT d.special;
    IF NOT FOUND OR lanes IS NOT NULL OR keys IS NOT NULL OR unique_for IS NOT NULL THEN
        RETURN pgqueue._put_many(
                   pgqueue._queue_of_put(queue),
                   pgqueue._specify(priority => priority, delay => delay, ttr => ttr, ttl => ttl,
                                    if_exists => if_exists, sender => sender, run_at => run_at,
                                    unique_for => unique_for), data, lanes, keys);
    END IF;
    IF run_at IS NOT NULL THEN
        delay := pgqueue._delay_until(run_at, delay);
    END IF;
    IF delay IS NOT NULL OR ttr IS NOT NULL OR ttl IS NOT NULL THEN
        PERFORM pgqueue._check_times(delay, ttr, ttl);
    END IF;
    IF q.guarded AND NOT pgqueue._may(q.id, 'put') THEN
        PERFORM pgqueue._refuse('put', queue);
    END IF;
    priority := coalesce(priority, q.priority);
    delay := coalesce(delay, q.delay);
    ttr := coalesce(ttr, q.ttr);
    ttl := coalesce(ttl, q.ttl);
    IF delay > '0' THEN
        later := coalesce(run_at, clock_timestamp() + delay);
    ELSIF ttl IS NOT NULL THEN
        fresh := clock_timestamp();
    END IF;
    WITH new AS (
        INSERT INTO pgqueue.task (queue_id, state, run_at, created_at, expires_at, priority, ttr, data, sender)
        SELECT q.id, CASE WHEN later IS NULL THEN 'R' ELSE 'D' END, later, coalesce(fresh, now()),
               coalesce(later, fresh) + put_many.ttl, put_many.priority, put_many.ttr, item, put_many.sender
          FROM jsonb_array_elements(put_many.data) item
        RETURNING task.id)
    SELECT array_agg(new.id) INTO ids FROM new;
    IF ids IS NOT NULL THEN
        INSERT INTO pgqueue.delta (queue_id, standing, delayed, verb, calls)
        VALUES (q.id, CASE WHEN later IS NULL THEN cardinality(ids) ELSE 0 END,
                CASE WHEN later IS NULL THEN 0 ELSE cardinality(ids) END, 'put', cardinality(ids));
        PERFORM pgqueue._signal(q.id, CASE WHEN later IS NULL THEN cardinality(ids) END);
    END IF;
    RETURN coalesce(ids, '{}');
END $$;
COMMENT ON FUNCTION pgqueue.put_many IS
    'Add one task for each element of a JSON array; returns their ids, in that order. All or none: PQ037 if the '
    'queue has no room for all.';
