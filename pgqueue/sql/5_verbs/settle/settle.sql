-- Settling taken tasks: release and bury; and the rules that all settling verbs share. The acks are in ack.sql, touch
-- in touch.sql.
--
-- The fence. A settling presents the task's token, or, with the id alone, its session. The token suffices, for every
-- role; a session has to be the caller's, since its id is no secret (session.sql). If neither fits the take, or its
-- deadline has passed, nothing changes, and the answer says why. So a process that slept through its deadline, or lost
-- its session, cannot ack a task that another process has taken since.
--
-- Expected outcomes are returned as rows: an exception would abort the transaction of the caller. The forms for one
-- task return one row; those for many take arrays and return the tasks that they could NOT settle, so a row is rare.
-- One call for 100 tasks costs a twentieth of 100 calls.
--
-- Lock order: the take first, then the task (1_tables/schema.sql).

-- Tasks as a refusal shows them: for a role without a right to the queue they do not exist. The view pgqueue.tasks
-- would require the verb look, and a join with it reads every task, since it has security_barrier.
CREATE OR REPLACE VIEW pgqueue._refused AS
SELECT t.id, t.state, t.holder
  FROM pgqueue._tasks t JOIN pgqueue.queue q ON q.id = t.queue_id
 WHERE NOT q.guarded OR pgqueue._may(q.id, 'take') OR pgqueue._may(q.id, 'look') OR pgqueue._may(q.id, 'manage');

CREATE OR REPLACE FUNCTION pgqueue._explain_refusal(id bigint, OUT state text, OUT problem text, OUT holder text)
LANGUAGE plpgsql AS $$
BEGIN
    SELECT t.state, t.holder INTO state, holder FROM pgqueue._refused t WHERE t.id = _explain_refusal.id;
    problem := pgqueue._problem(id, state);
END $$;

CREATE OR REPLACE FUNCTION pgqueue.release(
    id          bigint,
    token       bigint   DEFAULT NULL,
    session     int      DEFAULT NULL,
    delay       interval DEFAULT NULL,
    error       text     DEFAULT NULL,
    priority    int      DEFAULT NULL,       -- from now on
    every       interval DEFAULT NULL,       -- delayed until this long after it was taken
    hold_lane   boolean  DEFAULT false,      -- no other task of its lane is taken during the delay
    counts      boolean  DEFAULT true,       -- an error, as a failed attempt of max_takes; false: it is only noted
    traceback   text     DEFAULT NULL,       -- of the error; these four are for the record of the attempt
    began       timestamptz DEFAULT NULL,    -- NULL: when it was taken
    worker      text     DEFAULT NULL,       -- NULL: the label of the session
    ended_as    text     DEFAULT 'failed',   -- or timeout, or cancelled
    OUT state   text,
    OUT problem text,
    OUT holder  text
)
LANGUAGE plpgsql AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    queue_id int;
    counted  int;
    taken_at timestamptz;
    taker    int;
    later    timestamptz;
    stored   "char";
    in_lane  boolean;
