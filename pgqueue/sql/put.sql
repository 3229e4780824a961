-- Putting tasks. One statement, in whatever transaction the caller has: the task exists if and when that commits.

CREATE OR REPLACE FUNCTION pgqueue.put(
    queue    text,
    data     jsonb,
    priority int      DEFAULT NULL,
    delay    interval DEFAULT NULL,
    ttr      interval DEFAULT NULL,
    ttl      interval DEFAULT NULL,
    OUT id   bigint,
    OUT state text
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    q     pgqueue.queue;
    later timestamptz;
BEGIN
    q := pgqueue.defaults(queue, priority, delay, ttr, ttl);
    IF q.delay > '0' THEN
        later := clock_timestamp() + q.delay;      -- not now(), which is when the caller's transaction began
    END IF;
    INSERT INTO pgqueue.task (queue_id, state, run_at, expires_at, priority, ttr, data)
    VALUES (q.id, CASE WHEN later IS NULL THEN 'R' ELSE 'D' END, later, coalesce(later, clock_timestamp()) + q.ttl,
            q.priority, q.ttr, put.data)
    RETURNING task.id, CASE task.state WHEN 'R' THEN 'ready' ELSE 'delayed' END INTO put.id, put.state;
    PERFORM pgqueue.signal(q.id);
    IF q.maxlen IS NOT NULL THEN
        PERFORM pgqueue.trim_queue(q.id, q.maxlen);
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.put IS 'Add a task. Options left out are the queue''s.';

CREATE OR REPLACE FUNCTION pgqueue.put_many(
    queue    text,
    data     jsonb,
    priority int      DEFAULT NULL,
    delay    interval DEFAULT NULL,
    ttr      interval DEFAULT NULL,
    ttl      interval DEFAULT NULL
) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    q     pgqueue.queue;
    later timestamptz;
    ids   bigint[];
BEGIN
    q := pgqueue.defaults(queue, priority, delay, ttr, ttl);
    IF q.delay > '0' THEN
        later := clock_timestamp() + q.delay;
    END IF;
    WITH new AS (
        INSERT INTO pgqueue.task (queue_id, state, run_at, expires_at, priority, ttr, data)
        SELECT q.id, CASE WHEN later IS NULL THEN 'R' ELSE 'D' END, later, coalesce(later, clock_timestamp()) + q.ttl,
               q.priority, q.ttr, item
          FROM jsonb_array_elements(put_many.data) item
        RETURNING task.id)
    SELECT array_agg(new.id) INTO ids FROM new;
    IF ids IS NOT NULL THEN
        PERFORM pgqueue.signal(q.id);
        IF q.maxlen IS NOT NULL THEN
            PERFORM pgqueue.trim_queue(q.id, q.maxlen);
        END IF;
    END IF;
    RETURN coalesce(ids, '{}');
END $$;
COMMENT ON FUNCTION pgqueue.put_many IS 'Add one task for each element of a JSON array; returns their ids, in that order.';

-- The queue's row with the caller's options laid over it; makes the queue if need be.
CREATE OR REPLACE FUNCTION pgqueue.defaults(queue text, priority int, delay interval, ttr interval, ttl interval)
RETURNS pgqueue.queue
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    q pgqueue.queue;
BEGIN
    SELECT * INTO q FROM pgqueue.queue WHERE name = defaults.queue;
    IF NOT FOUND THEN
        q.id := pgqueue.queue_id(queue);
        q.priority := 0;
        q.delay := '0';
    END IF;
    IF priority IS NULL AND delay IS NULL AND ttr IS NULL AND ttl IS NULL THEN
        RETURN q;                                  -- setting a field of a row costs more than all of these questions
    END IF;
    PERFORM pgqueue.check_times(delay, ttr, ttl);
    q.priority := coalesce(defaults.priority, q.priority);
    q.delay := coalesce(defaults.delay, q.delay);
    q.ttr := coalesce(defaults.ttr, q.ttr);
    q.ttl := coalesce(defaults.ttl, q.ttl);
    RETURN q;
END $$;
