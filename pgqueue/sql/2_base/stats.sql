-- Statistics: the sums of `delta`, in time that depends on the number of queues and on nothing else.
--
-- Theory of operation
-- -------------------
--   counts of a queue = its newest row in `counter` + all deltas that are there
--
-- A fold moves deltas into counters: one transaction deletes those that it sees and writes the sums, so to every
-- snapshot a delta is either still there or in the counter. A transaction that commits later, or rolls back, is no
-- special case: its deltas appear when its tasks do, or never. No transaction waits: a fold tries a lock, readers and
-- producers take none.
--
-- Dead rows. While a snapshot is held anywhere, vacuum cannot remove folded deltas, and a scan of "all deltas" would
-- walk over every one since then. So a fold stores its own snapshot. A delta that the fold could not see comes
-- from a transaction that its snapshot does not count as ended (`since`: its xmax, or `late`: its xip) or from the fold
-- itself; the fold deleted all others. A reader asks the index for just those. A fold does not update the rows of
-- counters and folds but inserts new ones, newest last, and readers begin at that end: an updated row has as many dead
-- versions before it as there were folds.
--
-- Counting again. After a crash the UNLOGGED tables are empty; TRUNCATE and raw SQL leave no delta, but a row in
-- `recount`. With such a row, or without a fold, readers count the tasks themselves. The next fold compares these
-- counts with the counters, in one snapshot, and appends the difference as one more delta: other transactions go on,
-- and their deltas stay correct. A crash keeps a transaction that was prepared (PREPARE TRANSACTION), with its tasks
-- and without its deltas: so the first fold after a crash asks for one more count when such a transaction has ended. A
-- fold with a time in the future is another server's, restored from a dump: it is ignored.
--
-- Time. A state can end without a change of any row: a delay is over, a deadline passed, a task expired. Few such tasks
-- are not moved yet, since every tick moves them; they are counted from the indexes by time.

-- The newest fold. If nothing was counted: one that sees everything, with NULL as its id.
CREATE OR REPLACE FUNCTION pgqueue._last_fold() RETURNS pgqueue.fold
LANGUAGE plpgsql STABLE AS $$
DECLARE
    last pgqueue.fold;
BEGIN
    SELECT * INTO last FROM pgqueue.fold f ORDER BY f.id DESC LIMIT 1;
    IF NOT FOUND OR last.since > pg_snapshot_xmax(pg_current_snapshot()) THEN
        last := (NULL, '-infinity', '0', '{}');
    END IF;
    RETURN last;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._add_calls(a jsonb, b jsonb) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN (SELECT jsonb_object_agg(v.verb, v.calls)
              FROM (SELECT e.key AS verb, sum(e.value::bigint) AS calls
                      FROM (SELECT * FROM jsonb_each_text(a) UNION ALL SELECT * FROM jsonb_each_text(b)) e
                     GROUP BY e.key) v);
END $$;

-- Counters and deltas of these queues; NULL: of all queues. The version is the counter's. For few queues it adds up
-- their deltas only. For many it adds up all: comparing each delta with each queue made the first fold of 10,000 queues
-- last 6 seconds in place of 0.4.
CREATE OR REPLACE FUNCTION pgqueue._known(queues int[]) RETURNS SETOF pgqueue.counter
LANGUAGE plpgsql STABLE AS $$
DECLARE
    few  CONSTANT int[] := CASE WHEN cardinality(queues) < 100 THEN queues END;
    last pgqueue.fold := pgqueue._last_fold();
    late xid8[];
