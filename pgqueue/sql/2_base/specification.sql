-- The specification of a put: the task, and the options of its put. NULL: as the queue says.

-- The delay to a moment that a caller asked for. The put keeps the moment itself as run_at.
CREATE OR REPLACE FUNCTION pgqueue._delay_until(run_at timestamptz, delay interval) RETURNS interval
LANGUAGE plpgsql AS $$
BEGIN
    IF delay IS NOT NULL THEN
        RAISE EXCEPTION 'a task is put with a delay or a run_at, not both: delay is %, run_at is %', delay, run_at
            USING ERRCODE = 'PQ002';
    ELSIF NOT isfinite(run_at) OR run_at > clock_timestamp() + pgqueue._longest() THEN
        RAISE EXCEPTION 'run_at must be a point in time, at most 1e+09 seconds from now, not %', run_at
            USING ERRCODE = 'PQ002';
    END IF;
    RETURN greatest(run_at - clock_timestamp(), '0');
END $$;

-- A specification, of the fields that are given by name.
CREATE OR REPLACE FUNCTION pgqueue._specify(
    data        jsonb       DEFAULT NULL,
    priority    int         DEFAULT NULL,
    delay       interval    DEFAULT NULL,
    ttr         interval    DEFAULT NULL,
    ttl         interval    DEFAULT NULL,
    lane        text        DEFAULT NULL,
    key         text        DEFAULT NULL,
    if_exists   text        DEFAULT 'ignore',
    sender      uuid        DEFAULT NULL,
    run_at      timestamptz DEFAULT NULL,
    unique_for  interval    DEFAULT NULL,
    after       bigint[]    DEFAULT NULL,
    on_failure  text        DEFAULT 'wait',
    batch       bigint      DEFAULT NULL,
    routing_key text        DEFAULT NULL,
    created_at  timestamptz DEFAULT NULL,
    error       text        DEFAULT NULL,
    deaths      jsonb       DEFAULT NULL
) RETURNS pgqueue.specification
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN ROW(data, priority, delay, ttr, ttl, lane, key, if_exists, sender, run_at, unique_for,
           after, on_failure, batch, routing_key, created_at, error, deaths)::pgqueue.specification;

-- The queue's row; creates the queue if it does not exist.
CREATE OR REPLACE FUNCTION pgqueue._queue_of_put(queue text) RETURNS pgqueue.queue
LANGUAGE plpgsql AS $$
DECLARE
    q pgqueue.queue;
BEGIN
    SELECT * INTO q FROM pgqueue.queue named WHERE named.name = queue;
    IF NOT FOUND THEN
        q.id := pgqueue.queue_id(queue);
        SELECT * INTO q FROM pgqueue.queue made WHERE made.id = q.id;
    END IF;
    RETURN q;
END $$;
