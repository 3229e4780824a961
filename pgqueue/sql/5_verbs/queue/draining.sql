-- Draining: a queue, or all, refuses puts, and its tasks are worked off.

CREATE OR REPLACE FUNCTION pgqueue.drain_queue(queue text, enabled boolean DEFAULT true) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    q CONSTANT int := (pgqueue._known_queue(queue, 'manage')).id;
BEGIN
    UPDATE pgqueue.queue drained SET draining = coalesce(enabled, true) WHERE drained.id = q;
    PERFORM pgqueue._signal(-q);                   -- puts that wait for room are refused from now on
    PERFORM pgqueue._record(CASE WHEN coalesce(enabled, true) THEN 'drain' ELSE 'undrain' END, queue);
END $$;
COMMENT ON FUNCTION pgqueue.drain_queue IS
    'Refuse puts into a queue (PQ035) until this is switched off. Its tasks are taken as before. PQ032: there is no '
    'such queue.';

-- Drain every queue, and those that are created until draining is switched off. A queue that an open transaction has
-- created, and no other transaction sees yet, is missed: otherwise every creation of a queue would need a lock.
CREATE OR REPLACE FUNCTION pgqueue.drain_queues(enabled boolean DEFAULT true) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    q int;
BEGIN
    PERFORM pgqueue._check_right(q.id, 'manage', is_named => false) FROM pgqueue.queue q WHERE q.guarded;
    IF NOT pgqueue._may_see_all('manage') THEN
        PERFORM pgqueue._refuse('manage', '*');
    END IF;
    DELETE FROM pgqueue.draining;
    INSERT INTO pgqueue.draining (since) SELECT clock_timestamp() WHERE coalesce(enabled, true);
    FOR q IN
        WITH drained AS (
            UPDATE pgqueue.queue SET draining = coalesce(enabled, true)
             WHERE draining <> coalesce(enabled, true) RETURNING id)
        SELECT id FROM drained
    LOOP
        PERFORM pgqueue._signal(-q);
    END LOOP;
    PERFORM pgqueue._record(CASE WHEN coalesce(enabled, true) THEN 'drain' ELSE 'undrain' END, detail => 'all queues');
END $$;
COMMENT ON FUNCTION pgqueue.drain_queues IS
    'drain_queue for every queue, and for queues that are created from now on. As beanstalkd''s drain mode.';