BEGIN
    late := ARRAY (SELECT x FROM unnest(last.late) x
                    WHERE x < last.since AND pg_visible_in_snapshot(x, pg_current_snapshot()));
    RETURN QUERY
        WITH d AS MATERIALIZED (
            SELECT * FROM pgqueue.delta n WHERE n.xid >= last.since AND (few IS NULL OR n.queue_id = ANY (few))
             UNION ALL
            SELECT * FROM pgqueue.delta n WHERE n.xid = ANY (late) AND (few IS NULL OR n.queue_id = ANY (few))),
        more AS (
            SELECT d.queue_id, sum(d.standing) AS standing, sum(d.taken) AS taken, sum(d.delayed) AS delayed,
                   sum(d.buried) AS buried, sum(d.blocked) AS blocked, sum(d.kept) AS kept
              FROM d GROUP BY d.queue_id),
        said AS (
            SELECT v.queue_id, jsonb_object_agg(v.verb, v.calls) AS calls
              FROM (SELECT d.queue_id, d.verb, sum(d.calls) AS calls FROM d WHERE d.verb IS NOT NULL
                     GROUP BY d.queue_id, d.verb) v
             GROUP BY v.queue_id)
        SELECT q.id, c.version,
               coalesce(c.standing, 0) + coalesce(more.standing, 0), coalesce(c.taken, 0) + coalesce(more.taken, 0),
               coalesce(c.delayed, 0) + coalesce(more.delayed, 0), coalesce(c.buried, 0) + coalesce(more.buried, 0),
               coalesce(c.blocked, 0) + coalesce(more.blocked, 0), coalesce(c.kept, 0) + coalesce(more.kept, 0),
               CASE WHEN said.calls IS NULL THEN coalesce(c.calls, '{}')
                    ELSE pgqueue._add_calls(c.calls, said.calls) END
          FROM unnest(coalesce(queues, ARRAY (SELECT named.id FROM pgqueue.queue named))) q(id)
          LEFT JOIN LATERAL (SELECT * FROM pgqueue.counter n
                              WHERE n.queue_id = q.id ORDER BY n.version DESC LIMIT 1) c ON true
          LEFT JOIN more ON more.queue_id = q.id
          LEFT JOIN said ON said.queue_id = q.id;
END $$;

-- The same for all queues without their calls, read as sets: a third of the cost of a look-up for each queue, but it
-- walks over the counters that folds replaced under a held snapshot.
CREATE OR REPLACE FUNCTION pgqueue._totals()
RETURNS TABLE (queue_id int, standing bigint, taken bigint, delayed bigint, buried bigint, blocked bigint)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    last CONSTANT pgqueue.fold := pgqueue._last_fold();
BEGIN
    RETURN QUERY
        WITH d AS (
            SELECT n.queue_id, sum(n.standing) AS standing, sum(n.taken) AS taken, sum(n.delayed) AS delayed,
                   sum(n.buried) AS buried, sum(n.blocked) AS blocked
              FROM (SELECT * FROM pgqueue.delta a WHERE a.xid >= last.since
                     UNION ALL
                    SELECT * FROM pgqueue.delta b WHERE b.xid = ANY (last.late) AND b.xid < last.since) n
             GROUP BY n.queue_id),
        c AS (
            SELECT DISTINCT ON (n.queue_id) * FROM pgqueue.counter n ORDER BY n.queue_id DESC, n.version DESC)
        SELECT q.id,
               coalesce(c.standing, 0) + coalesce(d.standing, 0), coalesce(c.taken, 0) + coalesce(d.taken, 0),
               coalesce(c.delayed, 0) + coalesce(d.delayed, 0), coalesce(c.buried, 0) + coalesce(d.buried, 0),
               coalesce(c.blocked, 0) + coalesce(d.blocked, 0)
          FROM pgqueue.queue q LEFT JOIN c ON c.queue_id = q.id LEFT JOIN d ON d.queue_id = q.id;
END $$;

