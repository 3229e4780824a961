-- Admission: how a claim finds tasks in a queue with limits. The theory is in limits/meters.sql.

-- Only at READ COMMITTED does a statement see the tasks that were admitted before it got the lock.
CREATE OR REPLACE FUNCTION pgqueue._check_admission() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue._check_read_committed('a claim in a queue with limits');
END $$;

-- Up to n ready tasks of the queue without a limit, with their rows locked. Tasks of limited jobs that are in the way
-- become W, up to 1000 of them.
CREATE OR REPLACE FUNCTION pgqueue._hold_back(
    queue_id int, n int, after_priority int, after_id bigint, suspects boolean, lanes boolean
) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    from_priority CONSTANT int         := coalesce(after_priority, -2147483648);
    from_id       CONSTANT bigint      := coalesce(after_id, -1);
    moment        CONSTANT timestamptz := clock_timestamp();
    most   int := n;
    total  int := 0;
    found  bigint[];
    held   bigint[];
    meters text[];
BEGIN
    LOOP
        IF lanes THEN
            found := pgqueue._find_heads(queue_id, most, after_priority, after_id, suspects);
        ELSE
            found := ARRAY (SELECT t.id FROM pgqueue.task t
                             WHERE t.queue_id = _hold_back.queue_id AND t.state = 'R' AND t.lane IS NULL
                               AND (t.priority, t.id) > (from_priority, from_id)
                               AND (t.expires_at IS NULL OR t.expires_at > moment)
                               AND (t.suspect IS NULL OR suspects)
                               AND (SELECT k.task_id FROM pgqueue.take k WHERE k.task_id = t.id) IS NULL
                             ORDER BY t.priority, t.id LIMIT most FOR UPDATE OF t SKIP LOCKED);
        END IF;
        SELECT array_agg(m.id), array_agg(m.meter) INTO held, meters
          FROM (SELECT t.id, pgqueue._meter(_hold_back.queue_id, t.data) AS meter
                  FROM pgqueue.task t WHERE t.id = ANY (found) AND t.lane IS NULL OFFSET 0) m
         WHERE m.meter IS NOT NULL;
        EXIT WHEN held IS NULL;
        PERFORM pgqueue._await_slots(held, meters);
        found := ARRAY (SELECT f.id FROM unnest(found) f(id) WHERE f.id <> ALL (held));
        total := total + cardinality(held);
        EXIT WHEN cardinality(found) >= n OR total >= 1000;
        most := greatest(n, 250);
    END LOOP;
    RETURN found;
END $$;

-- Open these meters, until they have `enough` tasks that may begin; admit those of them that are among the first n,
-- together with the tasks `free`; and close them. Returns the first n. done: the meters that need no check;
-- kept: those that need one; early: there were enough tasks before all meters were opened.
CREATE OR REPLACE FUNCTION pgqueue._admit(
    queue_id int, names text[], free bigint[], n int, suspects boolean,
    OUT chosen bigint[], OUT done text[], OUT kept text[], OUT early boolean
)
LANGUAGE plpgsql AS $$
DECLARE
    enough  CONSTANT bigint := n + 8::bigint;      -- beyond n: so that the first of several meters can be told
    found  bigint[] := free;
    opened text[]   := '{}'::text[];
    rooms  int[]    := '{}'::int[];
    tokens float8[] := '{}'::float8[];
    paces  float8[] := '{}'::float8[];
    times  timestamptz[] := '{}'::timestamptz[];
    begun  text[];
    name   text;
    o      record;
BEGIN
    done := '{}';
    kept := '{}';
    early := false;
    FOREACH name IN ARRAY names LOOP
        early := cardinality(found) - cardinality(free) >= enough;
        EXIT WHEN early;
        SELECT * INTO o FROM pgqueue._open_meter(queue_id, name, n, suspects);
        CONTINUE WHEN NOT o.is_open;
        opened := opened || name;
        rooms := array_append(rooms, o.room);
        tokens := array_append(tokens, o.tokens);
        paces := array_append(paces, o.pace);
        times := array_append(times, o.moment);
        found := found || o.ids;
    END LOOP;
    chosen := ARRAY (SELECT t.id FROM pgqueue.task t WHERE t.id = ANY (found) ORDER BY t.priority, t.id LIMIT n);
    begun := pgqueue._end_limit_wait(chosen, admitted => true);
    FOR i IN 1..cardinality(opened) LOOP
        IF pgqueue._close_meter(queue_id, opened [i], coalesce(cardinality(array_positions(begun, opened [i])), 0),
                                rooms [i], tokens [i], paces [i], times [i]) THEN
            done := done || opened [i];
        ELSE
            kept := kept || opened [i];
        END IF;
    END LOOP;
END $$;

