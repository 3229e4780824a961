-- Firing schedules: the functions that clocks call. schedules.sql has the theory.

-- The queue of a schedule. A queue that was deleted is created again, as by a put of the role that set the schedule.
CREATE OR REPLACE FUNCTION pgqueue._schedule_queue(s pgqueue.schedule) RETURNS pgqueue.queue
LANGUAGE plpgsql AS $$
DECLARE
    setter CONSTANT oid := pgqueue._living_role(s.role_id);
    q      pgqueue.queue;
BEGIN
    SELECT * INTO q FROM pgqueue.queue named WHERE named.name = s.queue;
    IF setter IS NULL OR q.guarded AND NOT pgqueue._may(q.id, 'put', setter) THEN
        RAISE EXCEPTION 'role % set schedule "%" and may not put into queue "%"', quote_ident(s.role), s.name, s.queue
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'Give it the verb put, or set the schedule again as a role that has it.';
    ELSIF q.id IS NULL THEN
        IF NOT EXISTS (SELECT FROM pgqueue.privilege p
                        WHERE p.verb = 'put' AND s.queue LIKE p.mask AND pg_has_role(setter, p.role_id, 'USAGE'))
           AND NOT pg_has_role(setter, (SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = 'pgqueue'), 'USAGE')
        THEN
            RAISE EXCEPTION 'there is no queue "%" any more, and role % may not create it', s.queue,
                quote_ident(s.role) USING ERRCODE = 'insufficient_privilege';
        END IF;
        INSERT INTO pgqueue.queue (name, role, draining, guarded)
        VALUES (s.queue, pg_get_userbyid(setter), EXISTS (SELECT FROM pgqueue.draining), pgqueue._roles_are_limited())
            ON CONFLICT DO NOTHING;
        SELECT * INTO q FROM pgqueue.queue named WHERE named.name = s.queue;
    END IF;
    RETURN q;
END $$;

