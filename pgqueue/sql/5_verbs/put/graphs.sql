-- Putting tasks into flows: one after others, many after the same, or a graph of tasks that wait for each other. The
-- theory is in flows/waiting.sql.

CREATE OR REPLACE FUNCTION pgqueue.put_flow(
    queue       text,
    data        jsonb,
    after       bigint[] DEFAULT '{}',       -- the ids of tasks, and of closed batches, for which it waits
    on_failure  text     DEFAULT 'wait',     -- if one of them fails: wait, bury or run
    batch       bigint   DEFAULT NULL,       -- the open batch that it belongs to
    priority    int      DEFAULT NULL,
    delay       interval DEFAULT NULL,       -- from when the others have ended; likewise ttl
    ttr         interval DEFAULT NULL,
    ttl         interval DEFAULT NULL,
    lane        text     DEFAULT NULL,
    key         text     DEFAULT NULL,
    if_exists   text     DEFAULT 'ignore',
    sender      uuid     DEFAULT NULL,
    run_at      timestamptz DEFAULT NULL,
    alone       boolean  DEFAULT false,      -- the caller's transaction ends with this call
    OUT id      bigint,
    OUT state   text,
    OUT existed boolean,
    OUT kept    jsonb,
    OUT there   jsonb
)
LANGUAGE plpgsql AS $$
DECLARE
    new pgqueue.put_outcome;
BEGIN
    IF (pg_column_size(data) > pgqueue._most_data()) IS NOT FALSE THEN
        PERFORM pgqueue._check_data('data', data);
    END IF;
    new := pgqueue._put_task(
               pgqueue._queue_of_put(queue),
               pgqueue._specify(data, priority, delay, ttr, ttl, lane, key, if_exists, sender, run_at,
                                after => coalesce(after, '{}'), on_failure => on_failure, batch => batch), alone);
    id := new.id;
    state := new.state;
    existed := new.existed;
    kept := new.kept;
    IF kept IS NOT NULL THEN
        there := pgqueue._there(id);
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.put_flow IS
    'Add a task that waits for others, or belongs to a batch. It becomes ready, or is delayed, once all tasks and '
    'batches of `after` have ended; those that are gone by now count as done. on_failure decides about the task if one '
    'of them fails, or is gone without having been done. Otherwise as put.';

CREATE OR REPLACE FUNCTION pgqueue.put_flow_many(
    queue      text,
    data       jsonb,
    after      bigint[] DEFAULT '{}',
    on_failure text     DEFAULT 'wait',
    batch      bigint   DEFAULT NULL,
    priority   int      DEFAULT NULL,
    delay      interval DEFAULT NULL,
    ttr        interval DEFAULT NULL,
    ttl        interval DEFAULT NULL,
    lanes      text[]   DEFAULT NULL,
    keys       text[]   DEFAULT NULL,
    if_exists  text     DEFAULT 'ignore',
    sender     uuid     DEFAULT NULL,
    run_at     timestamptz DEFAULT NULL,
    alone      boolean  DEFAULT false
) RETURNS bigint[]
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue._check_items('data', data);
    RETURN pgqueue._put_many(
               pgqueue._queue_of_put(queue),
               pgqueue._specify(priority => priority, delay => delay, ttr => ttr, ttl => ttl, if_exists => if_exists,
                                sender => sender, run_at => run_at, after => coalesce(after, '{}'),
                                on_failure => on_failure, batch => batch), data, lanes, keys, alone);
END $$;
COMMENT ON FUNCTION pgqueue.put_flow_many IS
    'Add one task for each element of a JSON array, each as put_flow does: all after the same others, or in the same '
    'batch. Returns their ids, in that order. All or none.';

CREATE OR REPLACE FUNCTION pgqueue.put_graph(puts jsonb, alone boolean DEFAULT false) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    given CONSTANT record := pgqueue._read_puts(puts);
BEGIN
    PERFORM pgqueue._lock_rooms(given.queues);
    RETURN pgqueue._put_all(given.queues, given.specs, coalesce(alone, false));
END $$;
COMMENT ON FUNCTION pgqueue.put_graph IS
    'Put tasks that wait for each other, all or none: an array, as for ack. In `after`, -1 is the first task of the '
    'array, -2 the second, and so on; a task follows the tasks that it waits for. Returns their ids, in that order. '
    'alone: as for put_flow.';
