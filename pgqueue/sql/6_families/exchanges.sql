-- Routing: exchanges and bindings as in AMQP, retained messages as in MQTT.
--
-- Theory of operation
-- -------------------
--     publish, wills.sql, dead.sql --> exchange --(bindings with a matching key)--> queues, each of them once
--
--   fanout   every binding matches
--   direct   the keys are equal
--   topic    words between dots; in a binding * is one word, # any number of words, also none
--   mqtt     levels between slashes; in a binding + is one level, # at the end the level above and all below
--   ''       the default exchange: the key is the name of a queue. It has no row, and no queue can be bound to it
--
-- A mask becomes a regular expression when it is bound. PostgreSQL keeps 32 compiled ones, and compiling one costs more
-- than matching a hundred: so a LIKE pattern that matches every key that the expression matches is tried first. A mask
-- without wildcards needs neither: it is looked up by the primary key.
--
-- Locks. A transaction T1 that changes a binding holds the queue's row in KEY SHARE. A transaction T2 that removes the
-- bindings of a queue or an exchange has locked the rows of the queues FOR UPDATE, so T2 waits for no binding. A
-- retained message is published holding its exchange's row FOR SHARE, and a bind updates that row: so the bind sees the
-- message among the retained ones, or the message sees the binding. A plain publish locks nothing.

