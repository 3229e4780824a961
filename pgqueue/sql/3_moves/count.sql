-- Counting: every change of the number of tasks, and every call, becomes a row in `delta`. The same functions notify
-- observers, lanes, and puts that wait for room.
--
-- Theory of operation
-- -------------------
-- A row of counters that each put updates makes all producers of a queue wait for each other's commit. So no
-- transaction updates a counter: it appends its changes as rows, which become visible when it commits. stats.sql adds
-- them up.
--
--   added, deleted, taken, given back    the statement's function appends it: inline on the hot path, else by the
--                                        functions below
--   updated                              a trigger appends it, from the rows before and after
--   raw SQL                              a trigger asks the next fold to count everything (stats.sql)
--
-- Triggers that see the rows of every INSERT and DELETE would need no care elsewhere. But they made an ack 15 % slower
-- and a batch of acks 10 %, even where a WHEN kept them from firing: PostgreSQL collects the rows before it evaluates
-- the WHEN. No verb on the hot path updates a task, so the trigger for updates is free.
--
-- The triggers tell pgqueue's functions from raw SQL by the search_path, which every public function sets, and its
-- helpers set too or inherit (settings.sql). It names pg_temp twice: the path of a careful application, `pg_catalog,
-- pg_temp`, is another one. A setting of pgqueue would be plainer, but only a superuser could create a function with
-- it.
--
-- The functions that count tasks see every way in which a task can leave its place. So they also notify the puts that
-- wait for room in a queue with a capacity, and tell lanes (lanes.sql) of each place that became free and of each task
-- that was put behind others, and limits (limits/meters.sql) of each slot that became free.

CREATE OR REPLACE FUNCTION pgqueue._change_channel(queue_id int) RETURNS text
LANGUAGE sql STABLE RETURN pgqueue._secret_channel('change', queue_id::text);

