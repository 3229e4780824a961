-- Settling what was taken: release, bury, touch; and what every settling has in common. The acks are in ack.sql.
--
-- The fence. A settling presents the task's token, or, with the id alone, its session. The token suffices, for every
-- role; a session has to be the caller's, since its id is no secret (session.sql). If the take has neither, or its
-- deadline has passed, nothing changes, and the answer says why. So a process that slept through its deadline, or lost
-- its session, cannot ack a task that another process has taken since.
--
-- Expected outcomes come back as rows: an exception would abort the transaction of the caller. The forms for one task
-- answer with one row; those for many take arrays and answer with the tasks that they could NOT settle, so a row is
-- rare. One call for 100 tasks costs a twentieth of 100 calls.
--
-- Lock order: the take first, then the task (1_tables/schema.sql).

-- End a take. Returns its queue and when it began; NULL if there is no take that the caller may end.
CREATE OR REPLACE FUNCTION pgqueue._drop_take(
    id bigint, token bigint, session int, OUT queue_id int, OUT taken_at timestamptz
)
LANGUAGE plpgsql AS $$
BEGIN
    session := CASE WHEN token IS NULL THEN pgqueue._named_session(session) END;
    DELETE FROM pgqueue.take k
     WHERE k.task_id = _drop_take.id AND k.deadline > clock_timestamp()
       AND (k.token = _drop_take.token
            OR _drop_take.token IS NULL AND pgqueue._is_ours(k.session_id, _drop_take.session))
    RETURNING k.queue_id, k.taken_at INTO _drop_take.queue_id, _drop_take.taken_at;
    IF FOUND THEN
        INSERT INTO pgqueue.delta (queue_id, taken) VALUES (_drop_take.queue_id, -1);
    END IF;
END $$;

-- Tasks as a refusal shows them: to a role without a right to the queue they do not exist. The view pgqueue.tasks would
-- need the verb look. And a join with it reads every task, since it has security_barrier.
CREATE OR REPLACE VIEW pgqueue._refused AS
SELECT t.id, t.state, t.holder
  FROM pgqueue._tasks t JOIN pgqueue.queue q ON q.id = t.queue_id
 WHERE NOT q.guarded OR pgqueue._may(q.id, 'take') OR pgqueue._may(q.id, 'look') OR pgqueue._may(q.id, 'manage');

CREATE OR REPLACE FUNCTION pgqueue._explain_refusal(id bigint, OUT state text, OUT problem text, OUT holder text)
LANGUAGE plpgsql AS $$
BEGIN
    SELECT t.state, t.holder INTO state, holder FROM pgqueue._refused t WHERE t.id = _explain_refusal.id;
    problem := pgqueue._problem(state);
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
    later    timestamptz;
BEGIN
    IF delay IS NOT NULL OR every IS NOT NULL OR error IS NOT NULL THEN
        PERFORM pgqueue._check_time('delay', delay, zero => true), pgqueue._check_time('every', every),
                pgqueue._check_text('an error', error);
        IF delay > '0' AND every IS NOT NULL THEN
            RAISE EXCEPTION 'every goes without a delay: every is %, delay is %', every, delay USING ERRCODE = 'PQ002';
        END IF;
    END IF;
    SELECT dropped.queue_id, dropped.taken_at INTO queue_id, taken_at
      FROM pgqueue._drop_take(id, token, session) dropped;
    IF queue_id IS NULL THEN
        SELECT * INTO state, problem, holder FROM pgqueue._explain_refusal(id);
        RETURN;
    END IF;
    IF delay > '0' OR taken_at + every > moment THEN
        later := coalesce(taken_at + every, moment + delay);
    END IF;
    state := CASE WHEN later IS NULL THEN 'ready' ELSE 'delayed' END;
    UPDATE pgqueue.task t
       SET state = CASE WHEN later IS NULL THEN 'R' ELSE 'D' END,
           -- A task that holds its lane does so until it expires at most: after that it is not taken any more.
           run_at = CASE WHEN later IS NOT NULL AND t.lane IS NOT NULL AND hold_lane THEN least(later, t.expires_at)
                         ELSE later END,
           holds_lane = nullif(later IS NOT NULL AND t.lane IS NOT NULL AND hold_lane, false),
           priority = coalesce(release.priority, t.priority),
           attempts = t.attempts + (release.error IS NOT NULL)::int,
           error = coalesce(release.error, t.error),
           suspect = NULL,
           releases = coalesce(t.releases, 0) + 1
     WHERE t.id = release.id
    RETURNING t.attempts INTO counted;
    PERFORM pgqueue._check_verb(queue_id, priority, coalesce(every, delay)),
            pgqueue._note(queue_id, 'release', ARRAY [id]);
    IF error IS NOT NULL AND counted >= (SELECT q.max_takes FROM pgqueue.queue q WHERE q.id = queue_id) THEN
        state := pgqueue._die_one(id, 'delivery_limit');
        RETURN;
    END IF;
    PERFORM pgqueue._signal(queue_id);
