-- For a worker in another language: one call that takes tasks, or else arms the connection so that a put wakes it.
--
-- Theory of operation
-- -------------------
-- The Python client spreads a waiting take over several threads and connections. A worker with one connection needs
-- less, so take_or_listen does the steps of wake.sql in one call:
--
--   tick                 the periodic work of a listener, if no other client has just done it
--   claim                found: return it, and disarm, so that no put pays for NOTIFY while the worker works
--   T1 LISTEN            in effect from the commit on. So the first call answers "again in 0 s", and the next one looks
--   T2 arm, T3 drain     in this transaction, which T4 does not have to leave: a statement of a function has its own
--                        snapshot at READ COMMITTED
--   T4 claim             nothing: the worker sleeps until a notification arrives, for `again` seconds at most
--
-- A producer that notified committed before T4's snapshot, or after an earlier call's LISTEN was committed, and
-- PostgreSQL delivers the notification once this transaction has ended. If a claim and then the arming were separate
-- calls, each worker would have to look once more by itself.
--
-- The setting pgqueue.armed_for has the queues that the connection is armed for. A rollback undoes the setting, and
-- LISTEN, but not the locks: then the connection holds a lock twice, and puts notify until it ends. The connection
-- hears of every put, and has no place in the line (line.sql).

-- A part that fails must not hold back the others, nor the claim after it.
CREATE OR REPLACE FUNCTION pgqueue.tick() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    age  record;
    work text;
BEGIN
    PERFORM pgqueue._check_read_committed('tick');
    SELECT * INTO age FROM pgqueue.tick_ages();
    FOREACH work IN ARRAY CASE WHEN age.tick < 0.2 THEN '{}'::text[] ELSE '{sweep,promote_all}' END
                       || CASE WHEN age.cleaning < 10 THEN '{}'::text[] ELSE '{clean_up}' END LOOP
        BEGIN
            CASE work WHEN 'sweep'       THEN PERFORM pgqueue.sweep();
                      WHEN 'promote_all' THEN PERFORM pgqueue.promote_all();
                      ELSE                    PERFORM pgqueue.clean_up(); END CASE;
        EXCEPTION WHEN OTHERS THEN
            RAISE WARNING 'pgqueue.%() failed: %', work, SQLERRM USING ERRCODE = SQLSTATE;
        END;
    END LOOP;
END $$;
COMMENT ON FUNCTION pgqueue.tick IS
    'Do the periodic work, sweep, promote_all and clean_up, unless a client has just done it.';

CREATE OR REPLACE FUNCTION pgqueue._armed_for() RETURNS int[]
LANGUAGE sql STABLE
RETURN ARRAY (SELECT id::int FROM string_to_table(current_setting('pgqueue.armed_for', true), ',') id
               WHERE id ~ '^[0-9]{1,10}$');

-- T1 to T3. Returns the seconds after which the worker has to look if no notification wakes it; 0: at once.
CREATE OR REPLACE FUNCTION pgqueue._listen_for(queues text[]) RETURNS double precision
LANGUAGE plpgsql AS $$
DECLARE
    ids    CONSTANT int[]  := ARRAY (SELECT DISTINCT pgqueue.queue_id(name) FROM unnest(queues) asked(name));
    armed  CONSTANT int[]  := pgqueue._armed_for();
    heard  CONSTANT text[] := ARRAY (SELECT pg_listening_channels());
    added  int[] := '{}'::int[];
    again  double precision;
    id     int;
BEGIN
    FOREACH id IN ARRAY ids LOOP
        IF pgqueue._channel(id) <> ALL (heard) THEN
            IF id = ANY (armed) THEN
                RAISE EXCEPTION 'this connection is armed for a queue that it does not LISTEN to'
                    USING ERRCODE = 'PQ002',
                          HINT = 'Call take_or_listen in a transaction of its own, and no UNLISTEN.';
            END IF;
            EXECUTE format('LISTEN %I', pgqueue._channel(id));
            again := 0;
        END IF;
        IF id <> ALL (armed) THEN
            added := added || id;
        END IF;
    END LOOP;
    PERFORM pgqueue.arm(added), set_config('pgqueue.armed_for', array_to_string(armed || added, ','), false);
    IF EXISTS (SELECT FROM pgqueue.arm_again(ids) a WHERE NOT a.drained) THEN
        again := coalesce(again, 0.02);            -- a put of an open transaction may be silent
    END IF;
    RETURN again;
END $$;

-- The seconds until the next tick, which is later with more clients (ticks.py), or until a task or the end of a grace
-- that is due earlier.
CREATE OR REPLACE FUNCTION pgqueue._until_tick(queues text[]) RETURNS double precision
LANGUAGE plpgsql AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
BEGIN
    RETURN greatest(0.01, least(
        0.25 * (1 + random() * (SELECT least(c.last_value, 40) - 1 FROM pgqueue.clients c) / 10),
        (SELECT min(d.seconds) FROM pgqueue.next_due(queues) d),
        (SELECT extract(epoch FROM min(pgqueue._grace_left(s, moment)))
           FROM pgqueue.session s WHERE s.missing_since IS NOT NULL)));
END $$;

CREATE OR REPLACE FUNCTION pgqueue.take_or_listen(queues text[], n int DEFAULT 1)
RETURNS TABLE (
    id bigint, token bigint, priority int, attempts int, deadline timestamptz, data jsonb, queue text,
    waited double precision, redelivered boolean, again double precision
)
LANGUAGE plpgsql AS $$
DECLARE
    found_again double precision;
BEGIN
    PERFORM pgqueue._check_read_committed('take_or_listen'), pgqueue.tick();
    FOR look IN 1..2 LOOP
        RETURN QUERY SELECT t.*, NULL::double precision FROM pgqueue.take_many(queues, n) t;
        IF FOUND THEN
            PERFORM pgqueue.disarm(pgqueue._armed_for()), set_config('pgqueue.armed_for', '', false);
            RETURN;
        END IF;
        IF look = 1 THEN
            found_again := pgqueue._listen_for(queues);
        END IF;
    END LOOP;
    again := coalesce(found_again, pgqueue._until_tick(queues));
    RETURN NEXT;
END $$;
COMMENT ON FUNCTION pgqueue.take_or_listen IS
    'For a worker in another language, in a transaction of its own: as take_many for the session of this connection. '
    'If there is nothing to take, one row that has only `again`: from then on a put notifies this connection. Wait for '
    'a notification, for that many seconds at most, and call again.';
