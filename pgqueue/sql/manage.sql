-- What is done to a queue as a whole: pausing, draining, emptying; its type, and who may use it.
--
-- A queue that is used under one of these is `special`, and the functions for putting and taking ask only then. Pausing
-- and draining stop what comes later; what is under way at that moment is not waited for.

-- --- pausing and draining

CREATE OR REPLACE FUNCTION pgqueue.pause_queue(queue text, duration interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    q CONSTANT int := pgqueue.queue_id(queue);
BEGIN
    IF duration < '0' OR duration IS NULL THEN
        RAISE EXCEPTION 'cannot pause a queue for %', coalesce(duration::text, 'NULL') USING ERRCODE = 'PQ002';
    END IF;
    PERFORM pgqueue.check_right(q);
    UPDATE pgqueue.queue paused SET paused_until = CASE WHEN duration > '0' THEN clock_timestamp() + duration END
     WHERE paused.id = q;
    -- Also at the start of a pause: it may end sooner than the one before, which takers sleep through.
    PERFORM pgqueue.signal(q);
END $$;
COMMENT ON FUNCTION pgqueue.pause_queue IS 'Nothing is taken for so long; 0 ends a pause. Puts go on, and so do those who hold tasks.';

CREATE OR REPLACE FUNCTION pgqueue.drain_queue(queue text, "on" boolean DEFAULT true) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    q CONSTANT int := pgqueue.queue_id(queue);
BEGIN
    PERFORM pgqueue.check_right(q);
    UPDATE pgqueue.queue drained SET draining = coalesce("on", true) WHERE drained.id = q;
    PERFORM pgqueue.signal(-q);                   -- puts that wait for room are refused from now on
END $$;
COMMENT ON FUNCTION pgqueue.drain_queue IS 'Nothing is put into the queue any more (PQ035), until it is switched off; what is there is taken as ever.';

-- Every queue, and those that are made until it is switched off. One that a transaction which is open now has made, and
-- nobody sees yet, escapes: to keep it would take a lock from everyone who makes a queue.
CREATE OR REPLACE FUNCTION pgqueue.drain_queues("on" boolean DEFAULT true) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    q int;
BEGIN
    PERFORM pgqueue.check_right(restricted.id) FROM pgqueue.queue restricted WHERE restricted.restricted;
    DELETE FROM pgqueue.draining;
    INSERT INTO pgqueue.draining (since) SELECT clock_timestamp() WHERE coalesce("on", true);
    FOR q IN
        WITH drained AS (
            UPDATE pgqueue.queue SET draining = coalesce("on", true) WHERE draining <> coalesce("on", true) RETURNING id)
        SELECT id FROM drained
    LOOP
        PERFORM pgqueue.signal(-q);
    END LOOP;
END $$;
COMMENT ON FUNCTION pgqueue.drain_queues IS 'drain_queue for every queue, and for those that are made from now on. As beanstalkd''s drain mode.';

-- --- emptying

CREATE OR REPLACE FUNCTION pgqueue.truncate_queue(queue text) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN pgqueue.remove_tasks((pgqueue.known_queue(queue)).id);
END $$;
COMMENT ON FUNCTION pgqueue.truncate_queue IS 'Remove all tasks of a queue, in whatever state, also those that are taken; returns how many. One that somebody is taking or settling at this very moment is left to them.';

CREATE OR REPLACE FUNCTION pgqueue.release_all(queue text) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    q   CONSTANT int := (pgqueue.known_queue(queue)).id;
    ids bigint[];
BEGIN
    WITH gone AS (
        DELETE FROM pgqueue.take
         WHERE ctid = ANY (ARRAY (SELECT k.ctid FROM pgqueue.take k WHERE k.queue_id = q FOR UPDATE SKIP LOCKED))
        RETURNING take.task_id)
    SELECT array_agg(gone.task_id) INTO ids FROM gone;
    IF ids IS NOT NULL THEN
        INSERT INTO pgqueue.delta (queue_id, taken) VALUES (q, -cardinality(ids));
        PERFORM pgqueue.note(q, 'release', ids), pgqueue.signal(q);
    END IF;
    RETURN coalesce(cardinality(ids), 0);
END $$;
COMMENT ON FUNCTION pgqueue.release_all IS 'Give back all tasks of a queue that are taken, whoever holds them; returns how many.';

-- --- types

-- What each type of Tarantool's queue lacks. A queue without a type has everything.
CREATE OR REPLACE FUNCTION pgqueue.type_lacks(type text) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN CASE type
        WHEN 'fifo'       THEN '{priority,delay,ttr,ttl,touch,lane,capacity}'::text[]
        WHEN 'fifottl'    THEN '{lane,capacity}'::text[]
        WHEN 'utube'      THEN '{priority,delay,ttr,ttl,touch,capacity}'::text[]
        WHEN 'utubettl'   THEN '{capacity}'::text[]
        WHEN 'limfifottl' THEN '{lane}'::text[]
    END;
END $$;

-- With what a caller said himself; a priority and a delay of 0 say nothing.
CREATE OR REPLACE FUNCTION pgqueue.check_type(
    type text, priority int, delay interval, ttr interval, ttl interval, lane text, capacity int DEFAULT NULL, touch boolean DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    lacks CONSTANT text[] := pgqueue.type_lacks(type);
    what  text;
BEGIN
    IF lacks IS NULL THEN
        RAISE EXCEPTION 'a queue''s type is fifo, fifottl, utube, utubettl or limfifottl, not %', type USING ERRCODE = 'PQ002';
    END IF;
    SELECT said.name INTO what
      FROM (VALUES ('priority', priority <> 0), ('delay', delay > '0'), ('ttr', ttr IS NOT NULL), ('ttl', ttl IS NOT NULL),
                   ('lane', lane IS NOT NULL), ('capacity', capacity IS NOT NULL), ('touch', touch)) said(name, is_said)
     WHERE said.is_said AND said.name = ANY (lacks);
    IF FOUND THEN
        RAISE EXCEPTION 'a queue of the type % has no %', type, what USING ERRCODE = 'PQ002';
    END IF;
END $$;

-- For verbs that come after a put.
CREATE OR REPLACE FUNCTION pgqueue.check_verb(
    queue_id int, priority int, delay interval DEFAULT NULL, touch boolean DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    type CONSTANT text := (SELECT q.type FROM pgqueue.queue q WHERE q.id = check_verb.queue_id);
BEGIN
    IF type IS NOT NULL THEN
        PERFORM pgqueue.check_type(type, priority, delay, NULL, NULL, NULL, NULL, touch);
    END IF;
END $$;

-- --- rights
--
-- Whoever was let in by grant_to (grants.sql) may use every queue, but for those that were granted to some roles alone.
-- The functions run as their owner; whose call it is tells `role`, as SET ROLE left it, and without one the log-in.

CREATE OR REPLACE FUNCTION pgqueue.check_right(queue_id int) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    caller CONSTANT name := coalesce(nullif(current_setting('role'), 'none'), session_user);
    named  text;
BEGIN
    SELECT q.name INTO named FROM pgqueue.queue q WHERE q.id = check_right.queue_id AND q.restricted;
    IF FOUND
       AND NOT pg_has_role(caller, (SELECT s.nspowner FROM pg_namespace s WHERE s.nspname = 'pgqueue'), 'USAGE')
       AND NOT EXISTS (SELECT FROM pgqueue.queue_grant g
                        WHERE g.queue_id = check_right.queue_id AND pg_has_role(caller, g.role, 'USAGE')) THEN
        RAISE EXCEPTION 'queue "%" is restricted, and % was not granted it', named, caller
            USING ERRCODE = 'insufficient_privilege', HINT = 'The owner of the schema can: SELECT pgqueue.grant(queue, role)';
    END IF;
END $$;

-- By the owner: they run with the caller's rights, and end at the tables for anybody else.
CREATE OR REPLACE FUNCTION pgqueue.grant(queue text, role regrole) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    q CONSTANT int := pgqueue.queue_id(queue);
BEGIN
    PERFORM pgqueue.grant_to(role);
    INSERT INTO pgqueue.queue_grant (queue_id, role) VALUES (q, "grant".role) ON CONFLICT DO NOTHING;
    UPDATE pgqueue.queue granted SET restricted = true WHERE granted.id = q AND NOT granted.restricted;
END $$;
COMMENT ON FUNCTION pgqueue.grant IS 'Let a role use a queue, and from then on only the roles that were granted it, and the owner of the schema.';

CREATE OR REPLACE FUNCTION pgqueue.revoke(queue text, role regrole DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    q CONSTANT int := (pgqueue.known_queue(queue)).id;
BEGIN
    DELETE FROM pgqueue.queue_grant g WHERE g.queue_id = q AND (revoke.role IS NULL OR g.role = revoke.role);
    IF role IS NULL THEN
        UPDATE pgqueue.queue opened SET restricted = false WHERE opened.id = q;
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.revoke IS 'Take a grant back; without a role all of them, and the queue is open to everyone again.';

-- --- looking

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
COMMENT ON VIEW pgqueue.queues IS 'Every queue with its options. granted_to: the only roles that may use it; NULL: everyone.';