-- The same counts from the tasks themselves, by the indexes of their states. No version, and no calls.
CREATE OR REPLACE FUNCTION pgqueue._count_anew(queues int[]) RETURNS SETOF pgqueue.counter
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
        WITH held AS (
            SELECT k.queue_id, count(*) AS taken FROM pgqueue.take k
             WHERE (SELECT t.id FROM pgqueue.task t WHERE t.id = k.task_id) IS NOT NULL
             GROUP BY k.queue_id)
        SELECT q.id, NULL::bigint,
               (SELECT count(*) FROM pgqueue.task t WHERE t.queue_id = q.id AND t.state = 'R')
             + (SELECT count(*) FROM pgqueue.task t WHERE t.queue_id = q.id AND t.state = 'C'),
               coalesce(held.taken, 0),
               (SELECT count(*) FROM pgqueue.task t WHERE t.queue_id = q.id AND t.state = 'D'),
               (SELECT count(*) FROM pgqueue.task t WHERE t.queue_id = q.id AND t.state = 'B'),
               (SELECT count(*) FROM pgqueue.task t WHERE t.queue_id = q.id AND t.state = 'L' AND t.lane IS NOT NULL)
             + (SELECT count(*) FROM pgqueue.task t WHERE t.queue_id = q.id AND t.state = 'W'),
               (SELECT count(*) FROM pgqueue.task t WHERE t.queue_id = q.id AND t.state = 'F'),
               '{}'::jsonb
          FROM unnest(coalesce(queues, ARRAY (SELECT named.id FROM pgqueue.queue named))) q(id)
          LEFT JOIN held ON held.queue_id = q.id;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._is_counted(last pgqueue.fold DEFAULT pgqueue._last_fold()) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN last.id IS NOT NULL
       AND NOT EXISTS (SELECT FROM pgqueue.recount r
                        WHERE r.xid IS NULL OR pg_visible_in_snapshot(r.xid, pg_current_snapshot()));
END $$;

-- The counts of these queues: from counters and deltas if they are complete, else from the tasks. `taken` and
-- `standing` are numbers of rows: expired deadlines are not considered.
CREATE OR REPLACE FUNCTION pgqueue._counts(queues int[]) RETURNS SETOF pgqueue.counter
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF pgqueue._is_counted() THEN
        RETURN QUERY SELECT * FROM pgqueue._known(queues);
    ELSE
        RETURN QUERY
            SELECT a.queue_id, a.version, a.standing, a.taken, a.delayed, a.buried, a.blocked, a.kept, k.calls
              FROM pgqueue._count_anew(queues) a JOIN pgqueue._known(queues) k ON k.queue_id = a.queue_id;
    END IF;
END $$;

-- How many tasks of a queue are not done, including those that this transaction put.
CREATE OR REPLACE FUNCTION pgqueue._queue_length(queue_id int) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT c.standing + c.delayed + c.buried + c.blocked
              FROM pgqueue._counts(ARRAY [_queue_length.queue_id]) c);
END $$;

-- Correct counters that differ from the tasks, by a delta. One statement, hence one snapshot: changes that other
-- transactions commit while it runs are in neither count.
CREATE OR REPLACE FUNCTION pgqueue._correct_counts() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    WITH asked AS (
        DELETE FROM pgqueue.recount r WHERE r.xid IS NULL OR pg_visible_in_snapshot(r.xid, pg_current_snapshot())),
    orphan AS MATERIALIZED (                      -- takes of tasks that were deleted by raw SQL
        SELECT k.task_id FROM pgqueue.take k
         WHERE (SELECT t.id FROM pgqueue.task t WHERE t.id = k.task_id) IS NULL),
    removed AS (
        DELETE FROM pgqueue.take
         WHERE ctid = ANY (ARRAY (SELECT k.ctid FROM pgqueue.take k WHERE k.task_id IN (SELECT o.task_id FROM orphan o)
                                     FOR UPDATE SKIP LOCKED))
        RETURNING take.task_id),
    again AS (                                    -- another transaction is settling the rest, and counts them
        INSERT INTO pgqueue.recount (asked_at)
        SELECT now() FROM orphan o WHERE o.task_id NOT IN (SELECT r.task_id FROM removed r) LIMIT 1)
    INSERT INTO pgqueue.delta (queue_id, standing, taken, delayed, buried, blocked, kept)
    SELECT a.queue_id, a.standing - k.standing, a.taken - k.taken, a.delayed - k.delayed,
           a.buried - k.buried, a.blocked - k.blocked, a.kept - k.kept
      FROM pgqueue._count_anew(NULL) a JOIN pgqueue._known(NULL) k ON k.queue_id = a.queue_id;
    -- Raw SQL sent no signal when a lane, a slot or a place in a full queue became free.
    INSERT INTO pgqueue.lane_check (queue_id, lane) SELECT DISTINCT t.queue_id, t.lane FROM pgqueue.task t
     WHERE t.state = 'L' AND t.lane IS NOT NULL;
    INSERT INTO pgqueue.meter_check (queue_id, meter) SELECT DISTINCT t.queue_id, t.meter FROM pgqueue.task t
     WHERE t.state = 'W' AND t.meter IS NOT NULL;
    PERFORM pgqueue._signal(q.id) FROM pgqueue.queue q WHERE q.lanes OR q.metered;
    PERFORM pgqueue._signal(-q.id) FROM pgqueue.queue q WHERE q.capacity IS NOT NULL;
