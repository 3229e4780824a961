-- Moving tasks to another server: move_out on the server that has them, move_in on the one that gets them.
--
-- Theory of operation
-- -------------------
-- The mover M has a transaction S on the source and a transaction T on the target:
--
--   S1 move_out: lock tasks, delete them, return them
--   T1 move_in: insert them
--   T2 COMMIT
--   S2 COMMIT
--
-- Until S2 the tasks are on the source: their rows are locked, so no claim takes them, and a rollback of S, by the end
-- of M or of the source, makes them ready at once. If M or the source ends between T2 and S2, the tasks are on both
-- servers, and are handled at least once. They are never on none. A second copy of a task with a key meets the first
-- one while that is not done, and is left out. Two-phase commit would close the window, but needs
-- max_prepared_transactions, which is 0 by default, and its prepared transactions hold the tasks until an operator ends
-- them.
--
-- A task gets a new id, since an id names its server. So a task stays until it has ended if others know its id:
--
--   taken     by a session or a claim, or cancelled while it was taken
--   flow      it waits for tasks, tasks wait for it, or it is in a batch
--   awaited   a client waits for its result or its progress, or for that of a task of the same bucket (announce.sql)
--
-- Lanes. The tasks of a lane go together, and in one transaction: otherwise the source would go on with the second half
-- of the lane while the target begins with the first. S holds the lane's latch (latches.sql), so no claim takes from
-- it. If one task of the lane stays, all stay. Tasks of the lane that were put on the target in the meantime are newer
-- than these, so they get new ids behind them; unless they are taken, or stay as above. A task that is not in its lane,
-- since it is delayed or buried, moves by itself; but to the server of the lane, where it comes back into it.

-- Why a task stays on this server; NULL: it may move. From a transaction that moves tasks.
CREATE OR REPLACE FUNCTION pgqueue._why_stays(t pgqueue.task) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    RETURN CASE WHEN t.state = 'C' OR (SELECT k.task_id FROM pgqueue.take k WHERE k.task_id = t.id) IS NOT NULL
                THEN 'taken'
                WHEN t.followed OR (SELECT d.on_id FROM pgqueue.dependency d WHERE d.on_id = t.id LIMIT 1) IS NOT NULL
                THEN 'flow'
                WHEN pgqueue._has_waiter(pgqueue._task_bucket(t.id)) THEN 'awaited' END;
END $$;

-- Lock a lane and its tasks behind `after`; an empty array if one of them stays, or another transaction has one.
CREATE OR REPLACE FUNCTION pgqueue._lock_lane(queue_id int, lane text, after bigint) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    ids bigint[];
BEGIN
    IF NOT pgqueue._latched(queue_id, lane) THEN
        RETURN '{}'::bigint[];
    END IF;
    ids := ARRAY (SELECT h.id FROM pgqueue._in_lane h
                   WHERE h.queue_id = _lock_lane.queue_id AND h.lane = _lock_lane.lane AND h.id > after ORDER BY h.id);
    IF after = 0 AND cardinality(ids) > (
           SELECT count(*) FROM (SELECT t FROM pgqueue.task t WHERE t.id = ANY (ids) FOR UPDATE SKIP LOCKED) locked
            WHERE pgqueue._why_stays(locked.t) IS NULL) THEN
        RETURN '{}'::bigint[];
    END IF;
    RETURN ids;
END $$;

-- Lock up to n tasks behind `after` that are in no lane, and may move.
CREATE OR REPLACE FUNCTION pgqueue._lock_others(queue_id int, n int, after bigint) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    ids bigint[];
BEGIN
    ids := ARRAY (SELECT t.id FROM pgqueue.task t
                   WHERE t.id > after AND t.queue_id = _lock_others.queue_id AND t.state IN ('R', 'D', 'B', 'W')
                     AND (t.lane IS NULL OR t.state = 'B' OR t.state = 'D' AND t.holds_lane IS NOT TRUE)
                     AND t.followed IS NULL
                     AND (SELECT k.task_id FROM pgqueue.take k WHERE k.task_id = t.id) IS NULL
                   ORDER BY t.id LIMIT n FOR UPDATE SKIP LOCKED);
    RETURN ids;
END $$;

