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
        PERFORM pgqueue._check_name(name), pgqueue._check_creation(name), pgqueue._check_quota('queues');
        INSERT INTO pgqueue.queue (name, role, draining, guarded)
        VALUES (name, pgqueue._caller(), EXISTS (SELECT FROM pgqueue.draining), pgqueue._roles_are_limited())
            ON CONFLICT DO NOTHING RETURNING queue.id INTO found_id;
        IF found_id IS NULL THEN       -- another transaction has just created it: a new statement sees it
            SELECT q.id INTO found_id FROM pgqueue.queue q WHERE q.name = queue_id.name;
        END IF;
    END IF;
    RETURN found_id;
END $$;
COMMENT ON FUNCTION pgqueue.queue_id IS
    'The id of a queue, which is created if it does not exist. Other users of a new name wait until the transaction '
    'that created it ends, so clients first call this in a transaction of its own.';

-- The longest time that an argument may give; Python has the same limit (MAX_SECONDS). Without it a time that is added
-- to a moment would exceed the last year that Python can read, 9999, or the range of PostgreSQL's timestamps.
CREATE OR REPLACE FUNCTION pgqueue._longest() RETURNS interval
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN interval '1000000000 s';

-- Each time that a caller gives is checked here, once: by the function that the caller called.
CREATE OR REPLACE FUNCTION pgqueue._check_time(
    name text, given interval, zero boolean DEFAULT false, code text DEFAULT 'PQ002'
) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF given < '0' OR given = '0' AND NOT zero OR given > pgqueue._longest() THEN
        RAISE EXCEPTION '% must be % to 1e+09 seconds, not %', name, CASE WHEN zero THEN '0' ELSE 'over 0' END, given
            USING ERRCODE = code;
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._check_times(delay interval, ttr interval, ttl interval) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    PERFORM pgqueue._check_time('delay', delay, zero => true), pgqueue._check_time('ttr', ttr),
            pgqueue._check_time('ttl', ttl);
END $$;

-- A moment that Python can read. Raw SQL can write others: no constraint keeps them out of the tables.
CREATE OR REPLACE FUNCTION pgqueue._readable(moment timestamptz) RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN moment IS NOT NULL
            THEN greatest(least(moment, timestamptz '9999-12-30 00:00+00'), timestamptz '0001-01-02 00:00+00') END;

-- Add a time to a deadline, which stays readable. infinity: there is no deadline.
CREATE OR REPLACE FUNCTION pgqueue._longer(moment timestamptz, more interval) RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN moment = 'infinity' THEN moment ELSE pgqueue._readable(pgqueue._readable(moment) + more) END;

CREATE OR REPLACE FUNCTION pgqueue._exchange_type(exchange text) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    found text;
BEGIN
    SELECT e.type INTO found FROM pgqueue.exchange e WHERE e.name = _exchange_type.exchange;
    IF found IS NULL THEN
        RAISE EXCEPTION 'there is no exchange "%"', pgqueue._shown(exchange) USING ERRCODE = 'PQ031';
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

-- The options that each type of Tarantool's queue lacks. A queue without a type has all.
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
        RAISE EXCEPTION 'a queue''s type is fifo, fifottl, utube, utubettl or limfifottl, not %', pgqueue._shown(type)
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

-- For a call that reads again after it has locked rows: an older snapshot does not show other transactions' changes.
CREATE OR REPLACE FUNCTION pgqueue._check_read_committed(what text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION '% must run at READ COMMITTED, not at %: it has to see what others took meanwhile', what,
            upper(current_setting('transaction_isolation')) USING ERRCODE = 'PQ002';
    END IF;
END $$;

-- For how long a status or a result is kept.
CREATE OR REPLACE FUNCTION pgqueue._check_keep(name text, keep interval) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    PERFORM pgqueue._check_time(name, keep, code => 'PQ042');
END $$;
