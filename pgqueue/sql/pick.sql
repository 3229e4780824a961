-- Verbs for one task that is named by its id, whatever place it has in its queue.
--
-- Who asks whether anybody has taken a task locks its row first and then looks, in a new snapshot: a claim that had the row
-- has committed its take by then, and none can begin. None waits for a take while it has the row (schema.sql).

CREATE OR REPLACE FUNCTION pgqueue.take_id(
    id          bigint,
    session     int    DEFAULT NULL,          -- as with take
    new_token   bigint DEFAULT NULL,
    OUT token   bigint,
    OUT priority int,
    OUT attempts int,
    OUT deadline timestamptz,
    OUT data    jsonb,
    OUT queue   text,
    OUT state   text,
    OUT problem text,                         -- as with ack; or busy: it cannot be taken just now
    OUT holder  text
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    entering CONSTANT int         := 1885827337;
    me       CONSTANT int         := pgqueue.enter_claim(session);
    moment   CONSTANT timestamptz := clock_timestamp();
    q        record;
    t        pgqueue.task;
BEGIN
    SELECT * INTO q FROM pgqueue.queue_due due
     WHERE due.id = (SELECT k.queue_id FROM pgqueue.task k WHERE k.id = take_id.id);
    IF q.delay_over OR q.ttr_over OR q.ttl_over THEN                -- one that has expired is not there, and not busy
        PERFORM pgqueue.promote(q.id);
    END IF;
    IF q.special THEN
        PERFORM pgqueue.enter_queue(q.id, me);    -- whether it is paused does not matter: the task was asked for by its id
    END IF;
    SELECT * INTO t FROM pgqueue.task k
     WHERE k.id = take_id.id AND k.queue_id = q.id         -- it may have gone elsewhere, as a dead letter
       AND k.state <> 'F' AND (k.state = 'D' OR k.expires_at IS NULL OR k.expires_at > moment)
       FOR UPDATE SKIP LOCKED;
    IF FOUND AND (t.lane IS NULL OR pg_try_advisory_xact_lock(entering, pgqueue.lane_bucket(t.queue_id, t.lane))) THEN   -- lane.sql
        deadline := least(moment + t.ttr, t.expires_at);
        INSERT INTO pgqueue.take (task_id, token, taken_at, deadline, queue_id, session_id, lane)
        SELECT t.id, coalesce(new_token, pgqueue.new_token()), moment, coalesce(take_id.deadline, 'infinity'), t.queue_id, me, t.lane
         WHERE (SELECT k.task_id FROM pgqueue.take k WHERE k.task_id = t.id) IS NULL
           AND (t.lane IS NULL
                OR (SELECT k.task_id FROM pgqueue.take k WHERE k.queue_id = t.queue_id AND k.lane = t.lane) IS NULL)
            ON CONFLICT DO NOTHING
        RETURNING take.token INTO take_id.token;
    END IF;
    IF token IS NULL THEN
        SELECT why.state, why.problem, why.holder INTO state, problem, holder FROM pgqueue.explain_refusal(id) why;
        problem := CASE WHEN state = 'done' THEN 'not found' WHEN problem = 'not taken' THEN 'busy' ELSE problem END;
        RETURN;
    END IF;
    IF t.state <> 'R' THEN
        UPDATE pgqueue.task k SET state = 'R', run_at = NULL WHERE k.id = t.id;
    END IF;
    INSERT INTO pgqueue.delta (queue_id, taken) VALUES (t.queue_id, 1);
    PERFORM pgqueue.note(t.queue_id, 'take', ARRAY [t.id]);
    priority := t.priority;
    attempts := t.attempts;
    data := t.data;
    queue := q.name;
    state := 'taken';
END $$;
COMMENT ON FUNCTION pgqueue.take_id IS 'Take the task of this id, be it ready, delayed, blocked or buried, if nobody has it and nobody is in its lane. As beanstalkd''s reserve-job.';

CREATE OR REPLACE FUNCTION pgqueue.delete_strict(
    id          bigint,
    token       bigint DEFAULT NULL,
    session     int    DEFAULT NULL,
    OUT state   text,
    OUT problem text,
    OUT holder  text
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    of_queue int;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'delete_strict must run at READ COMMITTED, not at %: it has to see what others took meanwhile',
            upper(current_setting('transaction_isolation')) USING ERRCODE = 'PQ002';
    END IF;
    PERFORM pgqueue.drop_take(id, token, session);
    SELECT t.queue_id INTO of_queue FROM pgqueue.task t WHERE t.id = delete_strict.id FOR UPDATE;
    SELECT why.state, why.holder INTO state, holder FROM pgqueue.explain_refusal(id) why;
    IF state = 'taken' THEN
        problem := 'taken by another';
    ELSIF of_queue IS NULL THEN
        problem := 'not found';
    ELSE
        PERFORM pgqueue.remove_task(id, of_queue);
        state := NULL;
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.delete_strict IS 'Remove a task unless somebody else has taken it. As beanstalkd''s delete.';

CREATE OR REPLACE FUNCTION pgqueue.kick_task(id bigint, OUT state text, OUT problem text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    of_queue int;
BEGIN
    UPDATE pgqueue.task t
       SET state = CASE WHEN t.lane IS NULL THEN 'R' ELSE 'L' END, run_at = NULL, kicks = coalesce(t.kicks, 0) + 1
     WHERE t.id = kick_task.id AND t.state IN ('B', 'D')
    RETURNING t.queue_id INTO of_queue;
    IF FOUND THEN
        PERFORM pgqueue.check_right(of_queue), pgqueue.note(of_queue, 'kick', ARRAY [id]), pgqueue.signal(of_queue);
    END IF;
    SELECT seen.state INTO state FROM pgqueue.tasks seen WHERE seen.id = kick_task.id;
    problem := CASE WHEN state IS NULL THEN 'not found' WHEN of_queue IS NULL THEN 'not buried' END;
END $$;
COMMENT ON FUNCTION pgqueue.kick_task IS 'Make a buried or delayed task ready. As beanstalkd''s kick-job.';

-- The place in a queue is (priority, id), so a task that goes to its end has a new id. All else of it stays.
CREATE OR REPLACE FUNCTION pgqueue.requeue(
    id          bigint,
    token       bigint DEFAULT NULL,
    session     int    DEFAULT NULL,
    OUT new_id  bigint,
    OUT state   text,
    OUT problem text,
    OUT holder  text
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    of_queue CONSTANT int := (pgqueue.drop_take(id, token, session)).queue_id;
BEGIN
    IF of_queue IS NULL THEN
        SELECT * INTO state, problem, holder FROM pgqueue.explain_refusal(id);
        RETURN;
    END IF;
    UPDATE pgqueue.task t
       SET id = DEFAULT, state = CASE WHEN t.lane IS NULL THEN 'R' ELSE 'L' END, releases = coalesce(t.releases, 0) + 1
     WHERE t.id = requeue.id
    RETURNING t.id, CASE WHEN t.lane IS NULL THEN 'ready' ELSE 'blocked' END INTO new_id, state;
    PERFORM pgqueue.note(of_queue, 'release', ARRAY [new_id]), pgqueue.signal(of_queue);
END $$;
COMMENT ON FUNCTION pgqueue.requeue IS 'Give a task back behind all others of its priority, under a new id, which is returned.';

CREATE OR REPLACE FUNCTION pgqueue.delete(id bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    of_queue int;
BEGIN
    PERFORM pgqueue.drop_any_take(id);
    SELECT t.queue_id INTO of_queue FROM pgqueue.task t WHERE t.id = delete.id FOR UPDATE;
    IF FOUND THEN
        PERFORM pgqueue.remove_task(id, of_queue);
    END IF;
    RETURN of_queue IS NOT NULL;
END $$;
COMMENT ON FUNCTION pgqueue.delete IS 'Remove a task in whatever state, its take too; false if there is none.';

-- The caller has the task's row.
CREATE OR REPLACE FUNCTION pgqueue.remove_task(id bigint, queue_id int) RETURNS void
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    PERFORM pgqueue.check_right(queue_id), pgqueue.note(queue_id, 'delete', ARRAY [id]);   -- before: who is told may still look
    PERFORM pgqueue.delete_tasks(ARRAY [id]);
    PERFORM pgqueue.drop_late_take(id);
END $$;
