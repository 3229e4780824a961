-- Queues: found by name, made on first use or with options, altered, and gone when they are deleted or their session
-- ends (will.sql).
--
-- Options are columns of the queue's row, and what is not said is the default there. Hot functions read that row at
-- each call and do not lock it: what was under way when an option changed may still go by the old one.

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
    session         int      DEFAULT NULL,     -- an exclusive or temporary queue's; NULL: this connection's, opened if need be
    type            text     DEFAULT NULL,
    capacity        int      DEFAULT NULL,     -- 0: unlimited
    max_size        int      DEFAULT NULL,
    keep_done       interval DEFAULT NULL,
    listed          boolean  DEFAULT false,
    metadata        jsonb    DEFAULT NULL,
    temporary       boolean  DEFAULT false,    -- ends with the session, as an exclusive one, but anybody may take
    if_not_exists   boolean  DEFAULT false     -- the one that is there will do, with the options that it has
) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    q pgqueue.queue;
BEGIN
    PERFORM pgqueue.check_name(name);
    q.name := name;
    q.priority := coalesce(priority, 0);
    q.delay := coalesce(delay, '0');
    q.ttr := ttr;
    q.ttl := ttl;
    q.maxlen := maxlen;
    q.max_takes := max_takes;
    q.dead_letter := dead_letter;
    q.dead_letter_key := dead_letter_key;
    q.exclusive := coalesce(exclusive, false);
    q.auto_delete := coalesce(auto_delete, false);
    q.type := type;
    q.capacity := capacity;
    q.max_size := max_size;
    q.keep_done := keep_done;
    q.listed := coalesce(listed, false);
    q.metadata := metadata;
    q := pgqueue.checked_options(q);
    IF if_not_exists THEN
        SELECT there.id INTO q.id FROM pgqueue.queue there WHERE there.name = create_queue.name;
        IF FOUND THEN
            RETURN q.id;
        END IF;
    END IF;
    IF exclusive OR temporary THEN
        q.session_id := pgqueue.live_session(session);
    END IF;
    INSERT INTO pgqueue.queue
           (name, priority, delay, ttr, ttl, maxlen, max_takes, dead_letter, dead_letter_key, session_id, exclusive, auto_delete,
            type, capacity, max_size, keep_done, listed, metadata, draining)
    VALUES (q.name, q.priority, q.delay, q.ttr, q.ttl, q.maxlen, q.max_takes, q.dead_letter, q.dead_letter_key, q.session_id,
            q.exclusive, q.auto_delete, q.type, q.capacity, q.max_size, q.keep_done, q.listed, q.metadata,
            EXISTS (SELECT FROM pgqueue.draining))
    ON CONFLICT DO NOTHING RETURNING queue.id INTO q.id;
    IF NOT FOUND AND if_not_exists THEN            -- somebody made it meanwhile: a new statement sees it
        SELECT there.id INTO q.id FROM pgqueue.queue there WHERE there.name = create_queue.name;
    END IF;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'queue "%" exists already', name USING ERRCODE = 'PQ003';
    END IF;
    RETURN q.id;
END $$;
COMMENT ON FUNCTION pgqueue.create_queue IS 'Make a queue with options; PQ003 if it exists. A put or a waiting take makes one with the defaults.';

