-- Health: whether all is well, and if not, why a task is not done.
--
-- Read from the views, with the caller's rights: a role that may read the views gets an answer. The limits cannot be
-- configured: a monitor with other limits compares the values itself. docs/guides/monitoring.md explains the limits.

-- Objects in the schema that another role than its owner owns: 8_grants/owned.sql has the same query, which runs where
-- this function itself may belong to another role.
CREATE OR REPLACE FUNCTION pgqueue._strange_objects() RETURNS TABLE (object text, owner name)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
        SELECT pg_describe_object(o.classid, o.objid, 0), pg_get_userbyid(o.owner)
          FROM (SELECT d.classid, d.objid,
                       coalesce((SELECT w.refobjid FROM pg_shdepend w
                                  WHERE w.dbid = (SELECT b.oid FROM pg_database b WHERE b.datname = current_database())
                                    AND w.classid = d.classid AND w.objid = d.objid AND w.deptype = 'o'), 10) AS owner
                  FROM pg_depend d
                 WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = 'pgqueue'::regnamespace
                   AND d.classid = ANY ('{pg_class,pg_proc,pg_type,pg_operator,pg_opclass,pg_opfamily,pg_collation,
                                          pg_conversion,pg_ts_dict,pg_ts_config,pg_statistic_ext}'::regclass[])) o
         WHERE o.owner <> (SELECT s.nspowner FROM pg_namespace s WHERE s.nspname = 'pgqueue')
         ORDER BY 1;
END $$;

-- Transactions for which transactions that use pgqueue have waited for a second or more, and which do not wait
-- themselves: how many wait directly, and for how many seconds the first of them has. Such a transaction may be of any
-- role with a right to the row, and PostgreSQL ends it only if a timeout is set. The longest waits are enough, since
-- each call of pg_blocking_pids stops the server's lock manager. The server shows every role this much about others'
-- locks, but not the age of their transactions. Waits for advisory locks end by themselves, or are in foreign.sql.
CREATE OR REPLACE FUNCTION pgqueue._held_up()
RETURNS TABLE (pid int, role text, calls bigint, seconds double precision)
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
        WITH l AS MATERIALIZED (
            SELECT k.pid, k.granted, k.waitstart, k.locktype, c.oid IS NOT NULL AS is_ours
              FROM pg_catalog.pg_locks k
              LEFT JOIN pg_class c ON c.oid = k.relation AND c.relnamespace = 'pgqueue'::regnamespace
                                  AND k.database = (SELECT d.oid FROM pg_database d
                                                     WHERE d.datname = current_database())),
        w AS MATERIALIZED (
            SELECT n.pid, min(n.waitstart) AS since FROM l n
             WHERE NOT n.granted AND n.locktype <> 'advisory'
               AND n.waitstart < clock_timestamp() - interval '1 s'
               AND n.pid IN (SELECT o.pid FROM l o WHERE o.is_ours)
             GROUP BY n.pid ORDER BY min(n.waitstart) LIMIT 20)
        SELECT b.pid, max(coalesce(a.usename, '?'))::text, count(*),
               extract(epoch FROM clock_timestamp() - min(w.since))::double precision
          FROM w CROSS JOIN LATERAL (SELECT DISTINCT u.pid FROM unnest(pg_blocking_pids(w.pid)) u(pid)) b
          LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = b.pid
         WHERE b.pid NOT IN (SELECT o.pid FROM w o)
         GROUP BY b.pid ORDER BY min(w.since);
END $$;

-- The view pgqueue.health.
CREATE OR REPLACE FUNCTION pgqueue._check_health()
RETURNS TABLE (name text, status text, value double precision, unit text, detail text)
LANGUAGE plpgsql AS $$
BEGIN
    IF pg_is_in_recovery() THEN                   -- most tables are UNLOGGED, and cannot be read there
        RETURN QUERY VALUES ('standby', 'bad', 1::double precision, 'servers', 'the queues are on the primary');
        RETURN;
    END IF;
    RETURN QUERY
        WITH n AS MATERIALIZED (SELECT * FROM pgqueue._health_stats()),
        q AS MATERIALIZED (
            SELECT extract(epoch FROM clock_timestamp() - pgqueue._readable(
                       min(n.ready_since) FILTER (WHERE NOT n.paused))) AS oldest_age,
                   (array_agg(n.queue ORDER BY n.ready_since)
                    FILTER (WHERE NOT n.paused AND n.ready_since IS NOT NULL)) [1] AS oldest,
                   sum(n.total) AS total, sum(n.ready) AS ready, min(n.created_at) AS created_at,
                   array_agg(n.queue) FILTER (WHERE n.limited > 0) AS limited,
                   sum(n.buried) AS buried, string_agg(n.queue, ', ') FILTER (WHERE n.buried > 0) AS with_buried,
                   count(*) FILTER (WHERE n.paused AND n.ready > 0) AS paused,
                   string_agg(n.queue, ', ') FILTER (WHERE n.paused AND n.ready > 0) AS with_paused,
                   count(*) FILTER (WHERE n.draining AND n.total > 0) AS draining,
                   string_agg(n.queue, ', ') FILTER (WHERE n.draining AND n.total > 0) AS with_draining,
                   count(*) FILTER (WHERE n.total >= n.capacity) AS filled,
                   string_agg(n.queue, ', ') FILTER (WHERE n.total >= n.capacity) AS with_filled
              FROM n),
        u AS MATERIALIZED (
            SELECT pgqueue._unserved(
                       array_agg(n.queue) FILTER (
                           WHERE n.ready > 0 AND n.ready_since < clock_timestamp() - interval '1 min'),
                       array_agg(n.queue) FILTER (WHERE n.limited > 0)) AS queues
              FROM n WHERE NOT n.paused),
        t AS MATERIALIZED (SELECT * FROM pgqueue._vacuums()),
        x AS MATERIALIZED (SELECT * FROM pgqueue.snapshots k WHERE k.holds_back),
        checks (name, warn, bad, value, unit, detail) AS (
            SELECT 'standby', 1, 1, 0::double precision, 'servers', NULL::text
             UNION ALL
            SELECT 'oldest_ready', 300, 3600, q.oldest_age, 's', q.oldest FROM q
             UNION ALL
            SELECT 'unattended', 1, NULL,
                   CASE WHEN NOT pgqueue._is_attended() THEN q.ready + pgqueue._could_begin_now(q.limited) END, 'tasks',
                   'no session is connected that could take them'
              FROM q
             UNION ALL
            SELECT 'unserved', 1, NULL, cardinality(u.queues), 'queues',
                   'no worker serves ' || array_to_string(u.queues, ', ')
              FROM u
             UNION ALL
            SELECT 'tick', 60, 600,               -- without a tick so far, since the first queue was created
                   CASE WHEN q.total > 0
                        THEN extract(epoch FROM clock_timestamp() - coalesce(
                                 pgqueue.last_tick(), greatest(pg_postmaster_start_time(), q.created_at))) END,
                   's', 'since a client last looked for what is due'
              FROM q
             UNION ALL
            SELECT 'late_schedule', 60, 600, extract(epoch FROM max(l.late)), 's',
                   (array_agg(l.name ORDER BY l.late DESC)) [1]
              FROM pgqueue.schedules l WHERE l.late IS NOT NULL
             UNION ALL
            SELECT 'missing', 1, NULL, count(*), 'sessions', string_agg(s.label, ', ')
              FROM pgqueue.sessions s WHERE s.state = 'missing'
             UNION ALL
            SELECT 'buried', 1, NULL, q.buried, 'tasks', q.with_buried FROM q
             UNION ALL
            SELECT 'paused', 1, NULL, q.paused, 'queues', q.with_paused FROM q
             UNION ALL
            SELECT 'draining', 1, NULL, q.draining, 'queues', q.with_draining FROM q
             UNION ALL
            SELECT 'full', 1, NULL, q.filled, 'queues', q.with_filled FROM q
             UNION ALL
            SELECT 'oldest_snapshot', 300, 3600, extract(epoch FROM max(x.age)), 's',
                   (array_agg(concat_ws(' ', x.kind, x.name, 'pid', x.pid, x.state) ORDER BY x.age DESC)) [1]
              FROM x WHERE x.age IS NOT NULL
             UNION ALL
            SELECT 'oldest_snapshot_xids', 1e6, 1e7, max(x.xid_age), 'transactions',
                   (array_agg(concat_ws(' ', x.kind, x.name, 'pid', x.pid, x.state) ORDER BY x.xid_age DESC)) [1]
              FROM x
             UNION ALL
            (SELECT 'dead_rows', 10 * v.normal, 100 * v.normal, t.dead_rows, 'rows',
                    format('%s, where autovacuum is %s', t.name, t.autovacuum)
               FROM t, greatest(t.vacuum_at, 2000) v(normal) ORDER BY t.dead_rows / v.normal DESC LIMIT 1)
             UNION ALL
            SELECT 'autovacuum_off', 1, 1, count(*), 'tables', string_agg(t.name, ', ')
              FROM t WHERE t.autovacuum = 'off'
             UNION ALL
            SELECT 'wraparound', 5e8, 1.5e9, max(t.xid_age), 'transactions',
                   (array_agg(t.name ORDER BY t.xid_age DESC)) [1]
              FROM t
             UNION ALL
            SELECT 'notification_queue', 10, 50, 100 * pg_notification_queue_usage(), '%',
                   'once it is full, commits that notify fail'
             UNION ALL
            SELECT 'foreign_locks', 1, 1, count(*), 'locks',
                   string_agg(format('backend %s of role %s blocks %s', f.pid, f.role, f.blocks), '; ')
              FROM pgqueue._foreign_locks() f
             UNION ALL
            SELECT 'held_up', 5, 60, max(h.seconds), 's',
                   string_agg(format('calls that wait for %s: %s',
                                     CASE h.pid WHEN 0 THEN 'a prepared transaction'
                                          ELSE format('backend %s of role %s', h.pid, h.role) END, h.calls),
                              '; ' ORDER BY h.seconds DESC)
              FROM pgqueue._held_up() h
             UNION ALL
            SELECT 'lost_roles', 1, NULL, count(*), 'roles',
                   format('%s have privileges and cannot use them: CREATE ROLE, where it is missing, then `pgqueue '
                          'migrate up`; grant again to roles that were there', string_agg(r.role, ', '))
              FROM pgqueue._lost_roles() r
             UNION ALL
            SELECT 'strange_objects', 1, 1, count(*), 'objects',
                   format('%s: look at what it does, and drop it', string_agg(o.object || ' of ' || o.owner, ', '))
              FROM pgqueue._strange_objects() o
             UNION ALL
            SELECT 'schema_version', NULL, NULL, max(v.version_num)::double precision, 'version', 'of `pgqueue migrate`'
              FROM pgqueue.schema_version v)
        SELECT c.name, CASE WHEN c.value >= c.bad THEN 'bad' WHEN c.value >= c.warn THEN 'warn' ELSE 'ok' END,
               coalesce(c.value, 0), c.unit, CASE WHEN c.value > 0 THEN coalesce(left(c.detail, 200), '') ELSE '' END
          FROM checks c;
END $$;

CREATE OR REPLACE VIEW pgqueue.health AS SELECT * FROM pgqueue._check_health();
COMMENT ON VIEW pgqueue.health IS 'Is all well? One row for each check; status: ok, warn or bad.';

-- Few rows, for people: the most telling ones of possibly thousands of holders or lanes. The function reads the first
-- hundred ready, waiting and delayed tasks, and the last hundred buried ones: others may be missed.
CREATE OR REPLACE FUNCTION pgqueue.why(queue text)
RETURNS TABLE (reason text, tasks bigint, detail text, subject text)
LANGUAGE plpgsql AS $$
DECLARE
    few     CONSTANT int := 5;
    most    CONSTANT int := 100;
    looks   boolean;
    waits   boolean;                          -- a taker
    works   boolean;
    limited boolean;                          -- tasks wait for a limit
    q       record;
BEGIN
    SELECT seen.looks INTO looks FROM pgqueue._seen seen WHERE seen.name = why.queue;
    SELECT o.*, s.total, s.ready, s.delayed, s.taken, s.buried, s.blocked, s.oldest_ready_age INTO q
      FROM pgqueue.queues o, pgqueue.queue_stats(why.queue) s WHERE o.name = why.queue;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'no queue', NULL::bigint, format('there is no queue "%s"', why.queue), NULL::text;
        RETURN;
    END IF;
    waits := pgqueue._is_awaited(q.id);
    RETURN QUERY SELECT 'paused', q.ready, format('nothing is taken until %s', q.paused_until), NULL::text
                  WHERE q.paused_until IS NOT NULL;
    RETURN QUERY SELECT 'draining', NULL::bigint, 'nothing is put any more', NULL::text WHERE q.draining;
    RETURN QUERY SELECT 'full', q.total, format('puts wait or are refused: its capacity is %s', q.capacity),
                        q.capacity::text
                  WHERE q.total >= q.capacity;
    RETURN QUERY SELECT 'restricted', NULL::bigint,
                        format('only these roles may use it: %s', array_to_string(q.granted_to, ', ')), NULL::text
                  WHERE q.granted_to IS NOT NULL;
    -- Only if no role may take. Else the queue has takers of its own, which are not connected, and a right for those of
    -- another queue would not help. Roles that may take from no queue are producers, and not meant to take from this
    -- one.
    RETURN QUERY SELECT 'no right', q.ready, format('role %s is connected, and may not take from it', r.role), r.role
                   FROM (SELECT DISTINCT s.role FROM pgqueue.sessions s) r, to_regrole(quote_ident(r.role)) named(id)
                  WHERE q.ready > 0 AND NOT waits AND NOT pgqueue._may(q.id, 'take', named.id)
                    AND EXISTS (SELECT FROM pgqueue.privilege p
                                 WHERE p.verb = 'take' AND pg_has_role(named.id, p.role_id, 'USAGE'))
                    AND NOT EXISTS (SELECT FROM pgqueue.privilege p
                                     WHERE p.verb = 'take' AND pgqueue._may(q.id, 'take', p.role_id))
                    AND 'connected' IN (SELECT s.state FROM pgqueue.sessions s WHERE s.role = r.role)
                  ORDER BY r.role LIMIT few;
    RETURN QUERY SELECT 'exclusive', NULL::bigint,
                        format('only session %s may take: %s', q.session,
                               coalesce((SELECT format('%s, %s', s.label, s.state) FROM pgqueue.sessions s
                                          WHERE s.id = q.session), 'gone')), NULL::text
                  WHERE q.exclusive;
    RETURN QUERY SELECT 'died', count(*),
                        format('a process died that had task %s, and may have died of it', (array_agg(t.id)) [1]),
                        (array_agg(t.id)) [1]::text
                   FROM (SELECT h.id, h.killed_after FROM pgqueue.task h WHERE h.queue_id = q.id AND h.state = 'R'
                          ORDER BY h.priority, h.id LIMIT most) t
                  WHERE t.killed_after IS NOT NULL HAVING count(*) > 0;
    works := q.taken > 0 OR EXISTS (SELECT FROM pgqueue.worker w WHERE q.name = ANY (w.queues));
    -- A task with a limit waits until a claim gives it its slot, also where no slot is in use.
    limited := EXISTS (SELECT FROM (SELECT w.meter FROM pgqueue.task w WHERE w.queue_id = q.id AND w.state = 'W'
                                     ORDER BY w.priority, w.id LIMIT most) t WHERE t.meter IS NOT NULL);
    RETURN QUERY SELECT 'no taker', q.ready,
                        format('ready, the oldest for %s, and no taker waits: none is there',
                               date_trunc('second', q.oldest_ready_age)), NULL::text
                  WHERE q.ready > 0 AND NOT waits AND NOT works;
    RETURN QUERY SELECT 'no taker', NULL::bigint,
                        'tasks with a limit wait, and no taker waits for them: none is there', NULL::text
                  WHERE q.ready = 0 AND limited AND NOT waits AND NOT works;
    RETURN QUERY SELECT 'busy', q.ready,
                        format('ready, the oldest for %s, and no taker waits: its workers are busy, or stand still',
                               date_trunc('second', q.oldest_ready_age)), NULL::text
                  WHERE q.ready > 0 AND NOT waits AND works;
    RETURN QUERY SELECT 'locked', q.ready,
                        format('ready, the oldest for %s, although a taker waits: '
                               'a transaction that is open may have them',
                               date_trunc('second', q.oldest_ready_age)), NULL::text
                  WHERE q.oldest_ready_age > '1 s' AND q.paused_until IS NULL AND waits;
    RETURN QUERY SELECT 'taken', h.n, format('by %s (%s), the longest for %s; %s', h.holder, coalesce(
                            (SELECT s.state FROM pgqueue.sessions s WHERE s.id = h.session), 'no session'),
                            date_trunc('second', h.longest),
                            CASE WHEN h.ends THEN 'the last until ' || h.until ELSE 'without a limit of time' END),
                        NULL::text
                   FROM (SELECT k.session, k.holder, count(*) AS n, max(k.age) AS longest, max(k.deadline) AS until,
                                bool_and(k.deadline IS NOT NULL) AS ends
                           FROM pgqueue.takes k WHERE k.queue = why.queue
                          GROUP BY k.session, k.holder ORDER BY max(k.age) DESC LIMIT few) h
                  ORDER BY h.longest DESC;
    -- The view of the takes hides the lane from roles that may not look into the queue.
    RETURN QUERY SELECT 'blocked', NULL::bigint,
                        format('%s waits for task %s, which %s has since %s',
                               coalesce('lane "' || k.lane || '"', 'a lane'), k.id, k.holder, k.taken_at), k.id::text
                   FROM pgqueue.takes k
                  WHERE q.blocked > 0 AND k.queue = why.queue
                    AND k.id IN (SELECT l.task_id FROM pgqueue.take l WHERE l.queue_id = q.id AND l.lane IS NOT NULL)
                  ORDER BY k.taken_at LIMIT few;
    RETURN QUERY SELECT 'waiting', count(*), coalesce(pgqueue._awaited_limit(min(t.id)), 'for other tasks'),
                        CASE WHEN t.of_limit IS NULL THEN min(t.id)::text
                             ELSE (SELECT l.job FROM pgqueue.task_limit l WHERE l.id = t.of_limit) END
                   FROM (SELECT w.id, split_part(w.meter, ':', 1)::int AS of_limit FROM pgqueue.task w
                          WHERE w.queue_id = q.id AND w.state = 'W' ORDER BY w.priority, w.id LIMIT most) t
                  GROUP BY t.of_limit ORDER BY count(*) DESC LIMIT few;
    RETURN QUERY SELECT 'failing', count(*),
                        CASE WHEN looks THEN t.error ELSE 'their errors are for roles that may look into the queue' END,
                        min(t.id)::text
                   FROM (SELECT d.id, d.attempts, CASE WHEN looks THEN d.error END AS error FROM pgqueue.task d
                          WHERE d.queue_id = q.id AND d.state = 'D' ORDER BY d.run_at, d.id LIMIT most) t
                  WHERE t.attempts > 0 AND (NOT looks OR t.error IS NOT NULL)
                  GROUP BY t.error ORDER BY count(*) DESC LIMIT few;
    RETURN QUERY SELECT 'delayed', q.delayed, format('the next is task %s, at %s', t.id, t.run_at), t.id::text
                   FROM pgqueue._tasks t WHERE t.queue_id = q.id AND t.stored = 'D' AND t.run_at > now()
                  ORDER BY t.run_at LIMIT 1;
    RETURN QUERY SELECT 'scheduled', NULL::bigint,
                        format('schedule "%s" %s', l.name,
                               CASE WHEN l.paused THEN 'is paused'
                                    WHEN l.late IS NOT NULL THEN 'is late: no worker fires it'
                                    ELSE coalesce('puts a task at ' || l.next_at, 'has no next time yet') END), l.name
                   FROM pgqueue.schedules l
                  WHERE l.queue = why.queue AND q.ready + q.taken + q.delayed + q.blocked = 0
                  ORDER BY l.paused DESC, l.late DESC NULLS LAST, l.next_at LIMIT few;
    IF looks THEN
        RETURN QUERY SELECT 'buried', count(*), coalesce(t.error, 'without an error'), max(t.id)::text
                       FROM (SELECT b.id, b.error FROM pgqueue.task b WHERE b.queue_id = q.id AND b.state = 'B'
                              ORDER BY b.priority DESC, b.id DESC LIMIT most) t
                      GROUP BY t.error ORDER BY count(*) DESC LIMIT few;
    ELSE
        RETURN QUERY SELECT 'buried', q.buried, 'their errors are for roles that may look into the queue', NULL::text
                      WHERE q.buried > 0;
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.why(text) IS
    'Why tasks of a queue are not done: one row for each reason; for holders, busy lanes, limits, schedules and errors '
    'the five that matter most (limits: of the first hundred waiting tasks; errors: of the first hundred delayed and '
    'the last hundred buried ones). subject: the task, role or schedule of the reason, the job of a limit, or the '
    'capacity.';

CREATE OR REPLACE FUNCTION pgqueue.why(id bigint)
RETURNS TABLE (reason text, tasks bigint, detail text, subject text)
LANGUAGE plpgsql AS $$
DECLARE
    t record;
BEGIN
    SELECT k.*, seen.looks INTO t
      FROM pgqueue._tasks k JOIN pgqueue._seen seen ON seen.id = k.queue_id WHERE k.id = why.id;
    IF NOT FOUND THEN
        RETURN QUERY SELECT pgqueue._absent(why.id, 'no task'), NULL::bigint,
                            format('there is no task %s: it was done, deleted, or never committed', why.id), NULL::text;
        RETURN;
    END IF;
    RETURN QUERY SELECT t.state, 1::bigint, CASE t.state
        WHEN 'taken' THEN format('%s has it since %s, %s', t.holder, t.taken_at,
                                 coalesce('until ' || t.deadline, 'without a limit of time'))
        WHEN 'cancelling' THEN (SELECT format('%s cancelled it at %s, and its holder, %s, has not ended', c.role,
                                              c.asked_at, coalesce(c.holder, 'which is gone'))
                                  FROM pgqueue.cancellations c WHERE c.id = t.id)
        WHEN 'waiting' THEN coalesce(pgqueue._awaited_limit(t.id), 'for other tasks')
        WHEN 'delayed' THEN format('until %s', t.run_at)
        WHEN 'buried' THEN CASE WHEN t.looks THEN coalesce(t.error, 'without an error') END
        WHEN 'done' THEN format('since %s', t.done_at)
        WHEN 'ready' THEN format('in queue "%s" since %s, with priority %s', t.queue, t.ready_since, t.priority)
        WHEN 'blocked' THEN format('in %s, behind task %s',
                                   coalesce('lane "' || CASE WHEN t.looks THEN t.lane END || '"', 'a lane'), coalesce(
             (SELECT format('%s, which %s has since %s', k.id, k.holder, k.taken_at) FROM pgqueue.takes k
               WHERE k.id = (SELECT l.task_id FROM pgqueue.take l WHERE l.queue_id = t.queue_id AND l.lane = t.lane)),
             (SELECT format('%s, which is %s%s', h.id, h.state,
                            CASE h.state WHEN 'delayed' THEN ' until ' || h.run_at END)
                FROM pgqueue._tasks h
               WHERE h.id = (SELECT i.id FROM pgqueue._in_lane i WHERE i.queue_id = t.queue_id AND i.lane = t.lane
                              ORDER BY i.priority, i.id LIMIT 1)))) END,
        NULL::text;
    RETURN QUERY SELECT w.* FROM pgqueue.why(t.queue::text) w
                  WHERE t.state = 'ready'
                    AND w.reason IN ('paused', 'restricted', 'no right', 'exclusive', 'died', 'no taker', 'busy',
                                     'locked', 'taken');
END $$;
COMMENT ON FUNCTION pgqueue.why(bigint) IS
    'Why a task is not done: its state and the reason why it waits; if it is ready, also the reasons of its queue '
    '(why).';
