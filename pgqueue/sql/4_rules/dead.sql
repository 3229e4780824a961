-- Dead letters: the queue into which a dead task moves, and the end of a task for which there is no such queue.
--
-- Theory of operation
-- -------------------
-- A task dies in its queue for one of four reasons:
--
--   rejected        it was buried, in a queue that has a dead_letter
--   delivery_limit  it came back max_takes times
--   expired         it was not taken for as long as its ttl
--   maxlen          the queue had more tasks than it keeps, and this was the oldest
--
-- Then it is routed through the exchange that its queue names, under its own key or the one that the queue names. It
-- keeps its id in the first of the queues that are bound, and the other queues get copies. If the queue names no
-- exchange, or no queue is bound, a task that failed (the first two reasons) is buried in its queue, and a task that
-- expired or is surplus (the last two) is deleted.
--
-- A death is recorded in the task, and that record also breaks circles: a task that would come back into a queue in
-- which it died, without having been rejected since, is deleted. This is RabbitMQ's rule: a consumer that rejects a
-- task has seen it, and may keep a circle going; a circle of time-outs alone would go on unnoticed.
--
-- A queue may be restricted after a role set its dead_letter. So the rights of that role, queue.dead_letter_role, are
-- checked at each death: to manage the queue, and to put into the others. Without them the queue counts as one that
-- names no exchange, and another queue as one that is not bound. A queue's guard alone is not enough: without it each
-- role with EXECUTE has all rights, but this role may have lost EXECUTE. A role that does not exist here, for example
-- after a restore on another server, has no privileges; its dead letters still reach queues without a guard.
--
-- Locks. All this is done only to tasks whose rows are locked and that have no take. The caller T1 locks the rows first
-- and calls _untaken() after that, in a new snapshot: a claim T2 that had a row before has committed its take by then.

