-- What the queues need of the server: vacuum, and nobody who holds it back.
--
-- A task lives for seconds, so these tables turn over many times a day. Rows that are dead stay for as long as anybody,
-- in whatever table, looks at the database as it was before: that is the one thing that slows a queue down from outside.

-- By the functions beneath pg_stat_all_tables, which would group all indexes first.
CREATE OR REPLACE VIEW pgqueue.tables AS
SELECT c.relname::text AS name,
       pg_stat_get_live_tuples(c.oid) AS rows, dead.rows AS dead_rows, v.vacuum_at,
       size.table_bytes - size.toast_bytes AS table_bytes, size.index_bytes, size.toast_bytes,
       size.table_bytes + size.index_bytes AS total_bytes,
       greatest(pg_stat_get_last_vacuum_time(c.oid), pg_stat_get_last_autovacuum_time(c.oid)) AS last_vacuum,
       greatest(pg_stat_get_last_analyze_time(c.oid), pg_stat_get_last_autoanalyze_time(c.oid)) AS last_analyze,
       CASE WHEN NOT v.enabled THEN 'off' WHEN dead.rows > v.vacuum_at THEN 'due' ELSE 'not due' END AS autovacuum,
       (SELECT p.phase FROM pg_catalog.pg_stat_progress_vacuum p WHERE p.relid = c.oid LIMIT 1) AS vacuuming,
       age(c.relfrozenxid) AS xid_age
  FROM pg_catalog.pg_class c
 CROSS JOIN LATERAL (
       SELECT pg_stat_get_dead_tuples(c.oid) AS rows OFFSET 0) dead
 CROSS JOIN LATERAL (
       SELECT pg_table_size(c.oid) AS table_bytes, pg_indexes_size(c.oid) AS index_bytes,
              coalesce(pg_total_relation_size(nullif(c.reltoastrelid, 0)), 0) AS toast_bytes OFFSET 0) size
 CROSS JOIN LATERAL (
       SELECT max(o.option_value) FILTER (WHERE o.option_name = 'autovacuum_enabled') AS enabled,
              max(o.option_value) FILTER (WHERE o.option_name = 'autovacuum_vacuum_threshold') AS threshold,
              max(o.option_value) FILTER (WHERE o.option_name = 'autovacuum_vacuum_scale_factor') AS scale_factor,
              max(o.option_value) FILTER (WHERE o.option_name = 'autovacuum_vacuum_max_threshold') AS max_threshold
         FROM pg_catalog.pg_options_to_table(c.reloptions) o) own
 CROSS JOIN LATERAL (
       SELECT coalesce(own.enabled::boolean, true)
              AND current_setting('autovacuum')::boolean AND current_setting('track_counts')::boolean AS enabled,
              least(coalesce(own.threshold, current_setting('autovacuum_vacuum_threshold'))::bigint
                    + coalesce(own.scale_factor, current_setting('autovacuum_vacuum_scale_factor'))::double precision
                      * greatest(c.reltuples, 0),
                    -- since PostgreSQL 18; -1: without
                    nullif(coalesce(own.max_threshold, current_setting('autovacuum_vacuum_max_threshold', true))::bigint, -1)
                   )::bigint AS vacuum_at) v
 WHERE c.relnamespace = 'pgqueue'::regnamespace AND c.relkind = 'r';
COMMENT ON VIEW pgqueue.tables IS
    'Rows, sizes and vacuum of each of our tables. vacuum_at: from so many dead rows on autovacuum is due, by the table''s own options; vacuuming: what a vacuum that runs is at.';

-- Age by the clock is shown to whom the server shows it; by transactions, to everybody.
CREATE OR REPLACE VIEW pgqueue.snapshots AS
SELECT *
  FROM (SELECT CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_stat_get_wal_senders() w WHERE w.pid = a.pid)
                    THEN 'replica' ELSE 'connection' END AS kind,
               a.application_name AS name, a.pid, a.usename::text AS role, a.datname::text AS database, a.client_addr, a.state,
               greatest(age(a.backend_xmin), age(a.backend_xid)) AS xid_age,
               a.xact_start AS since, clock_timestamp() - a.xact_start AS age, a.query_start, left(a.query, 200) AS query,
               coalesce(a.datname = current_database(), true) AS holds_back
          FROM pg_catalog.pg_stat_activity a
         WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL) AND a.pid <> pg_backend_pid()
           AND a.backend_type IS DISTINCT FROM 'autovacuum worker'
           AND NOT EXISTS (SELECT FROM pg_catalog.pg_stat_progress_vacuum v WHERE v.pid = a.pid)
         UNION ALL
        SELECT 'prepared transaction', p.gid, NULL, p.owner::text, p.database::text, NULL, NULL,
               age(p.transaction), p.prepared, clock_timestamp() - p.prepared, NULL, NULL, p.database = current_database()
          FROM pg_catalog.pg_prepared_xacts p
         UNION ALL
        SELECT 'replication slot', r.slot_name::text, r.active_pid, NULL, r.database::text, NULL, NULL,
               age(r.xmin), NULL, NULL, NULL, NULL, true
          FROM pg_catalog.pg_replication_slots r
         WHERE r.xmin IS NOT NULL) held
 ORDER BY held.xid_age DESC;
COMMENT ON VIEW pgqueue.snapshots IS
    'Who keeps dead rows from being removed, the oldest snapshot first: connections, prepared transactions, replicas with feedback, replication slots. holds_back: in this database.';
