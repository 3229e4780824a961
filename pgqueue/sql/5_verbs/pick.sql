-- Looking at single tasks of a queue, kicking them, and verbs for one task by its id, wherever it is in its queue.
--
-- A verb T1 that checks whether a task is taken locks the task's row first and looks for the take after that, in a new
-- snapshot: a claim T2 that had the row has committed its take by then, and no claim can begin. T1 never waits for a
-- take while it has the row (1_tables/schema.sql).

-- The next two functions use an index where the view of the tasks cannot: a view with security_barrier is read as a
-- whole before it is sorted, and a hidden column cannot be looked up.

CREATE OR REPLACE FUNCTION pgqueue.newest_tasks(n int DEFAULT 100) RETURNS SETOF bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM pgqueue._check_count('n', n, low => 0);
    RETURN QUERY SELECT t.id FROM pgqueue.task t JOIN pgqueue._seen q ON q.id = t.queue_id ORDER BY t.id DESC LIMIT n;
END $$;
COMMENT ON FUNCTION pgqueue.newest_tasks IS
    'The ids of the n newest tasks of all queues that the caller may see, in any state, the newest first.';

CREATE OR REPLACE FUNCTION pgqueue.find_key(queue text, key text) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    q CONSTANT int := (pgqueue._known_queue(queue, 'look')).id;
BEGIN
    RETURN (SELECT t.id FROM pgqueue.task t
             WHERE t.queue_id = q AND t.key = find_key.key AND t.state <> 'F');
END $$;
COMMENT ON FUNCTION pgqueue.find_key IS 'The task of a queue that has the key and is not done; NULL if there is none.';

CREATE OR REPLACE FUNCTION pgqueue.kick(queue text, n int DEFAULT 1, delayed boolean DEFAULT false) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    q   int;
    ids bigint[];
BEGIN
    PERFORM pgqueue._check_count('n', n);
    SELECT named.id INTO q FROM pgqueue.queue named WHERE named.name = kick.queue;
    PERFORM pgqueue._check_guarded(q, 'manage');
    ids := ARRAY (SELECT t.id FROM pgqueue.task t
                   WHERE t.queue_id = q AND t.state = 'B'
                   ORDER BY t.priority, t.id LIMIT kick.n FOR UPDATE SKIP LOCKED);
    IF ids = '{}' AND delayed THEN
        ids := ARRAY (SELECT t.id FROM pgqueue.task t
                       WHERE t.queue_id = q AND t.state = 'D'
                         AND (SELECT b.id FROM pgqueue.task b
                               WHERE b.queue_id = q AND b.state = 'B' ORDER BY b.priority, b.id LIMIT 1) IS NULL
                       ORDER BY t.run_at LIMIT kick.n FOR UPDATE SKIP LOCKED);
    END IF;
    PERFORM pgqueue._make_ready(q, ids, 'kick'), pgqueue._record_tasks('kick', q, ids);
    RETURN cardinality(ids);
END $$;
COMMENT ON FUNCTION pgqueue.kick IS
    'Make up to n buried tasks ready, lowest (priority, id) first; returns how many. Their attempts begin at 0 again, '
    'so that a limit of attempts does not bury them at once; the view attempts keeps the old ones. With delayed: if no '
    'task is buried, delayed tasks, the next due one first, as beanstalkd''s kick; they keep their attempts.';

CREATE OR REPLACE FUNCTION pgqueue.first_task(queue text, state text) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    q CONSTANT int := (SELECT seen.id FROM pgqueue._seen seen WHERE seen.name = first_task.queue);
BEGIN
    RETURN CASE state
        WHEN 'ready' THEN
            (SELECT t.id FROM pgqueue.task t
              WHERE t.queue_id = q AND t.state = 'R' AND (t.expires_at IS NULL OR t.expires_at > clock_timestamp())
                AND (SELECT k.task_id FROM pgqueue.take k
                      WHERE k.task_id = t.id AND k.deadline > clock_timestamp()) IS NULL
              ORDER BY t.priority, t.id LIMIT 1)
        WHEN 'delayed' THEN
            (SELECT t.id FROM pgqueue.task t
              WHERE t.queue_id = q AND t.state = 'D' AND t.run_at > clock_timestamp() ORDER BY t.run_at LIMIT 1)
        WHEN 'buried' THEN
            (SELECT t.id FROM pgqueue.task t WHERE t.queue_id = q AND t.state = 'B' ORDER BY t.priority, t.id LIMIT 1)
    END;
