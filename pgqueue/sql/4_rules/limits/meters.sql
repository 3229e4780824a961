-- Limits: how many tasks of a job, or of each value of an argument, run at once, or begin in a period. This file has
-- the meters; claims use them in admission.sql, and limits/setting.sql sets limits and follows their changes.
--
-- Theory of operation
-- -------------------
-- A limited task has a *meter* (task.meter): the limit's id and, if the limit has an argument, its value. Tasks of one
-- meter are counted together, by their states:
--
--   W       the task waits: no claim may take it
--   R, C    the task has a slot: it was admitted, and is taken, or has just been given back
--   others  delayed, buried, done: neither
--
-- So the slot is the state of the task itself. It lasts as long as the row is R, however often its holder is killed or
-- the server crashes, and it ends in the transaction in which the task ends, is buried, moved, or delayed, by
-- whatever statement. A table of slots would need a change at each of these ends. A count of takes would miss the tasks
-- whose takes a server crash has removed.
--
-- Only a claim makes a W an R, just before it takes the task. Two claims C1 and C2 could both count four tasks and each
-- admit a fifth. So a claim admits in a meter only with the meter's latch (latches.sql), which it tries, and keeps
-- until its transaction ends: then the next claim sees the tasks that it admitted. A statement that counts is newer
-- than the lock. This needs READ COMMITTED, and a claim at another level is refused. No settling takes the latch, or
-- locks the row of a limit: so a long transaction with a claim (or a pop) in it keeps other claims out of its
-- meters, and holds up nothing else.
--
-- Checks. A claim must not walk over the meters: there are as many as an argument has values. A meter in which
-- a task may begin has a row in meter_check, or a bucket that is due:
--
--   Invariant: if a meter has a W and a free slot, there is a row of it in meter_check, or a bucket with a due_at.
--
-- Two events can break it: a task of the meter becomes W, and one with a slot leaves it. The transaction of each leaves
-- a check, for the functions that count tasks see every event (count.sql, _tell_meters). A claim looks at the oldest
-- checks and deletes a check if, in a snapshot that sees it, all slots are taken or no W is left; for a limit by rate
-- it notes in the bucket when the next token is added. The argument is that of lanes.sql. Take the last event of a
-- meter, and the claim C2 that deletes its check: since the event, no task has become W and no slot has become free. An
-- ack T3 under way, whose R still counts for C2, is a later event, and leaves a later check. And no transaction T1
-- deletes its own check: T1 sees its own changes, but a T2 that commits before T1 does not, and T2's check may have
-- been deleted because of changes that T2 could not see.
--
-- This makes full meters cheap: 50,000 full keys have no check and no due bucket, and their tasks are not R. No claim
-- meets any of them. Checks are served in the order in which they were left, and those that a claim had to leave open
-- are put at the end, so that a busy key cannot keep others waiting indefinitely. The tasks that a claim finds, and
-- those without a limit, are taken in the order (priority, id).
--
-- Tasks that are R without admission. Not all paths that make a task R know of limits: a kick, a publish, a put that
-- read the queue's row before it had a limit. A task that was given back has a slot, but its second beginning needs a
-- token too, and its limit may have been lowered. So a claim in a queue with limits takes no R of a limited job: it
-- makes each one that it meets W, and then admits. At most 1000 in a claim: so a first limit on a queue with 100,000
-- ready tasks stops no claim for seconds, and next_due says 0 as long as such tasks are left.
--
-- Tokens. A bucket holds at most `burst` tokens, and gets `rate` in each period, by the database's clock; a claim
-- spends one for each task that it admits. So in any period at most rate + burst tasks begin. A clock that steps back
-- adds no tokens until the next look, which counts from the new time; one that steps forward fills one bucket.
--
-- A claim that starts behind a position (take.sql) looks only there for tasks that are R, and so does not walk over the
-- tasks in flight. Waiting tasks may begin at any position.
--
-- Lanes and limits exclude each other in one task: a put of both is refused. A queue may have tasks of both kinds.
--
-- Servers. Each server of a cluster has the row of a limit, and counts its own tasks by it. A limit with a home is
-- counted once: every server but its home refuses puts of its tasks, and a Cluster puts them at home. The rows of all
-- servers have the number of the home, so set_limit is called on each in the same way, and a put reads the server's own
-- number only if there is a home. Nothing else asks for it: a task that is on another server when the home is set, or
-- arrives there by a dead letter, a will or move_in, which have no caller to refuse, is counted by that server.

-- The value of an argument as it is written in a meter: JSON text, numbers without trailing zeros, long values by their
-- hash. Empty without the argument, or with null: all such tasks have one meter. Arguments of a job are keys of `args`;
-- data without `args` are searched directly.
CREATE OR REPLACE FUNCTION pgqueue._meter_value(data jsonb, argument text) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    value CONSTANT jsonb := coalesce(data -> 'args', data) -> argument;
    shown text;
