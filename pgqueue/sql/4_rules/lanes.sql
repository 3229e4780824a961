-- Lanes: tasks of one lane are handled strictly one after another, in the order (priority, id).
--
-- Theory of operation
-- -------------------
-- A task is in its lane if it is R, L, C, or D with holds_lane (the view _in_lane). The head of a lane is the
-- lowest of these that has not expired. A claim takes a task of a lane only if the task is the head, is R, and no take
-- of the lane exists. So one task is taken at a time, in order, whatever the states say: R only means that claims look
-- at the task, and L (blocked) that they need not. This makes a busy lane cheap: of its 100,000 tasks one is R, and
-- claims do not read the 99,999 others. With all of them R, each claim in any lane would walk over them.
--
-- Delays. A worker that tries a failed task again releases it with a delay and hold_lane. The task stays the head, so
-- nothing behind it runs before it has been done, buried or deleted, however often it fails. Its state is D as that of
-- every delayed task: counts, promotion and kicks need no case of their own. A task that is put with a delay is not in
-- its lane until it is due: a reminder for tomorrow must not stop today's work. The same holds for a task that is
-- released with a delay by hand, without hold_lane: "later" then means that others may be first. A release moves
-- expires_at by the delay, so a task that holds its lane is due before it expires. It must be: time alone must not take
-- away a head, since no transaction would leave a check.
--
-- A task that is cancelled while it is taken (C: cancelled.sql) keeps its lane like an R, until its take ends.
--
-- So R is the safe state. If two tasks of a lane are R, one of them just waits. But a head must not stay L:
--
--   Invariant: the head of a lane is R, C or D, or there is a row of the lane in lane_check.
--
-- Two kinds of events can break it: a task of the lane arrives in L (or moves within its lane), and a task that is R or
-- D leaves the lane (acked, buried, delayed without holding the lane, due, deleted, expired, moved). The
-- transaction of each event leaves a check, for the functions that count tasks see every event (count.sql); after raw
-- SQL the next tick leaves a check in every lane. A check is looked at in a snapshot that sees it: if the head is R or
-- D, the check is deleted; if it is L, the head is made R; if the head is locked and cannot be, the check stays.
--
-- Why this is enough. Take the last event in a lane, in the order of commits, and the transaction T2 that deletes its
-- check. The snapshot of T2 is newer than the event, so since then no R or D has left the lane and no L has entered it:
-- the head was R or D, and still is; or it was L, and T2 set it to R. An ack T3 that has not committed may be deleting
-- a head that T2 sees as R. That does not matter: T3 is a later event, and leaves a later check. Hence the one rule: no
-- transaction T1 deletes its own check. The look of T1 is older than its commit: a put T2 that commits in between saw
-- the task that T1 removes, was put behind it, and had its own check deleted for that reason.
--
-- A put cannot do without the check by locking the task in front of it: in a caller's long transaction it would keep
-- the holder of that task from acking it.
--
-- No transaction waits. Two claims C1 and C2 may see different heads in a lane, when an urgent task has just come; each
-- would insert its take, and C2 would wait for C1 at the unique index, with its tasks' rows locked. So a claim that
-- takes in a lane first tries the lane's latch (latches.sql), and leaves the lane alone if another transaction has it.
-- With the latch it looks again, in a new snapshot: a transaction that had it before has committed. The latch is kept
-- as long as the transaction, and so keeps the lane for a pop, which leaves no take.
--
-- A transaction that frees a lane makes the next task R at once, so that users see the exact state; the look at its
-- check then usually finds nothing to do. It finds a head that is L where events cross, or where the event's
-- transaction was above READ COMMITTED.

