-- Outcomes of tasks: results, failures and progress.
--
-- A task's own row has its state for as long as the task lives, and an ack deletes the row. The task's outcome is known
-- afterwards only if it is kept: finish acks and keeps a result, fail buries and keeps the error, each in one
-- transaction. The fence protects both: if the ack is refused no result is kept, so every result is the holder's.
--
--   source                   state of the outcome
--   the row of `task`        ready, delayed, taken, buried, blocked, waiting, cancelling; done, where the queue keeps
--                            done tasks
--   the row of `result`      done (it has a value), failed (it has an error), cancelled (likewise), until it expires
--   neither                  unknown: the task was done and its result not kept, or it never existed
--
-- `result` takes precedence over `task` once the task was buried or has moved to another queue, for example to one for
-- dead letters. In any other state the task was kicked and is tried again: its last result does not count.
--
-- Progress belongs to a take and not to a task: its row has the token, and is shown only as long as that take counts.
-- So it ends with the take, however that ends, and ack, release and sweep need not delete it.
--
-- Results and progress are announced only if a client waits for the task: announce.sql. Reading is one statement, hence
-- one snapshot: between two statements a task could end, and be neither in `task` nor in `result`.
--
-- An expired result counts as absent from that moment on. Cleanings remove such rows, no more than `portion` at a time;
-- and finish_many removes twice as many results as it adds, so that a busy worker removes results as fast as it stores
-- them.