-- The text that the patterns of bindings match. Each word of a topic has a dot before it, so that a missing word has no
-- dot either.
CREATE OR REPLACE FUNCTION pgqueue._subject(type text, key text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN CASE WHEN type = 'topic' AND key <> '' THEN '.' || key ELSE key END;

-- The queues that a key of an exchange leads to, each once; none if the exchange does not exist.
CREATE OR REPLACE FUNCTION pgqueue._routes(exchange text, key text) RETURNS SETOF int
LANGUAGE plpgsql STABLE AS $$
DECLARE
    subject text;
BEGIN
    IF exchange = '' THEN
        RETURN QUERY SELECT q.id FROM pgqueue.queue q WHERE q.name = key;
        RETURN;
    END IF;
    SELECT pgqueue._subject(e.type, _routes.key) INTO subject FROM pgqueue.exchange e WHERE e.name = _routes.exchange;
    RETURN QUERY
        SELECT b.queue_id FROM pgqueue.binding b
         WHERE b.exchange = _routes.exchange AND b.key = _routes.key AND b.pattern IS NULL
         UNION
        SELECT b.queue_id FROM pgqueue.binding b
         WHERE b.exchange = _routes.exchange AND b.pattern IS NOT NULL
           AND CASE WHEN subject LIKE b.hint THEN subject ~ b.pattern END;
END $$;

-- The queues of a route into which the role may put. When a task dies or a will is published, no caller could get an
-- error: the queues for which the role has no right are left out.
CREATE OR REPLACE FUNCTION pgqueue._routes_for(role oid, exchange text, key text) RETURNS SETOF int
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
        SELECT r.id FROM pgqueue._routes(exchange, key) r(id), pgqueue.queue q
         WHERE q.id = r.id
           AND CASE WHEN _routes_for.role IS NULL THEN NOT q.guarded
                    ELSE pgqueue._may(q.id, 'put', _routes_for.role) END;
END $$;

-- Count a message that matched no binding. By a new row: publishers would wait for each other at a row that they
-- update.
CREATE OR REPLACE FUNCTION pgqueue._count_unmatched(exchange text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO pgqueue.unmatched (exchange)
    SELECT e.name FROM pgqueue.exchange e WHERE e.name = _count_unmatched.exchange;
END $$;

-- The state of a new task in a queue: delayed until run_at or by the delay, or ready from this moment on.
CREATE OR REPLACE FUNCTION pgqueue._arrival(
    delay interval, moment timestamptz, at timestamptz,
    OUT state "char", OUT run_at timestamptz, OUT ready_at timestamptz
)
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (CASE WHEN delay > '0' THEN 'D' ELSE 'R' END::"char",
        CASE WHEN delay > '0' THEN coalesce(at, moment + delay) END,
        CASE WHEN delay > '0' THEN NULL ELSE moment END);

-- Move a task into the first of the queues, and copies of it into the others, with the delay and the ttl of each queue.
CREATE OR REPLACE FUNCTION pgqueue._move(
    id bigint, queue_ids int[], key text, story jsonb, moment timestamptz
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF cardinality(queue_ids) > 1 THEN
        PERFORM pgqueue._put_together(
                    queue_ids [2:],
                    pgqueue._specify(priority => t.priority, ttr => t.ttr, routing_key => _move.key,
                                     created_at => t.created_at, error => t.error, deaths => story),
                    jsonb_build_array(t.data))
           FROM pgqueue.task t WHERE t.id = _move.id;
    END IF;
    UPDATE pgqueue.task t
       SET queue_id = q.id, state = w.state, run_at = w.run_at, ready_at = w.ready_at, buried_at = NULL,
           expires_at = coalesce(w.run_at, moment) + q.ttl, ttr = coalesce(t.ttr, q.ttr), attempts = 0,
           routing_key = _move.key, deaths = story, lane = NULL, key = NULL, meter = NULL,
           suspect = NULL, killed_after = NULL,
           xid = CASE WHEN q.listed THEN pg_current_xact_id() END
      FROM pgqueue.queue q, pgqueue._arrival(q.delay, moment, NULL) w
     WHERE t.id = _move.id AND q.id = queue_ids [1];
END $$;

CREATE OR REPLACE FUNCTION pgqueue._add_death(deaths jsonb, queue text, reason text, moment timestamptz) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
DECLARE
    died   int   := 1;
    others jsonb := '[]'::jsonb;
    d      jsonb;
BEGIN
    FOR d IN SELECT jsonb_array_elements(deaths) LOOP
        IF d ->> 'queue' = queue AND d ->> 'reason' = reason THEN
            died := 1 + (d ->> 'count')::int;
        ELSE
            others := others || d;
        END IF;
    END LOOP;
    RETURN jsonb_build_array(jsonb_build_object('queue', queue, 'reason', reason, 'count', died, 'time', moment))
           || others;
END $$;

-- Whether dead letters go round in a circle: the task has died in this queue before, and neither that death nor one
-- since then was a rejection.
CREATE OR REPLACE FUNCTION pgqueue._is_circle(deaths jsonb, queue text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    d jsonb;
BEGIN
    FOR d IN SELECT jsonb_array_elements(deaths) LOOP
        IF d ->> 'reason' = 'rejected' THEN
            RETURN false;
        ELSIF d ->> 'queue' = queue THEN
            RETURN true;
        END IF;
    END LOOP;
    RETURN false;
END $$;

-- Move, bury or delete tasks that died, as their queues say; returns the tasks that left their queues.
CREATE OR REPLACE FUNCTION pgqueue._die(ids bigint[], reason text) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    failed CONSTANT boolean     := reason IN ('rejected', 'delivery_limit');
    moment CONSTANT timestamptz := clock_timestamp();
    t       record;
    story   jsonb;
    bound   int[];
    targets int[];
    reached int[]    := '{}'::int[];
    moved   bigint[] := '{}'::bigint[];
    dropped bigint[] := '{}'::bigint[];
    followed    bigint[];
    followed_in int[];
BEGIN
    SELECT array_agg(task.id), array_agg(task.queue_id) INTO followed, followed_in
      FROM pgqueue.task WHERE task.id = ANY (ids) AND task.followed;
    FOR t IN
        SELECT task.id, task.deaths, q.name AS queue, q.dead_letter,
               coalesce(q.dead_letter_key, task.routing_key, q.name) AS key,
               pgqueue._living_role(q.dead_letter_role_id) AS setter
          FROM pgqueue.task, pgqueue.queue q
         WHERE task.id = ANY (ids) AND q.id = task.queue_id AND q.dead_letter IS NOT NULL
           AND CASE WHEN pgqueue._living_role(q.dead_letter_role_id) IS NULL THEN NOT q.guarded
                    ELSE pgqueue._may(q.id, 'manage', pgqueue._living_role(q.dead_letter_role_id)) END
         ORDER BY task.id
    LOOP
        story := pgqueue._add_death(t.deaths, t.queue, reason, moment);
        SELECT array_agg(q.id), array_agg(q.id) FILTER (WHERE NOT pgqueue._is_circle(story, q.name)) INTO bound, targets
          FROM pgqueue._routes_for(t.setter, t.dead_letter, t.key) r(id), pgqueue.queue q WHERE q.id = r.id;
        IF targets IS NOT NULL THEN
            PERFORM pgqueue._move(t.id, targets, t.key, story, moment);
            moved := moved || t.id;
            reached := reached || targets;
        ELSIF bound IS NOT NULL OR NOT failed THEN
            dropped := dropped || t.id;
        END IF;
        IF bound IS NULL THEN
            PERFORM pgqueue._count_unmatched(t.dead_letter);
        END IF;
    END LOOP;
    IF NOT failed THEN
        dropped := ARRAY (SELECT unnest(ids) EXCEPT SELECT unnest(moved));
    END IF;
    PERFORM pgqueue._delete_tasks(dropped, CASE reason WHEN 'expired' THEN 'expired' WHEN 'maxlen' THEN 'deleted'
                                                       ELSE 'dead' END);
    PERFORM pgqueue._bury(ARRAY (SELECT unnest(ids) EXCEPT SELECT unnest(moved || dropped)));
    IF followed IS NOT NULL THEN
        PERFORM pgqueue._follow_each(array_agg(f.queue_id), array_agg(f.id), 'dead')
           FROM unnest(followed, followed_in) f(id, queue_id) WHERE f.id = ANY (moved);
    END IF;
    PERFORM pgqueue._arrived(reached);
    RETURN moved || dropped;
END $$;

-- Remove ready tasks beyond the queue's maxlen, the oldest first. Delayed and taken tasks do not count.
CREATE OR REPLACE FUNCTION pgqueue._trim_queue(queue_id int, maxlen int) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    surplus bigint;
    ids     bigint[];
BEGIN
    SELECT c.standing - c.taken - maxlen INTO surplus FROM pgqueue._counts(ARRAY [_trim_queue.queue_id]) c;
    IF surplus > 0 THEN
        ids := pgqueue._untaken(ARRAY (
                   SELECT t.id FROM pgqueue.task t
                    WHERE t.queue_id = _trim_queue.queue_id AND t.state = 'R'
                      AND (SELECT k.task_id FROM pgqueue.take k WHERE k.task_id = t.id) IS NULL
                    ORDER BY t.id LIMIT surplus FOR UPDATE SKIP LOCKED));
        PERFORM pgqueue._note(queue_id, 'maxlen', ids), pgqueue._die(ids, 'maxlen');
    END IF;
END $$;

-- Called after tasks were added to queues: wake takers, and keep to maxlen.
CREATE OR REPLACE FUNCTION pgqueue._arrived(queue_ids int[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue._signal(q.id) FROM pgqueue.queue q WHERE q.id = ANY (queue_ids);
    PERFORM pgqueue._trim_queue(q.id, q.maxlen)
       FROM pgqueue.queue q WHERE q.id = ANY (queue_ids) AND q.maxlen IS NOT NULL;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._die_one(id bigint, reason text) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    RETURN CASE WHEN id = ANY (pgqueue._die(ARRAY [id], reason)) THEN 'dead' ELSE 'buried' END;
END $$;

CREATE OR REPLACE VIEW pgqueue.dead_letters WITH (security_barrier) AS
SELECT t.id, q.name AS queue, d.died ->> 'queue' AS died_in, d.died ->> 'reason' AS reason,
       (d.died ->> 'count')::int AS count,
       (d.died ->> 'time')::timestamptz AS died_at,
       CASE WHEN q.looks THEN t.error END AS error, CASE WHEN q.looks THEN t.data END AS data
  FROM pgqueue.task t
  JOIN pgqueue._seen q ON q.id = t.queue_id,
       jsonb_array_elements(t.deaths) WITH ORDINALITY d(died, n)
 ORDER BY t.id, d.n;
COMMENT ON VIEW pgqueue.dead_letters IS
    'Tasks that died, and the queue in which each is now; a row for each queue and reason, the last death first.';
