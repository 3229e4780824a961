-- Claims in queues with lanes or limits: they take the tasks that lanes.sql or admission.sql has found.

-- Up to n tasks that the caller may take, with their rows locked.
CREATE OR REPLACE FUNCTION pgqueue._find(
    queue_id int, n int, after_priority int, after_id bigint, suspects boolean
) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    q record;
BEGIN
    SELECT named.lanes, named.metered INTO q FROM pgqueue.queue named WHERE named.id = _find.queue_id;
    RETURN CASE WHEN q.metered THEN pgqueue._find_limited(
                                          queue_id, n, after_priority, after_id, suspects, q.lanes)
                ELSE pgqueue._find_heads(queue_id, n, after_priority, after_id, suspects) END;
END $$;

-- The tasks that a pop may take: locked, and checked again.
CREATE OR REPLACE FUNCTION pgqueue._lock_heads(queue_id int, n int) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    ids bigint[];
BEGIN
    LOOP
        ids := pgqueue._find(queue_id, n, NULL, NULL, true);
        EXIT WHEN ids = '{}';
        ids := ARRAY (SELECT t.id FROM pgqueue.task t
                       WHERE t.id = ANY (ids)
                         AND (t.lane IS NULL
                              OR (SELECT k.task_id FROM pgqueue.take k
                                   WHERE k.queue_id = _lock_heads.queue_id AND k.lane = t.lane) IS NULL));
        EXIT WHEN ids <> '{}';
    END LOOP;
    RETURN ids;
END $$;

-- As _claim (take.sql), in a queue with lanes or limits.
CREATE OR REPLACE FUNCTION pgqueue._claim_heads(
    queue_id int, queue text, n int, session int, new_token bigint, after_priority int, after_id bigint
) RETURNS TABLE (
    id bigint, token bigint, priority int, attempts int, deadline timestamptz, data jsonb, name text, waited float8,
    redelivered boolean
)
LANGUAGE plpgsql AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    found    bigint[];
    suspects bigint[];
    refused  bigint[] := '{}'::bigint[];
    taken    bigint[] := '{}'::bigint[];
BEGIN
    token := new_token;
    name := queue;
    WHILE taken = '{}' LOOP
        found := pgqueue._find(queue_id, n, after_priority, after_id, refused = '{}');
        EXIT WHEN found = '{}';
        suspects := ARRAY (SELECT t.id FROM pgqueue.task t
                            WHERE t.id = ANY (found) AND t.suspect IS NOT NULL ORDER BY t.priority, t.id);
        IF suspects <> '{}' THEN
            refused := pgqueue._refuse_suspects(session, suspects);
            PERFORM pgqueue._await_slots(array_agg(t.id), array_agg(t.meter))     -- gives up the slots of this claim
               FROM pgqueue.task t WHERE t.id = ANY (refused) AND t.meter IS NOT NULL;
        END IF;
        FOR id, priority, attempts, deadline, data, waited, redelivered IN
            WITH new AS (
                INSERT INTO pgqueue.take AS k (task_id, token, taken_at, deadline, queue_id, session_id, lane)
                SELECT t.id, new_token, moment, coalesce(pgqueue._deadline(moment, t.ttr, t.expires_at), 'infinity'),
                       _claim_heads.queue_id, session, t.lane
                  FROM pgqueue.task t
                 WHERE t.id = ANY (found) AND t.id <> ALL (refused)
                   AND (SELECT k.task_id FROM pgqueue.take k WHERE k.task_id = t.id) IS NULL
                   AND (t.lane IS NULL
                        OR (SELECT k.task_id FROM pgqueue.take k
                             WHERE k.queue_id = _claim_heads.queue_id AND k.lane = t.lane) IS NULL)
                    ON CONFLICT DO NOTHING
                RETURNING k.task_id)
            SELECT t.id, t.priority, t.attempts, pgqueue._deadline(moment, t.ttr, t.expires_at), t.data,
                   pgqueue._waited(moment, t.ready_at, t.created_at),
                   coalesce(t.releases, t.timeouts, t.buries) IS NOT NULL
              FROM pgqueue.task t
             WHERE t.id = ANY (ARRAY (SELECT n.task_id FROM new n))   -- not a join: take.sql, "Plans"
             ORDER BY t.priority, t.id
        LOOP
            taken := taken || id;
            RETURN NEXT;
        END LOOP;
    END LOOP;
    IF taken <> '{}' THEN
        INSERT INTO pgqueue.delta (queue_id, taken, verb, calls)
        VALUES (_claim_heads.queue_id, cardinality(taken), 'take', cardinality(taken));
        PERFORM pgqueue._tell_change(queue_id, 'take', taken);
    END IF;
END $$;