CREATE OR REPLACE FUNCTION pgqueue.allow_lanes(queue text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    id int;
BEGIN
    PERFORM pgqueue.queue_id(queue), pgqueue._known_queue(queue, 'put');
    UPDATE pgqueue.queue q SET lanes = true WHERE q.name = allow_lanes.queue AND NOT q.lanes RETURNING q.id INTO id;
    IF FOUND THEN
        PERFORM pgqueue._make_latches(id);
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.allow_lanes IS
    'Let a queue have tasks in lanes. The first put with a lane does so, and other such puts wait until its '
    'transaction ends; so clients call this before, in a transaction of its own.';

-- The state of a new task of a lane: R if it would be the head of a lane in which no task is taken.
CREATE OR REPLACE FUNCTION pgqueue._enter_lane(queue_id int, lane text, priority int) RETURNS "char"
LANGUAGE plpgsql AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    head   int;
BEGIN
    SELECT h.priority INTO head FROM pgqueue._in_lane h
     WHERE h.queue_id = _enter_lane.queue_id AND h.lane = _enter_lane.lane
       AND (h.expires_at IS NULL OR h.expires_at > moment)
     ORDER BY h.priority, h.id LIMIT 1;
    RETURN CASE WHEN NOT FOUND THEN 'R'
                WHEN priority >= head THEN 'L'
                WHEN (SELECT k.task_id FROM pgqueue.take k
                       WHERE k.queue_id = _enter_lane.queue_id AND k.lane = _enter_lane.lane) IS NULL THEN 'R'
                ELSE 'L' END;
END $$;

-- Look at up to n checks of the lanes behind `after_lane`; returns the last of these lanes, NULL if there was none. The
-- statement that sees a head that is not L also deletes the check. A head that is L is made R, and a later look deletes
-- its check.
CREATE OR REPLACE FUNCTION pgqueue._check_lanes(queue_id int, after_lane text, n int) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    me     CONSTANT xid8        := pg_current_xact_id_if_assigned();
    moment CONSTANT timestamptz := clock_timestamp();
    seen    tid[];
    lanes   text[];
    dropped int;
BEGIN
    SELECT array_agg(c.ctid), array_agg(c.lane) INTO seen, lanes
      FROM (SELECT k.ctid, k.lane FROM pgqueue.lane_check k
             WHERE k.queue_id = _check_lanes.queue_id AND k.lane > after_lane
             ORDER BY k.lane LIMIT n FOR UPDATE SKIP LOCKED) c;
    IF seen IS NULL THEN
        RETURN NULL;
    END IF;
    DELETE FROM pgqueue.lane_check c
     WHERE c.ctid = ANY (seen) AND c.xid IS DISTINCT FROM me
       AND (SELECT h.state FROM pgqueue._in_lane h
             WHERE h.queue_id = c.queue_id AND h.lane = c.lane
               AND (h.expires_at IS NULL OR h.expires_at > moment)
             ORDER BY h.priority, h.id LIMIT 1) IS DISTINCT FROM 'L';
    GET DIAGNOSTICS dropped = ROW_COUNT;
    IF dropped < cardinality(seen) AND pgqueue._unblock(queue_id, lanes, lanes) > 0 THEN
        PERFORM pgqueue._signal(queue_id);
    END IF;
    RETURN lanes [cardinality(lanes)];
END $$;

-- Look at all checks; every tick calls this. A claim looks at a few, and at all of them only if it finds nothing else.
CREATE OR REPLACE FUNCTION pgqueue._check_all_lanes() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    next int := 0;
    lane text;
BEGIN
    LOOP
        SELECT c.queue_id INTO next FROM pgqueue.lane_check c WHERE c.queue_id > next ORDER BY c.queue_id LIMIT 1;
        EXIT WHEN NOT FOUND;
        IF EXISTS (SELECT FROM pgqueue.queue q WHERE q.id = next) THEN
            lane := '';
            FOR look IN 1..20 LOOP
                lane := pgqueue._check_lanes(next, lane, 1000);
                EXIT WHEN lane IS NULL;
            END LOOP;
        ELSE                                       -- the queue was deleted while a put was under way
            PERFORM pgqueue._remove_tasks(next, most => 10000);
            DELETE FROM pgqueue.lane_check
             WHERE ctid = ANY (ARRAY (SELECT c.ctid FROM pgqueue.lane_check c
                                       WHERE c.queue_id = next LIMIT 10000 FOR UPDATE SKIP LOCKED));
        END IF;
    END LOOP;
END $$;

-- Up to n tasks that the caller may take, with their rows and their lanes locked. The snapshot may be too old: the
-- caller looks for takes once more. The lanes are locked one by one as the tasks are asked for, so that tasks of a lane
-- that is refused do not count.
CREATE OR REPLACE FUNCTION pgqueue._find_heads(
    queue_id int, n int, after_priority int, after_id bigint, suspects boolean
) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    from_priority CONSTANT int         := coalesce(after_priority, -2147483648);
    from_id       CONSTANT bigint      := coalesce(after_id, -1);
    moment        CONSTANT timestamptz := clock_timestamp();
    lane text := '';                               -- the last lane whose checks were looked at
    ids  bigint[];
BEGIN
    -- An expired task may block its lane.
    IF after_id IS NULL AND (SELECT due.ttl_over FROM pgqueue._queue_due due WHERE due.id = _find_heads.queue_id) THEN
        PERFORM pgqueue._promote(queue_id);
    END IF;
    -- From time to time look at more checks than the puts and acks of n tasks leave: they do not pile up even without
    -- ticks.
    IF random() * 32 < n THEN
        lane := pgqueue._check_lanes(queue_id, lane, 100 + 3 * least(n, 1000000));
    END IF;
    LOOP
        ids := ARRAY (
            SELECT c.id
              FROM (SELECT t.id, t.lane
                      FROM pgqueue.task t
                     WHERE t.queue_id = _find_heads.queue_id AND t.state = 'R'
                       AND (t.priority, t.id) > (from_priority, from_id)
                       AND (t.expires_at IS NULL OR t.expires_at > moment)
                       AND (t.suspect IS NULL OR suspects)
                       AND (SELECT k.task_id FROM pgqueue.take k WHERE k.task_id = t.id) IS NULL
                       AND (t.lane IS NULL
                            OR (SELECT k.task_id FROM pgqueue.take k
                                 WHERE k.queue_id = _find_heads.queue_id AND k.lane = t.lane) IS NULL
                           AND (SELECT h.id FROM pgqueue._in_lane h
                                 WHERE h.queue_id = _find_heads.queue_id AND h.lane = t.lane
                                   AND (h.expires_at IS NULL OR h.expires_at > moment)
                                 ORDER BY h.priority, h.id LIMIT 1) = t.id)
                     ORDER BY t.priority, t.id
                    OFFSET 0                       -- or the planner tries the latch of each lane before all else
                       FOR UPDATE OF t SKIP LOCKED) c
             WHERE c.lane IS NULL
                OR (SELECT l.number FROM pgqueue.latch l         -- _latched without the call
                     WHERE l.queue_id = _find_heads.queue_id AND l.number = pgqueue._latch_number(c.lane)
                       FOR UPDATE SKIP LOCKED) IS NOT NULL
             LIMIT n);
        EXIT WHEN ids <> '{}' OR lane IS NULL;
        lane := pgqueue._check_lanes(queue_id, lane, 1000);
    END LOOP;
    RETURN ids;
END $$;

-- Whether a claim may find something now. A check counts: a claim looks at all checks before it gives up, so another
-- transaction has locked the remaining ones, and they are worth another look.
CREATE OR REPLACE FUNCTION pgqueue._lanes_due(queue_id int) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
BEGIN
    RETURN (SELECT c.lane FROM pgqueue.lane_check c WHERE c.queue_id = _lanes_due.queue_id LIMIT 1) IS NOT NULL
        OR (SELECT t.id FROM pgqueue.task t
             WHERE t.queue_id = _lanes_due.queue_id AND t.state = 'R'
               AND (t.expires_at IS NULL OR t.expires_at > moment)
               AND (SELECT k.task_id FROM pgqueue.take k WHERE k.task_id = t.id) IS NULL
               AND (t.lane IS NULL
                    OR (SELECT k.task_id FROM pgqueue.take k
                         WHERE k.queue_id = _lanes_due.queue_id AND k.lane = t.lane) IS NULL
                   AND (SELECT h.id FROM pgqueue._in_lane h
                         WHERE h.queue_id = _lanes_due.queue_id AND h.lane = t.lane
                           AND (h.expires_at IS NULL OR h.expires_at > moment)
                         ORDER BY h.priority, h.id LIMIT 1) = t.id)
             ORDER BY t.priority, t.id LIMIT 1) IS NOT NULL;
END $$;
