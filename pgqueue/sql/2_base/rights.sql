-- Rights: which role may use which verb on which queue; and the view of the queues.
--
-- Theory of operation
-- -------------------
-- A privilege is a row: a role may do one verb, with one queue or with all queues whose names match a pattern.
--
--   put       add tasks, publish
--   take      take, pop and claim tasks, and settle them
--   look      read tasks with their data, results, changes
--   manage    create with options, alter, rename, pause, drain, kick, delete, bind; bury tasks of another session
--   share     objects without a queue: channels, statuses, nodes, locks, exchanges (pattern * only). Besides the
--             queue's verb, a bind, an unbind and a retained message need share (6_families/exchanges.sql)
--   monitor   names, numbers, ages and holders of tasks, but no data, errors, keys or lanes
--
-- A queue is open or restricted. An open queue follows its own privileges and those of patterns; a restricted one only
-- its own, and monitor by a pattern. restrict_queue restricts a queue; a grant does not. Roles other than that
-- of its session may only put into an exclusive queue. A member that inherits from a role has its privileges. The owner
-- of the schema, and a superuser, have all of them.
--
-- There are two checks. EXECUTE on the functions follows the verbs that a role has for any queue (grants.sql): it stops
-- a role that lacks the verb altogether, and costs nothing. `_check_right` reads the table. At every put that would
-- cost more than the rest of the check of its arguments, so hot functions call it only where the queue's row says
-- `guarded`: it is restricted or exclusive, or some role has a verb but not all of put, take, look and manage for all
-- queues. Where it is false, each role that passes the first check has these four verbs for all open queues.
--
-- A grant G that makes queues guarded locks the table of queues first, so that another transaction that creates a queue
-- sees G's row, or G sees the queue. At REPEATABLE READ a creation may have an older snapshot: the
-- next clean_up corrects its mark.
--
-- A token needs no privilege: a role that presents it was given the task, and may settle it.

-- Whether the role may do this with the queue. The first query, of the role's own privileges without a join, decides
-- nearly always, at a fifth of the cost of the second.
CREATE OR REPLACE FUNCTION pgqueue._may(queue_id int, verb text, role oid DEFAULT pgqueue._caller_role())
RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF verb IN ('put', 'take') THEN
        PERFORM FROM pgqueue.privilege p
          WHERE p.role_id = _may.role AND p.verb = _may.verb
            AND (p.queue_id = _may.queue_id
                 OR p.pattern = '*' AND NOT (SELECT q.restricted FROM pgqueue.queue q WHERE q.id = _may.queue_id))
            AND (_may.verb = 'put' OR NOT (SELECT q.exclusive FROM pgqueue.queue q WHERE q.id = _may.queue_id));
        IF FOUND THEN
            RETURN true;
        END IF;
    END IF;
    -- A role that is gone is NULL, and has no rights: the callers test NOT _may(...).
    RETURN role IS NOT NULL
       AND (EXISTS (SELECT FROM pgqueue.queue q, pgqueue.privilege p
                     WHERE q.id = _may.queue_id AND p.verb = _may.verb
                       AND (p.queue_id = q.id OR (NOT q.restricted OR p.verb = 'monitor') AND q.name LIKE p.mask)
                       AND (NOT q.exclusive OR p.verb IN ('put', 'monitor')
                            OR pg_has_role(_may.role, q.role_id, 'USAGE'))
                       AND pg_has_role(_may.role, p.role_id, 'USAGE'))
            OR pg_has_role(_may.role, (SELECT s.nspowner FROM pg_namespace s WHERE s.nspname = 'pgqueue'), 'USAGE'));
END $$;

-- The same for a queue that does not exist yet.
CREATE OR REPLACE FUNCTION pgqueue._may_name(name text, verb text) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM pgqueue.privilege p
                    WHERE p.verb = _may_name.verb AND _may_name.name LIKE p.mask
                      AND pg_has_role(pgqueue._caller(), p.role_id, 'USAGE'))
        OR pgqueue._is_owner();
END $$;

-- The queues for which the caller has a verb, as a set: for thousands of queues, where a check of each would take
-- seconds. Queues by their ids, and names by their masks. The owner may do more than this.
CREATE OR REPLACE FUNCTION pgqueue._reach(verb text, OUT ids int[], OUT masks text[])
LANGUAGE plpgsql STABLE AS $$
BEGIN
    SELECT coalesce(array_agg(p.queue_id) FILTER (WHERE p.queue_id IS NOT NULL), '{}'),
           coalesce(array_agg(p.mask) FILTER (WHERE p.mask IS NOT NULL), '{}') INTO ids, masks
      FROM pgqueue.privilege p
     WHERE p.verb = _reach.verb AND pg_has_role(pgqueue._caller(), p.role_id, 'USAGE');