-- An exchange that ends with a session belongs to that session's role.
CREATE OR REPLACE FUNCTION pgqueue._check_exchange(e pgqueue.exchange) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF e.session_id IS NOT NULL AND NOT pgqueue._is_callers_session(e.session_id) THEN
        RAISE EXCEPTION 'exchange "%" ends with session %, which belongs to another role', e.name, e.session_id
            USING ERRCODE = 'insufficient_privilege', HINT = 'Take another name for the exchange.';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.declare_exchange(
    name    text,
    type    text    DEFAULT 'direct',
    durable boolean DEFAULT true,
    session int     DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    owner CONSTANT int := CASE WHEN NOT durable THEN pgqueue._live_session(session) END;
    e     pgqueue.exchange;
BEGIN
    IF name IS NULL OR octet_length(name) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION
            'an exchange''s name has 1 to 255 bytes, this one has %; the one without a name is always there',
            coalesce(octet_length(name), 0) USING ERRCODE = 'PQ001';
    ELSIF type IS NULL OR type NOT IN ('fanout', 'direct', 'topic', 'mqtt') THEN
        RAISE EXCEPTION 'an exchange is fanout, direct, topic or mqtt, not %', pgqueue._shown(type)
            USING ERRCODE = 'PQ002';
    END IF;
    LOOP
        SELECT * INTO e FROM pgqueue.exchange x WHERE x.name = declare_exchange.name;
        IF FOUND THEN
            PERFORM pgqueue._check_exchange(e);
        ELSE
            PERFORM pgqueue._check_quota('exchanges');
            INSERT INTO pgqueue.exchange (name, role, type, session_id)
            VALUES (name, pgqueue._caller(), type, owner) ON CONFLICT DO NOTHING;
            EXIT WHEN FOUND;
            CONTINUE;                             -- created in between
        END IF;
        IF (e.type, e.session_id) IS DISTINCT FROM (type, owner) THEN
            RAISE EXCEPTION 'exchange "%" exists: it is % and %, not % and %', name, e.type,
                CASE WHEN e.session_id IS NULL THEN 'durable' WHEN e.session_id = owner THEN 'of this session'
                     ELSE 'of another session' END,
                type, CASE WHEN owner IS NULL THEN 'durable' ELSE 'of this session' END USING ERRCODE = 'PQ030';
        END IF;
        EXIT;
    END LOOP;
END $$;
COMMENT ON FUNCTION pgqueue.declare_exchange IS
    'Create an exchange if it does not exist; PQ030 if it exists with another type, or if one of both is durable and '
    'the other is not. An exchange that is not durable ends with the session. 42501: it exists, and ends with a '
    'session of another role.';

-- Check that the caller may delete it, with its bindings.
CREATE OR REPLACE FUNCTION pgqueue._check_deletion(e pgqueue.exchange) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue._check_exchange(e);
    PERFORM pgqueue._check_guarded(b.queue_id, 'manage', is_named => false)
       FROM pgqueue.binding b WHERE b.exchange = e.name;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.delete_exchange(name text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    e pgqueue.exchange;
BEGIN
    PERFORM pgqueue._check_deletion(x) FROM pgqueue.exchange x WHERE x.name = delete_exchange.name;
    SELECT * INTO e FROM pgqueue.exchange x WHERE x.name = delete_exchange.name FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no exchange "%"', pgqueue._shown(name) USING ERRCODE = 'PQ031';
    END IF;
    PERFORM FROM pgqueue.queue q
      WHERE q.id IN (SELECT b.queue_id FROM pgqueue.binding b WHERE b.exchange = delete_exchange.name)
      ORDER BY q.id FOR UPDATE;
    PERFORM pgqueue._check_deletion(e);            -- also of bindings that were made since
    DELETE FROM pgqueue.exchange x WHERE x.name = delete_exchange.name;
    PERFORM pgqueue._record('delete_exchange', object => name);
END $$;
COMMENT ON FUNCTION pgqueue.delete_exchange IS
    'Remove an exchange with its bindings and retained messages. 42501: it ends with a session of another role.';

-- Exchanges are shared: a binding reads messages that other roles publish and retain, and other roles read a retained
-- message. So bind, unbind and a publish with retain need the verb share, besides the verb for the queue.
CREATE OR REPLACE FUNCTION pgqueue._check_sharing() RETURNS void
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT pgqueue._may_see_all('share') THEN
        RAISE EXCEPTION 'role % may not share exchanges', quote_ident(pgqueue._caller())
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'The owner of the schema can grant share with all queues: grant_to(role, verbs)';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._check_bound(queue_id int, queue text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue._check_guarded(queue_id, 'manage');
    IF queue_id IS NULL THEN
        RAISE EXCEPTION 'there is no queue "%": create it before it is bound', pgqueue._shown(queue)
            USING ERRCODE = 'PQ032';
    END IF;
END $$;

-- Before a row is locked.
CREATE OR REPLACE FUNCTION pgqueue._check_bound_queue(queue text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue._check_bound((SELECT q.id FROM pgqueue.queue q WHERE q.name = queue), queue);
END $$;

-- The queue's id, with its row locked. The caller has called _check_bound_queue before, without a lock.
CREATE OR REPLACE FUNCTION pgqueue._bound_queue(queue text) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    q int;
BEGIN
    SELECT named.id INTO q FROM pgqueue.queue named WHERE named.name = queue FOR KEY SHARE;
    PERFORM pgqueue._check_bound(q, queue);
    RETURN q;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._escape_regex(word text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN regexp_replace(word, '([\[\]\\.^$*+?(){}|])', '\\\1', 'g');

CREATE OR REPLACE FUNCTION pgqueue._escape_like(word text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN regexp_replace(word, '([\\%_])', '\\\1', 'g');

CREATE OR REPLACE FUNCTION pgqueue._compile_mask(type text, key text, OUT hint text, OUT pattern text)
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    word text;
    last text := '';
BEGIN
    IF type = 'fanout' THEN
        hint := '%';
        pattern := '';
    ELSIF type = 'topic' AND string_to_array(key, '.') && '{*,#}' THEN
        hint := '';
        pattern := '^';
        FOREACH word IN ARRAY string_to_array(key, '.') LOOP
            CONTINUE WHEN word = '#' AND last = '#';             -- # after # adds nothing
            last := word;
            hint := hint || CASE word WHEN '*' THEN '.%' WHEN '#' THEN '%' ELSE '.' || pgqueue._escape_like(word) END;
            pattern := pattern || CASE word WHEN '*' THEN '\.[^.]*' WHEN '#' THEN '(?:\.[^.]*)*'
                                            ELSE '\.' || pgqueue._escape_regex(word) END;
        END LOOP;
        pattern := pattern || '$';
    ELSIF type = 'mqtt' THEN
        IF key = '' OR key ~ '#.|[^/]#|[^/]\+|\+[^/]' THEN
            RAISE EXCEPTION
                'no MQTT topic filter: "%". It is not empty, + and # stand for whole levels, # only at the end', key
                USING ERRCODE = 'PQ002';
        END IF;
        IF translate(key, '+#', '') <> key THEN
            hint := replace(replace(replace(pgqueue._escape_like(key), '/#', '%'), '#', '%'), '+', '%');
            pattern := pgqueue._escape_regex(translate(key, '+#', E'\x01\x02'));
            pattern := replace(replace(replace(pattern, E'/\x02', '(?:/.*)?'), E'\x02', '.*'), E'\x01', '[^/]*');
            -- Topics that begin with $ belong to the broker: no wildcard matches that level.
            pattern := CASE WHEN key ~ '^[+#]' THEN '^(?!\$)' ELSE '^' END || pattern || '$';
        END IF;
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._matches(type text, key text, mask text, hint text, pattern text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN pattern IS NULL THEN key = mask
            ELSE pgqueue._subject(type, key) LIKE hint AND pgqueue._subject(type, key) ~ pattern END IS TRUE;

-- Put a task into each of these queues, with the defaults of the queue. The statement that puts the tasks also writes
-- the rows of the statistics, and says whether any queue has options. Calls of _count_new and _note for each queue
-- would cost three times as much as the INSERT of the task.
CREATE OR REPLACE FUNCTION pgqueue._deliver(
    queue_ids int[],
    key       text,
    data      jsonb,
    priority  int      DEFAULT NULL,
    delay     interval DEFAULT NULL,
    ttr       interval DEFAULT NULL,
    ttl       interval DEFAULT NULL,
    run_at    timestamptz DEFAULT NULL
) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    ids     bigint[];
    queues  int[];
    ready   int[];                                 -- how many tasks of each queue can be taken now: 1; NULL: none yet
    special boolean;
BEGIN
    WITH new AS (
        INSERT INTO pgqueue.task
               (queue_id, state, run_at, created_at, expires_at, priority, ttr, data, routing_key, xid)
        SELECT q.id, CASE WHEN q.later IS NULL THEN 'R' ELSE 'D' END, q.later, moment,
               coalesce(q.later, moment) + coalesce(_deliver.ttl, q.ttl),
               coalesce(_deliver.priority, q.priority), coalesce(_deliver.ttr, q.ttr), _deliver.data, key,
               CASE WHEN q.listed THEN pg_current_xact_id() END
          FROM (SELECT *, CASE WHEN coalesce(_deliver.delay, named.delay) > '0'
                               THEN coalesce(_deliver.run_at, moment + coalesce(_deliver.delay, named.delay))
                           END AS later
                  FROM pgqueue.queue named
                 WHERE named.id = ANY (queue_ids) OFFSET 0) q
        RETURNING task.id, task.queue_id, task.state),
    counted AS (                                   -- none of these tasks is in a lane: they are R or D
        INSERT INTO pgqueue.delta (queue_id, standing, delayed, verb, calls)
        SELECT n.queue_id, (n.state = 'R')::int, (n.state = 'D')::int, 'put', 1 FROM new n)
    SELECT array_agg(new.id), array_agg(new.queue_id), array_agg(CASE new.state WHEN 'R' THEN 1 END),
           (SELECT q.id FROM pgqueue.queue q WHERE q.id = ANY (queue_ids) AND q.special LIMIT 1) IS NOT NULL
      INTO ids, queues, ready, special FROM new;
    IF special THEN
        PERFORM pgqueue._tell_change(n.queue_id, 'put', ARRAY [n.id]) FROM unnest(queues, ids) n(queue_id, id);
        PERFORM pgqueue._arrived(queues);
    ELSE
        PERFORM pgqueue._signal(n.queue_id, n.ready) FROM unnest(queues, ready) n(queue_id, ready);
    END IF;
    RETURN coalesce(cardinality(queues), 0);
END $$;

CREATE OR REPLACE FUNCTION pgqueue.bind(queue text, exchange text, key text DEFAULT '') RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    kind text;
    mask record;
    q    int;
    r    record;
BEGIN
    PERFORM pgqueue._check_given('a key', key), pgqueue._check_key(key), pgqueue._check_not_default(exchange),
            pgqueue._check_sharing(), pgqueue._exchange_type(exchange), pgqueue._check_bound_queue(queue);
    UPDATE pgqueue.exchange e SET bound_at = clock_timestamp() WHERE e.name = exchange RETURNING e.type INTO kind;
    IF kind IS NULL THEN
        PERFORM pgqueue._exchange_type(exchange);
    END IF;
    q := pgqueue._bound_queue(queue);
    SELECT * INTO mask FROM pgqueue._compile_mask(kind, key);
    IF NOT EXISTS (SELECT FROM pgqueue.binding b
                    WHERE b.exchange = bind.exchange AND b.key = bind.key AND b.queue_id = q) THEN
        PERFORM pgqueue._check_quota('bindings');
    END IF;
    INSERT INTO pgqueue.binding (exchange, key, queue_id, role, hint, pattern)
    VALUES (exchange, key, q, pgqueue._caller(), mask.hint, mask.pattern)
        ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    FOR r IN                                       -- retained, and matched by no other binding of the queue
        SELECT m.key, m.data
          FROM pgqueue.retained m
         WHERE m.exchange = bind.exchange
           AND pgqueue._matches(kind, m.key, bind.key, mask.hint, mask.pattern)
           AND NOT EXISTS (SELECT FROM pgqueue.binding b
                            WHERE b.queue_id = q AND b.exchange = bind.exchange AND b.key <> bind.key
                              AND pgqueue._matches(kind, m.key, b.key, b.hint, b.pattern))
         ORDER BY m.updated_at
    LOOP
        PERFORM pgqueue._deliver(ARRAY [q], r.key, r.data);
    END LOOP;
    RETURN true;
END $$;
COMMENT ON FUNCTION pgqueue.bind IS
    'Bind a queue to an exchange: it gets messages that are published under a matching key, and matching retained '
    'messages. False if this binding exists. The caller needs the verb share besides manage.';

CREATE OR REPLACE FUNCTION pgqueue.unbind(queue text, exchange text, key text DEFAULT '') RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    q int;
BEGIN
    PERFORM pgqueue._check_not_default(exchange), pgqueue._check_sharing(), pgqueue._exchange_type(exchange),
            pgqueue._check_bound_queue(queue);
    q := pgqueue._bound_queue(queue);
    DELETE FROM pgqueue.binding b WHERE b.exchange = unbind.exchange AND b.key = unbind.key AND b.queue_id = q;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION pgqueue.unbind IS 
    'Remove a binding; false if there was none. The caller needs the verb share besides manage.';

CREATE OR REPLACE VIEW pgqueue.exchanges WITH (security_barrier) AS
SELECT e.name, e.type, e.session_id IS NULL AS durable, e.session_id AS session,
       (SELECT count(*) FROM pgqueue.binding b WHERE b.exchange = e.name) AS bindings,
       (SELECT count(*) FROM pgqueue.retained m WHERE m.exchange = e.name) AS retained,
       e.created_at, u.messages AS unmatched, u.last_at AS unmatched_at
  FROM pgqueue.exchange e,
       LATERAL (SELECT coalesce(sum(m.messages), 0)::bigint AS messages, max(m.last_at) AS last_at
                  FROM pgqueue.unmatched m
                 WHERE m.exchange = e.name AND m.last_at >= e.created_at) u
 WHERE (SELECT pgqueue._may_see_all('share')) OR (SELECT pgqueue._may_see_all('monitor'));
COMMENT ON VIEW pgqueue.exchanges IS
    'Every exchange, for roles that may share, and monitors. The default exchange, which has no name and leads to each '
    'queue, is not listed. unmatched: how many messages matched no binding, since the exchange was made or the server '
    'crashed; unmatched_at: the time of the last of them.';

CREATE OR REPLACE VIEW pgqueue.bindings WITH (security_barrier) AS
SELECT b.exchange, b.key, q.name AS queue
  FROM pgqueue.binding b
  JOIN pgqueue._seen q ON q.id = b.queue_id;
COMMENT ON VIEW pgqueue.bindings IS 'Which queue is bound to which exchange, and under which key.';
