-- Queues that expire: a queue with `expires` that was not used for so long is deleted, with its tasks and bindings.
--
-- Uses are those of RabbitMQ's x-expires: consumers, basic.get and declarations. Puts are none.
--
--   a claim                 also one that finds nothing: _enter_queue
--   a taker that waits      the listener of its client asks next_due every ten seconds, for all of them; also for a
--                           consumer that holds as many tasks as it may (_engine/uses.py)
--   a worker, a take        clean_up looks for them
--   create_queue            also of a queue that is there; and alter_queue
--
-- clean_up notes since when a queue is unused, and a use deletes this note. So a claim on a queue in use looks into an
-- empty index, and writes nothing; and claims on queues that do not expire do not look. To note the moment of each use
-- is the simpler form: claims would write a row version each, and wait for each other.
--
-- The time begins anew with a crash, which empties the table. It is 30 seconds at least, so that a listener may miss
-- two turns. A claim T1 that begins while clean_up C deletes the queue may take one of its tasks: as with delete_queue,
-- its ack is told that the task is gone.

CREATE OR REPLACE FUNCTION pgqueue._is_used(q pgqueue.queue) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (SELECT FROM pgqueue.take k WHERE k.queue_id = q.id)
        OR EXISTS (SELECT FROM pgqueue.worker w WHERE q.name = ANY (w.queues));
END $$;

-- Part of clean_up.
CREATE OR REPLACE FUNCTION pgqueue._clean_unused() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    least_time CONSTANT interval := interval '30 s';
    q pgqueue.queue;
BEGIN
    PERFORM pgqueue._note_use(u.queue_id)
       FROM pgqueue.unused u LEFT JOIN pgqueue.queue named ON named.id = u.queue_id
      WHERE named.expires IS NULL OR u.since > clock_timestamp() OR pgqueue._is_used(named);
    FOR q IN
        SELECT named.*
          FROM pgqueue.unused u JOIN pgqueue.queue named ON named.id = u.queue_id
         WHERE u.since <= clock_timestamp() - greatest(named.expires, least_time)
           FOR UPDATE OF u, named SKIP LOCKED
    LOOP
        IF NOT pgqueue._is_used(q) THEN            -- in a new snapshot
            PERFORM pgqueue._remove_queue(q.id, most => 10000), pgqueue._note_use(q.id);
        END IF;
    END LOOP;
    INSERT INTO pgqueue.unused (queue_id, since)
    SELECT named.id, clock_timestamp()
      FROM pgqueue.queue named
     WHERE named.expires IS NOT NULL AND NOT EXISTS (SELECT FROM pgqueue.unused u WHERE u.queue_id = named.id)
       AND NOT pgqueue._is_used(named);
END $$;