-- The data of one occurrence. The headers of a job's task name the schedule that put it, the occurrence, and the cron
-- expression or interval: for a monitor of schedules, for example Sentry's.
CREATE OR REPLACE FUNCTION pgqueue._scheduled_data(s pgqueue.schedule, occurrence timestamptz) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF jsonb_typeof(s.data) <> 'object' OR jsonb_typeof(s.data -> 'job') IS DISTINCT FROM 'string'
       OR jsonb_typeof(coalesce(s.data -> 'headers', '{}')) <> 'object' THEN
        RETURN s.data;
    END IF;
    RETURN s.data || jsonb_build_object('headers', coalesce(s.data -> 'headers', '{}') || jsonb_strip_nulls(
               jsonb_build_object(
                   'schedule', s.name,
                   'scheduled_at', to_char(occurrence AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                   'schedule_cron', s.cron, 'schedule_tz', CASE WHEN s.cron IS NOT NULL THEN s.tz END,
                   'schedule_every', extract(epoch FROM s.every)::double precision::text)));
END $$;

CREATE OR REPLACE FUNCTION pgqueue._put_scheduled(s pgqueue.schedule, occurrence timestamptz) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    q   pgqueue.queue;
    o   pgqueue.specification;
    new pgqueue.put_outcome;
BEGIN
    q := pgqueue._schedule_queue(s);
    q.guarded := false;                            -- checked for the role that set it, and not for the caller
    o := (pgqueue._read_puts(jsonb_build_array(s.options))).specs [1];
    o.data := pgqueue._scheduled_data(s, occurrence);
    new := pgqueue._put_task(q, o);
    IF new.id IS NULL THEN
        RAISE EXCEPTION 'queue "%" is full', q.name USING ERRCODE = 'PQ037';
    END IF;
    RETURN new.id;
END $$;

-- The occurrences among these for which a task is put.
CREATE OR REPLACE FUNCTION pgqueue._chosen(occurrences timestamptz[], missed text) RETURNS timestamptz[]
LANGUAGE plpgsql AS $$
DECLARE
    late   CONSTANT interval    := interval '1 min'; -- an older occurrence is missed, although it is the newest
    newest CONSTANT timestamptz := occurrences [cardinality(occurrences)];
BEGIN
    RETURN CASE WHEN missed = 'all' THEN occurrences
                WHEN newest IS NULL OR missed = 'none' AND newest < clock_timestamp() - late THEN '{}'::timestamptz[]
                ELSE ARRAY [newest] END;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._check_occurrences(
    s pgqueue.schedule, occurrences timestamptz[], next_at timestamptz
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    before timestamptz := coalesce(s.next_at - interval '1 us', s.counts_from);
    one    timestamptz;
BEGIN
    FOREACH one IN ARRAY occurrences || coalesce(next_at, 'infinity') LOOP
        IF one <= before THEN
            RAISE EXCEPTION 'the occurrences of schedule "%" must be in their order, and after %, not %',
                s.name, before, one USING ERRCODE = 'PQ002';
        END IF;
        before := one;
    END LOOP;
END $$;

-- The prefix of the names that match a mask: its ASCII characters up to the first wildcard.
CREATE OR REPLACE FUNCTION pgqueue._head(mask text) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN substring(mask FROM '^[ -$&-[\]^`-}]*');
END $$;

-- The schedules that a role may change, by indexes: its own, and those of the queues that it manages. Each mask has a
-- head, and its names are those from the head up to the next text without this prefix. Reading every schedule would
-- cost the clocks of all roles 3 ms a look if another role has 10,000 schedules.
CREATE OR REPLACE FUNCTION pgqueue._schedules_in_reach(own oid[], ids int[], masks text[]) RETURNS SETOF text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
        SELECT s.name FROM pgqueue.schedule s WHERE s.role_id = ANY (own)
         UNION
        SELECT s.name FROM pgqueue.queue q JOIN pgqueue.schedule s ON s.queue COLLATE "C" = q.name
         WHERE q.id = ANY (ids) AND (NOT q.exclusive OR pgqueue._may(q.id, 'manage'))
         UNION
        SELECT s.name
          FROM (SELECT m.mask, pgqueue._head(m.mask) AS head FROM unnest(masks) m(mask)) m
          JOIN pgqueue.schedule s
            ON s.queue COLLATE "C" >= m.head
           AND s.queue COLLATE "C" < left(m.head, -1) || chr(ascii(right(m.head, 1)) + 1)
           AND s.queue LIKE m.mask
          LEFT JOIN pgqueue.queue q ON q.name = s.queue
         WHERE q.restricted IS NOT TRUE AND (q.exclusive IS NOT TRUE OR pgqueue._may(q.id, 'manage'));
END $$;

CREATE OR REPLACE FUNCTION pgqueue.due_schedules(except_for text[] DEFAULT '{}', most int DEFAULT 100)
RETURNS TABLE (
    name text, revision int, cron text, every interval, tz text, counts_from timestamptz, next_at timestamptz,
    moment timestamptz, seconds double precision
)
LANGUAGE plpgsql AS $$
DECLARE
    present CONSTANT timestamptz := clock_timestamp();
    owner   CONSTANT boolean     := pgqueue._is_owner();
    own     CONSTANT oid[]       := ARRAY (SELECT r.oid FROM pgqueue._own_roles r);
    managed CONSTANT record      := pgqueue._reach('manage');
    all_of  CONSTANT boolean     := owner OR EXISTS (     -- nearly all, as by the pattern *
        SELECT FROM unnest(managed.masks) m WHERE pgqueue._head(m) = '');
BEGIN
    PERFORM pgqueue._check_array('except_for', except_for), pgqueue._check_count('most', most);
    RETURN QUERY
        WITH near AS (
            SELECT s.* FROM pgqueue.schedule s LEFT JOIN pgqueue.queue q ON q.name = s.queue
             WHERE all_of
               AND (owner OR NOT q.guarded OR s.role_id = ANY (own)
                    OR CASE WHEN q.exclusive THEN pgqueue._may(q.id, 'manage')
                            ELSE q.id = ANY (managed.ids)
                              OR q.restricted IS NOT TRUE AND s.queue LIKE ANY (managed.masks) END)
             UNION ALL
            SELECT s.* FROM pgqueue.schedule s
             WHERE NOT all_of                              -- and so all queues are guarded
               AND s.name = ANY (ARRAY (
                       SELECT n FROM pgqueue._schedules_in_reach(own, managed.ids, managed.masks) n))),
        mine AS (
            SELECT s.name, s.revision, s.cron, s.every, s.tz, s.counts_from, s.next_at FROM near s
             WHERE NOT s.paused AND s.next_at IS DISTINCT FROM 'infinity'
               AND s.name <> ALL (coalesce(except_for, '{}'::text[])))
        (SELECT s.name, s.revision, s.cron, s.every, s.tz, s.counts_from, s.next_at, present, 0::double precision
           FROM mine s WHERE s.next_at IS NULL OR s.next_at <= present
          ORDER BY s.next_at NULLS FIRST, s.name LIMIT most)
        UNION ALL
        (SELECT s.name, s.revision, s.cron, s.every, s.tz, s.counts_from, pgqueue._readable(s.next_at), present,
                extract(epoch FROM pgqueue._readable(s.next_at) - present)::double precision
           FROM mine s WHERE s.next_at > present
          ORDER BY s.next_at, s.name LIMIT 1);
END $$;
COMMENT ON FUNCTION pgqueue.due_schedules IS
    'For clocks: the schedules that are due (seconds: 0), and the one that is due next, among those that the caller '
    'set and those of queues that it may manage; without those named. moment: the present time of the server.';

CREATE OR REPLACE FUNCTION pgqueue._check_firing(s pgqueue.schedule) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT pgqueue._may_change(s) THEN
        PERFORM pgqueue._refuse('manage', NULL);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.fire_schedule(
    name        text,
    revision    int,
    expected    timestamptz,                       -- next_at as due_schedules told it
    occurrences timestamptz[],                     -- those that are due: from next_at, or after counts_from
    next_at     timestamptz,                       -- the one after them. NULL: there is none
    error       text DEFAULT NULL,                 -- why they could not be found; then nothing else is done
    OUT outcome text,
    OUT ids     bigint[],
    OUT problem text
)
LANGUAGE plpgsql AS $$
DECLARE
    s pgqueue.schedule;
BEGIN
    PERFORM pgqueue._check_array('occurrences', occurrences), pgqueue._check_text('error', error, 1024);
    ids := '{}'::bigint[];
    PERFORM pgqueue._check_firing(k) FROM pgqueue.schedule k WHERE k.name = fire_schedule.name;
    SELECT * INTO s FROM pgqueue.schedule k WHERE k.name = fire_schedule.name FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        outcome := CASE WHEN EXISTS (SELECT FROM pgqueue.schedule k WHERE k.name = fire_schedule.name)
                        THEN 'busy' ELSE 'lost' END;
        RETURN;
    END IF;
    PERFORM pgqueue._check_firing(s);              -- it may name another queue by now
    IF s.paused OR s.revision IS DISTINCT FROM fire_schedule.revision
       OR s.next_at IS DISTINCT FROM expected THEN
        outcome := 'lost';
        RETURN;
    ELSIF error IS NULL AND occurrences [cardinality(occurrences)] > clock_timestamp() THEN
        outcome := 'early';                        -- the clock has stepped back
        RETURN;
    END IF;
    problem := error;
    IF problem IS NULL THEN
        PERFORM pgqueue._check_occurrences(s, coalesce(occurrences, '{}'), fire_schedule.next_at);
        occurrences := pgqueue._chosen(occurrences, s.missed);
        BEGIN
            FOR i IN 1 .. coalesce(cardinality(occurrences), 0) LOOP
                ids := ids || pgqueue._put_scheduled(s, occurrences [i]);
            END LOOP;
        EXCEPTION WHEN OTHERS THEN                 -- for a refusal; other errors do not concern this schedule
            IF SQLSTATE NOT LIKE 'PQ%' AND SQLSTATE NOT IN ('42501', '55P03') THEN
                RAISE;
            END IF;
            ids := '{}'::bigint[];
            problem := SQLERRM;
        END;
    END IF;
    IF problem IS NOT NULL THEN
        outcome := 'refused';
        UPDATE pgqueue.schedule k SET error = problem
         WHERE k.name = s.name AND k.error IS DISTINCT FROM problem;
        RETURN;
    END IF;
    outcome := 'fired';
    UPDATE pgqueue.schedule k
       SET next_at = coalesce(fire_schedule.next_at, 'infinity'), error = NULL,
           last_at = coalesce(occurrences [cardinality(occurrences)], k.last_at),
           last_task = coalesce(ids [cardinality(ids)], k.last_task)
     WHERE k.name = s.name;
END $$;
COMMENT ON FUNCTION pgqueue.fire_schedule IS
    'For clocks: put the tasks of the occurrences that are due, as `missed` says, and move next_at, if the schedule is '
    'unchanged since due_schedules. outcome: fired; lost: it has changed, so look again; busy: another transaction has '
    'it; early: an occurrence is not due yet; refused, with a problem: try again later. For the role that set it, and '
    'roles that may manage its queue: the clock''s arguments are trusted.';

CREATE OR REPLACE FUNCTION pgqueue.run_schedule(name text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    s  CONSTANT pgqueue.schedule := pgqueue._own_schedule(name);
    id bigint;
BEGIN
    id := pgqueue._put_scheduled(s, clock_timestamp());
    UPDATE pgqueue.schedule k SET last_at = clock_timestamp(), last_task = id WHERE k.name = s.name;
    PERFORM pgqueue._record('run_schedule', s.queue, s.name, detail => 'task ' || id);
    RETURN id;
END $$;
COMMENT ON FUNCTION pgqueue.run_schedule IS
    'Put the task of a schedule now, also if it is paused; its next_at stays as it is. Returns the task''s id. PQ080: '
    'there is none of this name.';

CREATE OR REPLACE VIEW pgqueue.schedules WITH (security_barrier) AS
SELECT s.name, s.queue, s.cron, s.every, s.tz, s.missed,
       CASE WHEN x.looks THEN s.data END AS data, CASE WHEN x.looks THEN s.options END AS options,
       s.paused, s.declared, s.removed_at, s.role::text AS role, s.created_at,
       CASE WHEN s.next_at < timestamptz '9999-12-30 00:00+00' THEN s.next_at END AS next_at,
       s.last_at, s.last_task, CASE WHEN s.last_task IS NOT NULL THEN
           coalesce(CASE WHEN t.state NOT IN ('buried', 'done') THEN t.state END,
                    CASE WHEN r.task_id IS NULL THEN NULL WHEN r.cancelled THEN 'cancelled'
                         WHEN r.error IS NULL THEN 'done' ELSE 'failed' END,
                    t.state, 'unknown') END AS last_state,
       coalesce(CASE WHEN of_task.looks THEN t.error END, CASE WHEN of_result.looks THEN r.error END) AS last_error,
       CASE WHEN of_result.looks THEN r.value END AS last_result,
       CASE WHEN x.looks THEN s.error END AS error, s.revision,
       CASE WHEN NOT s.paused AND coalesce(s.next_at, s.counts_from) <= clock_timestamp()
            THEN clock_timestamp() - coalesce(s.next_at, s.counts_from) END AS late,
       s.error IS NOT NULL AS refused
  FROM pgqueue.schedule s
  LEFT JOIN pgqueue._seen q ON q.name = s.queue
 CROSS JOIN LATERAL (
       SELECT coalesce(s.role_id = ANY (ARRAY (SELECT o.oid FROM pgqueue._own_roles o)), false)
           OR (SELECT pgqueue._is_owner()) OFFSET 0) o(own)
 CROSS JOIN LATERAL (SELECT coalesce(q.looks, false) OR o.own) x(looks)
  LEFT JOIN pgqueue._tasks t ON t.id = s.last_task
  LEFT JOIN pgqueue.result r ON r.task_id = s.last_task AND r.expires_at > clock_timestamp()
  -- Not q: the schedule may name another queue than that of its last task by now.
  LEFT JOIN pgqueue._seen of_task ON of_task.id = t.queue_id
  LEFT JOIN pgqueue._seen of_result ON of_result.id = r.queue_id
 WHERE q.id IS NOT NULL OR o.own;
COMMENT ON VIEW pgqueue.schedules IS
    'Every schedule, with its next and its last occurrence. last_state: the outcome of its last task. error: why it '
    'does not fire now. declared: the program whose code declares it, until removed_at. late: for how long an '
    'occurrence has waited to be fired. refused: at its last firing its put was refused, or no next time was found. '
    'Roles see schedules of queues that they may look into or monitor, and their own; monitors see no data.';