END $$;

-- The queue is NULL where its name would tell the caller something.
CREATE OR REPLACE FUNCTION pgqueue._refuse(verb text, queue text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    caller CONSTANT name := pgqueue._caller();
BEGIN
    RAISE EXCEPTION 'role % may not % %', quote_ident(caller),
        CASE verb WHEN 'put' THEN 'put into' WHEN 'take' THEN 'take from' WHEN 'look' THEN 'look into' ELSE verb END,
        coalesce('queue "' || queue || '"', 'a queue that was not granted to it')
        USING ERRCODE = 'insufficient_privilege',
              HINT = 'The owner of the schema can: SELECT pgqueue.grant(queue, role, verbs)';
END $$;

-- is_named: the caller gave the queue's name. A caller that gave a task or an exchange learns the name only if it has
-- some privilege for the queue.
CREATE OR REPLACE FUNCTION pgqueue._check_right(queue_id int, verb text, is_named boolean DEFAULT true) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT pgqueue._may(queue_id, verb) THEN
        PERFORM pgqueue._refuse(verb, (
                    SELECT q.name FROM pgqueue.queue q
                     WHERE q.id = _check_right.queue_id
                       AND (is_named OR EXISTS (SELECT FROM unnest('{put,take,look,manage,monitor}'::text[]) other
                                                 WHERE pgqueue._may(q.id, other)))));
    END IF;
END $$;

-- The same where the caller has not read the queue's row. If there is no such row only the owner may go on.
CREATE OR REPLACE FUNCTION pgqueue._check_guarded(queue_id int, verb text, is_named boolean DEFAULT true) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT q.guarded FROM pgqueue.queue q WHERE q.id = _check_guarded.queue_id) IS NOT FALSE
       AND queue_id IS NOT NULL THEN
        PERFORM pgqueue._check_right(queue_id, verb, is_named);
    END IF;
END $$;

-- For verbs on tasks by their ids, before they lock a row: else a role without the right could hold up others for as
-- long as it waits for another row. The verbs check again with the rows locked, since a task may have moved since. A
-- take names its queue too: without that any role could end a take whose task has lost its row.
CREATE OR REPLACE FUNCTION pgqueue._check_tasks(ids bigint[], verb text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue._check_guarded(d.queue_id, verb, is_named => false)
       FROM (SELECT t.queue_id FROM pgqueue.task t WHERE t.id = ANY (ids)
              UNION SELECT k.queue_id FROM pgqueue.take k WHERE k.task_id = ANY (ids)) d;
END $$;

-- A call that needs a queue creates it. So any of the verbs put, take and manage for this name is enough.
CREATE OR REPLACE FUNCTION pgqueue._check_creation(name text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT (pgqueue._may_name(name, 'put') OR pgqueue._may_name(name, 'take') OR pgqueue._may_name(name, 'manage')) THEN
        PERFORM pgqueue._refuse('create', name);
    END IF;
END $$;

-- Whether a role may share: for a will with retain, which it set earlier.
CREATE OR REPLACE FUNCTION pgqueue._may_share(role oid) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN role IS NOT NULL
       AND (EXISTS (SELECT FROM pgqueue.privilege p
                     WHERE p.verb = 'share' AND pg_has_role(_may_share.role, p.role_id, 'USAGE'))
            OR pg_has_role(_may_share.role, (SELECT s.nspowner FROM pg_namespace s WHERE s.nspname = 'pgqueue'),
                           'USAGE'));
END $$;

-- Whether some role that has EXECUTE may do less than all four verbs with all open queues. A privilege for a queue that
-- was deleted counts: until a grant or a revoke forgets it, its role has EXECUTE on the functions of its verb
-- (grants.sql).
--
-- EXECUTE is read from PostgreSQL's catalogue. The privileges alone are not enough: where they are missing, for example
-- after a restore that lost them, no role would be limited. The absence of a row never gives a right.
CREATE OR REPLACE FUNCTION pgqueue._roles_are_limited() RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM pgqueue.privilege p WHERE p.verb <> 'monitor'
                    GROUP BY p.role_id HAVING count(*) FILTER (WHERE p.pattern = '*' AND p.verb <> 'share') < 4)
        OR EXISTS (SELECT FROM (SELECT DISTINCT a.grantee,        -- of each of the four verbs, one function
                                       f.proname = ANY ('{put,take,find_key,alter_queue}') AS is_verb
                                  FROM pg_proc f, aclexplode(coalesce(f.proacl, acldefault('f', f.proowner))) a
                                 WHERE f.pronamespace = 'pgqueue'::regnamespace AND a.grantee <> f.proowner) e
                    WHERE NOT EXISTS (SELECT FROM pgqueue.privilege p
                                       WHERE p.role_id = e.grantee
                                         AND (p.verb NOT IN ('monitor', 'share') OR NOT e.is_verb)));
END $$;

-- Correct the marks of all queues, and forget roles that were dropped. Part of clean_up, and so it waits for no row;
-- and the end of a grant or a revoke, which has locked the table of queues, so that no row of it can be locked.
CREATE OR REPLACE FUNCTION pgqueue._set_guards() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    limited boolean;
BEGIN
    DELETE FROM pgqueue.privilege
     WHERE ctid = ANY (ARRAY (SELECT p.ctid FROM pgqueue.privilege p
                               WHERE p.role_id IS NOT NULL
                                 AND NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = p.role_id)
                                 FOR UPDATE SKIP LOCKED));
    limited := pgqueue._roles_are_limited();
    UPDATE pgqueue.queue SET guarded = NOT guarded
     WHERE id = ANY (ARRAY (SELECT q.id FROM pgqueue.queue q
                             WHERE q.guarded <> (limited OR q.restricted OR q.exclusive)
                               FOR NO KEY UPDATE SKIP LOCKED));
