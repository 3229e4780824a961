-- Rights: which roles may use a queue; and the view of the queues.
--
-- A role that was let in by grant_to (grants.sql) may use every queue except those that were granted to certain roles
-- only. The functions run as their owner, so they tell the caller from the setting `role`: the current role (SET ROLE),
-- else session_user.

CREATE OR REPLACE FUNCTION pgqueue._check_right(queue_id int) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    caller CONSTANT name := coalesce(nullif(current_setting('role'), 'none'), session_user);
    named  text;
BEGIN
    SELECT q.name INTO named FROM pgqueue.queue q WHERE q.id = _check_right.queue_id AND q.restricted;
    IF FOUND
       AND NOT pg_has_role(caller, (SELECT s.nspowner FROM pg_namespace s WHERE s.nspname = 'pgqueue'), 'USAGE')
       AND NOT EXISTS (SELECT FROM pgqueue.queue_grant g
                        WHERE g.queue_id = _check_right.queue_id AND pg_has_role(caller, g.role, 'USAGE')) THEN
        RAISE EXCEPTION 'queue "%" is restricted, and % was not granted it', named, caller
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'The owner of the schema can: SELECT pgqueue.grant(queue, role)';
    END IF;
END $$;

-- For functions that manage a queue: the queue has to exist, and the caller must have the right to use it.
CREATE OR REPLACE FUNCTION pgqueue._known_queue(name text, lock boolean DEFAULT false) RETURNS pgqueue.queue
LANGUAGE plpgsql AS $$
DECLARE
    q pgqueue.queue;
BEGIN
    IF lock THEN
        SELECT * INTO q FROM pgqueue.queue named WHERE named.name = _known_queue.name FOR UPDATE;
    ELSE
        SELECT * INTO q FROM pgqueue.queue named WHERE named.name = _known_queue.name;
    END IF;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no queue "%"', name USING ERRCODE = 'PQ032';
    ELSIF q.restricted THEN
        PERFORM pgqueue._check_right(q.id);
    END IF;
    RETURN q;
END $$;

-- First in a claim on a queue with options: the queue may be exclusive to another session, be deleted with its last
-- taker, or be paused. False: it is paused.
CREATE OR REPLACE FUNCTION pgqueue._enter_queue(queue_id int, session int) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    q pgqueue.queue;
BEGIN
    SELECT * INTO q FROM pgqueue.queue named WHERE named.id = _enter_queue.queue_id;
    IF q.exclusive AND q.session_id IS DISTINCT FROM session THEN
        RAISE EXCEPTION 'queue "%" is exclusive: only session % may take from it', q.name, q.session_id
            USING ERRCODE = 'PQ033';
    ELSIF q.auto_delete AND session IS NOT NULL THEN
        INSERT INTO pgqueue.taker (session_id, queue_id) VALUES (session, q.id) ON CONFLICT DO NOTHING;
    END IF;
    IF q.restricted THEN
        PERFORM pgqueue._check_right(q.id);
    END IF;
    RETURN q.paused_until IS NULL OR q.paused_until <= clock_timestamp();
END $$;

CREATE OR REPLACE VIEW pgqueue.queues AS
SELECT q.name, q.type, q.priority, q.delay, q.ttr, q.ttl, q.maxlen, q.max_takes, q.capacity, q.max_size, q.keep_done,
       q.dead_letter, q.dead_letter_key, q.exclusive,
       q.session_id IS NOT NULL AND NOT q.exclusive AS temporary,
       q.auto_delete, q.listed, q.lanes, q.draining,
       CASE WHEN q.paused_until > now() THEN q.paused_until END AS paused_until,
       CASE WHEN q.restricted
            THEN ARRAY (SELECT r.rolname::text FROM pgqueue.queue_grant g JOIN pg_roles r ON r.oid = g.role
                         WHERE g.queue_id = q.id ORDER BY 1)
       END AS granted_to,
       q.session_id AS session, q.metadata, q.created_at, q.id
  FROM pgqueue.queue q;
COMMENT ON VIEW pgqueue.queues IS
    'Every queue with its options. granted_to: the only roles that may use it; NULL: everyone.';