BEGIN
    IF delay IS NOT NULL OR every IS NOT NULL OR error IS NOT NULL THEN
        PERFORM pgqueue._check_time('delay', delay, zero => true), pgqueue._check_time('every', every),
                pgqueue._check_text('an error', error), pgqueue._check_attempt(worker, ended_as, began);
        IF delay > '0' AND every IS NOT NULL THEN
            RAISE EXCEPTION 'every goes without a delay: every is %, delay is %', every, delay USING ERRCODE = 'PQ002';
        END IF;
    END IF;
    SELECT dropped.queue_id, dropped.taken_at, dropped.taker INTO queue_id, taken_at, taker
      FROM pgqueue._drop_take(id, token, session) dropped;
    IF queue_id IS NULL THEN
        SELECT * INTO state, problem, holder FROM pgqueue._explain_refusal(id);
        RETURN;
    END IF;
    IF delay > '0' OR taken_at + every > moment THEN
        later := coalesce(taken_at + every, moment + delay);
    END IF;
    state := CASE WHEN later IS NULL THEN 'ready' ELSE 'delayed' END;
    -- As _come_back (moves.sql), without the call, and with the options.
    UPDATE pgqueue.task t
       SET state = CASE WHEN t.state = 'C' THEN 'C' WHEN later IS NOT NULL THEN 'D'
                        WHEN t.followed AND pgqueue._ready_state(t) = 'W' THEN 'W' ELSE 'R' END,
           run_at = later,
           expires_at = CASE WHEN later IS NULL THEN t.expires_at ELSE t.expires_at + (later - moment) END,
           holds_lane = nullif(later IS NOT NULL AND t.lane IS NOT NULL AND hold_lane, false),
           priority = coalesce(release.priority, t.priority),
           attempts = t.attempts + (release.error IS NOT NULL AND release.counts IS NOT FALSE)::int,
           error = coalesce(release.error, t.error),
           suspect = NULL, killed_after = NULL,
           releases = coalesce(t.releases, 0) + 1
     WHERE t.id = release.id
    RETURNING t.attempts, t.state, t.lane IS NOT NULL INTO counted, stored, in_lane;
    -- The delay after a failed attempt, or with counts false, is a worker's pause: without it the worker would give the
    -- task back and take it again without end. A type without delays refuses only those that are asked for otherwise.
    PERFORM pgqueue._check_verb(queue_id, priority,
                                coalesce(every, CASE WHEN error IS NULL AND counts IS NOT FALSE THEN delay END)),
            pgqueue._note(queue_id, 'release', ARRAY [id]);
    IF error IS NOT NULL THEN
        PERFORM pgqueue._record_attempts(
                    ARRAY [id], ARRAY [coalesce(began, taken_at)], ARRAY [coalesce(worker, pgqueue._label_of(taker))],
                    CASE stored WHEN 'C' THEN 'cancelled' ELSE ended_as END, error, traceback);
    END IF;
    IF stored = 'C' THEN
        PERFORM pgqueue._end_cancelled(queue_id, ARRAY [id]);
        state := 'cancelled';
        RETURN;
    END IF;
    IF error IS NOT NULL AND counts IS NOT FALSE
       AND counted >= (SELECT q.max_takes FROM pgqueue.queue q WHERE q.id = queue_id) THEN
        state := pgqueue._die_one(id, 'delivery_limit');
        RETURN;
    END IF;
    IF stored = 'W' THEN                           -- it is followed, and waits for other tasks
        state := 'waiting';
    END IF;
    IF in_lane AND stored = 'R' THEN               -- another task of its lane may be the head by now
        SELECT seen.state INTO state FROM pgqueue._tasks seen WHERE seen.id = release.id;
    END IF;
    PERFORM pgqueue._signal(queue_id, CASE WHEN later IS NULL THEN 1 END);
END $$;
COMMENT ON FUNCTION pgqueue.release IS
    'Give a task back: ready at its old place, or delayed. During the delay its lane goes on without it, or, with '
    'hold_lane, waits for it. With an error it is recorded as a failed attempt (the view attempts), and counts as one; '
    'the last attempt of max_takes makes it a dead letter, or buries it if no queue is bound for dead letters. A queue '
    'of the type fifo or utube has no delay, except after a failed attempt, or with counts false, as when a worker '
    'leaves a task to others. A task that was cancelled while it was taken ends: the state is cancelled.';

CREATE OR REPLACE FUNCTION pgqueue._explain_refusals(ids bigint[], settled bigint[])
RETURNS TABLE (id bigint, state text, problem text, holder text)
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
        SELECT refused.id, t.state, pgqueue._problem(refused.id, t.state), t.holder
          FROM (SELECT unnest(ids) EXCEPT SELECT unnest(settled)) refused(id)
          LEFT JOIN LATERAL (SELECT * FROM pgqueue._refused r WHERE r.id = refused.id OFFSET 0) t ON true
         ORDER BY refused.id;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.release_many(
    ids bigint[], tokens bigint[] DEFAULT NULL, session int DEFAULT NULL
) RETURNS TABLE (id bigint, state text, problem text, holder text)
LANGUAGE plpgsql AS $$
DECLARE
    dropped bigint[];
    given   record;
BEGIN
    SELECT d.dropped INTO dropped FROM pgqueue._drop_takes(ids, tokens, session) d;
    SELECT array_agg(t.queue_id) AS queues, array_agg(t.id) AS ids INTO given
      FROM pgqueue.task t WHERE t.id = ANY (dropped);
    PERFORM pgqueue._count_takes(given.queues, -1), pgqueue._given_back(given.queues, given.ids, 'release');
    IF cardinality(dropped) < cardinality(ids) THEN
        RETURN QUERY SELECT * FROM pgqueue._explain_refusals(ids, dropped);
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.release_many IS 'Give tasks back as they are; returns those that could not be given back.';