END $$;

-- When a queue is deleted or renamed, the next put to its old name creates an open queue.
CREATE OR REPLACE FUNCTION pgqueue._check_not_restricted(q pgqueue.queue) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF q.restricted AND NOT pgqueue._is_owner() THEN
        RAISE EXCEPTION 'queue "%" is restricted: only the owner of the schema deletes or renames it', q.name
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'truncate_queue empties it. Without the queue its name would be open to every role.';
    END IF;
END $$;

-- For functions that name a queue: the queue has to exist, and the caller must have the right. lock: 'no key update' to
-- alter the queue; 'update' to rename or delete it, and ticks leave it out (nowait.sql).
CREATE OR REPLACE FUNCTION pgqueue._known_queue(name text, verb text, lock text DEFAULT NULL) RETURNS pgqueue.queue
LANGUAGE plpgsql AS $$
DECLARE
    q pgqueue.queue;
BEGIN
    SELECT * INTO q FROM pgqueue.queue named WHERE named.name = _known_queue.name;
    IF q.guarded THEN
        PERFORM pgqueue._check_right(q.id, verb);
    END IF;
    -- After the check: a role without the right must not hold up others.
    IF lock = 'no key update' THEN
        SELECT * INTO q FROM pgqueue.queue named WHERE named.name = _known_queue.name FOR NO KEY UPDATE;
    ELSIF lock = 'update' THEN
        SELECT * INTO q FROM pgqueue.queue named WHERE named.name = _known_queue.name FOR UPDATE;
    END IF;
    IF lock IS NOT NULL AND q.guarded THEN         -- it may be another queue of that name, or be restricted by now
        PERFORM pgqueue._check_right(q.id, verb);
    END IF;
    IF q.id IS NULL THEN
        RAISE EXCEPTION 'there is no queue "%"', pgqueue._shown(name) USING ERRCODE = 'PQ032';
    END IF;
    RETURN q;
END $$;

-- A queue with `expires` is used: expiry.sql. Always true. A row that another transaction has locked is left to it.
CREATE OR REPLACE FUNCTION pgqueue._note_use(queue_id int) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM pgqueue.unused
     WHERE ctid = ANY (ARRAY (SELECT u.ctid FROM pgqueue.unused u
                               WHERE u.queue_id = _note_use.queue_id FOR UPDATE SKIP LOCKED));
    RETURN true;
END $$;

