-- Settling what was taken: ack, release, bury, touch.
--
-- The fence. Whoever settles a task presents its token, or, knowing only the id, its session. A take that carries
-- neither, or whose deadline has passed, is somebody else's or nobody's: nothing changes, and the answer says why.
-- So a process that slept through its deadline, or whose session was given up, cannot ack what another has taken.
--
-- Expected outcomes come back as rows: an exception would abort the transaction that the caller shares with us.
-- The forms for one task answer with one row; those for many take arrays and answer with the tasks they could NOT
-- settle, so a row is rare. One call for 100 tasks costs a twentieth of 100 calls.
--
-- Lock order: the take first, then the task (schema.sql).

CREATE OR REPLACE FUNCTION pgqueue.ack(
    id          bigint,
    token       bigint DEFAULT NULL,
    session     int    DEFAULT NULL,
    OUT state   text,
    OUT problem text,
    OUT holder  text
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    IF pgqueue.drop_take(id, token, session) THEN
        DELETE FROM pgqueue.task t WHERE t.id = ack.id;
        state := 'done';
    ELSE
        SELECT * INTO state, problem, holder FROM pgqueue.explain_refusal(id);
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.ack IS 'The task is done: it goes. A problem is one of not found, not taken, taken by another (then with its holder).';

CREATE OR REPLACE FUNCTION pgqueue.ack_many(
    ids     bigint[],
    tokens  bigint[] DEFAULT NULL,
    session int      DEFAULT NULL
) RETURNS TABLE (id bigint, state text, problem text, holder text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    dropped CONSTANT bigint[] := pgqueue.drop_takes(ids, tokens, session);
BEGIN
    DELETE FROM pgqueue.task t WHERE t.id = ANY (dropped);
    IF cardinality(dropped) < cardinality(ids) THEN
        RETURN QUERY SELECT * FROM pgqueue.explain_refusals(ids, dropped);
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.ack_many IS 'Ack tasks in one go; returns those that could not be, and why.';

CREATE OR REPLACE FUNCTION pgqueue.release(
    id          bigint,
    token       bigint   DEFAULT NULL,
    session     int      DEFAULT NULL,
    delay       interval DEFAULT NULL,
    error       text     DEFAULT NULL,
    OUT state   text,
    OUT problem text,
    OUT holder  text
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    queue_id int;
    counted  int;
    later    timestamptz;
BEGIN
    IF delay < '0' THEN
        PERFORM pgqueue.check_times(delay, NULL);
    ELSIF delay > '0' THEN
        later := clock_timestamp() + delay;
    END IF;
    IF NOT pgqueue.drop_take(id, token, session) THEN
        SELECT * INTO state, problem, holder FROM pgqueue.explain_refusal(id);
        RETURN;
    END IF;
    state := CASE WHEN later IS NULL THEN 'ready' ELSE 'delayed' END;
    IF later IS NULL AND error IS NULL THEN            -- given back untouched: the task's row stays as it is
        SELECT t.queue_id INTO queue_id FROM pgqueue.task t WHERE t.id = release.id;
    ELSE
        UPDATE pgqueue.task t
           SET state = CASE WHEN later IS NULL THEN 'R' ELSE 'D' END,
               run_at = later,
               attempts = t.attempts + (release.error IS NOT NULL)::int,
               error = coalesce(release.error, t.error)
         WHERE t.id = release.id
        RETURNING t.queue_id, t.attempts INTO queue_id, counted;
        IF error IS NOT NULL AND counted >= (SELECT q.max_takes FROM pgqueue.queue q WHERE q.id = queue_id) THEN
            state := pgqueue.die_one(id, 'delivery_limit');
            RETURN;
        END IF;
    END IF;
    PERFORM pgqueue.signal(queue_id);
END $$;
COMMENT ON FUNCTION pgqueue.release IS
    'Give a task back: ready at its old place, or delayed. With an error it counts as a failed attempt, and with the last one of max_takes it is dead, or buried if no queue is bound for the dead.';

CREATE OR REPLACE FUNCTION pgqueue.release_many(
    ids     bigint[],
    tokens  bigint[] DEFAULT NULL,
    session int      DEFAULT NULL
) RETURNS TABLE (id bigint, state text, problem text, holder text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    dropped CONSTANT bigint[] := pgqueue.drop_takes(ids, tokens, session);
BEGIN
    PERFORM pgqueue.signal(q.queue_id)
       FROM (SELECT DISTINCT t.queue_id FROM pgqueue.task t WHERE t.id = ANY (dropped)) q;
    IF cardinality(dropped) < cardinality(ids) THEN
        RETURN QUERY SELECT * FROM pgqueue.explain_refusals(ids, dropped);
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.release_many IS 'Give tasks back untouched; returns those that could not be, and why.';

CREATE OR REPLACE FUNCTION pgqueue.bury(
    id          bigint,
    token       bigint DEFAULT NULL,
    error       text   DEFAULT NULL,
    OUT state   text,
    OUT problem text,
    OUT holder  text
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    queue_id int;
BEGIN
    IF token IS NULL THEN
        DELETE FROM pgqueue.take k WHERE k.task_id = bury.id;
    ELSIF NOT pgqueue.drop_take(id, token, NULL) THEN
        SELECT * INTO state, problem, holder FROM pgqueue.explain_refusal(id);
        RETURN;
    END IF;
    UPDATE pgqueue.task t
       SET state = 'B', run_at = NULL,
           attempts = t.attempts + (bury.token IS NOT NULL AND bury.error IS NOT NULL)::int,
           error = coalesce(bury.error, t.error)
     WHERE t.id = bury.id
    RETURNING t.queue_id INTO queue_id;
    IF FOUND THEN
        PERFORM pgqueue.drop_late_take(id);
        state := 'buried';
        IF (SELECT q.dead_letter FROM pgqueue.queue q WHERE q.id = queue_id) IS NOT NULL THEN
            state := pgqueue.die_one(id, 'rejected');
        END IF;
    ELSE
        problem := 'not found';
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.bury IS
    'Set a task aside until somebody kicks it; where the queue has a dead_letter it goes there, and its state is dead. With a token only its holder may; without one anybody, in any state, as in Tarantool''s queue.';

CREATE OR REPLACE FUNCTION pgqueue.touch(
    id          bigint,
    token       bigint   DEFAULT NULL,
    session     int      DEFAULT NULL,
    more        interval DEFAULT NULL,
    OUT state   text,
    OUT problem text,
    OUT holder  text
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    IF more < '0' THEN
        RAISE EXCEPTION 'cannot touch a task by a negative time, %', more USING ERRCODE = 'PQ002';
    END IF;
    UPDATE pgqueue.take k
       SET deadline = CASE
               WHEN more IS NOT NULL THEN k.deadline + more
               ELSE coalesce(clock_timestamp() + (SELECT t.ttr FROM pgqueue.task t WHERE t.id = k.task_id), 'infinity')
           END
     WHERE k.task_id = touch.id AND k.deadline > clock_timestamp()
       AND (k.token = touch.token OR touch.token IS NULL AND k.session_id = coalesce(touch.session, pgqueue.own_session()));
    IF FOUND THEN
        state := 'taken';
    ELSE
        SELECT * INTO state, problem, holder FROM pgqueue.explain_refusal(id);
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.touch IS 'More time: adds to the deadline, or sets it to the task''s ttr from now.';

CREATE OR REPLACE FUNCTION pgqueue.drop_take(id bigint, token bigint, session int) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM pgqueue.take k
     WHERE k.task_id = drop_take.id AND k.deadline > clock_timestamp()
       AND (k.token = drop_take.token
            OR drop_take.token IS NULL AND k.session_id = coalesce(drop_take.session, pgqueue.own_session()));
    RETURN FOUND;
END $$;

-- For who takes away a task that others may hold: a claim may have been under way when the take was looked for. It has
-- ended since, for we have its task's row. And who has that must not wait for a take: a locked one is being settled.
CREATE OR REPLACE FUNCTION pgqueue.drop_late_take(id bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM pgqueue.take
     WHERE ctid = (SELECT k.ctid FROM pgqueue.take k WHERE k.task_id = drop_late_take.id FOR UPDATE SKIP LOCKED);
END $$;

-- By ctid after a probe by key for each: a join is planned as a scan of all of `take`, dead rows included. The ids
-- are locked in their order, so that two calls with the same tasks cannot deadlock.
-- A take that was being touched has been waited for, and has another ctid now, which the statement's snapshot does
-- not see: when any is missing, a second look finds it. By then its lock is ours, and nobody can touch it again.
CREATE OR REPLACE FUNCTION pgqueue.drop_takes(ids bigint[], tokens bigint[], session int) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    me      CONSTANT int         := coalesce(session, pgqueue.own_session());
    moment  CONSTANT timestamptz := clock_timestamp();
    found   bigint[];
    dropped bigint[] := '{}';
BEGIN
    FOR look IN 1..2 LOOP
        WITH gone AS (
            DELETE FROM pgqueue.take
             WHERE ctid = ANY (ARRAY (
                   SELECT (SELECT k.ctid FROM pgqueue.take k
                            WHERE k.task_id = asked.id AND k.deadline > moment
                              AND (k.token = asked.token OR asked.token IS NULL AND k.session_id = me)
                              FOR UPDATE)
                     FROM (SELECT u.id, u.token FROM unnest(ids, tokens) u(id, token) ORDER BY u.id) asked))
            RETURNING take.task_id)
        SELECT array_agg(gone.task_id) INTO found FROM gone;
        dropped := dropped || found;
        EXIT WHEN cardinality(dropped) >= cardinality(ids);
    END LOOP;
    RETURN dropped;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.explain_refusal(id bigint, OUT state text, OUT problem text, OUT holder text)
LANGUAGE plpgsql AS $$
BEGIN
    SELECT t.state, t.holder INTO state, holder FROM pgqueue.tasks t WHERE t.id = explain_refusal.id;
    problem := CASE WHEN state IS NULL THEN 'not found'
                    WHEN state = 'taken' THEN 'taken by another'
                    ELSE 'not taken' END;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.explain_refusals(ids bigint[], settled bigint[])
RETURNS TABLE (id bigint, state text, problem text, holder text)
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
        SELECT refused.id, why.state, why.problem, why.holder
          FROM (SELECT unnest(ids) EXCEPT SELECT unnest(settled)) refused(id),
               LATERAL pgqueue.explain_refusal(refused.id) why
         ORDER BY refused.id;
END $$;
