-- Queues: found by name, made on first use.

CREATE OR REPLACE FUNCTION pgqueue.create_queue(
    name     text,
    priority int      DEFAULT 0,
    delay    interval DEFAULT '0',
    ttr      interval DEFAULT NULL
) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    new_id int;
BEGIN
    PERFORM pgqueue.check_name(name), pgqueue.check_times(delay, ttr);
    INSERT INTO pgqueue.queue (name, priority, delay, ttr)
    VALUES (name, coalesce(create_queue.priority, 0), coalesce(create_queue.delay, '0'), create_queue.ttr)
    ON CONFLICT DO NOTHING RETURNING queue.id INTO new_id;
    IF new_id IS NULL THEN
        RAISE EXCEPTION 'queue "%" exists already', name USING ERRCODE = 'PQ003';
    END IF;
    RETURN new_id;
END $$;
COMMENT ON FUNCTION pgqueue.create_queue IS 'Make a queue with options; PQ003 if it exists. A put or a waiting take makes one with the defaults.';

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

CREATE OR REPLACE FUNCTION pgqueue.check_name(name text) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF name IS NULL OR length(name) NOT BETWEEN 1 AND 200 THEN
        RAISE EXCEPTION 'a queue''s name has 1 to 200 characters, this one has %', coalesce(length(name), 0)
            USING ERRCODE = 'PQ001';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.check_times(delay interval, ttr interval) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF delay < '0' OR ttr <= '0' THEN
        RAISE EXCEPTION 'delay must not be negative and ttr must be positive: delay is %, ttr is %', delay, ttr
            USING ERRCODE = 'PQ002';
    END IF;
END $$;