CREATE OR REPLACE FUNCTION pgqueue._keep_result(
    id bigint, queue_id int, attempts int, keep interval, value jsonb, error text
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
BEGIN
    INSERT INTO pgqueue.result AS r (task_id, finished_at, expires_at, queue_id, attempts, value, error)
    VALUES (id, moment, moment + keep, queue_id, attempts, value, error)
        ON CONFLICT (task_id) DO UPDATE
       SET finished_at = excluded.finished_at, expires_at = excluded.expires_at, queue_id = excluded.queue_id,
           attempts = excluded.attempts, value = excluded.value, error = excluded.error, cancelled = NULL;
    IF pgqueue._has_waiter(pgqueue._task_bucket(id)) THEN
        PERFORM pg_notify('pgqueue:task:' || id, '');
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.finish(
    id          bigint,
    token       bigint   DEFAULT NULL,
    session     int      DEFAULT NULL,
    result      jsonb    DEFAULT NULL,
    keep        interval DEFAULT '1 h',
    OUT state   text,
    OUT problem text,
    OUT holder  text
)
LANGUAGE plpgsql AS $$
DECLARE
    task record;
BEGIN
    PERFORM pgqueue._check_keep('keep', coalesce(keep, '0')), pgqueue._check_data('a result', result, nulls => true);
    SELECT t.queue_id, t.attempts, t.followed INTO task FROM pgqueue.task t WHERE t.id = finish.id;
    SELECT a.state, a.problem, a.holder INTO state, problem, holder
      FROM pgqueue.ack(id => finish.id, token => finish.token, session => finish.session) a;
    IF problem IS NULL THEN
        PERFORM pgqueue._keep_result(id, task.queue_id, task.attempts, keep, coalesce(result, 'null'), NULL);
        IF task.followed THEN
            PERFORM pgqueue._keep_for_dependants(ARRAY [id]);
        END IF;
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.finish IS
    'Ack a task and keep its result for a while. If the ack is refused, with a problem as from ack, no result is kept.';

-- Delete up to n results that expired after `since`: while a snapshot is held anywhere, index entries of deleted rows
-- stay, and a search from the oldest walks over all of them.
CREATE OR REPLACE FUNCTION pgqueue._drop_expired_results(n int, since timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
BEGIN
    DELETE FROM pgqueue.result
     WHERE ctid = ANY (ARRAY (SELECT r.ctid FROM pgqueue.result r
                               WHERE r.expires_at > since AND r.expires_at <= moment
                               ORDER BY r.expires_at LIMIT n FOR UPDATE SKIP LOCKED));
END $$;

CREATE OR REPLACE FUNCTION pgqueue.finish_many(
    ids     bigint[],
    tokens  bigint[] DEFAULT NULL,
    session int      DEFAULT NULL,
    results jsonb    DEFAULT NULL,           -- an array, one result for each task
    keep    interval DEFAULT '1 h'
) RETURNS TABLE (id bigint, state text, problem text, holder text)
LANGUAGE plpgsql AS $$
DECLARE
    refused  bigint[] := '{}'::bigint[];
    queues   int[];
    counts   int[];
    followed bigint[];
    moment   timestamptz;
BEGIN
    PERFORM pgqueue._check_keep('keep', coalesce(keep, '0'));
    IF results IS NOT NULL
       AND (jsonb_typeof(results) <> 'array' OR jsonb_array_length(results) <> coalesce(cardinality(ids), 0)) THEN
        RAISE EXCEPTION 'for % tasks as many results are needed, in an array', cardinality(ids) USING ERRCODE = 'PQ043';
    ELSIF results IS NOT NULL THEN
        PERFORM pgqueue._check_items('results', results);
    END IF;
    PERFORM pgqueue._check_takes(ids, tokens);
    SELECT array_agg(t.queue_id ORDER BY f.n), array_agg(t.attempts ORDER BY f.n),
           array_agg(t.id) FILTER (WHERE t.followed) INTO queues, counts, followed
      FROM unnest(ids) WITH ORDINALITY f(id, n)
      LEFT JOIN LATERAL (SELECT * FROM pgqueue.task k WHERE k.id = f.id OFFSET 0) t ON true;
    FOR id, state, problem, holder IN
        SELECT a.id, a.state, a.problem, a.holder
          FROM pgqueue.ack_many(ids => finish_many.ids, tokens => finish_many.tokens, session => finish_many.session) a
    LOOP
        refused := refused || id;
        RETURN NEXT;
    END LOOP;
    moment := clock_timestamp();
    INSERT INTO pgqueue.result AS r (task_id, finished_at, expires_at, queue_id, attempts, value)
    SELECT DISTINCT ON (f.id) f.id, moment, moment + keep, f.queue_id, f.attempts, coalesce(f.value, 'null')
      FROM ROWS FROM (unnest(ids, queues, counts), jsonb_array_elements(results))
           f(id, queue_id, attempts, value)
     WHERE f.id NOT IN (SELECT unnest(refused))    -- hashed; <> ALL compares each with each
     ORDER BY f.id
        ON CONFLICT (task_id) DO UPDATE
       SET finished_at = excluded.finished_at, expires_at = excluded.expires_at, queue_id = excluded.queue_id,
           attempts = excluded.attempts, value = excluded.value, error = NULL,
           cancelled = NULL;
    IF followed IS NOT NULL THEN
        PERFORM pgqueue._keep_for_dependants(followed);
    END IF;
    PERFORM pgqueue._tell_ends(ARRAY (SELECT f.id FROM unnest(ids) f(id) WHERE f.id NOT IN (SELECT unnest(refused))));
    PERFORM pgqueue._drop_expired_results(2 * cardinality(ids), moment - interval '10 s');
END $$;
COMMENT ON FUNCTION pgqueue.finish_many IS
    'Ack many tasks and keep their results; returns the tasks that could not be acked, and the reasons.';

CREATE OR REPLACE FUNCTION pgqueue.fail(
    id          bigint,
    token       bigint   DEFAULT NULL,
    error       text     DEFAULT NULL,
    keep        interval DEFAULT '1 h',     -- NULL: the error is kept only with the task
    delay       interval DEFAULT NULL,      -- try again after this time, unless it was the last attempt
    counts      boolean  DEFAULT true,      -- these as for release
    traceback   text     DEFAULT NULL,
    began       timestamptz DEFAULT NULL,
    worker      text     DEFAULT NULL,
    ended_as    text     DEFAULT 'failed',
    hold_lane   boolean  DEFAULT true,
    OUT state   text,
    OUT problem text,
    OUT holder  text
)
LANGUAGE plpgsql AS $$
DECLARE
    why  CONSTANT text := coalesce(error, 'it was given up');
    task record;
BEGIN
    IF keep IS NOT NULL THEN
        PERFORM pgqueue._check_keep('keep', keep);
    END IF;
    SELECT t.queue_id, t.attempts, t.followed INTO task     -- burying it may move it
      FROM pgqueue.task t WHERE t.id = fail.id;
    IF delay IS NULL THEN
        SELECT b.state, b.problem, b.holder INTO state, problem, holder
          FROM pgqueue.bury(id => fail.id, token => fail.token, error => why, traceback => fail.traceback,
                            began => fail.began, worker => fail.worker, ended_as => fail.ended_as) b;
    ELSE
        SELECT r.state, r.problem, r.holder INTO state, problem, holder
          FROM pgqueue.release(id => fail.id, token => fail.token, delay => fail.delay, error => why,
                               hold_lane => fail.hold_lane, counts => fail.counts, traceback => fail.traceback,
                               began => fail.began, worker => fail.worker, ended_as => fail.ended_as) r;
    END IF;
    IF problem IS NULL AND state IN ('buried', 'dead') AND keep IS NOT NULL THEN
        PERFORM pgqueue._keep_result(id, task.queue_id, task.attempts + (token IS NOT NULL)::int, keep, NULL, why);
        IF task.followed THEN
            PERFORM pgqueue._keep_for_dependants(ARRAY [id]);
        END IF;
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.fail IS
    'Bury a task and keep its error for a while; as with bury, a token is checked if it is given. With a delay the '
    'task is released instead, and its lane waits for it unless hold_lane is false; it fails only at the last attempt '
    'of the queue''s max_takes. With keep NULL only the attempt is recorded, as by bury and release.';

CREATE OR REPLACE FUNCTION pgqueue.progress(
    id          bigint,
    token       bigint DEFAULT NULL,
    session     int    DEFAULT NULL,
    value       jsonb  DEFAULT NULL,
    OUT state   text,
    OUT problem text,
    OUT holder  text
)
LANGUAGE plpgsql AS $$
BEGIN
    IF pg_column_size(value) > pgqueue._most_data() THEN
        PERFORM pgqueue._check_data('the progress', value);
    END IF;
    session := CASE WHEN token IS NULL THEN pgqueue._named_session(session) END;
    -- The lock waits for a transaction that ends this take, and keeps a late holder from overwriting the progress of
    -- the next one.
    INSERT INTO pgqueue.progress AS p (task_id, token, updated_at, value)
    SELECT k.task_id, k.token, clock_timestamp(), progress.value
      FROM pgqueue.take k
     WHERE k.task_id = progress.id AND k.deadline > clock_timestamp()
       AND (k.token = progress.token
            OR progress.token IS NULL AND pgqueue._is_ours(k.session_id, progress.session))
       FOR SHARE OF k
        ON CONFLICT (task_id) DO UPDATE
       SET token = excluded.token, updated_at = excluded.updated_at, value = excluded.value;
    IF FOUND THEN
        state := 'taken';
        IF pgqueue._has_waiter(pgqueue._task_bucket(id)) THEN
            PERFORM pg_notify('pgqueue:task:' || id, '');
        END IF;
    ELSE
        SELECT e.state, e.problem, e.holder INTO state, problem, holder FROM pgqueue._explain_refusal(id) e;
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.progress IS
    'Report the progress of a task. Only its holder may; the progress is shown as long as the take lasts.';

CREATE OR REPLACE FUNCTION pgqueue.outcome(id bigint)
RETURNS TABLE (
    state text, queue text, attempts int, error text, holder text, progress jsonb, result jsonb, updated_at timestamptz
)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    -- A result outlives its queue. Then no row says which roles might look into the queue: only the owner may.
    IF EXISTS (SELECT FROM (SELECT t.queue_id FROM pgqueue.task t WHERE t.id = outcome.id
                             UNION ALL
                            SELECT r.queue_id FROM pgqueue.result r WHERE r.task_id = outcome.id) of
                 LEFT JOIN pgqueue.queue q ON q.id = of.queue_id
                WHERE q.guarded IS NOT FALSE AND NOT pgqueue._may(of.queue_id, 'look')) THEN
        id := NULL;                                -- to this caller it is unknown
    END IF;
    RETURN QUERY
        SELECT CASE WHEN NOT e.ended THEN coalesce(t.state, pgqueue._absent(outcome.id, 'unknown'))
                    WHEN r.cancelled THEN 'cancelled' WHEN r.error IS NULL THEN 'done' ELSE 'failed' END,
               CASE WHEN e.ended THEN q.name ELSE t.queue END,
               CASE WHEN e.ended THEN r.attempts ELSE t.attempts END,
               CASE WHEN e.ended THEN r.error ELSE t.error END,
               CASE WHEN NOT e.ended THEN t.holder END,
               CASE WHEN NOT e.ended THEN p.value END,
               CASE WHEN e.ended THEN r.value END,
               CASE WHEN e.ended THEN r.finished_at ELSE greatest(t.created_at, t.taken_at, p.updated_at) END
          FROM (SELECT outcome.id) asked(id)
          LEFT JOIN pgqueue._tasks t ON t.id = asked.id
          LEFT JOIN pgqueue.result r ON r.task_id = asked.id AND r.expires_at > clock_timestamp()
          LEFT JOIN pgqueue.queue q ON q.id = r.queue_id
          LEFT JOIN pgqueue.take k ON k.task_id = asked.id AND k.deadline > clock_timestamp()
          LEFT JOIN pgqueue.progress p ON p.task_id = t.id AND p.token = k.token,
               LATERAL (SELECT r.task_id IS NOT NULL
                               AND (t.id IS NULL OR t.state IN ('buried', 'done')
                                    OR t.queue IS DISTINCT FROM q.name)) e(ended);
END $$;
COMMENT ON FUNCTION pgqueue.outcome IS
    'The outcome of a task, in one row: its state while it exists; done, failed or cancelled if its result is kept '
    'and it is gone, buried or in another queue; else unknown. A result whose queue was deleted is shown only to the '
    'owner of the schema.';

CREATE OR REPLACE FUNCTION pgqueue.await_outcome(id bigint)
RETURNS TABLE (
    state text, queue text, attempts int, error text, holder text, progress jsonb, result jsonb, updated_at timestamptz,
    drained boolean
)
LANGUAGE plpgsql AS $$
BEGIN
    drained := CASE WHEN pg_try_advisory_lock(pgqueue._untold_lock(), pgqueue._task_bucket(id))
                    THEN pg_advisory_unlock(pgqueue._untold_lock(), pgqueue._task_bucket(id)) ELSE false END;
    -- The next statement has a new snapshot, and so has the function that it calls: outcome is STABLE.
    RETURN QUERY SELECT o.*, await_outcome.drained FROM pgqueue.outcome(await_outcome.id) o;
END $$;
COMMENT ON FUNCTION pgqueue.await_outcome IS
    'For clients that listen for the task (await_ends): its outcome. drained: results and progress that it does not '
    'show yet will be announced. Not drained: a call that announced nothing may be under way, so call again soon.';

CREATE OR REPLACE VIEW pgqueue.results WITH (security_barrier) AS
SELECT r.task_id AS id, q.name AS queue,
       CASE WHEN r.cancelled THEN 'cancelled' WHEN r.error IS NULL THEN 'done' ELSE 'failed' END AS state,
       r.attempts, CASE WHEN q.looks THEN r.value END AS result, CASE WHEN q.looks THEN r.error END AS error,
       r.finished_at, r.expires_at
  FROM pgqueue.result r
  JOIN pgqueue._seen q ON q.id = r.queue_id
 WHERE r.expires_at > clock_timestamp();
COMMENT ON VIEW pgqueue.results IS
    'The results and errors that are kept of ended tasks, of queues that exist. Monitors see neither.';

-- Part of clean_up.
CREATE OR REPLACE FUNCTION pgqueue._clean_results() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    portion CONSTANT int         := 5000;
    moment  CONSTANT timestamptz := clock_timestamp();
BEGIN
    PERFORM pgqueue._drop_expired_results(portion, '-infinity');
    -- A minute after the last report. Progress that is reported again while this runs is newer, and the row lock makes
    -- the statement check again.
    DELETE FROM pgqueue.progress
     WHERE ctid = ANY (ARRAY (SELECT p.ctid FROM pgqueue.progress p
                               WHERE p.updated_at < moment - interval '1 min'
                                 AND (SELECT k.token FROM pgqueue.take k WHERE k.task_id = p.task_id)
                                     IS DISTINCT FROM p.token
                               LIMIT portion FOR UPDATE OF p SKIP LOCKED));
END $$;
