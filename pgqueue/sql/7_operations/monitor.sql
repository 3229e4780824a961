-- Monitoring: views for monitors and operators that are cheap enough for a query every second.
--
-- docs/guides/monitoring.md promises that they stay as they are. A view reads pgqueue's tables with its owner's rights,
-- but the server's own lists with the reader's: other roles' connections show as much as the server shows to the
-- reader.
--
-- Two views show the state of the server on which the queues depend: vacuum, and old snapshots that hold it back. A
-- task lives for seconds, so these tables turn over many times a day. Dead rows stay for as long as any transaction in
-- the database, on any table, has an older snapshot: nothing else outside of pgqueue slows a queue down.

-- Store the sums of each queue's calls, if the last sample is older than ten seconds; every tick calls this. Counters
-- have no times: rates are computed from the difference of samples. Fewer samples would make the minute of a rate
-- inexact; more would cost more.
CREATE OR REPLACE FUNCTION pgqueue._take_sample() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed'        -- else a concurrent delete is an error
       OR EXISTS (SELECT FROM pgqueue.sample s WHERE s.sampled_at > moment - interval '10 s') THEN
        RETURN;
    END IF;
    INSERT INTO pgqueue.sample (sampled_at, calls)
    SELECT moment, coalesce(jsonb_object_agg(k.queue_id, k.calls), '{}') FROM pgqueue._known(NULL) k
        ON CONFLICT DO NOTHING;
    DELETE FROM pgqueue.sample s WHERE s.sampled_at < moment - interval '3 min';
END $$;

CREATE OR REPLACE FUNCTION pgqueue.last_tick() RETURNS timestamptz
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT s.sampled_at FROM pgqueue.sample s ORDER BY s.sampled_at DESC LIMIT 1);
END $$;
COMMENT ON FUNCTION pgqueue.last_tick IS
    'When a client last did the periodic work, exact to ten seconds; NULL: not since the server''s last crash.';

CREATE OR REPLACE FUNCTION pgqueue._rate(
    calls jsonb, before jsonb, verb text, seconds double precision
) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN
    (coalesce((calls ->> verb)::bigint, 0) - coalesce((before ->> verb)::bigint, 0)) / seconds;

-- By the sample with an age nearest to a minute: a sample of a moment ago would give meaningless rates. Its numbers are
-- unpacked once: a look-up of each queue would read the whole sample again for each queue.
CREATE OR REPLACE FUNCTION pgqueue.queue_rates(names text[] DEFAULT NULL)
RETURNS TABLE (queue text, seconds double precision, puts double precision, takes double precision,
               acks double precision, releases double precision, buries double precision, done double precision,
               growth double precision, drained_in interval)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    b record;
BEGIN
    SELECT o.calls, extract(epoch FROM clock_timestamp() - o.sampled_at)::double precision AS seconds INTO b
      FROM pgqueue.sample o
     WHERE o.sampled_at BETWEEN statement_timestamp() - interval '4 min' AND statement_timestamp() - interval '5 s'
     ORDER BY abs(extract(epoch FROM statement_timestamp() - o.sampled_at) - 60) LIMIT 1;
    RETURN QUERY
        SELECT s.queue, b.seconds, r.puts, r.takes, r.acks, r.releases, r.buries, r.acks + r.deletes,
               r.puts - r.acks - r.deletes,
               CASE WHEN r.acks + r.deletes > r.puts
                    THEN make_interval(secs => (s.ready + s.taken + s.blocked) / (r.acks + r.deletes - r.puts)) END
          FROM pgqueue.queue_stats(names) s
          JOIN pgqueue.queue q ON q.name = s.queue
          LEFT JOIN (SELECT e.key::int AS queue_id, e.value AS calls FROM jsonb_each(b.calls) e) o ON o.queue_id = q.id
         CROSS JOIN LATERAL (
               SELECT pgqueue._rate(s.calls, o.calls, 'put', b.seconds)     AS puts,
                      pgqueue._rate(s.calls, o.calls, 'take', b.seconds)    AS takes,
                      pgqueue._rate(s.calls, o.calls, 'ack', b.seconds)     AS acks,
                      pgqueue._rate(s.calls, o.calls, 'delete', b.seconds)  AS deletes,
                      pgqueue._rate(s.calls, o.calls, 'release', b.seconds) AS releases,
                      pgqueue._rate(s.calls, o.calls, 'bury', b.seconds)    AS buries) r;