CREATE OR REPLACE FUNCTION pgqueue._tell_change(queue_id int, verb text, ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    portion CONSTANT int := 350;                   -- ids of 19 digits: a payload has at most 7999 bytes
BEGIN
    IF (SELECT q.observed FROM pgqueue.queue q WHERE q.id = _tell_change.queue_id) THEN
        PERFORM pgqueue._notify(pgqueue._change_channel(_tell_change.queue_id),
                          format('%s %s %s', CASE verb WHEN 'ack' THEN 'delete' ELSE verb END,
                                 extract(epoch FROM clock_timestamp()),
                                 array_to_string(ids [first : first + portion - 1], ',')))
           FROM generate_series(1, cardinality(ids), portion) first;
    END IF;
END $$;

-- Count a verb's call for these tasks of a queue, and tell its observers.
CREATE OR REPLACE FUNCTION pgqueue._note(queue_id int, verb text, ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF cardinality(ids) > 0 THEN
        INSERT INTO pgqueue.delta (queue_id, verb, calls) VALUES (_note.queue_id, _note.verb, cardinality(ids));
        IF verb IN ('ttl', 'maxlen') THEN         -- as in Tarantool's queue, an expired task is a deleted one
            INSERT INTO pgqueue.delta (queue_id, verb, calls) VALUES (_note.queue_id, 'delete', cardinality(ids));
        END IF;
        PERFORM pgqueue._tell_change(queue_id, verb, ids);
    END IF;
END $$;

-- A queue that has fewer tasks than before has room for more. One task of one queue is by far the most frequent case.
CREATE OR REPLACE FUNCTION pgqueue._count_places(queues int[], states "char"[], n bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    more  int;
    fewer int[];
BEGIN
    IF cardinality(queues) = 1 OR cardinality(queues) = 2 AND queues [1] = queues [2] THEN
        INSERT INTO pgqueue.delta AS d (queue_id, standing, delayed, buried, blocked, kept)
        VALUES (queues [1],
                CASE WHEN states [1] IN ('R', 'C') THEN n [1] ELSE 0 END
              + CASE WHEN states [2] IN ('R', 'C') THEN n [2] ELSE 0 END,
                CASE states [1] WHEN 'D' THEN n [1] ELSE 0 END + CASE states [2] WHEN 'D' THEN n [2] ELSE 0 END,
                CASE states [1] WHEN 'B' THEN n [1] ELSE 0 END + CASE states [2] WHEN 'B' THEN n [2] ELSE 0 END,
                CASE WHEN states [1] IN ('L', 'W') THEN n [1] ELSE 0 END
              + CASE WHEN states [2] IN ('L', 'W') THEN n [2] ELSE 0 END,
                CASE states [1] WHEN 'F' THEN n [1] ELSE 0 END + CASE states [2] WHEN 'F' THEN n [2] ELSE 0 END)
        RETURNING d.standing + d.delayed + d.buried + d.blocked INTO more;
        IF more >= 0 THEN
            RETURN;
        END IF;
        fewer := queues [1:1];
    ELSE
        WITH change AS (
            INSERT INTO pgqueue.delta AS d (queue_id, standing, delayed, buried, blocked, kept)
            SELECT p.queue_id,
                   coalesce(sum(p.n) FILTER (WHERE p.state IN ('R', 'C')), 0),
                   coalesce(sum(p.n) FILTER (WHERE p.state = 'D'), 0),
                   coalesce(sum(p.n) FILTER (WHERE p.state = 'B'), 0),
                   coalesce(sum(p.n) FILTER (WHERE p.state IN ('L', 'W')), 0),
                   coalesce(sum(p.n) FILTER (WHERE p.state = 'F'), 0)
              FROM unnest(queues, states, _count_places.n) p(queue_id, state, n)
             GROUP BY p.queue_id
            RETURNING d.queue_id, d.standing + d.delayed + d.buried + d.blocked AS more)
        SELECT array_agg(change.queue_id) INTO fewer FROM change WHERE change.more < 0;
    END IF;
    IF fewer IS NOT NULL THEN
        PERFORM pgqueue._signal(-q.id) FROM pgqueue.queue q WHERE q.id = ANY (fewer) AND q.capacity IS NOT NULL;
    END IF;
END $$;

-- Make the heads of these lanes R if they are L and not locked; returns how many. In lanes that are not among `freed`,
-- only a head that this transaction wrote, outside of a savepoint: any other head is left to the check.
CREATE OR REPLACE FUNCTION pgqueue._unblock(queue_id int, lanes text[], freed text[]) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    n int;
BEGIN
    UPDATE pgqueue.task SET state = 'R'
     WHERE id = ANY (ARRAY (
           SELECT (SELECT t.id FROM pgqueue.task t WHERE t.id = head.id AND t.state = 'L' FOR UPDATE SKIP LOCKED)
             FROM unnest(lanes) u(lane),
                  LATERAL (SELECT h.id, h.state, h.writer FROM pgqueue._in_lane h
                            WHERE h.queue_id = _unblock.queue_id AND h.lane = u.lane
                              AND (h.expires_at IS NULL OR h.expires_at > moment)
                            ORDER BY h.priority, h.id LIMIT 1) head
            WHERE head.state = 'L' AND (u.lane = ANY (freed) OR head.writer = pg_current_xact_id()::xid)));
    GET DIAGNOSTICS n = ROW_COUNT;
    RETURN n;
END $$;

-- Called with one element for each task that became L, and for each that left its lane, where it was R or D (freed):
-- see lanes.sql. A transaction T1 that frees a lane may lock its head, for no other transaction can enter the lane
-- before T1 commits. A transaction T2 that puts a task into the lane touches only rows that T2 wrote; otherwise a put
-- in a long transaction would close the lane.
CREATE OR REPLACE FUNCTION pgqueue._tell_lanes(queues int[], lanes text[], freed boolean[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    q record;
BEGIN
    FOR q IN
        SELECT u.id, array_agg(DISTINCT u.lane) AS lanes, array_agg(DISTINCT u.lane) FILTER (WHERE u.freed) AS freed
          FROM unnest(queues, lanes, freed) u(id, lane, freed)
         GROUP BY u.id ORDER BY u.id
    LOOP
        INSERT INTO pgqueue.lane_check (queue_id, lane) SELECT q.id, unnest(q.lanes);
        IF current_setting('transaction_isolation') = 'read committed' THEN
            PERFORM pgqueue._unblock(q.id, q.lanes, q.freed);
        END IF;
        PERFORM pgqueue._signal(q.id);
    END LOOP;
END $$;

-- Tasks with these meters left a slot, one element for each, or wait for one: see limits/meters.sql.
CREATE OR REPLACE FUNCTION pgqueue._tell_meters(queues int[], meters text[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO pgqueue.meter_check (queue_id, meter)
    SELECT DISTINCT u.queue_id, u.meter FROM unnest(queues, meters) u(queue_id, meter);
    PERFORM pgqueue._signal(u.queue_id, count(*)::int) FROM unnest(queues) u(queue_id) GROUP BY u.queue_id;
END $$;

-- Count tasks that were added. In a statement of its own, which sees the lanes as they are by then.
CREATE OR REPLACE FUNCTION pgqueue._count_new(queues int[], states "char"[], lanes text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    behind record;                                -- lanes with a task that was put behind others
BEGIN
    IF queues IS NULL THEN
        RETURN;
    END IF;
    PERFORM pgqueue._count_places(queues, states, array_fill(1::bigint, ARRAY [cardinality(queues)]));
    IF 'L' = ANY (states) THEN
        SELECT array_agg(t.queue_id) AS queues, array_agg(t.lane) AS names, array_agg(false) AS freed INTO behind
          FROM unnest(_count_new.queues, states, lanes) t(queue_id, state, lane) WHERE t.state = 'L';
        PERFORM pgqueue._tell_lanes(behind.queues, behind.names, behind.freed);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._count_takes(queues int[], one int) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO pgqueue.delta (queue_id, taken) SELECT q, one * count(*) FROM unnest(queues) q GROUP BY q;
END $$;

-- By EXCEPT and not by a join: a plan that was made for one row would be kept for a million.
CREATE OR REPLACE FUNCTION pgqueue._count_updates() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    places record;                                -- how many more tasks each queue has in each state
    lanes  record;                                -- with a free place, or with a task that was put behind others
    slots  record;                                -- meters with a free slot, or with a task that waits for one
BEGIN
    SELECT array_agg(p.queue_id) AS queues, array_agg(p.state) AS states, array_agg(p.n) AS n INTO places
      FROM (SELECT t.queue_id, t.state, sum(t.one) AS n
              FROM (SELECT o.queue_id, o.state, -1 AS one FROM old_tasks o
                     UNION ALL SELECT n.queue_id, n.state, 1 FROM new_tasks n) t
             GROUP BY t.queue_id, t.state HAVING sum(t.one) <> 0) p;
    IF places.queues IS NOT NULL THEN
        PERFORM pgqueue._count_places(places.queues, places.states, places.n);
    END IF;
    IF EXISTS (SELECT FROM new_tasks n WHERE n.state = 'L')
       OR EXISTS (SELECT FROM old_tasks o
                   WHERE (o.state IN ('R', 'C') OR o.state = 'D' AND o.holds_lane) AND o.lane IS NOT NULL) THEN
        SELECT array_agg(t.queue_id) AS queues, array_agg(t.lane) AS names, array_agg(t.freed) AS freed INTO lanes
          FROM ((SELECT o.id, o.queue_id, o.lane, o.priority, true AS freed FROM old_tasks o
                  WHERE (o.state IN ('R', 'C') OR o.state = 'D' AND o.holds_lane) AND o.lane IS NOT NULL
                 EXCEPT SELECT n.id, n.queue_id, n.lane, n.priority, true FROM new_tasks n
                         WHERE n.state IN ('R', 'C') OR n.state = 'D' AND n.holds_lane)
                UNION ALL
                (SELECT n.id, n.queue_id, n.lane, n.priority, false FROM new_tasks n WHERE n.state = 'L'
                 EXCEPT SELECT o.id, o.queue_id, o.lane, o.priority, false FROM old_tasks o WHERE o.state = 'L')) t;
        IF lanes.queues IS NOT NULL THEN
            PERFORM pgqueue._tell_lanes(lanes.queues, lanes.names, lanes.freed);
        END IF;
    END IF;
    IF EXISTS (SELECT FROM new_tasks n WHERE n.state = 'W' AND n.meter IS NOT NULL)
       OR EXISTS (SELECT FROM old_tasks o WHERE o.state IN ('R', 'C') AND o.meter IS NOT NULL) THEN
        SELECT array_agg(t.queue_id) AS queues, array_agg(t.meter) AS names INTO slots
          FROM ((SELECT o.id, o.queue_id, o.meter FROM old_tasks o WHERE o.state IN ('R', 'C') AND o.meter IS NOT NULL
                 EXCEPT SELECT n.id, n.queue_id, n.meter FROM new_tasks n WHERE n.state IN ('R', 'C'))
                UNION ALL
                (SELECT n.id, n.queue_id, n.meter FROM new_tasks n WHERE n.state = 'W' AND n.meter IS NOT NULL
                 EXCEPT SELECT o.id, o.queue_id, o.meter FROM old_tasks o WHERE o.state = 'W')) t;
        IF slots.queues IS NOT NULL THEN
            PERFORM pgqueue._tell_meters(slots.queues, slots.names);
        END IF;
    END IF;
    RETURN NULL;
END $$;

-- The counters no longer agree with the tables: the next fold counts the tasks again.
CREATE OR REPLACE FUNCTION pgqueue._ask_recount() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO pgqueue.recount DEFAULT VALUES;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER count_updates AFTER UPDATE ON pgqueue.task
    REFERENCING OLD TABLE AS old_tasks NEW TABLE AS new_tasks
    FOR EACH STATEMENT EXECUTE FUNCTION pgqueue._count_updates();
CREATE OR REPLACE TRIGGER count_raw AFTER INSERT OR DELETE ON pgqueue.task
    FOR EACH STATEMENT WHEN (current_setting('search_path') <> 'pg_catalog, pg_temp, pg_temp')
    EXECUTE FUNCTION pgqueue._ask_recount();
-- Not AFTER INSERT: takes are not inserted by hand, and each such trigger costs the verbs about 4 us.
CREATE OR REPLACE TRIGGER count_raw AFTER DELETE OR UPDATE OF queue_id ON pgqueue.take
    FOR EACH STATEMENT WHEN (current_setting('search_path') <> 'pg_catalog, pg_temp, pg_temp')
    EXECUTE FUNCTION pgqueue._ask_recount();
CREATE OR REPLACE TRIGGER count_truncate AFTER TRUNCATE ON pgqueue.task
    FOR EACH STATEMENT EXECUTE FUNCTION pgqueue._ask_recount();
CREATE OR REPLACE TRIGGER count_truncate AFTER TRUNCATE ON pgqueue.take
    FOR EACH STATEMENT EXECUTE FUNCTION pgqueue._ask_recount();
