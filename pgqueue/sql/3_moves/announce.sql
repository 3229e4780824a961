-- Announcing the end or the progress of a task: by NOTIFY, but only when a client waits for the task.
--
-- Theory of operation
-- -------------------
-- Results and progress are announced on a channel of the task, for clients that wait for it. A commit that notifies
-- holds a lock over the whole server, and wakes every listener of the database. So a result that no client waits for is
-- not announced. The gate is that of wake.sql, with two other locks, on a bucket of tasks:
--
--   AWAITING(k)  shared, held by the listener connection of every process that waits for a task of the bucket.
--   UNTOLD(k)    shared, held until the end of its transaction by every call that did not notify.
--
--   settler (finish, fail, progress)            waiter
--   S1 AWAITING(k) held?  -> notify             W1 LISTEN, and share AWAITING(k)         (await_ends, by the listener)
--   S2 share UNTOLD(k), refused? -> notify      W2 exclusive UNTOLD(k), and free it again: the drain
--   S3 AWAITING(k) held?  -> notify             W3 look in a new snapshot; not ended: wait         (await_outcome)
--      do not notify                            W2 was refused: look again soon, after W3 too
--
-- A silent settler S saw AWAITING free at S3, so its S2 precedes W1 and W2: the drain succeeds only once S has ended,
-- and the look at W3 sees its result. A settler that notified committed before W3's snapshot, or after the LISTEN was
-- committed. The lock table knows no snapshots, so all of this holds for settlers at REPEATABLE READ too. The waiter
-- drains on another connection than the one that holds AWAITING, which does not matter: a waiter has UNTOLD for no
-- longer than an expression takes.
--
-- Buckets. Consecutive ids share a bucket, so that a call for many tasks, which usually were put together, needs two or
-- three locks and not one for each task. There are 1024, as for queues: a transaction that settles a
-- hundred thousand tasks must not fill the lock table.
--
-- A session's own lock is invisible to its own probe, so a call on the connection that waits always notifies, by the
-- mark that arm (wake.sql) leaves as well.

CREATE OR REPLACE FUNCTION pgqueue._task_bucket(id bigint) RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN (id >> 6 & 1023)::int;

-- Steps S1 to S3. Each probe takes and frees the lock in one expression, with no chance to be interrupted in between.
CREATE OR REPLACE FUNCTION pgqueue._has_waiter(k int) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    RETURN coalesce(current_setting('pgqueue.armed', true), '') = 'yes'
        OR (CASE WHEN pg_try_advisory_lock(pgqueue._awaiting_lock(), k)
                 THEN NOT pg_advisory_unlock(pgqueue._awaiting_lock(), k) ELSE true END)
        OR NOT pg_try_advisory_xact_lock_shared(pgqueue._untold_lock(), k)
        OR (CASE WHEN pg_try_advisory_lock(pgqueue._awaiting_lock(), k)
                 THEN NOT pg_advisory_unlock(pgqueue._awaiting_lock(), k) ELSE true END);
END $$;

-- Announce that these tasks have ended. Each bucket is probed once. For one task the caller itself probes, which saves
-- a call.
CREATE OR REPLACE FUNCTION pgqueue._tell_ends(ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue._notify('pgqueue:task:' || t.id, '')
       FROM unnest(ids) t(id)
      WHERE pgqueue._task_bucket(t.id) = ANY (ARRAY (
            SELECT b.k FROM (SELECT DISTINCT pgqueue._task_bucket(u.id) AS k FROM unnest(ids) u(id) OFFSET 0) b
             WHERE pgqueue._has_waiter(b.k)));
END $$;

CREATE OR REPLACE FUNCTION pgqueue.leave_ends(ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    id bigint;
BEGIN
    FOREACH id IN ARRAY coalesce(ids, '{}') LOOP
        IF pg_advisory_unlock_shared(pgqueue._awaiting_lock(), pgqueue._task_bucket(id)) THEN END IF;
    END LOOP;
END $$;
COMMENT ON FUNCTION pgqueue.leave_ends IS
    'For clients: this connection does not listen for these tasks any more. Once for each id of await_ends.';

CREATE OR REPLACE FUNCTION pgqueue.await_ends(ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    held bigint[] := ARRAY[]::bigint[];
    id   bigint;
BEGIN
    PERFORM set_config('pgqueue.armed', 'yes', false);
    FOREACH id IN ARRAY coalesce(ids, '{}') LOOP
        IF NOT pg_try_advisory_lock_shared(pgqueue._awaiting_lock(), pgqueue._task_bucket(id)) THEN   -- a probe
            PERFORM pgqueue._await_lock(
                        pgqueue._awaiting_lock(), pgqueue._task_bucket(id), true, true, '1 s',
                        'clients that wait for task ' || id);
        END IF;
        held := held || id;
    END LOOP;
EXCEPTION WHEN query_canceled OR OTHERS THEN       -- a rollback does not free the locks, and the client calls again
    PERFORM pgqueue.leave_ends(held);
    RAISE;
END $$;
COMMENT ON FUNCTION pgqueue.await_ends IS
    'For clients, on the connection that listens on the channels of these tasks, with or after the LISTEN: from now on '
    'results and progress of the tasks are announced there, until leave_ends or the end of the connection.';
