-- Names, options and types: the checks that several files need; and queue_id, which finds or creates a queue.

CREATE OR REPLACE FUNCTION pgqueue._check_name(name text) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF name IS NULL OR length(name) NOT BETWEEN 1 AND 200 THEN
        RAISE EXCEPTION 'a queue''s name has 1 to 200 characters, this one has %', coalesce(length(name), 0)
            USING ERRCODE = 'PQ001';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.queue_id(name text) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    found_id int;
BEGIN
    SELECT q.id INTO found_id FROM pgqueue.queue q WHERE q.name = queue_id.name;
    IF found_id IS NULL THEN
        PERFORM pgqueue._check_name(name);
        INSERT INTO pgqueue.queue (name, draining) VALUES (name, EXISTS (SELECT FROM pgqueue.draining))
            ON CONFLICT DO NOTHING RETURNING queue.id INTO found_id;
        IF found_id IS NULL THEN       -- another transaction created it meanwhile: a new statement sees it
            SELECT q.id INTO found_id FROM pgqueue.queue q WHERE q.name = queue_id.name;
        END IF;
    END IF;
    RETURN found_id;
END $$;
COMMENT ON FUNCTION pgqueue.queue_id IS
    'The id of a queue, which is created if it does not exist. Other users of a new name wait until the transaction '
    'that created it ends, so clients first call this in a transaction of its own.';

CREATE OR REPLACE FUNCTION pgqueue._check_times(delay interval, ttr interval, ttl interval DEFAULT NULL) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF delay < '0' OR ttr <= '0' THEN
        RAISE EXCEPTION 'delay must not be negative and ttr must be positive: delay is %, ttr is %', delay, ttr
            USING ERRCODE = 'PQ002';
    ELSIF ttl <= '0' THEN
        RAISE EXCEPTION 'ttl must be positive: it is %', ttl USING ERRCODE = 'PQ002';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._exchange_type(exchange text) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    found text;
BEGIN
    SELECT e.type INTO found FROM pgqueue.exchange e WHERE e.name = _exchange_type.exchange;
    IF found IS NULL THEN
        RAISE EXCEPTION 'there is no exchange "%"', exchange USING ERRCODE = 'PQ031';
    END IF;
    RETURN found;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._check_key(key text) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF octet_length(key) > 255 THEN
        RAISE EXCEPTION 'a key has at most 255 bytes, this one has %', octet_length(key) USING ERRCODE = 'PQ001';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._check_not_default(exchange text) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF exchange = '' THEN
        RAISE EXCEPTION 'the default exchange leads to each queue by its name: nothing is bound to it or retained'
            USING ERRCODE = 'PQ002';
    END IF;
END $$;

-- What each type of Tarantool's queue lacks. A queue without a type has everything.
CREATE OR REPLACE FUNCTION pgqueue._type_lacks(type text) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN CASE type
        WHEN 'fifo'       THEN '{priority,delay,ttr,ttl,touch,lane,capacity}'::text[]
        WHEN 'fifottl'    THEN '{lane,capacity}'::text[]
        WHEN 'utube'      THEN '{priority,delay,ttr,ttl,touch,capacity}'::text[]
        WHEN 'utubettl'   THEN '{capacity}'::text[]
        WHEN 'limfifottl' THEN '{lane}'::text[]
    END;
END $$;

-- For the options that a caller gave. A priority of 0 and a delay of 0 count as not given.
CREATE OR REPLACE FUNCTION pgqueue._check_type(
    type text, priority int, delay interval, ttr interval, ttl interval, lane text,
    capacity int DEFAULT NULL, touch boolean DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    lacks CONSTANT text[] := pgqueue._type_lacks(type);
    what  text;
BEGIN
    IF lacks IS NULL THEN
        RAISE EXCEPTION 'a queue''s type is fifo, fifottl, utube, utubettl or limfifottl, not %', type
            USING ERRCODE = 'PQ002';
    END IF;
    SELECT said.name INTO what
      FROM (VALUES ('priority', priority <> 0), ('delay', delay > '0'), ('ttr', ttr IS NOT NULL),
                   ('ttl', ttl IS NOT NULL), ('lane', lane IS NOT NULL), ('capacity', capacity IS NOT NULL),
                   ('touch', touch)) said(name, is_said)
     WHERE said.is_said AND said.name = ANY (lacks);
    IF FOUND THEN
        RAISE EXCEPTION 'a queue of the type % has no %', type, what USING ERRCODE = 'PQ002';
    END IF;
END $$;

-- The same for the options of a verb on a task that was put.
CREATE OR REPLACE FUNCTION pgqueue._check_verb(
    queue_id int, priority int, delay interval DEFAULT NULL, touch boolean DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    type CONSTANT text := (SELECT q.type FROM pgqueue.queue q WHERE q.id = _check_verb.queue_id);
BEGIN
    IF type IS NOT NULL THEN
        PERFORM pgqueue._check_type(type, priority, delay, NULL, NULL, NULL, NULL, touch);
    END IF;
END $$;

-- For how long a status or a result is kept.
CREATE OR REPLACE FUNCTION pgqueue._check_keep(name text, keep interval) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF keep <= '0' THEN
        RAISE EXCEPTION '% must be over 0, it is %', name, keep USING ERRCODE = 'PQ042';
    END IF;
END $$;