BEGIN
    shown := CASE jsonb_typeof(value) WHEN 'null' THEN '' WHEN 'number' THEN trim_scale(value::numeric)::text
                                      ELSE value::text END;
    RETURN CASE WHEN octet_length(shown) > 200 THEN md5(shown) ELSE coalesce(shown, '') END;
END $$;

-- The limit of a task with this data; no row: it has none. The limit of its job precedes the queue's.
CREATE OR REPLACE FUNCTION pgqueue._limit_of(queue_id int, data jsonb) RETURNS SETOF pgqueue.task_limit
LANGUAGE sql STABLE AS $$
    SELECT l.* FROM pgqueue.task_limit l
     WHERE l.queue_id = _limit_of.queue_id AND NOT l.dropped
       AND (l.job IS NULL OR l.job = _limit_of.data ->> 'job')
     ORDER BY l.job LIMIT 1                        -- NULLs last
$$;

-- The meter of a task with this data, NULL if it has no limit.
CREATE OR REPLACE FUNCTION pgqueue._meter(queue_id int, data jsonb) RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT l.id || ':' || CASE WHEN l.argument IS NULL THEN '' ELSE pgqueue._meter_value(data, l.argument) END
              FROM pgqueue._limit_of(_meter.queue_id, _meter.data) l);
END $$;

-- Check that this server keeps a limit. A Cluster remembers the detail: the queue and the job of the task.
CREATE OR REPLACE FUNCTION pgqueue._check_home(home int, queue text, job text, data jsonb) RETURNS void
LANGUAGE plpgsql STABLE AS $$
DECLARE
    ours CONSTANT int := pgqueue.server_number();
BEGIN
    IF home <> ours THEN
        RAISE EXCEPTION 'server % keeps the limit of %, and this is server %: put its tasks there', home,
            CASE WHEN job IS NULL THEN format('queue "%s"', queue)
                 ELSE format('job "%s" in queue "%s"', job, queue) END, ours
            USING ERRCODE = 'PQ050', DETAIL = jsonb_build_object('queue', queue, 'job', data ->> 'job');
    END IF;
END $$;

-- As _meter, for a put: a task in a lane cannot have a limit, nor one whose limit another server keeps.
CREATE OR REPLACE FUNCTION pgqueue._meter_of_put(
    q pgqueue.queue, data jsonb, lane text, moved boolean DEFAULT false
) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    l record;
BEGIN
    SELECT o.id, o.job, o.argument, o.home INTO l FROM pgqueue._limit_of(q.id, data) o;
    IF NOT FOUND THEN
        RETURN NULL;
    ELSIF lane IS NOT NULL THEN
        RAISE EXCEPTION 'a task in a lane cannot have a limit: the task is for lane "%", and %', lane,
            CASE WHEN l.job IS NULL THEN format('queue "%s" has a limit', q.name)
                 ELSE format('its job "%s" has a limit in queue "%s"', l.job, q.name) END
            USING ERRCODE = 'PQ002', HINT = 'Put it without a lane, or drop the limit: pgqueue.drop_limit.';
    ELSIF l.home IS NOT NULL AND NOT moved THEN
        PERFORM pgqueue._check_home(l.home, q.name, l.job, data);
    END IF;
    RETURN l.id || ':' || CASE WHEN l.argument IS NULL THEN '' ELSE pgqueue._meter_value(data, l.argument) END;
END $$;

-- Make up to n tasks ready that wait for a dropped limit; returns how many.
CREATE OR REPLACE FUNCTION pgqueue._release_dropped(queue_id int, n int DEFAULT 1000) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    l     record;
    ids   bigint[];
    total int := 0;
BEGIN
    FOR l IN SELECT d.id FROM pgqueue.task_limit d WHERE d.queue_id = _release_dropped.queue_id AND d.dropped LOOP
        ids := ARRAY (
            SELECT t.id FROM pgqueue.task t
             WHERE t.queue_id = _release_dropped.queue_id AND t.meter >= l.id || ':' AND t.meter < l.id || ';'
               AND t.state = 'W'
             ORDER BY t.meter, t.state, t.priority, t.id LIMIT n - total FOR UPDATE SKIP LOCKED);
        PERFORM pgqueue._end_limit_wait(ids, admitted => false);
        total := total + cardinality(ids);
    END LOOP;
    RETURN total;
END $$;