END $$;
COMMENT ON FUNCTION pgqueue.release IS
    'Give a task back: ready at its old place, or delayed. During the delay its lane goes on without it, or, with '
    'hold_lane, waits for it. With an error it counts as a failed attempt; the last attempt of max_takes makes it a '
    'dead letter, or buries it if no queue is bound for dead letters.';

-- End takes of many tasks. Returns the tasks of which a take ended, and the lowest and the highest of their queues. The
-- caller counts. By ctid after a probe by key for each: a join is planned as a scan of all of `take`, dead rows
-- included. The ids are locked in order: two calls with the same tasks cannot deadlock. A take that T2 was touching was
-- waited for, and has a new ctid, which this snapshot does not see: a second look finds it, and it is locked here.
CREATE OR REPLACE FUNCTION pgqueue._drop_takes(
    ids bigint[], tokens bigint[], session int, OUT dropped bigint[], OUT low int, OUT high int
)
LANGUAGE plpgsql AS $$
DECLARE
    moment  CONSTANT timestamptz := clock_timestamp();
    found   record;
BEGIN
    PERFORM pgqueue._check_takes(ids, tokens);
    session := CASE WHEN cardinality(array_remove(tokens, NULL)) = cardinality(ids) THEN NULL
                    ELSE pgqueue._named_session(session) END;
    dropped := '{}';
    FOR look IN 1..2 LOOP
        WITH gone AS (
            DELETE FROM pgqueue.take
             WHERE ctid = ANY (ARRAY (
                   SELECT (SELECT k.ctid FROM pgqueue.take k
                            WHERE k.task_id = asked.id AND k.deadline > moment
                              AND (k.token = asked.token
                                   OR asked.token IS NULL AND pgqueue._is_ours(k.session_id, _drop_takes.session))
                              FOR UPDATE)
                     FROM (SELECT u.id, u.token FROM unnest(ids, tokens) u(id, token) ORDER BY u.id) asked))
            RETURNING take.task_id, take.queue_id)
        SELECT array_agg(gone.task_id) AS ids, min(gone.queue_id) AS low, max(gone.queue_id) AS high INTO found
          FROM gone;
        dropped := dropped || found.ids;
        low := least(low, found.low);
        high := greatest(high, found.high);
        EXIT WHEN cardinality(dropped) >= cardinality(ids);
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._explain_refusals(ids bigint[], settled bigint[])
RETURNS TABLE (id bigint, state text, problem text, holder text)
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
        SELECT refused.id, t.state, pgqueue._problem(t.state), t.holder
          FROM (SELECT unnest(ids) EXCEPT SELECT unnest(settled)) refused(id)
          LEFT JOIN pgqueue._refused t ON t.id = refused.id
         ORDER BY refused.id;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.release_many(
    ids bigint[], tokens bigint[] DEFAULT NULL, session int DEFAULT NULL
) RETURNS TABLE (id bigint, state text, problem text, holder text)
LANGUAGE plpgsql AS $$
DECLARE
    dropped bigint[];
    q       record;
BEGIN
    SELECT d.dropped INTO dropped FROM pgqueue._drop_takes(ids, tokens, session) d;
    FOR q IN
        SELECT t.queue_id, array_agg(t.id) AS ids FROM pgqueue.task t WHERE t.id = ANY (dropped) GROUP BY t.queue_id
    LOOP
        INSERT INTO pgqueue.delta (queue_id, taken) VALUES (q.queue_id, -cardinality(q.ids));
        PERFORM pgqueue._note(q.queue_id, 'release', q.ids), pgqueue._signal(q.queue_id);
    END LOOP;
    IF cardinality(dropped) < cardinality(ids) THEN
        RETURN QUERY SELECT * FROM pgqueue._explain_refusals(ids, dropped);
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.release_many IS 'Give tasks back as they are; returns those that could not be given back.';

