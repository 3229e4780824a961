-- Flows: tasks that wait for other tasks, and tasks of a batch.
--
-- Theory of operation
-- -------------------
-- A dependant is a task in the state W, which no claim looks at. It has a row in `dependant`, and one in `dependency`
-- for each task or batch that it waits for. A batch is no task, but has an id of the same sequence: tasks wait for it
-- in the same way, and its tasks have rows in `member`. A task that others wait for, and each task of a batch,
-- is followed (follow.sql): the transaction that ends it marks the rows that name it (_follow_tasks,
-- flows/deciding.sql).
--
-- Two ends at once. T1 ends the task A, and T2 the task B; D waits for both. In the snapshot of each the other task is
-- open, so neither can make D ready. A counter in the row of D would tell them, but T2 would then wait at that row for
-- T1, which may be a user's long transaction. With 100,000 tasks in a batch every worker would wait there. So a
-- transaction that ends a task does not decide. It leaves a row in `flow_check`, which names D, and the next claim on
-- the queue of D, or the next tick, decides (_settle_flows):
--
--   Invariant: each task or batch that has ended, and was not yet looked at, has a check that its own transaction left.
--
-- Take the last, in the order of commits, of the transactions that end a task or batch for which D waits. Its check is
-- seen only in snapshots that are newer than all of these ends, so the look that deletes the check sees that D waits
-- for nothing. One rule remains, as for lanes (lanes.sql): no transaction deletes its own check, since its look is
-- older than its commit. A look waits for no lock. If the row of D or of a batch is locked, it leaves a check for the
-- next tick.
--
-- A transaction that ends tasks of a batch leaves one check for all of them. A look at a batch is one probe of an index
-- for an open member, from the highest id downwards: tasks are usually done in the order of their ids, so at this end
-- the index has few entries of members that are gone. While many members are open, their ends are left to the next
-- tick. So a task of a batch costs its ack the deletion of one row, and no two acks write the same row.
--
-- Put after a task that lives. T1 puts D after A. If A ends before T1 commits, the ending transaction cannot see D; so
-- A has to be marked, which locks its row, and an ack of A then waits for T1. A user's transaction T1 may be long, and
-- must not hold up the ack. So T1 marks A itself only if T1 put A too, or if T1 ends with this call (alone). Else the
-- dependency is N, not followed, and the first tick after the commit of T1 marks A, or finds that A is gone. A task
-- that is gone counts as done, also if it was deleted or has expired before it was marked, unless an outcome of it is
-- kept that says that it failed or was cancelled; and so does an id that another open transaction has drawn.
--
-- Circles. A task waits only for older tasks and batches: an id that no put has returned is refused, and so is a batch
-- that is not closed, that is, does not have all its members yet. So no circle can arise, and none is searched for.
--
-- Failures. on_failure decides about D if A fails, that is, if A is buried, or leaves its queue as a dead letter; or if
-- A is gone (deleted, cancelled, expired):
--
--   wait   D waits on: A may be kicked, or handled from the queue of dead letters, and be done yet. If A is gone that
--          cannot be, and D is buried.
--   bury   D is buried at once. A kick makes D ready, whether A is done or not.
--   run    A counts as ended.
--
-- To run D at once, bury it and kick it. If the queue of A is deleted, its tasks are gone. Only tasks that wait for D
-- depend on the queue of D.

-- A batch belongs to the role that made it. Checked before a lock: another role that waits to close it would hold up
-- puts.
CREATE OR REPLACE FUNCTION pgqueue._check_batch(batch bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT pgqueue._is_callers(b.role_id) FROM pgqueue.batch b WHERE b.id = batch) IS NOT TRUE THEN
        RAISE EXCEPTION '%', coalesce(pgqueue._elsewhere(batch, 'batch'), format('there is no batch %s', batch))
            USING ERRCODE = 'PQ045';
    END IF;
END $$;

