-- Watching: what monitors and operators ask, as views that are cheap enough to be asked every second.
--
-- docs/guides/monitoring.md promises that they stay as they are. What the server knows about other people's connections
-- it shows to whom it likes: a view reads our tables with its owner's rights, but asks the server with the reader's.

-- --- rates

-- Counters know no time, so each tick sees to it that a sample is at most ten seconds old. Fewer samples than that would
-- make the minute of a rate inexact; more would cost.
CREATE OR REPLACE FUNCTION pgqueue.take_sample() RETURNS void
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed'        -- what others removed meanwhile would be an error
       OR EXISTS (SELECT FROM pgqueue.sample s WHERE s.sampled_at > moment - interval '10 s') THEN
        RETURN;
    END IF;
    INSERT INTO pgqueue.sample (sampled_at, calls)
    SELECT moment, coalesce(jsonb_object_agg(k.queue_id, k.calls), '{}') FROM pgqueue.known(NULL) k
        ON CONFLICT DO NOTHING;
    DELETE FROM pgqueue.sample s WHERE s.sampled_at < moment - interval '3 min';
END $$;
COMMENT ON FUNCTION pgqueue.take_sample IS 'Note what the calls of each queue add up to, if that was not done in the last ten seconds; every tick calls it.';

CREATE OR REPLACE FUNCTION pgqueue.last_tick() RETURNS timestamptz
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT s.sampled_at FROM pgqueue.sample s ORDER BY s.sampled_at DESC LIMIT 1);
END $$;
COMMENT ON FUNCTION pgqueue.last_tick IS 'When a client last did the periodic work, to ten seconds; NULL: not since the server''s last crash.';

CREATE OR REPLACE FUNCTION pgqueue.rate(calls jsonb, before jsonb, verb text, seconds double precision) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN
    (coalesce((calls ->> verb)::bigint, 0) - coalesce((before ->> verb)::bigint, 0)) / seconds;

-- By the sample whose age is nearest to a minute. One that was taken just now would say anything.
CREATE OR REPLACE VIEW pgqueue.rates AS
SELECT s.queue, b.seconds, r.puts, r.takes, r.acks, r.releases, r.buries, r.acks + r.deletes AS done,
       r.puts - r.acks - r.deletes AS growth,
       CASE WHEN r.acks + r.deletes > r.puts
            THEN make_interval(secs => (s.ready + s.taken + s.blocked) / (r.acks + r.deletes - r.puts)) END AS drained_in
  FROM pgqueue.queue_stats() s
  JOIN pgqueue.queue q ON q.name = s.queue
  LEFT JOIN (
       SELECT o.calls, extract(epoch FROM clock_timestamp() - o.sampled_at)::double precision AS seconds
         FROM pgqueue.sample o
        WHERE o.sampled_at BETWEEN statement_timestamp() - interval '4 min' AND statement_timestamp() - interval '5 s'
        ORDER BY abs(extract(epoch FROM statement_timestamp() - o.sampled_at) - 60) LIMIT 1) b ON true
 CROSS JOIN LATERAL (
       SELECT pgqueue.rate(s.calls, b.calls -> q.id::text, 'put', b.seconds)     AS puts,
              pgqueue.rate(s.calls, b.calls -> q.id::text, 'take', b.seconds)    AS takes,
              pgqueue.rate(s.calls, b.calls -> q.id::text, 'ack', b.seconds)     AS acks,
              pgqueue.rate(s.calls, b.calls -> q.id::text, 'delete', b.seconds)  AS deletes,
              pgqueue.rate(s.calls, b.calls -> q.id::text, 'release', b.seconds) AS releases,
              pgqueue.rate(s.calls, b.calls -> q.id::text, 'bury', b.seconds)    AS buries) r;
COMMENT ON VIEW pgqueue.rates IS
    'What happens to the tasks of each queue a second, over the last minute or so. done: acks and deletes; drained_in: when what waits would be done at this rate, NULL if it does not shrink. All NULL: no client runs, or only since a few seconds.';

-- --- who

CREATE OR REPLACE FUNCTION pgqueue.label_host(label text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN substring(label FROM '^([^:]+):[0-9]{1,9}:');

CREATE OR REPLACE FUNCTION pgqueue.label_pid(label text) RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN substring(label FROM '^[^:]+:([0-9]{1,9}):')::int;

CREATE OR REPLACE VIEW pgqueue.takes AS
SELECT k.task_id AS id, q.name AS queue,
       coalesce(s.label, CASE k.session_id WHEN 0 THEN 'a claim' ELSE 'session ' || k.session_id END) AS holder,
       s.host, s.pid, k.session_id AS session, s.backend_pid,
       k.taken_at, clock_timestamp() - k.taken_at AS age,
       nullif(k.deadline, 'infinity') AS deadline, nullif(k.deadline, 'infinity') - clock_timestamp() AS time_left,
       k.lane
  FROM pgqueue.take k
  JOIN pgqueue.queue q ON q.id = k.queue_id
  LEFT JOIN (                                     -- once a session, and not once a take
       SELECT o.id, o.label, o.backend_pid, pgqueue.label_host(o.label) AS host, pgqueue.label_pid(o.label) AS pid
         FROM pgqueue.session o OFFSET 0) s ON s.id = k.session_id
 WHERE k.deadline > now();
COMMENT ON VIEW pgqueue.takes IS 'Every task that is taken: who holds it, since when, until when. host, pid: of the process, where its label says them.';

-- The sweep marks who is missing, at its next tick: until then only the lock knows.
CREATE OR REPLACE VIEW pgqueue.sessions AS
SELECT s.id, s.label, s.backend_pid, s.started_at, s.grace, s.missing_since, coalesce(k.taken, 0) AS taken, s.identity,
       pgqueue.label_host(s.label) AS host, pgqueue.label_pid(s.label) AS pid,
       clock_timestamp() - s.started_at AS age,
       CASE WHEN s.backend_pid = 0 THEN 'closed' WHEN pgqueue.session_alive(s.id) THEN 'connected' ELSE 'missing' END AS state,
       k.longest_take
  FROM pgqueue.session s
  LEFT JOIN (
       SELECT h.session_id, count(*) AS taken, clock_timestamp() - min(h.taken_at) AS longest_take
         FROM pgqueue.take h GROUP BY h.session_id) k ON k.session_id = s.id;
COMMENT ON VIEW pgqueue.sessions IS
    'Every process that takes. state: connected; missing: its connection is gone, and its grace is running; closed: it left its takes to the others of its identity.';

CREATE OR REPLACE VIEW pgqueue.listeners AS
SELECT a.pid AS backend_pid, s.label, pgqueue.label_host(s.label) AS host, pgqueue.label_pid(s.label) AS pid, s.id AS session,
       a.usename::text AS role, a.client_addr, a.backend_start AS connected_at, clock_timestamp() - a.backend_start AS age,
       a.state, a.state_change AS state_since, a.wait_event
  FROM pg_catalog.pg_stat_activity a
  LEFT JOIN pgqueue.session s ON s.backend_pid = a.pid
 WHERE a.datname = current_database() AND a.application_name = 'pgqueue listener';
COMMENT ON VIEW pgqueue.listeners IS 'The one connection of each client that is woken, and keeps its session. From the server''s list: other roles'' address, times and state only with pg_read_all_stats.';