-- The first of these tasks, of 8 MB together: an answer has 256 MB at most.
CREATE OR REPLACE FUNCTION pgqueue._first_of_size(ids bigint[], n int) RETURNS bigint[]
LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY (
        SELECT s.id
          FROM (SELECT u.id, u.nr, sum(octet_length(t.data::text)) OVER (ORDER BY u.nr) AS upto
                  FROM unnest(ids [1:n]) WITH ORDINALITY u(id, nr)
                 CROSS JOIN LATERAL (SELECT d.data FROM pgqueue.task d WHERE d.id = u.id OFFSET 0) t) s
         WHERE s.nr = 1 OR s.upto < 8000000 ORDER BY s.nr);
END $$;

CREATE OR REPLACE FUNCTION pgqueue.move_out(
    queue text,
    n     int    DEFAULT 1000,
    lane  text   DEFAULT NULL,                -- NULL: tasks that are in no lane now
    after bigint DEFAULT 0,                   -- 0, then `last` of the previous call
    OUT tasks jsonb[],                        -- for move_in
    OUT names text[],                         -- their lanes, or else their keys, which choose the server
    OUT homes int[],                          -- the servers that keep their limits; a lane comes before
    OUT last  bigint,                         -- the last task that was looked at; NULL: there are no more
    OUT more  boolean                         -- the lane has more tasks, which have to be moved in this transaction
)
LANGUAGE plpgsql AS $$
DECLARE
    q   CONSTANT pgqueue.queue := pgqueue._known_queue(queue, 'manage');
    ids bigint[];
    n_of_lane int;
BEGIN
    PERFORM pgqueue._check_guarded(q.id, 'look'), pgqueue._check_read_committed('move_out'),
            pgqueue._check_count('n', n);
    more := false;
    IF lane IS NULL THEN
        ids := pgqueue._first_of_size(pgqueue._lock_others(q.id, n, after), n);
        last := ids [cardinality(ids)];
        ids := ARRAY (SELECT t.id FROM pgqueue.task t                              -- a newer snapshot sees all takes
                       WHERE t.id = ANY (ids) AND pgqueue._why_stays(t) IS NULL ORDER BY t.id);
    ELSE
        ids := pgqueue._lock_lane(q.id, lane, after);
        n_of_lane := cardinality(ids);
        ids := pgqueue._first_of_size(ids, n);
        more := cardinality(ids) < n_of_lane;
        last := ids [cardinality(ids)];
    END IF;
    IF ids <> '{}' THEN
        SELECT array_agg(to_jsonb(t) - '{id,queue_id,xid,followed,meter,done_at}'::text[]
                         || jsonb_build_object('steps', (
                                SELECT jsonb_agg(s ORDER BY s.recorded_at) FROM pgqueue.step s WHERE s.task_id = t.id))
                         ORDER BY t.id),
               array_agg(coalesce(t.lane, t.key) ORDER BY t.id),
               array_agg(CASE WHEN q.metered AND t.lane IS NULL
                              THEN (SELECT l.home FROM pgqueue._limit_of(q.id, t.data) l) END ORDER BY t.id)
          INTO tasks, names, homes FROM pgqueue.task t WHERE t.id = ANY (ids);
        PERFORM pgqueue._note(q.id, 'delete', ids), pgqueue._delete_tasks(ids),
                pgqueue._record('move_out', q.name, lane, cardinality(ids));
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.move_out IS
    'Remove tasks from this server, for move_in on another one: call it, call move_in there and commit there, and then '
    'commit here. Tasks stay that are taken, awaited, in a flow or a batch, or in a lane with such a task (staying).';

CREATE OR REPLACE FUNCTION pgqueue.moving_lanes(queue text, after text DEFAULT '', n int DEFAULT 1000)
RETURNS SETOF text
LANGUAGE plpgsql AS $$
DECLARE
    q CONSTANT int := (pgqueue._known_queue(queue, 'manage')).id;
BEGIN
    PERFORM pgqueue._check_guarded(q, 'look'), pgqueue._check_count('n', n);
    RETURN QUERY
        SELECT DISTINCT h.lane FROM pgqueue._in_lane h WHERE h.queue_id = q AND h.lane > after
         ORDER BY h.lane LIMIT n;
END $$;
COMMENT ON FUNCTION pgqueue.moving_lanes IS
    'The lanes of a queue that have tasks, for move_out: up to n names behind `after`.';