END $$;
COMMENT ON FUNCTION pgqueue.first_task IS
    'The task of a queue that is next to be taken (ready), to become ready (delayed) or to be kicked (buried); NULL '
    'if there is none. As beanstalkd''s peek-ready, peek-delayed, peek-buried.';

CREATE OR REPLACE FUNCTION pgqueue.urgent_priority(queue text) RETURNS int
LANGUAGE plpgsql STABLE AS $$
DECLARE
    q      pgqueue.queue;
    lowest int;
BEGIN
    SELECT * INTO q FROM pgqueue.queue named WHERE named.name = urgent_priority.queue;
    IF q.guarded THEN
        PERFORM pgqueue._check_right(q.id, 'put');
    END IF;
    SELECT t.priority INTO lowest FROM pgqueue.task t
     WHERE t.queue_id = q.id AND t.state = 'R' ORDER BY t.priority, t.id LIMIT 1;
    RETURN greatest(least(lowest, q.priority, 0)::bigint - 1, -2147483648);
END $$;
COMMENT ON FUNCTION pgqueue.urgent_priority IS 'A priority before those of all ready tasks of a queue.';

CREATE OR REPLACE FUNCTION pgqueue.take_id(
    id          bigint,
    session     int    DEFAULT NULL,          -- as for take
    new_token   bigint DEFAULT NULL,
    OUT token   bigint,
    OUT priority int,
    OUT attempts int,
    OUT deadline timestamptz,
    OUT data    jsonb,
    OUT queue   text,
    OUT state   text,
    OUT problem text,                         -- as for ack; or busy: it cannot be taken now
    OUT holder  text,
    OUT redelivered boolean
)
LANGUAGE plpgsql AS $$
DECLARE
    me       CONSTANT int         := pgqueue._enter_claim(session, new_token);
    moment   CONSTANT timestamptz := clock_timestamp();
    q        record;
    t        pgqueue.task;
BEGIN
    SELECT * INTO q FROM pgqueue._queue_due due
     WHERE due.id = (SELECT k.queue_id FROM pgqueue.task k WHERE k.id = take_id.id);
    IF q.delay_over OR q.ttr_over OR q.ttl_over THEN                -- an expired task is not found, not busy
        PERFORM pgqueue._promote(q.id);
    END IF;
    IF q.guarded THEN
        PERFORM pgqueue._check_right(q.id, 'take', is_named => false);
    END IF;
    IF q.special OR q.guarded THEN
        PERFORM pgqueue._enter_queue(q.id, me);    -- a pause does not matter: the caller names the task
    END IF;
    SELECT * INTO t FROM pgqueue.task k
     WHERE k.id = take_id.id AND k.queue_id = q.id         -- it may be in another queue now, as a dead letter
       AND (k.state NOT IN ('F', 'W', 'C') OR k.state = 'W' AND k.meter IS NOT NULL)
       AND (k.state = 'D' OR k.expires_at IS NULL OR k.expires_at > moment)
       FOR UPDATE SKIP LOCKED;
    IF FOUND AND (t.followed AND pgqueue._ready_state(t) = 'W') IS NOT TRUE
       AND (t.lane IS NULL                                 -- lanes.sql
            OR pgqueue._latched(t.queue_id, t.lane))
       AND (NOT q.metered OR t.lane IS NOT NULL OR pgqueue._admit_task(t)) THEN
        deadline := pgqueue._deadline(moment, t.ttr, t.expires_at);
        INSERT INTO pgqueue.take (task_id, token, taken_at, deadline, queue_id, session_id, lane)
        SELECT t.id, coalesce(new_token, pgqueue._new_token()), moment, coalesce(take_id.deadline, 'infinity'),
               t.queue_id, me, t.lane
         WHERE (SELECT k.task_id FROM pgqueue.take k WHERE k.task_id = t.id) IS NULL
           AND (t.lane IS NULL
                OR (SELECT k.task_id FROM pgqueue.take k WHERE k.queue_id = t.queue_id AND k.lane = t.lane) IS NULL)
            ON CONFLICT DO NOTHING
        RETURNING take.token INTO take_id.token;
    END IF;
    IF token IS NULL THEN
        SELECT why.state, why.problem, why.holder INTO state, problem, holder FROM pgqueue._explain_refusal(id) why;
        problem := CASE WHEN state = 'done' THEN 'not found' WHEN problem = 'not taken' THEN 'busy' ELSE problem END;
        RETURN;
    END IF;
    IF t.state <> 'R' THEN
        PERFORM pgqueue._call_up(t.id, since => CASE WHEN t.state <> 'L' THEN moment END);
    END IF;
    INSERT INTO pgqueue.delta (queue_id, taken) VALUES (t.queue_id, 1);
    PERFORM pgqueue._note(t.queue_id, 'take', ARRAY [t.id]);
    priority := t.priority;
    attempts := t.attempts;
    redelivered := coalesce(t.releases, t.timeouts, t.buries) IS NOT NULL;
    data := t.data;
    queue := q.name;
    state := 'taken';
