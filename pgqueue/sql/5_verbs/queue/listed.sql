-- Listed queues: giving a place in the listing to tasks that were put while the queue was not listed.
--
-- A listing (messages.sql) is ordered by the transaction in the task's row (`xid`), and shows a task once all
-- transactions up to that one have ended. A put into a listed queue writes its own transaction. When a transaction T1
-- switches `listed` on, there are tasks without xid, and there may be more later: a put T2 that read the queue's row
-- before T1 committed writes none, and may commit at any time after. A stamping S gives such a task the transaction of
-- S itself. That is safe at any time: S is open until it commits, so no listing has passed S before.
--
-- T1 stamps the tasks that it sees, and leaves a row in `listing`. The ticks stamp later ones, until no task without
-- xid can appear any more: changeover.sql has the argument. When all puts that read the old row have ended, and the
-- next statement finds no task without a transaction, the row is deleted.

-- After pg_restore the tasks have transactions of another server. If that server was ahead of this one, listings
-- would hide these tasks until this server has caught up. `migrate up` ends with _restamp_tasks: tasks of transactions
-- that have not begun here get the transaction that restamps, as by a stamping. A snapshot sees no transaction that
-- begins after it, so this server's own tasks are left alone.

-- Stamp up to n tasks of a queue; returns how many. A task that is locked is left to the next tick.
CREATE OR REPLACE FUNCTION pgqueue._stamp_tasks(queue_id int, n int DEFAULT 10000) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    ids bigint[];
BEGIN
    ids := ARRAY (SELECT t.id FROM pgqueue.task t
                   WHERE t.queue_id = _stamp_tasks.queue_id AND t.state IN ('R', 'D', 'B', 'W', 'C') AND t.xid IS NULL
                   LIMIT n FOR UPDATE SKIP LOCKED)
        || ARRAY (SELECT t.id FROM pgqueue.task t
                   WHERE t.queue_id = _stamp_tasks.queue_id AND t.state = 'L' AND t.lane IS NOT NULL AND t.xid IS NULL
                   LIMIT n FOR UPDATE SKIP LOCKED);
    IF ids <> '{}' THEN
        UPDATE pgqueue.task t SET xid = pg_current_xact_id() WHERE t.id = ANY (ids);
        PERFORM pgqueue._signal(queue_id);        -- a claim that met their locks has skipped them
    END IF;
    RETURN cardinality(ids);
END $$;

-- Part of alter_queue, when a queue becomes listed.
CREATE OR REPLACE FUNCTION pgqueue._begin_listing(queue_id int) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO pgqueue.listing (queue_id, altered) VALUES (_begin_listing.queue_id, pg_current_xact_id())
        ON CONFLICT ON CONSTRAINT listing_pkey DO UPDATE SET altered = excluded.altered, ended = NULL;
    PERFORM pgqueue._stamp_tasks(queue_id);
END $$;

-- Part of promote_all: see changeover.sql. The first step of the tick.
CREATE OR REPLACE FUNCTION pgqueue._go_on_listing() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    one  pgqueue.listing;
    over boolean;
    next record;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed'
       OR pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RETURN;
    END IF;
    FOR one IN SELECT * FROM pgqueue.listing LOOP
        PERFORM FROM pgqueue.queue q WHERE q.id = one.queue_id FOR KEY SHARE SKIP LOCKED;       -- first: nowait.sql
        CONTINUE WHEN NOT FOUND;
        PERFORM FROM pgqueue.listing l WHERE l.queue_id = one.queue_id AND l = one FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;                   -- changed since it was read, when this transaction had no xid yet
        over := pgqueue._is_over(one.ended);
        IF pgqueue._stamp_tasks(one.queue_id) > 0 THEN
            CONTINUE;
        ELSIF over THEN
            DELETE FROM pgqueue.listing l
             WHERE l.queue_id = one.queue_id
               AND NOT EXISTS (SELECT FROM pgqueue.task t
                                WHERE t.queue_id = one.queue_id AND t.xid IS NULL
                                  AND (t.state IN ('R', 'D', 'B', 'W', 'C') OR t.state = 'L' AND t.lane IS NOT NULL));
        ELSIF one.ended IS NULL THEN
            SELECT * INTO next FROM pgqueue._go_on(one.altered, one.ended);
            IF (one.altered, one.ended) IS DISTINCT FROM (next.altered, next.ended) THEN
                UPDATE pgqueue.listing l SET altered = next.altered, ended = next.ended
                 WHERE l.queue_id = one.queue_id;
            END IF;
        END IF;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._restamp_tasks() RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    n bigint;
BEGIN
    UPDATE pgqueue.task t SET xid = pg_current_xact_id()
      FROM pgqueue.queue q
     WHERE t.queue_id = q.id AND q.listed
       AND t.state <> 'F' AND t.xid >= pg_snapshot_xmax(pg_current_snapshot());
    GET DIAGNOSTICS n = ROW_COUNT;
    -- No put of the other server can commit any more.
    UPDATE pgqueue.listing l SET altered = NULL, ended = NULL
     WHERE greatest(l.altered, l.ended) >= pg_snapshot_xmax(pg_current_snapshot());
    UPDATE pgqueue.task_limit l SET altered = NULL, ended = NULL
     WHERE greatest(l.altered, l.ended) >= pg_snapshot_xmax(pg_current_snapshot());
    RETURN n;
END $$;