CREATE OR REPLACE FUNCTION pgqueue.alter_queue(name text, options jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- Not the name, see rename_queue; and not what tasks that are there were put by, or whose it is.
    alterable CONSTANT text[] := '{priority,delay,ttr,ttl,maxlen,max_takes,dead_letter,dead_letter_key,auto_delete,'
                                 'capacity,max_size,keep_done,metadata}';
    q       pgqueue.queue := pgqueue.known_queue(name, lock => true);
    unknown text;
BEGIN
    SELECT given INTO unknown FROM jsonb_object_keys(options) given WHERE given <> ALL (alterable);
    IF FOUND THEN
        RAISE EXCEPTION 'a queue''s % cannot be altered: that can be %', unknown, array_to_string(alterable, ', ')
            USING ERRCODE = 'PQ002';
    END IF;
    q := pgqueue.checked_options(jsonb_populate_record(q, options));
    UPDATE pgqueue.queue altered
       SET priority = coalesce(q.priority, 0), delay = coalesce(q.delay, '0'), ttr = q.ttr, ttl = q.ttl, maxlen = q.maxlen,
           max_takes = q.max_takes, dead_letter = q.dead_letter, dead_letter_key = q.dead_letter_key,
           auto_delete = coalesce(q.auto_delete, false), capacity = q.capacity, max_size = q.max_size,
           keep_done = q.keep_done, metadata = q.metadata
     WHERE altered.id = q.id;
    IF q.maxlen IS NOT NULL THEN
        PERFORM pgqueue.trim_queue(q.id, q.maxlen);
    END IF;
    PERFORM pgqueue.signal(-q.id);                -- there may be room for puts that wait (special.sql)
END $$;
COMMENT ON FUNCTION pgqueue.alter_queue IS 'Change options of a queue: those that are named; null is the default. {"ttl": "1 h", "maxlen": null}. Tasks that are there keep what they were put with.';

CREATE OR REPLACE FUNCTION pgqueue.rename_queue(name text, new_name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    q pgqueue.queue := pgqueue.known_queue(name, lock => true);
BEGIN
    PERFORM pgqueue.check_name(new_name);
    BEGIN
        UPDATE pgqueue.queue renamed SET name = new_name WHERE renamed.id = q.id;
    EXCEPTION WHEN unique_violation THEN
        RAISE EXCEPTION 'queue "%" exists already', new_name USING ERRCODE = 'PQ003';
    END;
    UPDATE pgqueue.queue d SET dead_letter_key = new_name
     WHERE d.dead_letter = '' AND d.dead_letter_key = rename_queue.name;
    PERFORM pgqueue.signal(q.id), pgqueue.signal(-q.id);      -- who waits under the old name has to look again
END $$;
COMMENT ON FUNCTION pgqueue.rename_queue IS 'Give a queue another name; its tasks, who holds them, and its bindings stay. PQ003 if there is one of that name.';

CREATE OR REPLACE FUNCTION pgqueue.delete_queue(
    name      text,
    if_empty  boolean DEFAULT false,
    if_unused boolean DEFAULT false
) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    q       int := (pgqueue.known_queue(name, lock => true)).id;
    total   bigint;
    taken   bigint;
    awaited boolean;
BEGIN
    IF if_empty OR if_unused THEN
        SELECT s.total, s.taken INTO total, taken FROM pgqueue.stats s WHERE s.queue = name;
        awaited := if_unused AND pgqueue.is_awaited(q);
        IF if_empty AND total > 0 OR if_unused AND taken > 0 OR awaited THEN
            RAISE EXCEPTION 'queue "%" is in use: it holds % tasks, of which % are taken%', name, total, taken,
                CASE WHEN awaited THEN ', and somebody waits for more' ELSE '' END USING ERRCODE = 'PQ034';
        END IF;
    END IF;
    RETURN pgqueue.remove_queue(q);
END $$;
COMMENT ON FUNCTION pgqueue.delete_queue IS 'Remove a queue with its tasks and bindings; returns how many tasks. PQ034: it is not empty, or not unused: a task of it is taken, or somebody waits for one.';

-- Whether a taker sleeps in front of the queue: what a put asks (signal.sql), and as inexact: another queue of its bucket
-- counts, and one's own connection does not.
CREATE OR REPLACE FUNCTION pgqueue.is_awaited(queue_id int) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    waiter CONSTANT int := 1885827329;
    k      CONSTANT int := pgqueue.bucket(queue_id);
BEGIN
    RETURN CASE WHEN pg_try_advisory_lock(waiter, k) THEN NOT pg_advisory_unlock(waiter, k) ELSE true END;
END $$;

-- For who manages a queue: it has to be there, and the caller's to use.
CREATE OR REPLACE FUNCTION pgqueue.known_queue(name text, lock boolean DEFAULT false) RETURNS pgqueue.queue
LANGUAGE plpgsql AS $$
DECLARE
    q pgqueue.queue;
BEGIN
    IF lock THEN
        SELECT * INTO q FROM pgqueue.queue named WHERE named.name = known_queue.name FOR UPDATE;
    ELSE
        SELECT * INTO q FROM pgqueue.queue named WHERE named.name = known_queue.name;
    END IF;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no queue "%"', name USING ERRCODE = 'PQ032';
    ELSIF q.restricted THEN
        PERFORM pgqueue.check_right(q.id);
    END IF;
    RETURN q;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.queue_id(name text) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_id int;
BEGIN
    SELECT q.id INTO found_id FROM pgqueue.queue q WHERE q.name = queue_id.name;
    IF found_id IS NULL THEN
        PERFORM pgqueue.check_name(name);
        INSERT INTO pgqueue.queue (name, draining) VALUES (name, EXISTS (SELECT FROM pgqueue.draining))
            ON CONFLICT DO NOTHING RETURNING queue.id INTO found_id;
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
    PERFORM pgqueue.signal(queue_id), pgqueue.signal(-queue_id);      -- who sleeps on it has to learn that it is gone
    RETURN removed;
END $$;

-- By cursors: a LIMIT that begins anew for each batch walks over all that this transaction has deleted before. What is
-- blocked goes first, or each batch of heads would make those behind them ready. Again, until nothing is left that was
-- put or changed meanwhile.
CREATE OR REPLACE FUNCTION pgqueue.remove_tasks(queue_id int, batches int DEFAULT NULL) RETURNS int
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    batch   CONSTANT int := 1000;
    removed int := 0;
    before  int;
    state   "char";
    one     bigint;
    ids     bigint[] := '{}';
BEGIN
    LOOP
        before := removed;
        FOREACH state IN ARRAY '{L,R,D,B,F}'::"char"[] LOOP
            FOR one IN EXECUTE format('SELECT id FROM pgqueue.task WHERE queue_id = $1 AND state = %L%s LIMIT $2 FOR UPDATE SKIP LOCKED',
                                      state, CASE state WHEN 'L' THEN ' AND lane IS NOT NULL' END)
                         USING queue_id, batches * batch - removed
            LOOP
                ids := ids || one;
                IF cardinality(ids) = batch THEN
                    removed := removed + pgqueue.remove_batch(queue_id, ids);
                    ids := '{}';
                END IF;
            END LOOP;
            removed := removed + pgqueue.remove_batch(queue_id, ids);
            ids := '{}';
        END LOOP;
        EXIT WHEN removed = before OR removed >= batches * batch;
    END LOOP;
    RETURN removed;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.remove_batch(queue_id int, ids bigint[]) RETURNS int
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    takes int;
BEGIN
    IF ids <> '{}' THEN
        PERFORM pgqueue.delete_tasks(ids);
        -- As drop_late_take (settle.sql), for all of them.
        DELETE FROM pgqueue.take
         WHERE ctid = ANY (ARRAY (SELECT (SELECT k.ctid FROM pgqueue.take k WHERE k.task_id = u.id FOR UPDATE SKIP LOCKED)
                                    FROM unnest(ids) u(id)));
        GET DIAGNOSTICS takes = ROW_COUNT;
        INSERT INTO pgqueue.delta (queue_id, taken) SELECT remove_batch.queue_id, -takes WHERE takes > 0;
    END IF;
    RETURN cardinality(ids);
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

-- All that there is to check about a queue's options; gives them back with a capacity of 0 as none.
CREATE OR REPLACE FUNCTION pgqueue.checked_options(q pgqueue.queue) RETURNS pgqueue.queue
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue.check_times(q.delay, q.ttr, q.ttl);
    IF q.maxlen < 1 OR q.max_takes < 1 OR q.max_size < 1 OR q.capacity < 0 OR q.keep_done <= '0' THEN
        RAISE EXCEPTION 'maxlen, max_takes and max_size are at least 1, capacity is not negative, and keep_done is positive: '
            'maxlen is %, max_takes is %, max_size is %, capacity is %, keep_done is %',
            q.maxlen, q.max_takes, q.max_size, q.capacity, q.keep_done USING ERRCODE = 'PQ002';
    ELSIF q.dead_letter IS NULL AND q.dead_letter_key IS NOT NULL THEN
        RAISE EXCEPTION 'a dead_letter_key needs a dead_letter: '''' is the default exchange' USING ERRCODE = 'PQ002';
    ELSIF q.dead_letter = '' THEN
        IF q.dead_letter_key IS NULL THEN
            RAISE EXCEPTION 'dead letters need a dead_letter_key, the name of their queue: else they would come back to this one'
                USING ERRCODE = 'PQ002';
        END IF;
        PERFORM pgqueue.queue_id(q.dead_letter_key);
    ELSIF q.dead_letter IS NOT NULL THEN
        PERFORM pgqueue.exchange_type(q.dead_letter), pgqueue.check_key(q.dead_letter_key);
    END IF;
    q.capacity := nullif(q.capacity, 0);
    IF q.type IS NOT NULL THEN
        PERFORM pgqueue.check_type(q.type, q.priority, q.delay, q.ttr, q.ttl, NULL, q.capacity);
    END IF;
    RETURN q;
END $$;
