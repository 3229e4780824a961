-- Changes of tasks, told to whoever observes their queue: Tarantool's on_task_change.
--
-- Theory of operation
-- -------------------
-- queue.observed is true while any session observes the queue. It makes the queue special, so that every change of its
-- tasks comes by here (take.sql, special.sql, settle.sql, and _note() of count.sql for all the rest), and a queue that
-- nobody observes pays nothing. Each change is a NOTIFY on the queue's channel:
--
--     <verb> <seconds since 1970> <id>,<id>,...
--
-- So it is told when the transaction commits, in the order of the commits, and never when that rolls back. The time
-- also keeps PostgreSQL from dropping the second of two equal payloads of a transaction that touches a task twice.
--
-- A session that ends observes no more (sweep.sql). Who registers or leaves locks the queue's row first and looks at
-- the others after that, in a new snapshot: else one who leaves would not see one who just came, and turn both off.

CREATE OR REPLACE FUNCTION pgqueue.observe(queue_id int, session int DEFAULT NULL) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    me    CONSTANT int := pgqueue._live_session(session);
    named record;
BEGIN
    SELECT q.observed, q.restricted INTO named FROM pgqueue.queue q WHERE q.id = observe.queue_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    ELSIF named.restricted THEN
        PERFORM pgqueue._check_right(queue_id);
    END IF;
    INSERT INTO pgqueue.observer (queue_id, session_id) VALUES (observe.queue_id, me) ON CONFLICT DO NOTHING;
    IF NOT named.observed THEN
        UPDATE pgqueue.queue q SET observed = true WHERE q.id = observe.queue_id;
    END IF;
    RETURN pgqueue._change_channel(queue_id);
END $$;
COMMENT ON FUNCTION pgqueue.observe IS
    'Have every change of a queue''s tasks notified from now on, for as long as the session lives; returns the '
    'channel to LISTEN to, NULL if there is no such queue.';

-- The queue's row is locked by the caller, in an earlier statement.
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
    deleted boolean;
BEGIN
    PERFORM FROM pgqueue.queue q WHERE q.id = unobserve.queue_id FOR NO KEY UPDATE;
    DELETE FROM pgqueue.observer o
     WHERE o.queue_id = unobserve.queue_id AND o.session_id = coalesce(session, pgqueue.own_session());
    deleted := FOUND;
    PERFORM pgqueue._clear_observed(queue_id);
    RETURN deleted;
END $$;
COMMENT ON FUNCTION pgqueue.unobserve IS 'Not any more, for this session; false if it was not told anyway.';

-- A session observes no more. Waits for nobody: a queue that is locked keeps its mark until _clean_observers.
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

-- Now and then: what was left behind by the above, or by a crash of the server, which empties the table of observers.
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
