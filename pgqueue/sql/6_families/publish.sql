-- Publishing: a task for every queue that is bound with a matching key (exchanges.sql), and messages that are retained.

CREATE OR REPLACE FUNCTION pgqueue._check_publishing(exchange text, key text, retain boolean) RETURNS void
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF exchange IS NULL OR key IS NULL OR octet_length(exchange) > 255 OR octet_length(key) > 255 THEN
        RAISE EXCEPTION 'an exchange and a key of at most 255 bytes are needed: the exchange is "%", the key has %',
            pgqueue._shown(exchange), octet_length(key) USING ERRCODE = 'PQ001';
    ELSIF retain THEN
        PERFORM pgqueue._check_not_default(exchange), pgqueue._check_sharing(), pgqueue._exchange_type(exchange);
    END IF;
    IF translate(key, '+#', '') <> key THEN        -- AND EXISTS () would run a statement for every key
        PERFORM FROM pgqueue.exchange e WHERE e.name = _check_publishing.exchange AND e.type = 'mqtt';
        IF FOUND THEN
            RAISE EXCEPTION 'wildcards are for topic filters: nothing is published under "%"', key
                USING ERRCODE = 'PQ002';
        END IF;
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._retain(exchange text, key text, data jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF data = 'null' THEN
        DELETE FROM pgqueue.retained m WHERE m.exchange = _retain.exchange AND m.key = _retain.key;
    ELSE
        INSERT INTO pgqueue.retained AS m (exchange, key, updated_at, data)
        VALUES (exchange, key, clock_timestamp(), data)
            ON CONFLICT ON CONSTRAINT retained_pkey
            DO UPDATE SET updated_at = excluded.updated_at, data = excluded.data;
    END IF;
END $$;

-- The queues among these into which the caller may put. The others are left out, and `calls` of their stats counts a
-- drop. If the publish were refused, another role's binding, which the publishers may not even remove, would end all
-- publishing through a shared exchange.
CREATE OR REPLACE FUNCTION pgqueue._reachable(ids int[]) RETURNS int[]
LANGUAGE plpgsql AS $$
DECLARE
    reached CONSTANT int[] := ARRAY (SELECT q.id FROM pgqueue.queue q
                                      WHERE q.id = ANY (ids) AND (NOT q.guarded OR pgqueue._may(q.id, 'put')));
BEGIN
    INSERT INTO pgqueue.delta (queue_id, verb, calls)
    SELECT left_out.id, 'drop', 1 FROM unnest(ids) left_out(id) WHERE left_out.id <> ALL (reached);
    RETURN reached;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.publish(
    exchange text,
    key      text,
    data     jsonb,
    priority int      DEFAULT NULL,
    delay    interval DEFAULT NULL,
    ttr      interval DEFAULT NULL,
    ttl      interval DEFAULT NULL,
    retain   boolean  DEFAULT false,
    run_at   timestamptz DEFAULT NULL        -- as for put
) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    ids     int[];
    checked boolean;                               -- one of the queues has options, or is guarded
BEGIN
    PERFORM pgqueue._check_publishing(exchange, key, retain);
    IF (pg_column_size(data) > pgqueue._most_data()) IS NOT FALSE THEN
        PERFORM pgqueue._check_data('data', data);
    END IF;
    IF run_at IS NOT NULL THEN
        delay := pgqueue._delay_until(run_at, delay);
    END IF;
    IF delay IS NOT NULL OR ttr IS NOT NULL OR ttl IS NOT NULL THEN
        PERFORM pgqueue._check_times(delay, ttr, ttl);
    END IF;
    IF retain THEN
        PERFORM FROM pgqueue.exchange e WHERE e.name = publish.exchange FOR SHARE;
        PERFORM pgqueue._retain(exchange, key, data);
    END IF;
    SELECT array_agg(r.id), bool_or((SELECT q.special OR q.guarded FROM pgqueue.queue q WHERE q.id = r.id))
      INTO ids, checked FROM pgqueue._routes(exchange, key) r(id);
    IF ids IS NULL THEN
        IF exchange <> '' THEN
            PERFORM pgqueue._exchange_type(exchange), pgqueue._count_unmatched(exchange);
        END IF;
        RETURN 0;
    END IF;
    IF checked THEN
        IF exchange <> '' THEN
            ids := pgqueue._reachable(ids);
        END IF;
        PERFORM pgqueue._check_publish(
                    ids, pgqueue._specify(data => data, priority => priority, delay => delay, ttr => ttr, ttl => ttl));
    END IF;
    RETURN pgqueue._deliver(ids, key, data, priority, delay, ttr, ttl, run_at);
END $$;
COMMENT ON FUNCTION pgqueue.publish IS
    'Put a task into every queue that is bound to the exchange with a matching key; returns how many queues. Queues '
    'into which the caller may not put are left out; without an exchange that is an error. A message that matches no '
    'binding is counted in the view exchanges. With retain, queues that are bound later get the last message of each '
    'key, and the caller needs share; the data null ends that.';

-- Part of clean_up: one row for each exchange. It writes only if there are more: a clean_up that has written leaves no
-- stamp, and every client would clean up.
CREATE OR REPLACE FUNCTION pgqueue._fold_unmatched() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    WITH gone AS (
        DELETE FROM pgqueue.unmatched
         WHERE ctid = ANY (ARRAY (
               SELECT m.ctid FROM pgqueue.unmatched m
                WHERE EXISTS (SELECT FROM pgqueue.unmatched o WHERE o.exchange = m.exchange AND o.ctid <> m.ctid)
                   OR NOT EXISTS (SELECT FROM pgqueue.exchange e
                                   WHERE e.name = m.exchange AND e.created_at <= m.last_at)
                LIMIT 10000 FOR UPDATE SKIP LOCKED))
        RETURNING *)
    INSERT INTO pgqueue.unmatched (exchange, messages, last_at)
    SELECT e.name, sum(g.messages), max(g.last_at)
      FROM gone g, pgqueue.exchange e
     WHERE e.name = g.exchange AND e.created_at <= g.last_at
     GROUP BY e.name;
END $$;