-- End a task's take, by any holder.
CREATE OR REPLACE FUNCTION pgqueue._drop_any_take(id bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    of_queue int;
BEGIN
    DELETE FROM pgqueue.take k WHERE k.task_id = _drop_any_take.id RETURNING k.queue_id INTO of_queue;
    IF FOUND THEN
        INSERT INTO pgqueue.delta (queue_id, taken) VALUES (of_queue, -1);
    END IF;
END $$;

-- For a transaction T1 that removes a task which another session may hold: a claim T2 may have been under way when T1
-- looked for the take. T2 has ended since, for T1 has the task's row. And T1, which has that row, must not wait for a
-- take: a take that is locked is being settled.
CREATE OR REPLACE FUNCTION pgqueue._drop_late_take(id bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    of_queue int;
BEGIN
    DELETE FROM pgqueue.take
     WHERE ctid = (SELECT k.ctid FROM pgqueue.take k WHERE k.task_id = _drop_late_take.id FOR UPDATE SKIP LOCKED)
    RETURNING take.queue_id INTO of_queue;
    IF FOUND THEN
        INSERT INTO pgqueue.delta (queue_id, taken) VALUES (of_queue, -1);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.bury(
    id          bigint,
    token       bigint DEFAULT NULL,
    error       text   DEFAULT NULL,
    priority    int    DEFAULT NULL,         -- from now on
    OUT state   text,
    OUT problem text,
    OUT holder  text
)
LANGUAGE plpgsql AS $$
DECLARE
    queue_id int;
BEGIN
    PERFORM pgqueue._check_text('an error', error);
    IF token IS NULL THEN
        PERFORM pgqueue._drop_any_take(id);
    ELSIF pgqueue._drop_take(id, token, NULL) IS NULL THEN
        SELECT * INTO state, problem, holder FROM pgqueue._explain_refusal(id);
        RETURN;
    END IF;
    UPDATE pgqueue.task t
       SET state = 'B', run_at = NULL, buried_at = coalesce(t.buried_at, clock_timestamp()),
           attempts = t.attempts + (bury.token IS NOT NULL AND bury.error IS NOT NULL)::int,
           error = coalesce(bury.error, t.error),
           priority = coalesce(bury.priority, t.priority),
           suspect = NULL,
           buries = coalesce(t.buries, 0) + 1
     WHERE t.id = bury.id AND t.state <> 'F'
    RETURNING t.queue_id INTO queue_id;
    IF FOUND THEN
        PERFORM pgqueue._drop_late_take(id);
        state := 'buried';
        IF token IS NULL THEN
            PERFORM pgqueue._check_guarded(queue_id, 'manage', is_named => false);
        END IF;
        PERFORM pgqueue._check_verb(queue_id, priority),
                pgqueue._note(queue_id, 'bury', ARRAY [id]);
        IF (SELECT q.dead_letter FROM pgqueue.queue q WHERE q.id = queue_id) IS NOT NULL THEN
            state := pgqueue._die_one(id, 'rejected');
        END IF;
    ELSE
        problem := 'not found';
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.bury IS
    'Set a task aside until it is kicked; where the queue has a dead_letter it goes there, and its state is dead. With '
    'a token, only the holder may bury; without one, any caller may, in any state, as in Tarantool''s queue.';

CREATE OR REPLACE FUNCTION pgqueue.touch(
    id          bigint,
    token       bigint   DEFAULT NULL,
    session     int      DEFAULT NULL,
    more        interval DEFAULT NULL,
    OUT state   text,
    OUT problem text,
    OUT holder  text
)
LANGUAGE plpgsql AS $$
DECLARE
    queue_id int;
BEGIN
    IF more IS NOT NULL THEN
        PERFORM pgqueue._check_time('more', more, zero => true);
    END IF;
    session := CASE WHEN token IS NULL THEN pgqueue._named_session(session) END;
    UPDATE pgqueue.take k
       SET deadline = CASE
               WHEN more IS NOT NULL THEN pgqueue._longer(k.deadline, more)
               ELSE greatest(k.deadline, (SELECT coalesce(pgqueue._deadline(clock_timestamp(), t.ttr, t.expires_at),
                                                            'infinity')
                                            FROM pgqueue.task t WHERE t.id = k.task_id))
           END
     WHERE k.task_id = touch.id AND k.deadline > clock_timestamp() AND k.session_id <> 0     -- claims: renew_claim
       AND (k.token = touch.token OR touch.token IS NULL AND pgqueue._is_ours(k.session_id, touch.session))
    RETURNING k.queue_id INTO queue_id;
    IF FOUND THEN
        state := 'taken';
        IF more > '0' THEN
            UPDATE pgqueue.task t SET expires_at = pgqueue._longer(t.expires_at, more)
             WHERE t.id = touch.id AND t.expires_at IS NOT NULL;
        END IF;
        PERFORM pgqueue._check_verb(queue_id, NULL, NULL, touch => true), pgqueue._note(queue_id, 'touch', ARRAY [id]);
    ELSE
        SELECT * INTO state, problem, holder FROM pgqueue._explain_refusal(id);
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.touch IS
    'Give the holder more time: add to the deadline and to the time to live, or set the deadline to the task''s ttr '
    'from now. A deadline that is later than that stays: a touch never shortens it.';

CREATE OR REPLACE FUNCTION pgqueue.time_left(ids bigint[], tokens bigint[])
RETURNS TABLE (id bigint, seconds double precision)
LANGUAGE plpgsql AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
BEGIN
    PERFORM pgqueue._check_takes(ids, tokens);
    RETURN QUERY
        SELECT k.task_id, CASE WHEN k.deadline < 'infinity' THEN extract(epoch FROM k.deadline - moment)::float8 END
          FROM unnest(time_left.ids, time_left.tokens) asked(id, token), pgqueue.take k
         WHERE k.task_id = asked.id AND k.token = asked.token AND k.deadline > moment;
END $$;
COMMENT ON FUNCTION pgqueue.time_left IS
    'In how many seconds these takes pass their deadlines; NULL: never. A take that has ended, or whose deadline has '
    'passed, has no row: its holder has lost the task.';
