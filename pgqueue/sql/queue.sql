-- Queues: found by name, made on first use, and gone when they are deleted or their session ends (will.sql).

CREATE OR REPLACE FUNCTION pgqueue.create_queue(
    name            text,
    priority        int      DEFAULT 0,
    delay           interval DEFAULT '0',
    ttr             interval DEFAULT NULL,
    ttl             interval DEFAULT NULL,
    maxlen          int      DEFAULT NULL,
    max_takes       int      DEFAULT NULL,
    dead_letter     text     DEFAULT NULL,
    dead_letter_key text     DEFAULT NULL,
    exclusive       boolean  DEFAULT false,
    auto_delete     boolean  DEFAULT false,
    session         int      DEFAULT NULL      -- an exclusive queue's; NULL: this connection's, opened if need be
) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    owner  int;
    new_id int;
BEGIN
    PERFORM pgqueue.check_name(name), pgqueue.check_times(delay, ttr, ttl);
    IF maxlen < 1 OR max_takes < 1 THEN
        RAISE EXCEPTION 'maxlen and max_takes are at least 1: maxlen is %, max_takes is %', maxlen, max_takes
            USING ERRCODE = 'PQ002';
    ELSIF dead_letter IS NULL AND dead_letter_key IS NOT NULL THEN
        RAISE EXCEPTION 'a dead_letter_key needs a dead_letter: '''' is the default exchange' USING ERRCODE = 'PQ002';
    ELSIF dead_letter = '' THEN
        IF dead_letter_key IS NULL THEN
            RAISE EXCEPTION 'dead letters need a dead_letter_key, the name of their queue: else they would come back to this one'
                USING ERRCODE = 'PQ002';
        END IF;
        PERFORM pgqueue.queue_id(dead_letter_key);
    ELSIF dead_letter IS NOT NULL THEN
        PERFORM pgqueue.exchange_type(dead_letter), pgqueue.check_key(dead_letter_key);
    END IF;
    IF exclusive THEN
        owner := pgqueue.live_session(session);
    END IF;
    INSERT INTO pgqueue.queue
           (name, priority, delay, ttr, ttl, maxlen, max_takes, dead_letter, dead_letter_key, session_id, auto_delete)
    VALUES (name, coalesce(create_queue.priority, 0), coalesce(create_queue.delay, '0'), create_queue.ttr, create_queue.ttl,
            create_queue.maxlen, create_queue.max_takes, create_queue.dead_letter, create_queue.dead_letter_key, owner,
            coalesce(create_queue.auto_delete, false))
    ON CONFLICT DO NOTHING RETURNING queue.id INTO new_id;
    IF new_id IS NULL THEN
        RAISE EXCEPTION 'queue "%" exists already', name USING ERRCODE = 'PQ003';
    END IF;
    RETURN new_id;
END $$;
COMMENT ON FUNCTION pgqueue.create_queue IS 'Make a queue with options; PQ003 if it exists. A put or a waiting take makes one with the defaults.';

CREATE OR REPLACE FUNCTION pgqueue.delete_queue(
    name      text,
    if_empty  boolean DEFAULT false,
    if_unused boolean DEFAULT false
) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    q     int;
    total bigint;
    taken bigint;
BEGIN
    SELECT named.id INTO q FROM pgqueue.queue named WHERE named.name = delete_queue.name FOR UPDATE;
    IF q IS NULL THEN
        RAISE EXCEPTION 'there is no queue "%"', name USING ERRCODE = 'PQ032';
    END IF;
    IF if_empty OR if_unused THEN
        SELECT s.total, s.taken INTO total, taken FROM pgqueue.stats s WHERE s.queue = name;
        IF if_empty AND total > 0 OR if_unused AND taken > 0 THEN
            RAISE EXCEPTION 'queue "%" is in use: it holds % tasks, of which % are taken', name, total, taken
                USING ERRCODE = 'PQ034';
        END IF;
    END IF;
    RETURN pgqueue.remove_queue(q);
END $$;
COMMENT ON FUNCTION pgqueue.delete_queue IS 'Remove a queue with its tasks and bindings; returns how many tasks. PQ034: it is not empty, or a task of it is taken.';

CREATE OR REPLACE FUNCTION pgqueue.queue_id(name text) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_id int;
BEGIN
    SELECT q.id INTO found_id FROM pgqueue.queue q WHERE q.name = queue_id.name;
    IF found_id IS NULL THEN
        PERFORM pgqueue.check_name(name);
        INSERT INTO pgqueue.queue (name) VALUES (name) ON CONFLICT DO NOTHING RETURNING queue.id INTO found_id;
        IF found_id IS NULL THEN       -- somebody made it while we waited for the index: a new statement sees it
            SELECT q.id INTO found_id FROM pgqueue.queue q WHERE q.name = queue_id.name;
        END IF;
    END IF;
    RETURN found_id;
END $$;
COMMENT ON FUNCTION pgqueue.queue_id IS 'The id of a queue, which is made if need be. In an open transaction a new name makes other users of it wait; clients call this in a transaction of its own first.';

-- The queue's row is locked by the caller, FOR UPDATE, and so are its bindings (route.sql). Its tasks and their takes
-- are not waited for: what is locked stays behind, belongs to no queue, and goes with the next clean_routes(); so does
-- what is beyond so many batches.
CREATE OR REPLACE FUNCTION pgqueue.remove_queue(queue_id int, batches int DEFAULT NULL) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    removed int;
BEGIN
    DELETE FROM pgqueue.queue q WHERE q.id = remove_queue.queue_id;
    removed := pgqueue.remove_tasks(queue_id, batches);
    PERFORM pgqueue.signal(queue_id);             -- who sleeps on it has to learn that it is gone
    RETURN removed;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.remove_tasks(queue_id int, batches int) RETURNS int
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    removed int := 0;
    ids     bigint[];
BEGIN
    FOR batch IN 1..coalesce(batches, 2147483647) LOOP
        WITH gone AS (
            DELETE FROM pgqueue.task
             WHERE id = ANY (ARRAY (SELECT t.id FROM pgqueue.task t WHERE t.queue_id = remove_tasks.queue_id AND t.state = 'R'
                                     ORDER BY t.priority, t.id LIMIT 1000 FOR UPDATE SKIP LOCKED)
                          || ARRAY (SELECT t.id FROM pgqueue.task t WHERE t.queue_id = remove_tasks.queue_id AND t.state = 'D'
                                     ORDER BY t.run_at LIMIT 1000 FOR UPDATE SKIP LOCKED)
                          || ARRAY (SELECT t.id FROM pgqueue.task t WHERE t.queue_id = remove_tasks.queue_id AND t.state = 'B'
                                     ORDER BY t.priority, t.id LIMIT 1000 FOR UPDATE SKIP LOCKED))
            RETURNING task.id)
        SELECT array_agg(gone.id) INTO ids FROM gone;
        EXIT WHEN ids IS NULL;
        PERFORM pgqueue.drop_late_take(u) FROM unnest(ids) u;
        removed := removed + cardinality(ids);
    END LOOP;
    RETURN removed;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.check_name(name text) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF name IS NULL OR length(name) NOT BETWEEN 1 AND 200 THEN
        RAISE EXCEPTION 'a queue''s name has 1 to 200 characters, this one has %', coalesce(length(name), 0)
            USING ERRCODE = 'PQ001';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.check_times(delay interval, ttr interval, ttl interval DEFAULT NULL) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF delay < '0' OR ttr <= '0' THEN
        RAISE EXCEPTION 'delay must not be negative and ttr must be positive: delay is %, ttr is %', delay, ttr
            USING ERRCODE = 'PQ002';
    ELSIF ttl <= '0' THEN
        RAISE EXCEPTION 'ttl must be positive: it is %', ttl USING ERRCODE = 'PQ002';
    END IF;
END $$;
