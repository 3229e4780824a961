-- The moves of tasks: one function for each change of a task's state.
--
-- 1_tables/schema.sql has the states. Each row of this table is written once, in the function that it names; the verbs
-- call that. A move that is marked `inline` is on the hot path, where the call would cost too much: the verb has a copy
-- of the statement. tests/sql/test_moves.py compares each copy with its function, and finds any other statement that
-- changes a state, or deletes a task or a take.
--
--   from            to            function          because of                               inline
--   none            R D L W       puts              put.sql, together.sql, special.sql
--   R               taken         claims            take.sql, heads.sql
--   R D L W B       taken         _call_up          take_id, which makes it R first
--   taken           R             _given_back       release_many, release_all, undo_take, release_claim, a passed
--                                                   deadline, the death of a session
--   taken           R D W         _come_back        release, requeue                         release
--   taken           R L           _move_behind      requeue, which gives it a new id
--   taken           B             _bury             bury                                     bury
--   taken           C             _ask_holders      cancel
--   taken, R        F             _keep_tasks       ack and pop, in a queue with keep_done
--   taken           gone          _delete_tasks     ack, delete, pop                         ack, ack_many
--   C               gone          _end_cancelled    the end of its take
--   D B W           R L W         _make_ready       a time that is due, a kick, the end of other tasks
--   W               D             _delay            the end of other tasks
--   R               W             _await_slots      a claim that finds no place in its limit
--   W               R             _end_limit_wait   a claim that finds one, or the end of the limit
--   L               R             _unblock          an event in its lane (count.sql)
--   R D L W         B             _bury             a death (dead.sql), the failure of other tasks
--   R D L W B       R D           _move             a death, which moves it into another queue (dead.sql)
--   R D L W B       R D L W       _put_over         a put with the same key, which replaces it
--   any but F       gone          _delete_tasks     delete, truncate_queue, a death; _end_cancelled: cancel
--   F               gone          _delete_tasks     the end of keep_done
--
-- Consequences. For each move these are written once too:
--
--   counts, room in a queue with a     by the trigger count_updates after every UPDATE, by _delete_tasks, and by the
--   capacity, lanes, slots of limits   puts: count.sql. The row before and the row after say all of it.
--   takes                              untake.sql counts each take that ends
--   flows, cancellations               _follow, for followed tasks that end or are buried: follow.sql
--   calls, observers                   _note, with the verb
--   waiting takers                     _signal, if a task became ready; also if it became delayed, since takers sleep
--                                      until the next time that is due
--
-- A state is compared with a variable where a literal would let the planner choose the partial index of all tasks in
-- that state: see _open_meter in limits/meters.sql.