END $$;
COMMENT ON FUNCTION pgqueue.take_id IS
    'Take the task of this id, ready, delayed, blocked, waiting for a limit or buried, if it is not taken, no other '
    'task of its lane is, and its limit has room. As beanstalkd''s reserve-job.';

CREATE OR REPLACE FUNCTION pgqueue.delete_strict(
    id          bigint,
    token       bigint DEFAULT NULL,
    session     int    DEFAULT NULL,
    OUT state   text,
    OUT problem text,
    OUT holder  text
)
LANGUAGE plpgsql AS $$
DECLARE
    of_queue int;
    ours     boolean;
BEGIN
    PERFORM pgqueue._check_read_committed('delete_strict');
    ours := (pgqueue._drop_take(id, token, session)).queue_id IS NOT NULL;
    IF NOT ours THEN
        PERFORM pgqueue._check_tasks(ARRAY [id], 'manage');
    END IF;
    SELECT t.queue_id INTO of_queue FROM pgqueue.task t WHERE t.id = delete_strict.id FOR UPDATE;
    IF NOT ours THEN
        PERFORM pgqueue._check_guarded(of_queue, 'manage', is_named => false);
    END IF;
    SELECT why.state, why.holder INTO state, holder FROM pgqueue._explain_refusal(id) why;
    IF state = 'taken' OR state = 'cancelling' AND holder IS NOT NULL THEN
        problem := 'taken by another';
    ELSIF of_queue IS NULL THEN
        problem := 'not found';
    ELSE
        PERFORM pgqueue._remove_task(id, of_queue);
        IF NOT ours THEN
            PERFORM pgqueue._record_tasks('delete', of_queue, ARRAY [id]);
        END IF;
        state := NULL;
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.delete_strict IS
    'Remove a task unless another session has taken it. As beanstalkd''s delete.';

CREATE OR REPLACE FUNCTION pgqueue.kick_task(id bigint, OUT state text, OUT problem text)
LANGUAGE plpgsql AS $$
DECLARE
    of_queue int;
BEGIN
    PERFORM pgqueue._check_tasks(ARRAY [id], 'manage');
    SELECT t.queue_id INTO of_queue FROM pgqueue.task t
     WHERE t.id = kick_task.id AND t.state IN ('B', 'D') FOR UPDATE;
    IF FOUND THEN
        PERFORM pgqueue._check_guarded(of_queue, 'manage', is_named => false), 
                pgqueue._make_ready(of_queue, ARRAY [id], 'kick'),
                pgqueue._record_tasks('kick', of_queue, ARRAY [id]);
    END IF;
    SELECT seen.state INTO state FROM pgqueue._tasks seen WHERE seen.id = kick_task.id;
    problem := CASE WHEN state IS NULL THEN pgqueue._absent(id) WHEN of_queue IS NULL THEN 'not buried' END;
END $$;
COMMENT ON FUNCTION pgqueue.kick_task IS
    'Make a buried or delayed task ready. The attempts of a buried one count from 0 again. As beanstalkd''s kick-job.';

CREATE OR REPLACE FUNCTION pgqueue.delete(id bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    of_queue int;
BEGIN
    PERFORM pgqueue._check_tasks(ARRAY [id], 'manage');
    PERFORM pgqueue._untake_tasks(ARRAY [id], waits => true);
    SELECT t.queue_id INTO of_queue FROM pgqueue.task t WHERE t.id = delete.id FOR UPDATE;
    IF FOUND THEN
        PERFORM pgqueue._check_guarded(of_queue, 'manage', is_named => false);
        PERFORM pgqueue._remove_task(id, of_queue), pgqueue._record_tasks('delete', of_queue, ARRAY [id]);
    ELSE
        PERFORM pgqueue._check_server(id);
    END IF;
    RETURN of_queue IS NOT NULL;
END $$;
COMMENT ON FUNCTION pgqueue.delete IS 'Remove a task in any state, and its take; false if there is no such task.';