-- The first step of a claim on a queue that is special or guarded: the caller may lack the right, and the queue may be
-- exclusive to another session, be deleted with its last taker, or be paused. False: it is paused.
CREATE OR REPLACE FUNCTION pgqueue._enter_queue(queue_id int, session int) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    q pgqueue.queue;
BEGIN
    SELECT * INTO q FROM pgqueue.queue named WHERE named.id = _enter_queue.queue_id;
    IF q.guarded THEN
        PERFORM pgqueue._check_right(q.id, 'take');
    END IF;
    IF q.exclusive AND q.session_id IS DISTINCT FROM session THEN
        IF NOT coalesce(pgqueue._is_callers(q.role_id), false) THEN
            PERFORM pgqueue._refuse('take', q.name);
        END IF;
        RAISE EXCEPTION 'queue "%" is exclusive: only session % may take from it', q.name, q.session_id
            USING ERRCODE = 'PQ033';
    ELSIF q.auto_delete AND session IS NOT NULL THEN
        INSERT INTO pgqueue.taker (session_id, queue_id) VALUES (session, q.id) ON CONFLICT DO NOTHING;
    END IF;
    IF q.expires IS NOT NULL THEN
        PERFORM pgqueue._note_use(q.id);
    END IF;
    RETURN q.paused_until IS NULL OR q.paused_until <= clock_timestamp();
END $$;

-- Views run with their owner's rights on the tables, so each calls these two to check its reader's rights. They run
-- with the owner's rights, since the readers call them.

CREATE OR REPLACE FUNCTION pgqueue._may_see(queue_id int, verb text) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN pgqueue._may(queue_id, verb);
END $$;

CREATE OR REPLACE FUNCTION pgqueue._may_see_all(verb text) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM pgqueue.privilege p
                    WHERE p.verb = _may_see_all.verb AND p.pattern = '*'
                      AND pg_has_role(pgqueue._caller(), p.role_id, 'USAGE'))
        OR pgqueue._is_owner();
END $$;

-- The roles whose objects belong to the caller. A view reads them once: a check of each row took 5 seconds for the
-- 20,000 batches of another role.
CREATE OR REPLACE VIEW pgqueue._own_roles AS
SELECT r.oid FROM pg_roles r WHERE pgqueue._is_callers(r.oid);

-- The queues that the reader of a view may look into or monitor. A view that shows a queue's rows joins this one, shows
-- data where `looks` is true, and has security_barrier: otherwise the planner may call a function of the reader's query
-- with rows that are not shown. The checks without a queue are made once in a query. OFFSET 0 keeps the check of each
-- queue from being repeated for each column.
CREATE OR REPLACE VIEW pgqueue._seen AS
SELECT q.id, q.name, x.looks
  FROM pgqueue.queue q
 CROSS JOIN LATERAL (
       SELECT CASE WHEN q.guarded THEN pgqueue._may_see(q.id, 'look')
                   ELSE (SELECT pgqueue._may_see_all('look')) END AS looks OFFSET 0) x
 WHERE x.looks OR (SELECT pgqueue._may_see_all('monitor')) OR pgqueue._may_see(q.id, 'monitor');

CREATE OR REPLACE VIEW pgqueue.privileges WITH (security_barrier) AS
SELECT coalesce(r.rolname, p.role)::text AS role, p.verb, q.name AS queue, p.pattern
  FROM pgqueue.privilege p
  LEFT JOIN pgqueue.queue q ON q.id = p.queue_id
  LEFT JOIN pg_roles r ON r.oid = p.role_id
 WHERE (p.pattern IS NOT NULL OR q.id IS NOT NULL)
   AND (pgqueue._is_callers(p.role_id) OR (SELECT pgqueue._may_see_all('monitor')));
COMMENT ON VIEW pgqueue.privileges IS
    'The privileges of each role: a verb, for one queue or for a pattern of names. A role sees its own; monitors see '
    'all.';

CREATE OR REPLACE VIEW pgqueue.queues WITH (security_barrier) AS
SELECT q.name, q.type, q.priority, q.delay, q.ttr, q.ttl, q.maxlen, q.max_takes, q.capacity, q.max_size, q.keep_done,
       q.dead_letter, q.dead_letter_key, q.exclusive,
       q.session_id IS NOT NULL AND NOT q.exclusive AS temporary,
       q.auto_delete, q.listed, q.lanes, q.draining,
       CASE WHEN q.paused_until > now() THEN q.paused_until END AS paused_until,
       CASE WHEN q.restricted
            THEN ARRAY (SELECT DISTINCT r.rolname::text FROM pgqueue.privilege p JOIN pg_roles r ON r.oid = p.role_id
                         WHERE p.queue_id = q.id ORDER BY 1)
       END AS granted_to,
       q.session_id AS session, CASE WHEN seen.looks THEN q.metadata END AS metadata, q.created_at, q.id,
       q.role::text AS role, q.expires
  FROM pgqueue.queue q JOIN pgqueue._seen seen ON seen.id = q.id;
COMMENT ON VIEW pgqueue.queues IS
    'Every queue with its options. granted_to: the roles that were granted a restricted queue; NULL: it is open. role: '
    'the role that created it.';
