-- Workers: the running workers, and the queues and jobs that each serves. For people, and for the check `unserved` of
-- health.
--
-- A row has only the facts that the worker registered when it began. It belongs to the worker's session, and ends with
-- it (sweep.sql), so a killed worker is gone from the table as soon as its tasks are ready again. A worker whose
-- session was given up registers again under its new one.

CREATE OR REPLACE FUNCTION pgqueue.register_worker(
    number      int,                         -- of the workers of this session
    queues      text[],
    jobs        text[] DEFAULT '{}',
    concurrency int    DEFAULT 1,
    limits      jsonb  DEFAULT '{}',
    version     text   DEFAULT '',
    name        text   DEFAULT NULL,         -- NULL: the label of the session
    session     int    DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    most CONSTANT int := 100;                -- workers of a session
    me   CONSTANT int := pgqueue._live_session(session);
BEGIN
    PERFORM pgqueue._check_count('number', number, 0), pgqueue._check_count('concurrency', concurrency),
            pgqueue._check_given('queues', queues), pgqueue._check_array('queues', queues),
            pgqueue._check_given('jobs', jobs), pgqueue._check_array('jobs', jobs),
            pgqueue._check_data('limits', limits, 10000), pgqueue._check_given('version', version),
            pgqueue._check_text('a version', version, 100), pgqueue._check_text('a name', name, 1000);
    IF greatest(cardinality(queues), cardinality(jobs)) > 10000
       OR EXISTS (SELECT FROM unnest(queues || jobs) n WHERE octet_length(n) > 255) THEN
        RAISE EXCEPTION 'a worker has at most 10000 queues and as many jobs, with names of at most 255 bytes'
            USING ERRCODE = 'PQ002';
    ELSIF (SELECT count(*) FROM pgqueue.worker w WHERE w.session_id = me AND w.number <> register_worker.number)
          >= most THEN
        RAISE EXCEPTION 'a session has at most % workers', most USING ERRCODE = 'PQ002';
    END IF;
    PERFORM pgqueue._check_right(q.id, 'take') FROM pgqueue.queue q WHERE q.name = ANY (queues) AND q.guarded;
    INSERT INTO pgqueue.worker AS w (session_id, number, concurrency, started_at, name, queues, jobs, limits, version)
    SELECT me, register_worker.number, register_worker.concurrency, clock_timestamp(),
           coalesce(register_worker.name, s.label), register_worker.queues, register_worker.jobs,
           register_worker.limits, register_worker.version
      FROM pgqueue.session s WHERE s.id = me
        ON CONFLICT ON CONSTRAINT worker_pkey DO UPDATE
       SET concurrency = excluded.concurrency, name = excluded.name, queues = excluded.queues, jobs = excluded.jobs,
           limits = excluded.limits, version = excluded.version;
END $$;
COMMENT ON FUNCTION pgqueue.register_worker IS
    'Register a running worker, with the queues and jobs that it serves. The registration ends with the session, or by '
    'unregister_worker. PQ004: the session is not alive.';

CREATE OR REPLACE FUNCTION pgqueue.unregister_worker(number int, session int DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    me CONSTANT int := pgqueue._named_session(session);
BEGIN
    DELETE FROM pgqueue.worker w WHERE w.session_id = me AND w.number = unregister_worker.number;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION pgqueue.unregister_worker IS 'A worker has stopped. Returns whether it was registered.';

-- Part of the end of a session.
CREATE OR REPLACE FUNCTION pgqueue._free_workers(session int) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM pgqueue.worker
     WHERE ctid = ANY (ARRAY (SELECT w.ctid FROM pgqueue.worker w
                               WHERE w.session_id = session FOR UPDATE SKIP LOCKED));
END $$;

-- Part of clean_up: rows that a transaction committed after the end of its session.
CREATE OR REPLACE FUNCTION pgqueue._clean_workers() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM pgqueue.worker
     WHERE ctid = ANY (ARRAY (SELECT w.ctid FROM pgqueue.worker w
                               WHERE w.session_id NOT IN (SELECT s.id FROM pgqueue.session s)
                                 FOR UPDATE SKIP LOCKED));
END $$;

CREATE OR REPLACE VIEW pgqueue.workers WITH (security_barrier) AS
SELECT w.session_id AS session, w.number, w.name, pgqueue._label_host(s.label) AS host,
       pgqueue._label_pid(s.label) AS pid, w.started_at, clock_timestamp() - w.started_at AS age,
       CASE WHEN pgqueue._session_alive(coalesce(s.parent, s.id)) THEN 'connected' ELSE 'missing' END AS state,
       w.queues, w.jobs, w.concurrency, w.limits, w.version, pg_get_userbyid(s.role)::text AS role
  FROM pgqueue.worker w JOIN pgqueue.session s ON s.id = w.session_id
 WHERE pgqueue._is_callers(s.role) OR (SELECT pgqueue._may_see_all('monitor'));
COMMENT ON VIEW pgqueue.workers IS
    'Every running worker, with its queues and jobs; monitors see all, other roles their own. state: missing: its '
    'connection is gone, and the grace of its session is running.';

-- The queues that no process serves, among those `ready`, whose tasks have been ready for long, and those `limited`,
-- if a task could have begun by its limit for as long. A worker registers and other takers do not, so this function
-- looks for signs of them: a taker that waits, a task that is taken, a take in the last minutes. Some queues have no
-- worker by intent: those of dead letters, which people look into, and those that end with their session. A binding by
-- a pattern counts as one for dead letters whatever their key is: to match each key with each pattern took 48 s where
-- each of 10,000 queues had its own. Where no worker ever counted a run, applications use other takers, and no queue
-- is reported. Each list is hashed: with = ANY the call would compare each queue with each name.
CREATE OR REPLACE FUNCTION pgqueue._unserved(ready text[], limited text[]) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    before CONSTANT jsonb   := (SELECT s.calls FROM pgqueue.sample s
                                 WHERE s.sampled_at < statement_timestamp() - interval '50 s'
                                 ORDER BY s.sampled_at LIMIT 1);
    every  CONSTANT boolean := pgqueue._may_see_all('monitor');
    found  text[];
BEGIN
    IF ready IS NULL AND limited IS NULL OR before IS NULL
       OR NOT EXISTS (SELECT FROM pgqueue.worker) AND NOT EXISTS (SELECT FROM pgqueue.tally) THEN
        RETURN NULL;
    END IF;
    SELECT array_agg(q.name) INTO found
      FROM pgqueue.queue q
     WHERE q.name IN (SELECT unnest(ready || limited)) AND q.session_id IS NULL
       AND (every OR q.id IN (SELECT seen.id FROM pgqueue._seen seen))
       AND NOT EXISTS (SELECT FROM pgqueue.worker w, unnest(w.queues) served(name) WHERE served.name = q.name)
       AND NOT EXISTS (SELECT FROM pgqueue.take k WHERE k.queue_id = q.id)
       AND NOT EXISTS (SELECT FROM pgqueue.queue d WHERE d.dead_letter IS NOT NULL AND d.dead_letter_key = q.name)
       AND q.id NOT IN (SELECT b.queue_id FROM pgqueue.binding b
                         WHERE b.exchange IN (SELECT d.dead_letter FROM pgqueue.queue d
                                               WHERE d.dead_letter IS NOT NULL AND d.dead_letter_key IS NULL)
                            OR (b.exchange, b.key) IN (SELECT d.dead_letter, d.dead_letter_key FROM pgqueue.queue d
                                                        WHERE d.dead_letter IS NOT NULL
                                                          AND d.dead_letter_key IS NOT NULL)
                            OR b.pattern IS NOT NULL
                           AND b.exchange IN (SELECT d.dead_letter FROM pgqueue.queue d
                                               WHERE d.dead_letter IS NOT NULL));
    -- The probes for a taker that waits, and for a limit, are the most expensive ones, and the last.
    SELECT array_agg(o.name ORDER BY o.name) INTO found
      FROM (SELECT q.id, q.name
              FROM pgqueue.queue q,
                   pgqueue._known(ARRAY (SELECT n.id FROM pgqueue.queue n WHERE n.name = ANY (found))) c,
                   jsonb_each(before) b
             WHERE q.id = c.queue_id AND b.key = q.id::text
               AND c.calls -> 'take' IS NOT DISTINCT FROM b.value -> 'take' OFFSET 0) o
     WHERE NOT pgqueue._is_awaited(o.id)
       AND (o.name IN (SELECT unnest(ready))
            OR pgqueue._could_begin(o.id, statement_timestamp() - interval '1 min') > 0);
    RETURN found;
END $$;

-- How many tasks of these queues could begin now by their limits, at most a hundred of each queue. For the time in
-- which no client is connected.
CREATE OR REPLACE FUNCTION pgqueue._could_begin_now(limited text[]) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    every CONSTANT boolean := pgqueue._may_see_all('monitor');
BEGIN
    RETURN (SELECT coalesce(sum(pgqueue._could_begin(q.id, statement_timestamp())), 0)
              FROM pgqueue.queue q
             WHERE q.name IN (SELECT unnest(limited))
               AND (every OR q.id IN (SELECT seen.id FROM pgqueue._seen seen)));
END $$;
