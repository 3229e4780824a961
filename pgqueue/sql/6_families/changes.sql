-- Changes of tasks, sent to the sessions that observe a queue: Tarantool's on_task_change.
--
-- Theory of operation
-- -------------------
-- queue.observed is true while any session observes the queue. It makes the queue special, so that every change of its
-- tasks reaches _tell_change (from take.sql, lanes.sql, and else from _note() of count.sql), and a queue without an
-- observer pays nothing. Each change is a NOTIFY on the queue's channel:
--
--     <verb> <seconds since 1970> <id>,<id>,...
--
-- An observer believes the notification, so the channel's name is secret; `observe` returns it (2_base/secret.sql).
--
-- The notification is sent when the transaction commits, in the order of the commits, and not if it rolls back. The
-- time also keeps PostgreSQL from dropping the second of two equal payloads of a transaction that changes a task twice.
--
-- A session that ends observes no more (sweep.sql). A session that registers or leaves locks the queue's row first and
-- reads the other observers after that, in a new snapshot: otherwise T1, which leaves, would not see T2, which has just
-- registered, and would turn `observed` off for both.

CREATE OR REPLACE FUNCTION pgqueue.observe(queue_id int, session int DEFAULT NULL) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    me    CONSTANT int := pgqueue._live_session(session);
    named record;
BEGIN
    PERFORM pgqueue._check_guarded(queue_id, 'look', is_named => false);
    SELECT q.observed, q.guarded INTO named FROM pgqueue.queue q WHERE q.id = observe.queue_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    ELSIF named.guarded THEN
        PERFORM pgqueue._check_right(queue_id, 'look', is_named => false);
    END IF;
    INSERT INTO pgqueue.observer (queue_id, session_id) VALUES (observe.queue_id, me) ON CONFLICT DO NOTHING;
    IF NOT named.observed THEN
        UPDATE pgqueue.queue q SET observed = true WHERE q.id = observe.queue_id;
    END IF;
    RETURN pgqueue._change_channel(queue_id);
END $$;
COMMENT ON FUNCTION pgqueue.observe IS
    'Send a notification for every change of a queue''s tasks from now on, for as long as the session lives; returns '
    'the channel for LISTEN, NULL if the queue does not exist.';

-- The caller has locked the queue's row, in an earlier statement.
CREATE OR REPLACE FUNCTION pgqueue._clear_observed(queue_id int) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE pgqueue.queue q SET observed = false
     WHERE q.id = _clear_observed.queue_id AND q.observed
       AND NOT EXISTS (SELECT FROM pgqueue.observer o WHERE o.queue_id = q.id);
END $$;

CREATE OR REPLACE FUNCTION pgqueue.unobserve(queue_id int, session int DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    me      CONSTANT int := pgqueue._named_session(session);
    deleted boolean;
BEGIN
    IF NOT EXISTS (SELECT FROM pgqueue.observer o
                    WHERE o.queue_id = unobserve.queue_id
                      AND o.session_id = coalesce(session, pgqueue.own_session())) THEN
        RETURN false;                              -- before the lock: a call without the right must not hold up others
    END IF;
    PERFORM FROM pgqueue.queue q WHERE q.id = unobserve.queue_id FOR NO KEY UPDATE;
    DELETE FROM pgqueue.observer o
     WHERE o.queue_id = unobserve.queue_id AND o.session_id = me;
    deleted := FOUND;
    PERFORM pgqueue._clear_observed(queue_id);
    RETURN deleted;
END $$;
COMMENT ON FUNCTION pgqueue.unobserve IS 'End observe for this session; false if it did not observe the queue.';

-- A session ends and observes no more. This never waits: a queue that is locked keeps its mark until _clean_observers.
CREATE OR REPLACE FUNCTION pgqueue._free_observers(session int) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    q int;
BEGIN
    FOR q IN
        DELETE FROM pgqueue.observer o
         WHERE o.ctid = ANY (ARRAY (SELECT k.ctid FROM pgqueue.observer k
                                     WHERE k.session_id = _free_observers.session FOR UPDATE SKIP LOCKED))
        RETURNING o.queue_id
    LOOP
        PERFORM FROM pgqueue.queue named WHERE named.id = q FOR NO KEY UPDATE SKIP LOCKED;
        IF FOUND THEN
            PERFORM pgqueue._clear_observed(q);
        END IF;
    END LOOP;
END $$;

-- Part of clean_up: remove marks that are left by _free_observers, or by a server crash, which empties the table of
-- observers.
CREATE OR REPLACE FUNCTION pgqueue._clean_observers() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    q int;
BEGIN
    DELETE FROM pgqueue.observer o
     WHERE o.ctid = ANY (ARRAY (SELECT k.ctid FROM pgqueue.observer k
                                 WHERE NOT EXISTS (SELECT FROM pgqueue.session s WHERE s.id = k.session_id)
                                   FOR UPDATE SKIP LOCKED));
    FOR q IN
        SELECT named.id FROM pgqueue.queue named
         WHERE named.observed AND NOT EXISTS (SELECT FROM pgqueue.observer o WHERE o.queue_id = named.id)
           FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        PERFORM pgqueue._clear_observed(q);
    END LOOP;
END $$;