END $$;
COMMENT ON FUNCTION pgqueue.queue_rates IS
    'The view pgqueue.rates for these queues; NULL: for all. Much cheaper for a page of them than the view.';

CREATE OR REPLACE VIEW pgqueue.rates AS SELECT * FROM pgqueue.queue_rates();
COMMENT ON VIEW pgqueue.rates IS
    'Puts, takes and other calls of each queue per second, over about the last minute. done: acks and deletes; '
    'drained_in: when the queue would be empty at this rate, NULL if it does not shrink. All NULL: no client runs, or '
    'one has run for only a few seconds.';

CREATE OR REPLACE FUNCTION pgqueue._label_host(label text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN substring(label FROM '^([^:]+):[0-9]{1,9}:');

CREATE OR REPLACE FUNCTION pgqueue._label_pid(label text) RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN substring(label FROM '^[^:]+:([0-9]{1,9}):')::int;

CREATE OR REPLACE VIEW pgqueue.takes WITH (security_barrier) AS
SELECT k.task_id AS id, q.name AS queue,
       coalesce(s.label, CASE k.session_id WHEN 0 THEN 'a claim' ELSE 'session ' || k.session_id END) AS holder,
       s.host, s.pid, k.session_id AS session, s.backend_pid,
       k.taken_at, clock_timestamp() - k.taken_at AS age,
       nullif(k.deadline, 'infinity') AS deadline, nullif(k.deadline, 'infinity') - clock_timestamp() AS time_left,
       CASE WHEN q.looks THEN k.lane END AS lane,
       CASE k.session_id WHEN 0 THEN (SELECT c.token FROM pgqueue.claim c
                                       WHERE c.token = k.token AND pgqueue._is_callers(c.role)) END AS claim
  FROM pgqueue.take k
  JOIN pgqueue._seen q ON q.id = k.queue_id
  LEFT JOIN (                                     -- once for each session, not for each take
       SELECT o.id, o.label, o.backend_pid, pgqueue._label_host(o.label) AS host, pgqueue._label_pid(o.label) AS pid
         FROM pgqueue.session o OFFSET 0) s ON s.id = k.session_id
 WHERE k.deadline > now();
COMMENT ON VIEW pgqueue.takes IS
    'Every task that is taken: its holder, since when, until when. host, pid: of the holder''s process, if its label '
    'has them. claim: the id of the claim that holds it, for the role of the claim; NULL for others, and for other '
    'takes, whose tokens are not shown.';

-- The sweep marks a session as missing at its next tick; until then only its lock shows that it is gone.
CREATE OR REPLACE VIEW pgqueue.sessions WITH (security_barrier) AS
SELECT s.id, s.label, s.backend_pid, s.started_at, s.grace, s.missing_since, coalesce(k.taken, 0) AS taken, s.identity,
       pgqueue._label_host(s.label) AS host, pgqueue._label_pid(s.label) AS pid,
       clock_timestamp() - s.started_at AS age,
       CASE WHEN s.backend_pid = 0 THEN 'closed' WHEN pgqueue._session_alive(coalesce(s.parent, s.id))
            THEN 'connected' ELSE 'missing' END AS state,
       k.longest_take, pg_get_userbyid(s.role)::text AS role, s.parent
  FROM pgqueue.session s
  LEFT JOIN (
       SELECT h.session_id, count(*) AS taken, clock_timestamp() - min(h.taken_at) AS longest_take
         FROM pgqueue.take h GROUP BY h.session_id) k ON k.session_id = s.id
 WHERE pgqueue._is_callers(s.role) OR (SELECT pgqueue._may_see_all('monitor'));
COMMENT ON VIEW pgqueue.sessions IS
    'Every client that takes, waits, subscribes or holds a lock, and each holder within one; monitors see all, other '
    'roles their own. state: connected; missing: its connection is gone, and its grace is running; closed: it left its '
    'takes to the other sessions of its identity. parent: the session of the client within which it is one holder of '
    'several.';

-- Whether any session is connected, of any role: for health, whose reader may see only its own.
CREATE OR REPLACE FUNCTION pgqueue._is_attended() RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (SELECT FROM pgqueue.session s
                    WHERE s.backend_pid <> 0 AND s.parent IS NULL AND pgqueue._session_alive(s.id));
END $$;

CREATE OR REPLACE VIEW pgqueue.listeners AS
SELECT a.pid AS backend_pid, s.label, pgqueue._label_host(s.label) AS host, pgqueue._label_pid(s.label) AS pid,
       s.id AS session, a.usename::text AS role, a.client_addr,
       a.backend_start AS connected_at, clock_timestamp() - a.backend_start AS age,
       a.state, a.state_change AS state_since, a.wait_event
  FROM pg_catalog.pg_stat_activity a
  LEFT JOIN (
       SELECT o.id, o.label, o.backend_pid FROM pgqueue.session o
        WHERE o.parent IS NULL
          AND (pgqueue._is_callers(o.role) OR (SELECT pgqueue._may_see_all('monitor'))) OFFSET 0) s
    ON s.backend_pid = a.pid
 WHERE a.datname = current_database() AND a.application_name = 'pgqueue listener';
COMMENT ON VIEW pgqueue.listeners IS
    'The listener connection of each client, which is woken and keeps the client''s session. Monitors see the sessions '
    'of all roles, other roles their own. From the server''s list: address, times and state of other roles'' '
    'connections need pg_read_all_stats.';

-- Without the sizes, for which the server asks the file system. By the functions under pg_stat_all_tables: the view
-- itself would group all indexes first.
CREATE OR REPLACE FUNCTION pgqueue._vacuums()
RETURNS TABLE (id oid, name text, toast oid, dead_rows bigint, vacuum_at bigint, autovacuum text, xid_age int)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
        SELECT c.oid, c.relname::text, c.reltoastrelid, dead.rows, v.vacuum_at,
               CASE WHEN NOT v.enabled THEN 'off' WHEN dead.rows > v.vacuum_at THEN 'due' ELSE 'not due' END,
               age(c.relfrozenxid)
          FROM pg_catalog.pg_class c
         CROSS JOIN LATERAL (
               SELECT pg_stat_get_dead_tuples(c.oid) AS rows OFFSET 0) dead
         CROSS JOIN LATERAL (
               SELECT max(o.option_value) FILTER (WHERE o.option_name = 'autovacuum_enabled') AS enabled,
                      max(o.option_value) FILTER (WHERE o.option_name = 'autovacuum_vacuum_threshold') AS threshold,
                      max(o.option_value) FILTER (WHERE o.option_name = 'autovacuum_vacuum_scale_factor')
                          AS scale_factor,
                      max(o.option_value) FILTER (WHERE o.option_name = 'autovacuum_vacuum_max_threshold')
                          AS max_threshold
                 FROM pg_catalog.pg_options_to_table(c.reloptions) o) own
         CROSS JOIN LATERAL (
               SELECT coalesce(own.enabled::boolean, true) AND current_setting('autovacuum')::boolean
                      AND current_setting('track_counts')::boolean AS enabled,
                      least(coalesce(own.threshold, current_setting('autovacuum_vacuum_threshold'))::bigint
                            + coalesce(own.scale_factor,
                                       current_setting('autovacuum_vacuum_scale_factor'))::double precision
                              * greatest(c.reltuples, 0),
                            -- since PostgreSQL 18; -1: without
                            nullif(coalesce(own.max_threshold,
                                            current_setting('autovacuum_vacuum_max_threshold', true))::bigint, -1)
                           )::bigint AS vacuum_at) v
         WHERE c.relnamespace = 'pgqueue'::regnamespace AND c.relkind = 'r';
END $$;

CREATE OR REPLACE VIEW pgqueue.tables AS
SELECT c.name COLLATE "C" AS name, pg_stat_get_live_tuples(c.id) AS rows, c.dead_rows, c.vacuum_at,
       size.table_bytes - size.toast_bytes AS table_bytes, size.index_bytes, size.toast_bytes,
       size.table_bytes + size.index_bytes AS total_bytes,
       greatest(pg_stat_get_last_vacuum_time(c.id), pg_stat_get_last_autovacuum_time(c.id)) AS last_vacuum,
       greatest(pg_stat_get_last_analyze_time(c.id), pg_stat_get_last_autoanalyze_time(c.id)) AS last_analyze,
       c.autovacuum,
       (SELECT p.phase FROM pg_catalog.pg_stat_progress_vacuum p WHERE p.relid = c.id LIMIT 1) AS vacuuming,
       c.xid_age
  FROM pgqueue._vacuums() c
 CROSS JOIN LATERAL (
       SELECT pg_table_size(c.id) AS table_bytes, pg_indexes_size(c.id) AS index_bytes,
              coalesce(pg_total_relation_size(nullif(c.toast, 0)), 0) AS toast_bytes OFFSET 0) size;
COMMENT ON VIEW pgqueue.tables IS
    'Rows, sizes and vacuum of each table of pgqueue. vacuum_at: the number of dead rows at which autovacuum is due, '
    'by the table''s own options; vacuuming: the phase of a vacuum that runs.';

-- The server shows the age of other roles' snapshots in transactions to every role, and in time to roles with
-- pg_read_all_stats.
CREATE OR REPLACE VIEW pgqueue.snapshots AS
SELECT *
  FROM (SELECT CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_stat_get_wal_senders() w WHERE w.pid = a.pid)
                    THEN 'replica' ELSE 'connection' END AS kind,
               a.application_name AS name, a.pid, a.usename::text AS role, a.datname::text AS database,
               a.client_addr, a.state,
               greatest(age(a.backend_xmin), age(a.backend_xid)) AS xid_age,
               a.xact_start AS since, clock_timestamp() - a.xact_start AS age,
               a.query_start, left(a.query, 200) AS query,
               coalesce(a.datname = current_database(), true) AS holds_back
          FROM pg_catalog.pg_stat_activity a
         WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL) AND a.pid <> pg_backend_pid()
           AND a.backend_type IS DISTINCT FROM 'autovacuum worker'
           AND NOT EXISTS (SELECT FROM pg_catalog.pg_stat_progress_vacuum v WHERE v.pid = a.pid)
         UNION ALL
        SELECT 'prepared transaction', p.gid, NULL, p.owner::text, p.database::text, NULL, NULL,
               age(p.transaction), p.prepared, clock_timestamp() - p.prepared, NULL, NULL,
               p.database = current_database()
          FROM pg_catalog.pg_prepared_xacts p
         UNION ALL
        SELECT 'replication slot', r.slot_name::text, r.active_pid, NULL, r.database::text, NULL, NULL,
               age(r.xmin), NULL, NULL, NULL, NULL, true
          FROM pg_catalog.pg_replication_slots r
         WHERE r.xmin IS NOT NULL) held
 ORDER BY held.xid_age DESC;
COMMENT ON VIEW pgqueue.snapshots IS
    'Snapshots that keep dead rows from being removed, the oldest first: of connections, prepared transactions, '
    'replicas with feedback, and replication slots. holds_back: it does so in this database.';