END $$;

-- Move deltas into the counters, if there are many or they are old; every tick calls it. Returns the queues that
-- changed. Only at READ COMMITTED, where the statement that folds sees the result of the previous fold.
CREATE OR REPLACE FUNCTION pgqueue._fold_deltas(at_once boolean DEFAULT false) RETURNS int[]
LANGUAGE plpgsql AS $$
DECLARE
    last    pgqueue.fold;
    changed int[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed'
       OR NOT pg_try_advisory_xact_lock(pgqueue._folding_lock(), 0) THEN
        RETURN NULL;
    END IF;
    last := pgqueue._last_fold();
    IF NOT pgqueue._is_counted(last) THEN
        INSERT INTO pgqueue.recount (xid)
        SELECT x FROM pg_snapshot_xip(pg_current_snapshot()) x, pg_catalog.pg_prepared_xacts p
         WHERE last.id IS NULL AND p.transaction = x::xid AND p.database = current_database();
        PERFORM pgqueue._correct_counts();
        last := (NULL, '-infinity', '0', '{}');
    ELSE
        -- Few deltas cost a reader less than the dead rows of a fold would under a held snapshot.
        IF NOT at_once AND last.folded_at > clock_timestamp() - interval '5 s'
           AND (SELECT count(*) FROM (SELECT FROM pgqueue.delta d WHERE d.xid >= last.since LIMIT 1000) enough) < 1000
           OR NOT EXISTS (SELECT FROM pgqueue.delta d WHERE d.xid >= last.since)
          AND NOT EXISTS (SELECT FROM pgqueue.delta d WHERE d.xid = ANY (last.late)) THEN
            RETURN NULL;
        END IF;
    END IF;
    WITH here AS (
        INSERT INTO pgqueue.fold (folded_at, since, late)
        SELECT clock_timestamp(), pg_snapshot_xmax(pg_current_snapshot()),
               ARRAY (SELECT pg_snapshot_xip(pg_current_snapshot())) || pg_current_xact_id()
        RETURNING fold.id),
    gone AS (
        DELETE FROM pgqueue.fold f WHERE f.id = last.id OR last.id IS NULL),
    new AS (
        DELETE FROM pgqueue.delta d WHERE d.xid >= last.since RETURNING d.queue_id),
    late AS (
        DELETE FROM pgqueue.delta d WHERE d.xid = ANY (last.late) AND d.xid < last.since RETURNING d.queue_id),
    sums AS MATERIALIZED (
        SELECT * FROM pgqueue._known(ARRAY (SELECT new.queue_id FROM new UNION SELECT late.queue_id FROM late))),
    written AS (
        INSERT INTO pgqueue.counter
        SELECT s.queue_id, here.id, s.standing, s.taken, s.delayed, s.buried, s.blocked, s.kept, s.calls
          FROM here, sums s WHERE EXISTS (SELECT FROM pgqueue.queue q WHERE q.id = s.queue_id)),
    replaced AS (
        DELETE FROM pgqueue.counter c USING sums s WHERE c.queue_id = s.queue_id AND c.version = s.version)
    SELECT array_agg(s.queue_id) INTO changed FROM sums s;
    RETURN changed;
END $$;

-- Part of clean_up: counters of queues that are gone.
CREATE OR REPLACE FUNCTION pgqueue._clean_counts() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM pgqueue.counter
     WHERE ctid = ANY (ARRAY (SELECT c.ctid FROM pgqueue.counter c
                               WHERE NOT EXISTS (SELECT FROM pgqueue.queue q WHERE q.id = c.queue_id)
                                 FOR UPDATE SKIP LOCKED));
END $$;

-- Since when the oldest ready task is ready. Tasks with a ready_at have an index for it. The others are as old as their
-- ids: the function reads the first task of each priority, from one priority to the next by the index, or up to a
-- thousand of a priority if the first ones have a ready_at. It reads a hundred priorities at most, since an application
-- may use the clock for a priority. The indexes also have tasks in flight and, while a snapshot is held, all that were
-- acked.
CREATE OR REPLACE FUNCTION pgqueue._find_oldest(queue_id int) RETURNS timestamptz
LANGUAGE plpgsql STABLE AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
BEGIN
    RETURN least(
        (SELECT t.ready_at FROM pgqueue.task t
          WHERE t.queue_id = _find_oldest.queue_id AND t.state = 'R' AND t.ready_at IS NOT NULL
            AND (t.expires_at IS NULL OR t.expires_at > moment)
            AND (SELECT k.task_id FROM pgqueue.take k WHERE k.task_id = t.id AND k.deadline > moment) IS NULL
          ORDER BY t.ready_at LIMIT 1),
        (WITH RECURSIVE first AS (
            (SELECT t.priority, t.created_at, t.ready_at FROM pgqueue.task t
              WHERE t.queue_id = _find_oldest.queue_id AND t.state = 'R'
                AND (t.expires_at IS NULL OR t.expires_at > moment)
                AND (SELECT k.task_id FROM pgqueue.take k WHERE k.task_id = t.id AND k.deadline > moment) IS NULL
              ORDER BY t.priority, t.id LIMIT 1)
             UNION ALL
            SELECT next.* FROM first, LATERAL (
               SELECT t.priority, t.created_at, t.ready_at FROM pgqueue.task t
                WHERE t.queue_id = _find_oldest.queue_id AND t.state = 'R'
                  AND (t.expires_at IS NULL OR t.expires_at > moment)
                  AND t.priority > first.priority
                  AND (SELECT k.task_id FROM pgqueue.take k WHERE k.task_id = t.id AND k.deadline > moment) IS NULL
                ORDER BY t.priority, t.id LIMIT 1) next)
         SELECT min(CASE WHEN f.ready_at IS NULL THEN f.created_at ELSE (
                    SELECT n.created_at
                      FROM (SELECT t.id, t.created_at, t.ready_at, t.expires_at FROM pgqueue.task t
                             WHERE t.queue_id = _find_oldest.queue_id AND t.state = 'R' AND t.priority = f.priority
                             ORDER BY t.priority, t.id LIMIT 1000) n
                     WHERE n.ready_at IS NULL AND (n.expires_at IS NULL OR n.expires_at > moment)
                       AND (SELECT k.task_id FROM pgqueue.take k WHERE k.task_id = n.id AND k.deadline > moment) IS NULL
                     LIMIT 1) END)
           FROM (SELECT * FROM first LIMIT 100) f));
END $$;

-- Where that takes long, a tick searches from time to time, and readers use its result: the age is exact while it is
-- cheap to find, and a few seconds old when it is not. Each delta adds dead rows, so a tick tries the queues that a
-- fold changed.
CREATE OR REPLACE FUNCTION pgqueue._look_for_oldest(changed int[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    q     int;
    last  pgqueue.oldest;
    began timestamptz;
    found timestamptz;
    took  interval;
BEGIN
    FOR q IN SELECT unnest(changed) UNION SELECT o.queue_id FROM pgqueue.oldest o LOOP
        began := clock_timestamp();
        SELECT * INTO last FROM pgqueue.oldest o WHERE o.queue_id = q ORDER BY o.looked_at DESC LIMIT 1;
        CONTINUE WHEN last.looked_at > began - greatest('1 s', 20 * last.took);
        found := pgqueue._find_oldest(q);
        took := clock_timestamp() - began;
        DELETE FROM pgqueue.oldest o WHERE o.queue_id = q AND o.looked_at = last.looked_at;
        IF took > '2 ms' THEN
            INSERT INTO pgqueue.oldest (queue_id, looked_at, took, ready_since) VALUES (q, began, took, found);
        END IF;
    END LOOP;
END $$;
