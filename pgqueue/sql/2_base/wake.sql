-- Waking takers: a put sends NOTIFY, but only when a taker waits.
--
-- Theory of operation
-- -------------------
-- A commit that notifies holds a lock over the whole server while it flushes its log, so notifying on every put makes
-- all producers of the server queue up behind one disk. Asking "does a taker wait?" first is not enough: the answer is
-- as old as the question, the task is invisible until the commit, and a taker that looks and falls asleep in between
-- sees neither the task nor a notification. Two advisory locks on the queue's bucket close that hole:
--
--   WAITER(k)  shared, held by the listener connection of every process with a taker asleep on k; freed by its death.
--   SILENT(k)  shared, held until the end of its transaction by every producer that decided to keep silent.
--
--   producer (a transaction that puts)             taker (arm, then a claim on another connection)
--   P1 WAITER(k) held?  -> notify                  T1 LISTEN
--   P2 share SILENT(k), refused? -> notify         T2 share WAITER(k)
--   P3 WAITER(k) held?  -> notify                  T3 exclusive SILENT(k), and free it again: the drain of SILENT
--      keep silent                                 T4 claim in a new snapshot; nothing there: sleep
--
-- A silent producer saw WAITER free at P3, so its P2 precedes T2 and T3: the drain succeeds only once the producer has
-- ended, and the claim at T4 sees its task. A producer that notified committed before T4's snapshot, or after the
-- taker's LISTEN was committed. The lock table knows no snapshots, so all of this holds for producers at REPEATABLE
-- READ too. P1 keeps producers off SILENT while takers wait; without it their overlapping shares would starve the
-- drain.
--
-- No call blocks except arm, for the microseconds of a producer's probe: producers try, and so does the drain. While
-- the drain fails (a producer's long transaction is open), the taker polls instead of sleeping. A lock call that waits
-- would hold a snapshot, and vacuum, for as long.
--
-- Queues share 1024 buckets, so that a transaction which puts into thousands of queues cannot fill the lock table. A
-- collision, or two producers that probe in the same microsecond, costs one needless NOTIFY.
--
-- A session's own lock is invisible to its own probe. So a function that makes tasks ready on a listener connection
-- (sweep, promote_all, undo_take) always notifies: arm leaves a mark on the connection.
--
-- In turn
-- -------
-- A put that notifies need not wake everyone: line.sql has the line of processes, of which it calls the first. But a
-- process P that waits and is not in line would miss it, and P stays out of the line while it is alone, since to enter
-- costs a statement and a row for each task. So the line has the same gate as the notification:
--
--   HEARING(k)  shared, held by the listener of every process that has to hear of every put, as WAITER(k) is.
--   CALLING(k)  shared, held until the end of its transaction by every producer that called, and did not wake everyone.
--
--   producer, once it is to notify                 P
--   P4 HEARING(k) held?  -> wake everyone          T2 share WAITER(k), and HEARING(k); is WAITER(k) no other
--   P5 share CALLING(k), refused? -> everyone         process's? Else free HEARING(k), and enter the line
--   P6 HEARING(k) held?  -> everyone               T3 drain SILENT(k), and CALLING(k)
--      call the first in line                      T4 claim in a new snapshot; nothing there: sleep
--
-- The proof is the same: the producer that only called has ended before P's T4, or it found HEARING held. So each
-- process that sleeps hears every put or is in line, or will be in some milliseconds; and the net (line.sql) sees the
-- processes in line. Whether P really is alone matters only for speed: the proof does not depend on it. When another
-- process enters the line and finds HEARING held, it says `come` on the channels of the bucket's queues; P then enters,
-- and frees HEARING. If P is stopped (SIGSTOP) it does neither, and every put wakes all others: the cost is that
-- without the line.
--
-- A client that does not know of the line arms without in_turn, and hears of every put.
--
-- Without notifying
-- -----------------
-- PostgreSQL prepares no transaction that notifies (PREPARE TRANSACTION), and a put notifies as soon as a taker waits.
-- So a transaction that is to be prepared says SET LOCAL pgqueue.notify = off, and keeps silent at P3. Takers that
-- sleep find its task when they look again. Those that arm before it has ended fail to drain SILENT, and poll.

CREATE OR REPLACE FUNCTION pgqueue._channel(queue_id int) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 'pgqueue:' || queue_id;

-- Say that the queue may have n more tasks to take: NOTIFY at commit if a taker waits. n NULL: a number that is not
-- known, or news for every taker, for example of a task that will be due. More than 64 calls cost more than the looks
-- that they save. Called by every function that makes a task ready or due.
CREATE OR REPLACE FUNCTION pgqueue._signal(queue_id int, n int DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    k CONSTANT int := pgqueue._bucket(queue_id);
BEGIN
    -- Each probe takes and frees the lock in one expression, with no chance to be interrupted in between.
    IF current_setting('pgqueue.armed', true) = 'yes'
       OR (CASE WHEN pg_try_advisory_lock(pgqueue._waiter_lock(), k)
                THEN NOT pg_advisory_unlock(pgqueue._waiter_lock(), k) ELSE true END)
       OR NOT pg_try_advisory_xact_lock_shared(pgqueue._silent_lock(), k)
       OR (CASE WHEN pg_try_advisory_lock(pgqueue._waiter_lock(), k)
                THEN NOT pg_advisory_unlock(pgqueue._waiter_lock(), k) ELSE true END)
    THEN
        IF current_setting('pgqueue.notify', true) = 'off' THEN
            PERFORM pg_try_advisory_xact_lock_shared(pgqueue._silent_lock(), k);
        ELSIF n IS NULL OR n > 64 OR current_setting('transaction_isolation') <> 'read committed'
           OR (CASE WHEN pg_try_advisory_lock(pgqueue._hearing_lock(), k)
                    THEN NOT pg_advisory_unlock(pgqueue._hearing_lock(), k) ELSE true END)
           OR NOT pg_try_advisory_xact_lock_shared(pgqueue._calling_lock(), k)
           OR (CASE WHEN pg_try_advisory_lock(pgqueue._hearing_lock(), k)
                    THEN NOT pg_advisory_unlock(pgqueue._hearing_lock(), k) ELSE true END)
           OR pgqueue._call(queue_id, n) < n
        THEN
            PERFORM pgqueue._notify(pgqueue._channel(queue_id), '');
        END IF;
    END IF;
END $$;

-- Whether another connection waits on the bucket. For a connection that waits itself and does not see its own lock.
CREATE OR REPLACE FUNCTION pgqueue._others_wait(k int) RETURNS boolean
LANGUAGE sql RETURN CASE WHEN pg_try_advisory_lock(pgqueue._waiter_lock(), k)
                         THEN NOT pg_advisory_unlock(pgqueue._waiter_lock(), k) ELSE true END;

-- Hear of every put from now on, if no other process waits and no put that only called is open: T2 and T3.
CREATE OR REPLACE FUNCTION pgqueue._hear_alone(k int) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT pg_try_advisory_lock_shared(pgqueue._hearing_lock(), k) THEN
        RETURN false;
    ELSIF pgqueue._others_wait(k) OR NOT pg_try_advisory_xact_lock(pgqueue._calling_lock(), k) THEN
        PERFORM pg_advisory_unlock_shared(pgqueue._hearing_lock(), k);
        RETURN false;
    END IF;
    RETURN true;
END $$;

-- Hear of every put from now on, also while other takers wait. Returns whether the puts that only called have ended.
CREATE OR REPLACE FUNCTION pgqueue._hear(queue_id int) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    k CONSTANT int := pgqueue._bucket(queue_id);
BEGIN
    IF NOT pg_try_advisory_lock_shared(pgqueue._hearing_lock(), k) THEN                -- a put probes
        PERFORM pgqueue._await_lock(
                    pgqueue._hearing_lock(), k, true, true, '1 s', 'takers that hear of queue ' || queue_id);
    END IF;
    RETURN pg_try_advisory_xact_lock(pgqueue._calling_lock(), k) IS TRUE;
END $$;

-- A negated id is the channel of puts that wait for room (special.sql), which has no line.
CREATE OR REPLACE FUNCTION pgqueue.disarm(queue_ids int[], in_line int[] DEFAULT '{}') RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    queue_id int;
BEGIN
    FOREACH queue_id IN ARRAY coalesce(queue_ids, '{}') LOOP
        IF pg_advisory_unlock_shared(pgqueue._waiter_lock(), pgqueue._bucket(queue_id)) THEN END IF;
        IF queue_id > 0 AND queue_id <> ALL (coalesce(in_line, '{}')) THEN
            IF pg_advisory_unlock_shared(pgqueue._hearing_lock(), pgqueue._bucket(queue_id)) THEN END IF;
        END IF;
    END LOOP;
END $$;
COMMENT ON FUNCTION pgqueue.disarm IS
    'For clients: no taker of this process sleeps on these queues any more, so puts need not notify for it. in_line: '
    'the queues among them for which arm or enter_line returned hears = false.';

CREATE OR REPLACE FUNCTION pgqueue.arm(queue_ids int[], in_turn boolean DEFAULT false)
RETURNS TABLE (queue_id int, drained boolean, hears boolean)
LANGUAGE plpgsql AS $$
DECLARE
    held  int[] := ARRAY[]::int[];
    quiet int[] := ARRAY[]::int[];
BEGIN
    PERFORM set_config('pgqueue.armed', 'yes', false);
    FOREACH queue_id IN ARRAY coalesce(queue_ids, '{}') LOOP
        IF NOT pg_try_advisory_lock_shared(pgqueue._waiter_lock(), pgqueue._bucket(queue_id)) THEN   -- a put probes
            PERFORM pgqueue._await_lock(
                        pgqueue._waiter_lock(), pgqueue._bucket(queue_id), true, true, '1 s',
                        'takers that wait for queue ' || queue_id);
        END IF;
        held := held || queue_id;
        quiet := quiet || queue_id;
        drained := true;
        IF queue_id > 0 AND in_turn THEN
            hears := pgqueue._hear_alone(pgqueue._bucket(queue_id));
        ELSE
            hears := true;
            drained := queue_id < 0 OR pgqueue._hear(queue_id);
        END IF;
        IF hears THEN
            quiet := quiet [:cardinality(quiet) - 1];
        END IF;
        drained := pg_try_advisory_xact_lock(pgqueue._silent_lock(), pgqueue._bucket(queue_id)) AND drained;
        RETURN NEXT;
    END LOOP;
EXCEPTION WHEN query_canceled OR OTHERS THEN       -- a rollback does not free the locks, and the client arms again
    PERFORM pgqueue.disarm(held, quiet);
    RAISE;
END $$;
COMMENT ON FUNCTION pgqueue.arm IS
    'For clients, on a listener connection in autocommit, before a taker sleeps (steps T2 and T3 of wake.sql): puts '
    'into these queues notify from now on. drained: a claim that finds nothing may conclude that the queue is empty. '
    'With in_turn a client whose process does not hear of every put has to call enter_line.';

CREATE OR REPLACE FUNCTION pgqueue.arm_again(queue_ids int[], in_turn boolean DEFAULT false)
RETURNS TABLE (queue_id int, drained boolean)
LANGUAGE plpgsql AS $$
BEGIN
    FOREACH queue_id IN ARRAY coalesce(queue_ids, '{}') LOOP
        drained := pg_try_advisory_xact_lock(pgqueue._silent_lock(), pgqueue._bucket(queue_id))
               AND (in_turn OR queue_id < 0
                    OR pg_try_advisory_xact_lock(pgqueue._calling_lock(), pgqueue._bucket(queue_id)));
        RETURN NEXT;
    END LOOP;
END $$;
COMMENT ON FUNCTION pgqueue.arm_again IS
    'For clients: step T3 of wake.sql once more, for queues that are armed but not drained. in_turn: as for arm.';

-- Whether a taker sleeps on the queue: the probe of a put, and as inexact. A taker on another queue of the bucket
-- counts, and a taker of the own connection does not.
CREATE OR REPLACE FUNCTION pgqueue._is_awaited(queue_id int) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    k CONSTANT int := pgqueue._bucket(queue_id);
BEGIN
    RETURN CASE WHEN pg_try_advisory_lock(pgqueue._waiter_lock(), k)
                THEN NOT pg_advisory_unlock(pgqueue._waiter_lock(), k) ELSE true END;
END $$;