-- Those of the tasks whose key no task has here, by their places in the array.
CREATE OR REPLACE FUNCTION pgqueue._without_key_here(q pgqueue.queue, tasks jsonb[]) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    fits bigint[] := '{}'::bigint[];
    s    pgqueue.specification;
    t    record;
BEGIN
    s.if_exists := 'ignore';
    FOR t IN
        SELECT e.n, e.task ->> 'key' AS key FROM unnest(tasks) WITH ORDINALITY e(task, n)
         ORDER BY e.task ->> 'key'                 -- so that two movers cannot deadlock
    LOOP
        s.key := t.key;
        IF t.key IS NULL OR (SELECT m.id FROM pgqueue._meet_key(q, s, NULL) m) IS NULL THEN
            fits := fits || t.n;
        END IF;
    END LOOP;
    RETURN fits;
END $$;

-- Put the tasks of a lane that are newer than `moment`, and that this transaction has not written, behind the others.
CREATE OR REPLACE FUNCTION pgqueue._put_behind(queue_id int, lane text, moment timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    newer  bigint[];
    behind record;
BEGIN
    newer := ARRAY (SELECT h.id FROM pgqueue._in_lane h
                     WHERE h.queue_id = _put_behind.queue_id AND h.lane = _put_behind.lane
                       AND h.writer <> pg_current_xact_id()::xid);
    newer := ARRAY (SELECT t.id FROM pgqueue.task t WHERE t.id = ANY (newer) AND t.created_at > moment
                     ORDER BY t.id FOR UPDATE SKIP LOCKED);
    FOR behind IN
        SELECT t.id FROM pgqueue.task t WHERE t.id = ANY (newer) AND pgqueue._why_stays(t) IS NULL ORDER BY t.id
    LOOP
        WITH changed AS (UPDATE pgqueue.task t SET id = DEFAULT WHERE t.id = behind.id RETURNING t.id),
             recorded AS (UPDATE pgqueue.attempt a SET task_id = c.id FROM changed c WHERE a.task_id = behind.id)
        UPDATE pgqueue.step s SET task_id = c.id FROM changed c WHERE s.task_id = behind.id;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.move_in(
    queue     text,
    tasks     jsonb[],                        -- of move_out
    continued boolean DEFAULT false           -- this transaction moves more tasks of the last lane
) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    q      pgqueue.queue;
    plain  pgqueue.specification;
    fits   bigint[];
    new    record;
    newest record;
BEGIN
    PERFORM pgqueue._check_read_committed('move_in'), pgqueue._check_array('tasks', tasks);
    IF EXISTS (SELECT FROM unnest(tasks) t(task)
                WHERE (t.task ?& '{data,state,priority,attempts,created_at}') IS NOT TRUE) THEN
        RAISE EXCEPTION 'each of the tasks is an object that move_out returned' USING ERRCODE = 'PQ002';
    END IF;
    PERFORM pgqueue.queue_id(queue);
    q := pgqueue._known_queue(queue, 'manage');
    plain.if_exists := 'ignore';
    PERFORM pgqueue._check_put(q, plain), pgqueue._lock_room(q);
    IF NOT q.lanes AND EXISTS (SELECT FROM unnest(tasks) t(task) WHERE t.task ->> 'lane' IS NOT NULL) THEN
        PERFORM pgqueue.allow_lanes(q.name);
    END IF;
    fits := pgqueue._without_key_here(q, tasks);
    WITH given AS (
        SELECT nextval('pgqueue.task_id_seq') AS new_id, o.* FROM (
            SELECT e.task -> 'steps' AS steps, t.*,
                   CASE WHEN q.metered AND t.state NOT IN ('D', 'B')
                        THEN pgqueue._meter_of_put(q, t.data, t.lane, moved => true) END AS slot
              FROM unnest(tasks) WITH ORDINALITY e(task, n),
                   LATERAL jsonb_populate_record(NULL::pgqueue.task, e.task) t
             WHERE e.n = ANY (fits) ORDER BY e.n) o),
    added AS (
        INSERT INTO pgqueue.task AS i
               (id, queue_id, state, priority, created_at, run_at, ready_at, expires_at, buried_at, ttr, attempts,
                suspect, killed_after, data, lane, key, sender, routing_key, error, deaths, releases, timeouts, buries,
                kicks, holds_lane, meter, xid)
        OVERRIDING SYSTEM VALUE
        SELECT g.new_id, q.id,
               CASE WHEN g.state IN ('D', 'B') THEN g.state WHEN g.slot IS NOT NULL THEN 'W'
                    WHEN g.lane IS NULL THEN 'R' ELSE 'L' END,
               g.priority, g.created_at, g.run_at, g.ready_at, g.expires_at, g.buried_at, g.ttr, g.attempts,
               g.suspect, g.killed_after, g.data, g.lane, g.key, g.sender, g.routing_key, g.error, g.deaths, g.releases,
               g.timeouts, g.buries, g.kicks, g.holds_lane, g.slot, CASE WHEN q.listed THEN pg_current_xact_id() END
          FROM given g ORDER BY g.new_id
            ON CONFLICT DO NOTHING
        RETURNING i.id, i.state, i.lane, i.meter),
    steps AS (
        INSERT INTO pgqueue.step
        SELECT s.* FROM given g JOIN added a ON a.id = g.new_id,
               LATERAL jsonb_populate_recordset(NULL::pgqueue.step,
                           (SELECT jsonb_agg(e.step || jsonb_build_object('task_id', a.id))
                              FROM jsonb_array_elements(g.steps) e(step))) s
         WHERE jsonb_typeof(g.steps) = 'array')
    SELECT array_agg(a.id ORDER BY a.id) AS ids, array_agg(a.state ORDER BY a.id) AS states,
           array_agg(a.lane ORDER BY a.id) AS lanes,
           array_agg(a.meter) FILTER (WHERE a.state = 'W') AS meters,
           count(*) FILTER (WHERE a.state <> 'D')::int AS ready
      INTO new FROM added a;
    IF new.ids IS NULL THEN
        RETURN 0;
    END IF;
    IF NOT continued THEN
        FOR newest IN
            SELECT t.lane, max(t.created_at) AS moment FROM pgqueue.task t
             WHERE t.id = ANY (new.ids) AND t.lane IS NOT NULL AND t.state IN ('L', 'D') GROUP BY t.lane
        LOOP
            PERFORM pgqueue._put_behind(q.id, newest.lane, newest.moment);
        END LOOP;
    END IF;
    INSERT INTO pgqueue.meter_check (queue_id, meter) SELECT DISTINCT q.id, m FROM unnest(new.meters) m;
    PERFORM pgqueue._count_new(array_fill(q.id, ARRAY [cardinality(new.ids)]), new.states, new.lanes),
            pgqueue._note(q.id, 'put', new.ids), pgqueue._signal(q.id, nullif(new.ready, 0)),
            pgqueue._record('move_in', q.name, count => cardinality(new.ids));
    IF q.capacity IS NOT NULL AND pgqueue._queue_length(q.id) > q.capacity THEN
        RAISE EXCEPTION 'queue "%" has no room for % tasks', q.name, cardinality(new.ids) USING ERRCODE = 'PQ037';
    ELSIF q.maxlen IS NOT NULL THEN
        PERFORM pgqueue._trim_queue(q.id, q.maxlen);
    END IF;
    RETURN cardinality(new.ids);
END $$;
COMMENT ON FUNCTION pgqueue.move_in IS
    'Add tasks that move_out has removed from another server, as they were, under new ids; returns how many. A task '
    'whose key a task has here is left out. The queue is created if it does not exist.';

CREATE OR REPLACE FUNCTION pgqueue.staying(queue text, OUT reason text, OUT n bigint) RETURNS SETOF record
LANGUAGE plpgsql AS $$
DECLARE
    q CONSTANT int := (pgqueue._known_queue(queue, 'manage')).id;
BEGIN
    RETURN QUERY
        SELECT coalesce(s.why, CASE WHEN s.lane IS NULL THEN 'new' ELSE 'lane' END), count(*)
          FROM (SELECT pgqueue._why_stays(t) AS why, t.lane FROM pgqueue.task t
                 WHERE t.queue_id = q AND t.state <> 'F') s
         GROUP BY 1 ORDER BY 2 DESC, 1;
END $$;
COMMENT ON FUNCTION pgqueue.staying IS
    'How many tasks of a queue move_out has left, and why: taken, flow (dependencies and batches), awaited (results), '
    'lane (behind such a task), new (put since).';