-- Check that a batch is open and the caller's, and lock it, so that no close can finish before this transaction has
-- ended (the lock of close_batch). With a lock of the batch's row each put would write to that row.
CREATE OR REPLACE FUNCTION pgqueue._enter_batch(batch bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    closed timestamptz;
BEGIN
    PERFORM pgqueue._check_batch(batch);
    IF NOT pg_try_advisory_xact_lock_shared(pgqueue._closing_lock(), pgqueue._batch_bucket(batch)) THEN
        PERFORM pgqueue._await_lock(pgqueue._closing_lock(), pgqueue._batch_bucket(batch), true, false, '10 s',
                                    'adding to batch ' || batch);
    END IF;
    SELECT b.closed_at INTO closed FROM pgqueue.batch b WHERE b.id = batch;
    IF NOT FOUND THEN                              -- deleted while this waited
        PERFORM pgqueue._check_batch(batch);
    ELSIF closed IS NOT NULL THEN
        RAISE EXCEPTION 'batch % is closed: no task can be added to it', batch USING ERRCODE = 'PQ046';
    END IF;
END $$;

-- Make tasks members of a batch. They were just put with the mark, or by this transaction.
CREATE OR REPLACE FUNCTION pgqueue._add_members(batch bigint, ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO pgqueue.member (task_id, batch_id) SELECT u.id, batch FROM unnest(ids) u(id);
    INSERT INTO pgqueue.batch_part (batch_id, added) SELECT batch, cardinality(ids) WHERE ids <> '{}';
END $$;

-- Check the `after` of a put: tasks and closed batches that exist, or existed, and that the caller may look at.
CREATE OR REPLACE FUNCTION pgqueue._check_after(after bigint[], on_failure text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    newest CONSTANT bigint := (SELECT s.last_value - (NOT s.is_called)::int FROM pgqueue.task_id_seq s);
    wrong  record;
BEGIN
    PERFORM pgqueue._check_array('after', after);
    IF on_failure IS NULL OR on_failure NOT IN ('wait', 'bury', 'run') THEN
        RAISE EXCEPTION 'on_failure is wait, bury or run, not %', pgqueue._shown(on_failure) USING ERRCODE = 'PQ002';
    ELSIF after = '{}' THEN
        RETURN;
    END IF;
    SELECT a.id INTO wrong FROM unnest(after) a(id) WHERE a.id <= newest >> 43 << 43 OR a.id > newest LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '%', coalesce(pgqueue._elsewhere(wrong.id, 'task'),
                                      format('a task cannot wait for task %s, which was never put', wrong.id))
            USING ERRCODE = 'PQ044';
    END IF;
    SELECT b.id, b.closed_at, pgqueue._is_callers(b.role_id) AS is_callers INTO wrong
      FROM unnest(after) a(id) JOIN pgqueue.batch b ON b.id = a.id
     WHERE b.closed_at IS NULL OR pgqueue._is_callers(b.role_id) IS NOT TRUE LIMIT 1;
    IF wrong.is_callers THEN
        RAISE EXCEPTION 'batch % is open: a task can wait for it once it is closed', wrong.id USING ERRCODE = 'PQ046';
    ELSIF FOUND THEN
        RAISE EXCEPTION 'there is no batch %', wrong.id USING ERRCODE = 'PQ045';
    END IF;
    -- A task that has ended is as good as one that lives. _link checks the tasks that this transaction cannot see yet.
    PERFORM pgqueue._check_guarded(q.queue_id, 'look', is_named => false)
       FROM (SELECT t.queue_id FROM unnest(after) a(id) JOIN pgqueue.task t ON t.id = a.id
              UNION SELECT r.queue_id FROM unnest(after) a(id) JOIN pgqueue.result r ON r.task_id = a.id) q;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.allow_flows(queue text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue.queue_id(queue), pgqueue._known_queue(queue, 'put');
    UPDATE pgqueue.queue q SET flows = true WHERE q.name = allow_flows.queue AND NOT q.flows;
END $$;
COMMENT ON FUNCTION pgqueue.allow_flows IS
    'Let a queue have tasks that wait for others. The first such put does so, and other such puts wait until its '
    'transaction ends; so clients call this before, in a transaction of its own.';

-- Write down for which others a task waits that was just put in the state W; returns its state then.
CREATE OR REPLACE FUNCTION pgqueue._make_wait(
    id bigint, q pgqueue.queue, s pgqueue.specification, alone boolean
) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO pgqueue.dependant (task_id, run_at, delay, ttl, on_failure, role)
    VALUES (id, s.run_at, CASE WHEN s.run_at IS NULL THEN coalesce(s.delay, q.delay) END, coalesce(s.ttl, q.ttl),
            left(s.on_failure, 1)::"char", pgqueue._caller());
    INSERT INTO pgqueue.dependency (task_id, on_id, position, state)
    SELECT _make_wait.id, a.id, min(a.n), 'N' FROM unnest(s.after) WITH ORDINALITY a(id, n) GROUP BY a.id;
    PERFORM pgqueue._link(
                ARRAY [id], mine => NOT alone OR current_setting('transaction_isolation') <> 'read committed');
    IF EXISTS (SELECT FROM pgqueue.dependency d WHERE d.task_id = _make_wait.id AND d.state = 'N') THEN
        INSERT INTO pgqueue.flow_check (id, queue_id) VALUES (_make_wait.id, 0);
    ELSE
        PERFORM pgqueue._decide(ARRAY [id]);
    END IF;
    RETURN (SELECT seen.state FROM pgqueue._tasks seen WHERE seen.id = _make_wait.id);
END $$;

-- Check that a task may be put after others and into a batch; locks the batch until the transaction ends.
CREATE OR REPLACE FUNCTION pgqueue._enter_flow(q pgqueue.queue, s pgqueue.specification) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue._check_after(s.after, s.on_failure);
    IF s.if_exists = 'replace' THEN
        RAISE EXCEPTION 'a task that waits for others, or belongs to a batch, replaces no other task'
            USING ERRCODE = 'PQ002';
    ELSIF s.unique_for IS NOT NULL THEN
        RAISE EXCEPTION 'a put that waits for others, or belongs to a batch, cannot be unique for a time'
            USING ERRCODE = 'PQ002';
    ELSIF s.batch IS NOT NULL THEN
        PERFORM pgqueue._enter_batch(s.batch);
    END IF;
    IF s.after <> '{}' AND NOT q.flows THEN
        PERFORM pgqueue.allow_flows(q.name);
    END IF;
END $$;
