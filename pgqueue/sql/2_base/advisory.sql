-- Advisory locks: the buckets of queues and lanes, and the lock of a queue's room.

CREATE OR REPLACE FUNCTION pgqueue._bucket(queue_id int) RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN queue_id & 1023;

-- From now on nobody else puts into a queue with a capacity, until the end of this transaction.
CREATE OR REPLACE FUNCTION pgqueue._lock_room(q pgqueue.queue) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    filling CONSTANT int := 1885827336;
BEGIN
    IF q.capacity IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(filling, q.id);
    END IF;
END $$;

-- For what hands on tasks while it has others locked: room comes first, and in one order, or two would wait for each other.
CREATE OR REPLACE FUNCTION pgqueue._lock_rooms(puts jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue._lock_room(q)
       FROM (SELECT * FROM pgqueue.queue named
              WHERE named.name IN (SELECT p ->> 'queue' FROM jsonb_array_elements(puts) p) ORDER BY named.id) q;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._lane_bucket(queue_id int, lane text) RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN (hashtextextended(lane, queue_id) & 1023)::int;
