-- Latches: rows that claims lock, so that one transaction at a time takes from a lane, or admits in a meter.
--
-- Each queue with lanes or limits has 256 latches, and the name of a lane or meter says which is its. A claim C1 tries
-- to lock the row, leaves the lane or meter alone if another claim C2 has it, and never waits. The lock lasts until the
-- transaction ends, however it ends, and writes no new version of the row.
--
-- An advisory lock would cost a claim less. But any role that may connect to the database can hold it, for as long as
-- it likes, and so could keep every lane of a queue. Only claims lock the row, after the check that their role may take
-- from the queue. So the users of a queue wait for each other, and for no other role.
--
-- The latches are made with the first lane or limit of a queue, by the transaction that marks the queue as one with
-- lanes or limits. So a claim that knows of the mark sees them all. Without its latch it would take nothing.
--
-- 256 latches need 15 kB. With 64 of them eight takers drained 1,000 lanes in batches of 100 at 0.85 x the rate.

CREATE OR REPLACE FUNCTION pgqueue._latch_number(name text) RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN (hashtextextended(name, 0) & 255)::int;

-- The caller has locked the queue's row.
CREATE OR REPLACE FUNCTION pgqueue._make_latches(queue_id int) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO pgqueue.latch (queue_id, number) SELECT _make_latches.queue_id, g FROM generate_series(0, 255) g
        ON CONFLICT DO NOTHING;
END $$;

-- Whether this transaction has the latch of a lane or meter, now and until it ends.
CREATE OR REPLACE FUNCTION pgqueue._latched(queue_id int, name text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM pgqueue.latch l
      WHERE l.queue_id = _latched.queue_id AND l.number = pgqueue._latch_number(name)
        FOR UPDATE SKIP LOCKED;
    RETURN FOUND;
END $$;

-- Part of clean_up: remove the latches of up to a hundred deleted queues, from one queue to the next by the index. The
-- next cleaning goes on. The deletion itself leaves them, so that it does not wait for claims. Also make the latches
-- that a queue has lost, for example by a restore without the table's data: without them no task would be taken from
-- its lanes, with no error.
CREATE OR REPLACE FUNCTION pgqueue._clean_latches() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    next int := 0;
    gone int := 0;
BEGIN
    LOOP
        next := (SELECT l.queue_id FROM pgqueue.latch l WHERE l.queue_id > next ORDER BY l.queue_id LIMIT 1);
        EXIT WHEN next IS NULL OR gone = 100;
        IF NOT EXISTS (SELECT FROM pgqueue.queue q WHERE q.id = next) THEN
            DELETE FROM pgqueue.latch
             WHERE ctid = ANY (ARRAY (SELECT l.ctid FROM pgqueue.latch l
                                       WHERE l.queue_id = next FOR UPDATE SKIP LOCKED));
            gone := gone + FOUND::int;
        END IF;
    END LOOP;
    PERFORM pgqueue._make_latches(q.id) FROM (
        SELECT o.id FROM pgqueue.queue o
         WHERE (o.lanes OR o.metered) AND NOT EXISTS (SELECT FROM pgqueue.latch l WHERE l.queue_id = o.id)
         ORDER BY o.id LIMIT 100 FOR NO KEY UPDATE SKIP LOCKED) q;
END $$;