-- Open a meter for admission: its latch is taken, and its slots and tokens are counted, by statements that are newer.
-- ids: up to n tasks that may begin, with their rows locked. room and tokens NULL: no limit. is_open false: another
-- claim has the latch.
--
-- Here and in _close_meter the states are variables. With literals the planner could prove that the indexes of ready
-- and of waiting tasks serve as well, and without statistics it chooses them: then a claim reads the tasks of all
-- meters.
CREATE OR REPLACE FUNCTION pgqueue._open_meter(
    queue_id int, meter text, n int, suspects boolean,
    OUT is_open boolean, OUT ids bigint[], OUT room int, OUT tokens float8, OUT pace float8, OUT moment timestamptz
)
LANGUAGE plpgsql AS $$
DECLARE
    ready      CONSTANT "char" := 'R';
    cancelling CONSTANT "char" := 'C';
    waiting    CONSTANT "char" := 'W';
    l record;
BEGIN
    ids := '{}';
    is_open := pgqueue._latched(queue_id, meter);
    IF NOT is_open THEN
        RETURN;
    END IF;
    moment := clock_timestamp();
    SELECT r.concurrency, r.rate, r.burst, extract(epoch FROM r.period)::float8 AS period, b.tokens, b.filled_at INTO l
      FROM pgqueue.task_limit r
      LEFT JOIN pgqueue.bucket b ON b.queue_id = _open_meter.queue_id AND b.meter = _open_meter.meter
     WHERE r.id = split_part(_open_meter.meter, ':', 1)::int AND r.queue_id = _open_meter.queue_id AND NOT r.dropped;
    IF NOT FOUND THEN                              -- dropped: they wait for nothing
        PERFORM pgqueue._end_limit_wait(admitted => false, ids => ARRAY (
            SELECT t.id FROM pgqueue.task t
             WHERE t.queue_id = _open_meter.queue_id AND t.meter = _open_meter.meter AND t.state = 'W'
             LIMIT 1000 FOR UPDATE SKIP LOCKED));
        RETURN;
    END IF;
    IF l.concurrency IS NOT NULL THEN
        room := l.concurrency - (
            SELECT count(*)
              FROM (SELECT FROM pgqueue.task t
                     WHERE t.queue_id = _open_meter.queue_id AND t.meter = _open_meter.meter
                       AND t.state = ready AND t.state <> 'F'
                     LIMIT l.concurrency) slots)
          - (SELECT count(*)
               FROM (SELECT FROM pgqueue.task t
                      WHERE t.queue_id = _open_meter.queue_id AND t.meter = _open_meter.meter
                        AND t.state = cancelling AND t.state <> 'F'
                      LIMIT l.concurrency) slots);
    END IF;
    IF l.rate IS NOT NULL THEN
        pace := l.rate / l.period;
        tokens := least(l.burst, coalesce(
                      l.tokens + greatest(0, extract(epoch FROM moment - l.filled_at)::float8 * pace), l.burst));
    END IF;
    n := least(n, room, floor(tokens));
    IF n > 0 THEN
        ids := ARRAY (SELECT t.id FROM pgqueue.task t
                       WHERE t.queue_id = _open_meter.queue_id AND t.meter = _open_meter.meter
                         AND t.state = waiting AND t.state <> 'F'
                         AND (t.expires_at IS NULL OR t.expires_at > moment)
                         AND (t.suspect IS NULL OR suspects)
                       ORDER BY t.priority, t.id LIMIT n FOR UPDATE SKIP LOCKED);
    END IF;
END $$;

-- Close a meter that this transaction opened, after it has admitted tasks. Returns whether it needs no check: then no
-- task waits, or no slot is free, or its bucket says when to look again.
CREATE OR REPLACE FUNCTION pgqueue._close_meter(
    queue_id int, meter text, admitted int, room int, tokens float8, pace float8, moment timestamptz
) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    waiting   CONSTANT "char"  := 'W';
    rest      CONSTANT boolean := coalesce(room - admitted, 1) > 0 AND (
        SELECT t.id FROM pgqueue.task t
         WHERE t.queue_id = _close_meter.queue_id AND t.meter = _close_meter.meter
           AND t.state = waiting AND t.state <> 'F'
           AND (t.expires_at IS NULL OR t.expires_at > clock_timestamp())
         ORDER BY t.priority, t.id LIMIT 1) IS NOT NULL;
    left_over CONSTANT float8 := tokens - admitted;
BEGIN
    IF tokens IS NULL THEN
        RETURN NOT rest;
    END IF;
    INSERT INTO pgqueue.bucket AS b (queue_id, meter, tokens, filled_at, due_at)
    VALUES (_close_meter.queue_id, _close_meter.meter, left_over, moment,
            CASE WHEN rest THEN moment + greatest(0, (1 - left_over) / pace) * interval '1 s' END)
        ON CONFLICT ON CONSTRAINT bucket_pkey DO UPDATE
           SET tokens = excluded.tokens, filled_at = excluded.filled_at, due_at = excluded.due_at;
    RETURN true;
END $$;