-- Tasks whose takes have ended are ready again, and their rows stay as they were. A task that was cancelled ends
-- instead; one that is locked is left to the tick (cancelled.sql). verb: as the move is counted; NULL: it is not.
CREATE OR REPLACE FUNCTION pgqueue._given_back(queues int[], ids bigint[], verb text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    q         record;
    cancelled bigint[];
BEGIN
    FOR q IN
        SELECT u.queue_id AS id, array_agg(u.id) AS ids FROM unnest(queues, ids) u(queue_id, id) GROUP BY u.queue_id
    LOOP
        IF verb IS NOT NULL THEN
            PERFORM pgqueue._note(q.id, verb, q.ids);
        END IF;
        cancelled := ARRAY (SELECT t.id FROM pgqueue.task t WHERE t.id = ANY (q.ids) AND t.followed AND t.state = 'C');
        IF cancelled <> '{}' THEN
            PERFORM pgqueue._end_cancelled(q.id, pgqueue._untaken(ARRAY (
                        SELECT t.id FROM pgqueue.task t WHERE t.id = ANY (cancelled) AND t.state = 'C'
                         ORDER BY t.id FOR UPDATE SKIP LOCKED)));
        END IF;
        PERFORM pgqueue._signal(q.id, cardinality(q.ids));
    END LOOP;
END $$;

-- A task comes back from its take, ready at its place, or waiting for other tasks; one that was cancelled stays so, and
-- the caller ends it. R is the safe state in a lane (lanes.sql). An inline copy is in release (settle.sql).
CREATE OR REPLACE FUNCTION pgqueue._come_back(id bigint) RETURNS "char"
LANGUAGE plpgsql AS $$
DECLARE
    stored "char";
BEGIN
    UPDATE pgqueue.task t
       SET state = CASE WHEN t.state = 'C' THEN 'C' WHEN t.followed AND pgqueue._ready_state(t) = 'W' THEN 'W'
                        ELSE 'R' END,
           run_at = NULL, holds_lane = NULL, suspect = NULL, killed_after = NULL, releases = coalesce(t.releases, 0) + 1
     WHERE t.id = _come_back.id
    RETURNING t.state INTO stored;
    RETURN stored;
END $$;

-- A task comes back behind all others of its priority, by a new id. NULL: other rows name it by its id, so it keeps its
-- place.
CREATE OR REPLACE FUNCTION pgqueue._move_behind(id bigint, OUT new_id bigint, OUT stored "char")
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE pgqueue.task t
       SET id = DEFAULT, state = CASE WHEN t.lane IS NULL THEN 'R' ELSE 'L' END,
           suspect = NULL, killed_after = NULL, releases = coalesce(t.releases, 0) + 1
     WHERE t.id = _move_behind.id AND t.followed IS NULL
    RETURNING t.id, t.state INTO new_id, stored;
    IF FOUND THEN
        UPDATE pgqueue.attempt a SET task_id = new_id WHERE a.task_id = _move_behind.id;
        UPDATE pgqueue.step s SET task_id = new_id WHERE s.task_id = _move_behind.id;
    END IF;
END $$;

-- Tasks of a queue, locked by the caller, become ready, blocked, or waiting for others. verb: delay, of delayed tasks
-- that are due; kick, of buried or delayed ones; NULL, of tasks that waited. Returns how many.
CREATE OR REPLACE FUNCTION pgqueue._make_ready(queue_id int, ids bigint[], verb text) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    kicked CONSTANT boolean := verb IS NOT DISTINCT FROM 'kick';
    n      int;
BEGIN
    UPDATE pgqueue.task t
       SET state = CASE WHEN t.followed THEN pgqueue._ready_state(t) WHEN t.lane IS NULL THEN 'R' ELSE 'L' END,
           run_at = NULL, ready_at = CASE verb WHEN 'delay' THEN t.run_at ELSE clock_timestamp() END,
           attempts = CASE WHEN kicked AND t.state = 'B' THEN 0 ELSE t.attempts END, buried_at = NULL,
           suspect = CASE WHEN NOT kicked THEN t.suspect END,
           killed_after = CASE WHEN NOT kicked THEN t.killed_after END,
           kicks = CASE WHEN kicked THEN coalesce(t.kicks, 0) + 1 ELSE t.kicks END
     WHERE t.id = ANY (ids);
    GET DIAGNOSTICS n = ROW_COUNT;
    IF n > 0 THEN
        IF verb IS NOT NULL THEN
            PERFORM pgqueue._note(queue_id, verb, ids);
        END IF;
        PERFORM pgqueue._signal(queue_id, n);
    END IF;
    RETURN n;
END $$;

-- Tasks that waited are delayed until these times.
CREATE OR REPLACE FUNCTION pgqueue._delay(ids bigint[], times timestamptz[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE pgqueue.task t SET state = 'D', run_at = u.run_at
      FROM unnest(ids, times) u(id, run_at) WHERE t.id = u.id;
END $$;

-- Ready tasks that a claim has found and must not take wait for a slot of their meters. Only those without a take: the
-- snapshot that found them may be too old.
CREATE OR REPLACE FUNCTION pgqueue._await_slots(ids bigint[], meters text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    ready CONSTANT "char" := 'R';
BEGIN
    UPDATE pgqueue.task t SET state = 'W', meter = u.meter
      FROM unnest(ids, meters) u(id, meter)
     WHERE t.id = u.id AND t.state = ready
       AND (SELECT k.task_id FROM pgqueue.take k WHERE k.task_id = t.id) IS NULL;
END $$;

-- Tasks that waited for a slot have it, or, with admitted false, need none any more. Returns their meters.
CREATE OR REPLACE FUNCTION pgqueue._end_limit_wait(ids bigint[], admitted boolean) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    waiting CONSTANT "char" := 'W';
    meters  text[];
BEGIN
    WITH new AS (
        UPDATE pgqueue.task t SET state = 'R', meter = CASE WHEN admitted THEN t.meter END
         WHERE t.id = ANY (ids) AND t.state = waiting
        RETURNING t.meter)
    SELECT array_agg(new.meter) INTO meters FROM new;
    RETURN meters;
END $$;

-- Make a task ready that the caller takes by its id, in whichever state it is. since: from when on it counts as ready;
-- NULL: as before.
CREATE OR REPLACE FUNCTION pgqueue._call_up(
    id bigint, meter text DEFAULT NULL, since timestamptz DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE pgqueue.task t
       SET state = 'R', run_at = NULL, buried_at = NULL, ready_at = coalesce(since, t.ready_at),
           meter = coalesce(_call_up.meter, t.meter)
     WHERE t.id = _call_up.id;
END $$;

-- Bury tasks; errors: for which reason each was buried, by another cause than its death. An inline copy is in bury
-- (settle.sql).
CREATE OR REPLACE FUNCTION pgqueue._bury(ids bigint[], errors text[] DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    marked record;
BEGIN
    WITH buried AS (
        UPDATE pgqueue.task t
           SET state = 'B', run_at = NULL, buried_at = coalesce(t.buried_at, clock_timestamp()),
               error = coalesce(u.error, t.error),
               buries = CASE WHEN errors IS NULL THEN t.buries ELSE coalesce(t.buries, 0) + 1 END
          FROM unnest(_bury.ids, errors) u(id, error) WHERE t.id = u.id
        RETURNING t.id, t.queue_id, t.followed)
    SELECT array_agg(b.id) AS ids, array_agg(b.queue_id) AS queues INTO marked FROM buried b WHERE b.followed;
    PERFORM pgqueue._follow_each(marked.queues, marked.ids, 'buried');
END $$;

-- A put with the key of this task, which is locked and not taken, replaces it.
CREATE OR REPLACE FUNCTION pgqueue._put_over(
    id bigint, q pgqueue.queue, s pgqueue.specification, later timestamptz
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
BEGIN
    UPDATE pgqueue.task t
       SET data = s.data, priority = coalesce(s.priority, q.priority), ttr = coalesce(s.ttr, q.ttr),
           expires_at = coalesce(later, moment) + coalesce(s.ttl, q.ttl),
           run_at = later, ready_at = CASE WHEN later IS NULL THEN moment END, buried_at = NULL,
           attempts = 0, error = NULL, suspect = NULL, killed_after = NULL, lane = s.lane,
           holds_lane = NULL, sender = s.sender, meter = NULL,
           state = CASE WHEN later IS NOT NULL THEN 'D' WHEN t.followed AND pgqueue._ready_state(t) = 'W' THEN 'W'
                        WHEN s.lane IS NULL THEN 'R' ELSE 'L' END      -- t has the lane that it leaves
     WHERE t.id = _put_over.id;
    PERFORM pgqueue._note(q.id, 'put', ARRAY [id]), pgqueue._signal(q.id, CASE WHEN later IS NULL THEN 1 END);
END $$;

-- The channel on which a session hears that tasks which it, or a session within it, holds were cancelled. The payload
-- has their ids, and is a hint, as every notification: the client verifies it by cancelled_takes.
CREATE OR REPLACE FUNCTION pgqueue._session_channel(session int) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 'pgqueue:session:' || session;

-- Mark these taken tasks as cancelled (state C), each with a row that has the reason, and notify their holders. A task
-- that is C already keeps its reason. A take that is not being settled stays locked until this transaction ends: sweeps
-- and deadlines leave it alone until then, and a touch does not wait.
CREATE OR REPLACE FUNCTION pgqueue._ask_holders(ids bigint[], reason text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    portion CONSTANT int         := 350;           -- as in _tell_change
    moment  CONSTANT timestamptz := clock_timestamp();
BEGIN
    PERFORM FROM pgqueue.take k WHERE k.task_id = ANY (ids) ORDER BY k.task_id FOR KEY SHARE SKIP LOCKED;
    INSERT INTO pgqueue.cancellation (task_id, asked_at, role, reason)
    SELECT u.id, moment, pgqueue._caller(), _ask_holders.reason FROM unnest(ids) u(id) ON CONFLICT DO NOTHING;
    UPDATE pgqueue.task t SET state = 'C', followed = true WHERE t.id = ANY (ids);
    PERFORM pgqueue._notify(pgqueue._session_channel(h.session_id), array_to_string(h.ids [n : n + portion - 1], ','))
       FROM (SELECT coalesce(s.parent, k.session_id) AS session_id, array_agg(k.task_id) AS ids
               FROM pgqueue.take k LEFT JOIN pgqueue.session s ON s.id = k.session_id
              WHERE k.task_id = ANY (_ask_holders.ids) AND k.session_id <> 0 GROUP BY 1) h,
            generate_series(1, cardinality(h.ids), portion) n;
END $$;
