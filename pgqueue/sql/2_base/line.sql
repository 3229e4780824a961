-- The line: which of the waiting processes a put wakes.
--
-- Theory of operation
-- -------------------
-- Of 50 processes that wait for one task, 49 would look in vain, and the quickest of them would win, not the first. So
-- each process enters a line, and a put of n tasks calls the first n: it deletes their rows, and notifies each on the
-- channel of its session alone. The gate of wake.sql decides when a put may do so.
--
-- The table `line` has one row for each process and queue, made by the listener's connection some milliseconds after
-- its longest-waiting taker began to wait. The row is that taker's place; when it has been called, the next taker of
-- the process gets a row. A put deletes rows that it can lock, and passes over the others:
--
--   T1 calls P and stays open   T2 passes over P's row and calls the next. P hears of T1 when that commits.
--   T1 rolls back               P's row is there again, and no notification was sent.
--   T1 is at REPEATABLE READ    it wakes everyone: a row that was deleted since its snapshot would be an error.
--   fewer in line than tasks    T1 wakes everyone.
--
-- The line decides only the order. A missing row (the table was truncated, or could not be written) or a surplus one
-- costs order and a needless look. Each listener checks from time to time that its rows are still there.
--
-- A process that is called must take a task, look after the call and find none, or pass the call on. The client does so
-- (takes.py): a called taker that takes nothing and does not go on waiting passes its call on, and so does a process
-- that is called when no taker of it waits. One case remains:
--
-- The net. A process that was called and then stops (SIGSTOP, a full interpreter), or dies, strands its task while the
-- others sleep. A tick that finds a queue in line with a task ready, at two ticks running, calls again, and at the next
-- one wakes everyone (4_rules/unanswered.sql). Comparing the task's id does not work while tasks flow: each later call
-- takes the oldest task, so the stranded task is another one each time. The net looks only at the line, since a process
-- that waits and is not in line hears every put (wake.sql).
--
-- Dead rows. Under a held snapshot the rows of earlier calls cannot be removed, and each call walks over them: after
-- 10,000 calls for 0.6 ms. A connection that walked for more than 1 ms remembers where the live rows began, in a
-- setting, and starts there for twenty times as long as the walk took, but for 0.2 s at most: until then it passes over
-- a row before that place, of a taker that was called in vain and came back.

-- Whether the line can be written without waiting: nowait.sql. As _can_write, but the statement is parsed only once.
CREATE OR REPLACE FUNCTION pgqueue._can_call() RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    LOCK TABLE pgqueue.line IN ROW EXCLUSIVE MODE NOWAIT;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._call_channel(session int) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 'pgqueue:call:' || session;

-- Where this connection begins to look for the live rows of a queue: the setting is `queue first until`, both moments
-- in seconds since 1970.
CREATE OR REPLACE FUNCTION pgqueue._line_start(queue_id int) RETURNS timestamptz
LANGUAGE plpgsql AS $$
DECLARE
    hint CONSTANT text := current_setting('pgqueue.line', true);
BEGIN
    IF hint ~ '^[0-9]{1,10} [0-9]{1,10}\.[0-9]{6} [0-9]{1,10}\.[0-9]{6}$'
       AND split_part(hint, ' ', 1) = _line_start.queue_id::text
       AND split_part(hint, ' ', 3)::numeric > extract(epoch FROM clock_timestamp()) THEN
        RETURN to_timestamp(split_part(hint, ' ', 2)::double precision);
    END IF;
    RETURN timestamptz '-infinity';
END $$;

-- Call the first n in line that no other transaction is calling; returns how many there were. Only at READ COMMITTED.
CREATE OR REPLACE FUNCTION pgqueue._call(queue_id int, n int) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    began  CONSTANT timestamptz := clock_timestamp();
    own    CONSTANT text        := current_setting('pgqueue.session', true);
    start  timestamptz := pgqueue._line_start(queue_id);
    first  timestamptz;
    called int := 0;
    found_any boolean;
    took   interval;
    place  record;
BEGIN
    IF NOT pgqueue._can_call() THEN
        RETURN 0;
    END IF;
    LOOP
        found_any := false;
        FOR place IN
            DELETE FROM pgqueue.line
             WHERE ctid = ANY (ARRAY (SELECT l.ctid FROM pgqueue.line l
                                       WHERE l.queue_id = _call.queue_id AND l.since >= start
                                       ORDER BY l.since LIMIT n - called FOR UPDATE SKIP LOCKED))
            RETURNING line.session_id, line.since
        LOOP
            found_any := true;
            first := least(first, place.since);
            -- A session that is dead cannot answer. Its own lock is invisible to a connection.
            IF place.session_id::text = own
               OR (CASE WHEN pg_try_advisory_lock_shared(pgqueue._session_lock(), place.session_id)
                        THEN NOT pg_advisory_unlock_shared(pgqueue._session_lock(), place.session_id)
                        ELSE true END) THEN
                -- With `since`: PostgreSQL sends only one of a transaction's notifications that are equal.
                PERFORM pgqueue._notify(pgqueue._call_channel(place.session_id),
                                        queue_id || ' ' || extract(epoch FROM place.since));
                called := called + 1;
            END IF;
        END LOOP;
        EXIT WHEN called = n OR NOT found_any AND start = '-infinity';
        IF NOT found_any THEN
            start := '-infinity';
        END IF;
    END LOOP;
    took := clock_timestamp() - began;
    IF start = '-infinity' AND first IS NOT NULL AND took > '1 ms' THEN
        PERFORM set_config('pgqueue.line', format('%s %s %s', queue_id, extract(epoch FROM first), extract(
                               epoch FROM clock_timestamp() + least(20 * took, '0.2 s'))), false);
    END IF;
    RETURN called;
END $$;

-- A session ends, or comes back on another connection, where it enters the line again. If the table is locked its rows
-- stay, and puts drop them.
CREATE OR REPLACE FUNCTION pgqueue._leave_lines(session int) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF pgqueue._can_call() THEN
        DELETE FROM pgqueue.line
         WHERE ctid = ANY (ARRAY (SELECT l.ctid FROM pgqueue.line l
                                   WHERE l.session_id = _leave_lines.session FOR UPDATE SKIP LOCKED));
    END IF;
END $$;
