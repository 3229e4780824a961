-- Taking tasks: the hot path. A claim of one task is in take, of many in _claim. In queues with lanes or limits both
-- are in _claim_heads (heads.sql).
--
-- Theory of operation
-- -------------------
-- A claim is two statements. The first locks candidates: ready, not taken, in the order (priority, id), skipping rows
-- that other transactions have locked. The second inserts their takes. The second has a new snapshot, and needs it: if
-- the first snapshot of claim C2 is older than the commit of claim C1, C2 can still lock the row of a
-- task that C1 took. The second statement of C2 sees C1's take and drops the candidate; the primary key of `take` is
-- the last guard. When every candidate was dropped there may be more tasks behind them, so the claim tries again before
-- it calls the queue empty.
--
-- At REPEATABLE READ the second statement does not see C1's take. Its INSERT conflicts on the primary key, and because
-- of ON CONFLICT, PostgreSQL reports a serialization failure and not a unique violation. But if an ack A is deleting
-- C1's take, the INSERT waits for A, and A waits for the task's row, which C2 has locked. So the INSERT waits for 50 ms
-- at most, and then fails in the same way. PostgreSQL's own deadlock detection would end one of the two after a second,
-- maybe the ack. At READ COMMITTED the second statement sees the take, and no conflict is left: so nothing waits, and a
-- claim does without the cost of ON CONFLICT.
--
-- The same as one statement (a CTE that inserts takes of the rows that another CTE locked) deadlocks under batches: the
-- insert waits for a take that an ack is deleting, while that ack waits for the task's row. Here the holder of task
-- rows never waits.
--
-- Plans are pinned. `take` is nearly empty in its statistics and full of dead rows in truth, so a free planner scans
-- all of it at every claim; and it would make a new plan at every call, since a plan for one LIMIT looks cheaper than
-- one for all. Hence the scalar subqueries, which can only be probes by key, and the settings (settings.sql). State
-- predicates are literals: a parameter would not match the partial indexes. To the planner a method that is switched
-- off is very expensive, and PostgreSQL compiles expensive plans: without jit = off, Debian's default spends 0.1 s on
-- compiling a sort of one row, at every call. Rows of `task` are looked up by = ANY of an array, or LATERAL with OFFSET
-- 0. A plain join does not work: where ANALYZE found pages and at most one row, the planner's cost of reading the index
-- to its end is exactly that of a look-up, and the cached plan does the former for each task once the table is full.
--
-- Suspects. A session holds a limited number of tasks that may have killed their process (suspect.sql). A claim that
-- must not take the suspects that it found looks again, without them. Their rows stay locked until the claim commits.
--
-- Rights. A claim for a session of another connection checks that the session is the caller's (session.sql), in the
-- statement that reads the queue's row: a statement of its own would cost every claim more.
--
-- The head and the cursor. Without after_priority and after_id a claim starts at the head of the queue, exactly: it
-- first makes due tasks ready. While a snapshot is held open anywhere, index entries of acked tasks cannot be
-- removed, and a claim at the head walks over all of them, as it does over tasks in flight. A client that finds this
-- slow passes the last position that it was given and starts behind it (the client's cursor.py says when).

-- Insert takes for tasks that the caller has locked, at REPEATABLE READ; returns the tasks that it could take.
CREATE OR REPLACE FUNCTION pgqueue._insert_takes(
    ids bigint[], queue_id int, session int, token bigint, moment timestamptz
) RETURNS SETOF bigint
LANGUAGE plpgsql AS $$
DECLARE
    patience CONSTANT text := current_setting('lock_timeout');
BEGIN
    PERFORM set_config('lock_timeout', '50ms', true);
    RETURN QUERY
        INSERT INTO pgqueue.take AS k (task_id, token, taken_at, deadline, queue_id, session_id)
        SELECT t.id, _insert_takes.token, moment, coalesce(pgqueue._deadline(moment, t.ttr, t.expires_at), 'infinity'),
               _insert_takes.queue_id, session
          FROM pgqueue.task t
         WHERE t.id = ANY (ids) AND (SELECT o.task_id FROM pgqueue.take o WHERE o.task_id = t.id) IS NULL
            ON CONFLICT DO NOTHING
        RETURNING k.task_id;
    PERFORM set_config('lock_timeout', patience, true);
EXCEPTION WHEN lock_not_available THEN             -- which also sets the timeout back
    RAISE EXCEPTION 'could not serialize access: another transaction is settling a task of this claim'
        USING ERRCODE = 'serialization_failure', HINT = 'Repeat the transaction.';
END $$;

CREATE OR REPLACE FUNCTION pgqueue.take(
    queue          text,
    session        int    DEFAULT NULL,     -- NULL: this connection's session, opened if there is none
    new_token      bigint DEFAULT NULL,     -- chosen by a client, so that it can undo a claim with a lost answer
    after_priority int    DEFAULT NULL,
    after_id       bigint DEFAULT NULL
) RETURNS TABLE (
    id bigint, token bigint, priority int, attempts int, deadline timestamptz, data jsonb, redelivered boolean
)
LANGUAGE plpgsql AS $$
DECLARE
    me       int                  := session;
    moment   CONSTANT timestamptz := clock_timestamp();
    q        record;
    ttr        interval;
    expires_at timestamptz;
    suspect    int;
    suspects   boolean            := true;
BEGIN
    token := new_token;
    -- _enter_claim without the call, for the claims of nearly all clients: a session of another connection, which is
    -- alive, and a token. In all other cases _enter_claim tries the same locks again, which changes nothing.
    IF session IS NULL OR new_token IS NULL OR current_setting('pgqueue.session', true) IS NOT NULL
       OR NOT pg_try_advisory_xact_lock_shared(pgqueue._claiming_lock(), session)
       OR pg_try_advisory_xact_lock_shared(pgqueue._session_lock(), session)
       OR NOT pg_try_advisory_xact_lock_shared(pgqueue._token_lock(new_token)) THEN
        me := pgqueue._enter_claim(session, new_token, checked => true);
        token := coalesce(new_token, pgqueue._new_token());
    END IF;
    SELECT named.id, CASE WHEN after_id IS NULL THEN named.delay_over OR named.ttr_over END AS due, named.special,
           named.guarded, named.restricted, named.by_heads,
           (SELECT r.is_callers FROM pgqueue._session_right r WHERE r.id = me) AS is_mine,
           current_setting('transaction_isolation') = 'read committed' AS renewed
      INTO q FROM pgqueue._queue_due named WHERE named.name = take.queue;
    IF (q.is_mine AND NOT q.special AND NOT q.guarded AND q.due IS NOT TRUE) IS NOT TRUE THEN
        IF q.is_mine IS NOT TRUE THEN              -- or there is no such queue
            PERFORM pgqueue._check_session(me);
        END IF;
        IF q.due THEN
            PERFORM pgqueue._promote_or_wait(q.id);
        END IF;
        IF q.guarded THEN                          -- the first question of _may, which the queue's row makes cheaper
            PERFORM FROM pgqueue.privilege p
              WHERE NOT q.special AND p.role_id = pgqueue._caller_role() AND p.verb = 'take'
                AND (p.queue_id = q.id OR NOT q.restricted AND queue LIKE p.mask);
            IF NOT FOUND AND NOT pgqueue._may(q.id, 'take') THEN
                PERFORM pgqueue._refuse('take', queue);
            END IF;
        END IF;
        IF q.special AND NOT pgqueue._enter_queue(q.id, me) THEN
            RETURN;
        ELSIF q.by_heads THEN
            RETURN QUERY SELECT l.id, l.token, l.priority, l.attempts, l.deadline, l.data, l.redelivered
                           FROM pgqueue._claim_heads(q.id, queue, 1, me, take.token, after_priority, after_id) l;
            RETURN;
        END IF;
    END IF;
    LOOP
        SELECT t.id, t.priority, t.attempts, t.ttr, t.expires_at, t.suspect, t.data,
               coalesce(t.releases, t.timeouts, t.buries) IS NOT NULL
          INTO id, priority, attempts, ttr, expires_at, suspect, data, redelivered
          FROM pgqueue.task t
         WHERE t.queue_id = q.id AND t.state = 'R' AND t.lane IS NULL
           AND (t.priority, t.id) > (coalesce(after_priority, -2147483648), coalesce(after_id, -1))
           AND (t.expires_at IS NULL OR t.expires_at > moment)
           AND (t.suspect IS NULL OR suspects)
           AND (SELECT k.task_id FROM pgqueue.take k WHERE k.task_id = t.id) IS NULL
         ORDER BY t.priority, t.id
         LIMIT 1
           FOR UPDATE OF t SKIP LOCKED;
        EXIT WHEN NOT FOUND;
        IF ttr IS NOT NULL OR expires_at IS NOT NULL OR suspect IS NOT NULL THEN
            deadline := pgqueue._deadline(moment, ttr, expires_at);
            IF suspect IS NOT NULL THEN            -- AND _refuse_suspects() here would cost every claim a fifth
                suspects := pgqueue._refuse_suspects(me, ARRAY [id]) = '{}';
                IF NOT suspects THEN
                    deadline := NULL;
                    CONTINUE;
                END IF;
            END IF;
        END IF;

        IF q.renewed THEN
            INSERT INTO pgqueue.take (task_id, token, taken_at, deadline, queue_id, session_id)
            SELECT take.id, take.token, moment, coalesce(take.deadline, 'infinity'), q.id, me
             WHERE (SELECT k.task_id FROM pgqueue.take k WHERE k.task_id = take.id) IS NULL;
        ELSE
            PERFORM pgqueue._insert_takes(ARRAY [id], q.id, me, token, moment);
        END IF;
        IF FOUND THEN
            INSERT INTO pgqueue.delta (queue_id, taken, verb, calls) VALUES (q.id, 1, 'take', 1);
            IF q.special THEN
                PERFORM pgqueue._tell_change(q.id, 'take', ARRAY [id]);
            END IF;
            RETURN NEXT;
            EXIT;
        END IF;
        deadline := NULL;                          -- another claim took it: the next task may have none
    END LOOP;
END $$;
COMMENT ON FUNCTION pgqueue.take IS
    'Take the next task of a queue: one row, or none. Settle it with ack, release or bury and its token. redelivered: '
    'it was released, requeued or buried before, or a take of it ended by its deadline or the death of its taker; '
    'release_many and release_all do not count.';

CREATE OR REPLACE FUNCTION pgqueue._claim(
    queue_id int, queue text, n int, session int, new_token bigint, after_priority int, after_id bigint, special boolean
) RETURNS TABLE (
    id bigint, token bigint, priority int, attempts int, deadline timestamptz, data jsonb, name text, waited float8,
    redelivered boolean
)
LANGUAGE plpgsql AS $$
DECLARE
    from_priority CONSTANT int         := coalesce(after_priority, -2147483648);
    from_id       CONSTANT bigint      := coalesce(after_id, -1);
    moment        CONSTANT timestamptz := clock_timestamp();
    ids       bigint[];
    deadlines timestamptz[];
    suspects  bigint[];
    refused   bigint[] := '{}'::bigint[];
BEGIN
    LOOP
        SELECT array_agg(c.id), array_agg(coalesce(c.deadline, 'infinity')),
               array_agg(c.id) FILTER (WHERE c.suspect IS NOT NULL)
          INTO ids, deadlines, suspects
          FROM (SELECT t.id, pgqueue._deadline(moment, t.ttr, t.expires_at) AS deadline, t.suspect
                  FROM pgqueue.task t
                 WHERE t.queue_id = _claim.queue_id AND t.state = 'R' AND t.lane IS NULL
                   AND (t.priority, t.id) > (from_priority, from_id)
                   AND (t.expires_at IS NULL OR t.expires_at > moment)
                   AND (t.suspect IS NULL OR refused = '{}')
                   AND (SELECT k.task_id FROM pgqueue.take k WHERE k.task_id = t.id) IS NULL
                 ORDER BY t.priority, t.id
                 LIMIT _claim.n
                   FOR UPDATE OF t SKIP LOCKED) c;
        EXIT WHEN ids IS NULL;
        IF suspects IS NOT NULL THEN
            refused := pgqueue._refuse_suspects(session, suspects);
        END IF;

        IF current_setting('transaction_isolation') = 'read committed' THEN
            WITH taken AS (
                INSERT INTO pgqueue.take (task_id, token, taken_at, deadline, queue_id, session_id)
                SELECT c.id, new_token, moment, c.deadline, _claim.queue_id, session
                  FROM unnest(ids, deadlines) c(id, deadline)
                 WHERE c.id <> ALL (refused) AND (SELECT k.task_id FROM pgqueue.take k WHERE k.task_id = c.id) IS NULL
                RETURNING take.task_id)
            SELECT array_agg(taken.task_id) INTO ids FROM taken;
        ELSE
            SELECT array_agg(t.id) INTO ids
              FROM pgqueue._insert_takes(ARRAY (SELECT c.id FROM unnest(ids) c(id) WHERE c.id <> ALL (refused)),
                                         _claim.queue_id, session, new_token, moment) t(id);
        END IF;
        EXIT WHEN ids IS NOT NULL;
    END LOOP;
    IF ids IS NOT NULL THEN
        INSERT INTO pgqueue.delta (queue_id, taken, verb, calls)
        VALUES (_claim.queue_id, cardinality(ids), 'take', cardinality(ids));
        IF special THEN
            PERFORM pgqueue._tell_change(_claim.queue_id, 'take', ids);
        END IF;
    END IF;
    RETURN QUERY
        SELECT t.id, new_token, t.priority, t.attempts, pgqueue._deadline(moment, t.ttr, t.expires_at), t.data,
               _claim.queue, pgqueue._waited(moment, t.ready_at, t.created_at),
               coalesce(t.releases, t.timeouts, t.buries) IS NOT NULL
          FROM pgqueue.task t
         WHERE t.id = ANY (ids)
         ORDER BY t.priority, t.id;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.take_many(
    queues         text[],
    n              int,
    session        int      DEFAULT NULL,
    new_token      bigint   DEFAULT NULL,
    after_priority int[]    DEFAULT NULL,   -- one position for each queue, NULL for the head
    after_id       bigint[] DEFAULT NULL
) RETURNS TABLE (
    id bigint, token bigint, priority int, attempts int, deadline timestamptz, data jsonb, queue text, waited float8,
    redelivered boolean
)
LANGUAGE plpgsql AS $$
DECLARE
    me      CONSTANT int    := pgqueue._enter_claim(session, new_token, checked => true);
    chosen  CONSTANT bigint := coalesce(new_token, pgqueue._new_token());
    missing int := n;
    found   int;
    q       record;
BEGIN
    IF (n >= 1 AND array_ndims(queues) = 1 AND array_lower(queues, 1) = 1 AND cardinality(queues) < 100)
       IS NOT TRUE THEN
        PERFORM pgqueue._check_count('n', n), pgqueue._check_array('queues', queues, nulls => true);
    END IF;
    PERFORM CASE WHEN cardinality(queues) = 1 THEN pgqueue._promote_or_wait(named.id)
                 ELSE pgqueue._promote(named.id) END            -- a locked queue holds up no other
       FROM unnest(queues, take_many.after_id) asked(name, after_id)
       JOIN pgqueue._queue_due named ON named.name = asked.name
      WHERE asked.after_id IS NULL AND (named.delay_over OR named.ttr_over);
    FOR q IN
        SELECT named.id, named.name, asked.after_priority, asked.after_id,
               named.special, named.guarded, named.lanes OR named.metered AS by_heads,
               (SELECT r.is_callers FROM pgqueue._session_right r WHERE r.id = me) AS is_mine
          FROM unnest(queues, take_many.after_priority, take_many.after_id) asked(name, after_priority, after_id)
          JOIN pgqueue.queue named ON named.name = asked.name
          LEFT JOIN LATERAL (                       -- the next task of each queue, read without a lock
               SELECT t.priority, t.id
                 FROM pgqueue.task t
                WHERE cardinality(queues) > 1
                  AND t.queue_id = named.id AND t.state = 'R'
                  AND (t.priority, t.id) > (coalesce(asked.after_priority, -2147483648), coalesce(asked.after_id, -1))
                  AND (t.expires_at IS NULL OR t.expires_at > clock_timestamp())
                  AND (SELECT k.task_id FROM pgqueue.take k WHERE k.task_id = t.id) IS NULL
                ORDER BY t.priority, t.id
                LIMIT 1) next ON true
         ORDER BY next.priority, next.id            -- NULLs last: empty queues
    LOOP
        IF q.is_mine IS NOT TRUE THEN
            PERFORM pgqueue._check_session(me);
        END IF;
        CONTINUE WHEN (q.special OR q.guarded) AND NOT pgqueue._enter_queue(q.id, me);
        IF q.by_heads THEN
            RETURN QUERY
                SELECT * FROM pgqueue._claim_heads(q.id, q.name, missing, me, chosen, q.after_priority, q.after_id);
        ELSE
            RETURN QUERY
                SELECT * FROM pgqueue._claim(q.id, q.name, missing, me, chosen,
                                             q.after_priority, q.after_id, q.special);
        END IF;
        GET DIAGNOSTICS found = ROW_COUNT;
        missing := missing - found;
        EXIT WHEN missing = 0;
    END LOOP;
END $$;
COMMENT ON FUNCTION pgqueue.take_many IS
    'Take up to n tasks under one token. With several queues, the queue of the task with the lowest (priority, id) is '
    'first. waited: for how many seconds a task was ready. redelivered: as for take.';
