-- Queues that expire: a queue that was not used for the time of `expires` is deleted, with its tasks and bindings.
--
-- Uses are those of RabbitMQ's x-expires: consumers, basic.get and declarations. A put is not a use.
--
--   a claim                 also one that finds no task: _enter_queue
--   a taker that waits      the listener of its client calls next_due every ten seconds, for all of them; also for a
--                           consumer that holds as many tasks as it may (_engine/uses.py)
--   a worker, a take        clean_up looks for them
--   create_queue            also of an existing queue; and alter_queue
--
-- clean_up notes since when a queue is unused, and a use deletes this note. So a claim on a queue in use looks into an
-- empty index, and writes nothing; and claims on queues that do not expire do not look. If each use stored its time,
-- every claim would write a row version, and claims would wait for each other.
--
-- A crash empties the table, and the time begins again. It is 30 seconds at least, so that a listener may miss two
-- turns. A claim T1 whose transaction is open while clean_up C deletes the queue keeps its task: C passes over the
-- row that T1 has locked. The ack of that task counts; if T1 gives it back, the next clean_up removes it.

CREATE OR REPLACE FUNCTION pgqueue._queues_expire() RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM pgqueue.queue q WHERE q.expires IS NOT NULL);
END $$;

-- The queues that a worker serves, or of which a task is taken. For all queues at once: takes have no index by queue.
CREATE OR REPLACE FUNCTION pgqueue._used_queues() RETURNS SETOF int
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
        SELECT k.queue_id FROM pgqueue.take k
         UNION
        SELECT q.id FROM pgqueue.queue q WHERE q.name IN (SELECT unnest(w.queues) FROM pgqueue.worker w);
END $$;

-- Part of clean_up.
CREATE OR REPLACE FUNCTION pgqueue._clean_unused() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    least_time CONSTANT interval := interval '30 s';
    used   int[];
    unused int[];
BEGIN
    IF NOT pgqueue._queues_expire() AND NOT EXISTS (SELECT FROM pgqueue.unused) THEN
        RETURN;
    END IF;
    used := ARRAY (SELECT pgqueue._used_queues());
    PERFORM pgqueue._note_use(u.queue_id)
       FROM pgqueue.unused u LEFT JOIN pgqueue.queue named ON named.id = u.queue_id
      WHERE named.expires IS NULL OR u.since > clock_timestamp() OR u.queue_id IN (SELECT unnest(used));
    unused := ARRAY (
        SELECT named.id
          FROM pgqueue.unused u JOIN pgqueue.queue named ON named.id = u.queue_id
         WHERE u.since <= clock_timestamp() - greatest(named.expires, least_time)
         LIMIT 1000 FOR UPDATE OF u, named SKIP LOCKED);
    IF unused <> '{}' THEN
        used := ARRAY (SELECT pgqueue._used_queues());                     -- in a new snapshot
        PERFORM pgqueue._remove_queue(u.id, most => 10000), pgqueue._note_use(u.id)
           FROM unnest(unused) u(id) WHERE u.id NOT IN (SELECT unnest(used));
    END IF;
    INSERT INTO pgqueue.unused (queue_id, since)
    SELECT named.id, clock_timestamp()
      FROM pgqueue.queue named
     WHERE named.expires IS NOT NULL AND NOT EXISTS (SELECT FROM pgqueue.unused u WHERE u.queue_id = named.id)
       AND named.id NOT IN (SELECT unnest(used));
END $$;