CREATE OR REPLACE FUNCTION pgqueue.bury(
    id          bigint,
    token       bigint DEFAULT NULL,
    error       text   DEFAULT NULL,
    priority    int    DEFAULT NULL,         -- from now on
    traceback   text   DEFAULT NULL,         -- of the holder's error; these four are for the record of the attempt
    began       timestamptz DEFAULT NULL,    -- NULL: when it was taken
    worker      text   DEFAULT NULL,         -- NULL: the label of the session
    ended_as    text   DEFAULT 'failed',     -- or timeout, or cancelled
    OUT state   text,
    OUT problem text,
    OUT holder  text
)
LANGUAGE plpgsql AS $$
DECLARE
    queue_id int;
    stored   "char";
    marked   boolean;
    dropped  record;
BEGIN
    PERFORM pgqueue._check_text('an error', error), pgqueue._check_attempt(worker, ended_as, began);
    IF token IS NULL THEN
        PERFORM pgqueue._check_tasks(ARRAY [id], 'manage');
        PERFORM pgqueue._untake_tasks(ARRAY [id], waits => true);
    ELSE
        SELECT * INTO dropped FROM pgqueue._drop_take(id, token, NULL);
        IF dropped.queue_id IS NULL THEN
            SELECT * INTO state, problem, holder FROM pgqueue._explain_refusal(id);
            RETURN;
        END IF;
    END IF;
    -- As _bury (moves.sql), without the call, and with the options.
    UPDATE pgqueue.task t
       SET state = CASE t.state WHEN 'C' THEN 'C' ELSE 'B' END, run_at = NULL,
           buried_at = coalesce(t.buried_at, clock_timestamp()),
           attempts = t.attempts + (bury.token IS NOT NULL AND bury.error IS NOT NULL)::int,
           error = coalesce(bury.error, t.error),
           priority = coalesce(bury.priority, t.priority),
           suspect = NULL, killed_after = NULL,
           buries = coalesce(t.buries, 0) + 1
     WHERE t.id = bury.id AND t.state <> 'F'
    RETURNING t.queue_id, t.state, t.followed INTO queue_id, stored, marked;
    IF FOUND THEN
        state := 'buried';
        IF token IS NULL THEN                      -- of a claim that was under way; a holder's own take kept it away
            PERFORM pgqueue._untake_tasks(ARRAY [id]);
            PERFORM pgqueue._check_guarded(queue_id, 'manage', is_named => false),
                    pgqueue._record_tasks('bury', queue_id, ARRAY [id]);
        END IF;
        PERFORM pgqueue._check_verb(queue_id, priority),
                pgqueue._note(queue_id, 'bury', ARRAY [id]);
        IF token IS NOT NULL AND error IS NOT NULL THEN
            PERFORM pgqueue._record_attempts(
                        ARRAY [id], ARRAY [coalesce(began, dropped.taken_at)],
                        ARRAY [coalesce(worker, pgqueue._label_of(dropped.taker))],
                        CASE stored WHEN 'C' THEN 'cancelled' ELSE ended_as END, error, traceback);
        END IF;
        IF stored = 'C' THEN
            PERFORM pgqueue._end_cancelled(queue_id, ARRAY [id]);
            state := 'cancelled';
        ELSIF (SELECT q.dead_letter FROM pgqueue.queue q WHERE q.id = queue_id) IS NOT NULL THEN
            state := pgqueue._die_one(id, 'rejected');
        ELSIF marked THEN
            PERFORM pgqueue._follow(queue_id, ARRAY [id], 'buried');
        END IF;
    ELSE
        problem := pgqueue._absent(id);
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.bury IS
    'Set a task aside until it is kicked; if its queue has a dead_letter to which a queue is bound, it moves there, '
    'and its state is dead. With a token, only the holder may bury, and its error is recorded as a failed attempt; '
    'without one, a role with the verb manage, in any state but done, as in Tarantool''s queue. A task that was '
    'cancelled while it was taken ends: the state is cancelled.';