-- Up to n tasks that the caller may take in a queue with limits, with their rows locked. The waiting tasks among them
-- are admitted, in this transaction. The snapshot may be too old: the caller looks for takes once more.
CREATE OR REPLACE FUNCTION pgqueue._find_limited(
    queue_id int, n int, after_priority int, after_id bigint, suspects boolean, lanes boolean
) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    most   CONSTANT bigint := 100 + 3 * n::bigint; -- how many checks are looked at together
    after  bigint := 0;
    seen   tid[];
    names  text[];
    due    text[];
    free   bigint[];
    a      record;
BEGIN
    PERFORM pgqueue._check_admission(), pgqueue._release_dropped(queue_id);
    free := pgqueue._hold_back(queue_id, n, after_priority, after_id, suspects, lanes);
    due := ARRAY (SELECT b.meter FROM pgqueue.bucket b
                   WHERE b.queue_id = _find_limited.queue_id AND b.due_at <= moment ORDER BY b.due_at LIMIT most);
    LOOP
        SELECT array_agg(c.ctid), array_agg(c.meter ORDER BY c.id), max(c.id) INTO seen, names, after
          FROM (SELECT k.ctid, k.id, k.meter FROM pgqueue.meter_check k
                 WHERE k.queue_id = _find_limited.queue_id AND k.id > after
                 ORDER BY k.id LIMIT most FOR UPDATE SKIP LOCKED) c;
        names := ARRAY (SELECT u.meter FROM unnest(due || names) WITH ORDINALITY u(meter, place)
                         GROUP BY u.meter ORDER BY min(u.place));
        SELECT * INTO a FROM pgqueue._admit(queue_id, names, free, n, suspects);
        WITH gone AS (
            DELETE FROM pgqueue.meter_check c
             WHERE c.ctid = ANY (seen) AND (c.meter = ANY (a.done) OR a.early AND c.meter = ANY (a.kept))
               AND c.xid IS DISTINCT FROM pg_current_xact_id_if_assigned()
            RETURNING c.meter)
        INSERT INTO pgqueue.meter_check (queue_id, meter)       -- behind those that were not looked at
        SELECT DISTINCT _find_limited.queue_id, gone.meter FROM gone WHERE gone.meter = ANY (a.kept);
        EXIT WHEN a.chosen <> '{}' OR seen IS NULL;
        due := '{}';
    END LOOP;
    RETURN a.chosen;
END $$;

-- Whether the limits of its job let this task begin now; if so it has a slot. The caller has locked its row, and takes
-- the task.
CREATE OR REPLACE FUNCTION pgqueue._admit_task(t pgqueue.task) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    name CONSTANT text := pgqueue._meter(t.queue_id, t.data);
    o    record;
BEGIN
    IF name IS NULL OR EXISTS (SELECT FROM pgqueue.take k WHERE k.task_id = t.id) THEN
        RETURN true;                               -- the caller looks for a take
    END IF;
    PERFORM pgqueue._check_admission();
    PERFORM pgqueue._await_slots(ARRAY [t.id], ARRAY [name]);
    SELECT * INTO o FROM pgqueue._open_meter(t.queue_id, name, 0, true);
    IF (o.is_open AND coalesce(o.room, 1) >= 1 AND coalesce(o.tokens, 1) >= 1) IS NOT TRUE THEN
        RETURN false;
    END IF;
    PERFORM pgqueue._call_up(t.id, name), pgqueue._close_meter(t.queue_id, name, 1, o.room, o.tokens, o.pace, o.moment);
    RETURN true;
END $$;

-- Whether a claim may find a task that waits. As in _lanes_due, a remaining check is worth another look.
CREATE OR REPLACE FUNCTION pgqueue._limits_due(queue_id int) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT c.id FROM pgqueue.meter_check c
             WHERE c.queue_id = _limits_due.queue_id ORDER BY c.id LIMIT 1) IS NOT NULL
        OR (SELECT b.due_at FROM pgqueue.bucket b
             WHERE b.queue_id = _limits_due.queue_id AND b.due_at <= statement_timestamp()
             ORDER BY b.due_at LIMIT 1) IS NOT NULL;
END $$;

-- How many of the first hundred tasks that wait in a queue could have begun at a time by their limits, had a taker been
-- there: none runs, so each slot is free, and only tokens count. For checks of health, where no take is.
CREATE OR REPLACE FUNCTION pgqueue._could_begin(queue_id int, moment timestamptz) RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
    RETURN (
        SELECT count(*)
          FROM (SELECT w.meter, coalesce(w.ready_at, w.created_at) AS since, w.expires_at FROM pgqueue.task w
                 WHERE w.queue_id = _could_begin.queue_id AND w.state = 'W'
                 ORDER BY w.priority, w.id LIMIT 100) t
          JOIN pgqueue.task_limit l ON l.id = split_part(t.meter, ':', 1)::int
          LEFT JOIN pgqueue.bucket b ON b.queue_id = _could_begin.queue_id AND b.meter = t.meter
         WHERE t.since <= moment AND (t.expires_at IS NULL OR t.expires_at > clock_timestamp())
           AND (l.dropped OR l.rate IS NULL OR b.tokens IS NULL
                OR b.filled_at + greatest(0, 1 - b.tokens) * l.period / l.rate <= moment));
END $$;
