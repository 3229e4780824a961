-- Popping: a take and its ack in one statement.

-- Exactly once, for work in the caller's own transaction T1: the task is gone when T1 commits, and there again when T1
-- rolls back. Until then the lock of its row keeps other takers away, and waiting takers look again. Only at READ
-- COMMITTED: an older snapshot does not see the takes of others, and the task could be handled twice.
CREATE OR REPLACE FUNCTION pgqueue.pop(queue text, n int DEFAULT 1, session int DEFAULT NULL)
RETURNS TABLE (id bigint, priority int, attempts int, data jsonb, age interval, ttl interval)
LANGUAGE plpgsql AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    q   record;
    ids bigint[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM pgqueue._check_read_committed('pop');
    END IF;
    IF n < 1 OR n IS NULL THEN
        PERFORM pgqueue._check_count('n', n);
    END IF;
    SELECT named.id, named.delay_over OR named.ttr_over AS due, named.special OR named.guarded AS entered,
           named.by_heads,
           (SELECT r.is_callers FROM pgqueue._session_right r WHERE r.id = pop.session) AS is_mine INTO q
      FROM pgqueue._queue_due named WHERE named.name = pop.queue;
    IF NOT q.is_mine THEN
        PERFORM pgqueue._named_session(session);
    END IF;
    IF q.due THEN
        PERFORM pgqueue._promote_or_wait(q.id);
    END IF;
    IF q.entered AND NOT pgqueue._enter_queue(q.id, pgqueue._named_session(session)) THEN
        RETURN;
    END IF;
    LOOP
        IF q.by_heads THEN
            ids := pgqueue._lock_heads(q.id, n);
        ELSE
            ids := ARRAY (SELECT t.id
                            FROM pgqueue.task t
                           WHERE t.queue_id = q.id AND t.state = 'R' AND t.lane IS NULL
                             AND (t.expires_at IS NULL OR t.expires_at > moment)
                             AND (SELECT k.task_id FROM pgqueue.take k WHERE k.task_id = t.id) IS NULL
                           ORDER BY t.priority, t.id
                           LIMIT pop.n
                             FOR UPDATE OF t SKIP LOCKED);
        END IF;
        EXIT WHEN ids = '{}';
        ids := pgqueue._untaken(ids);
        CONTINUE WHEN ids = '{}';
        RETURN QUERY
            SELECT t.id, t.priority, t.attempts, t.data, pgqueue._age(t), pgqueue._ttl(t) FROM pgqueue.task t
             WHERE t.id = ANY (ids) ORDER BY t.priority, t.id;
        PERFORM pgqueue._note(q.id, 'take', ids), pgqueue._end_tasks(ids);
        EXIT;
    END LOOP;
END $$;
COMMENT ON FUNCTION pgqueue.pop IS 'Take and ack up to n tasks in one statement, in the caller''s transaction.';
