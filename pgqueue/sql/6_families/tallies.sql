-- Tallies: how often the runs of each job ended well or badly, how long tasks waited, and how long runs took.
--
-- Theory of operation
-- -------------------
-- A worker counts in its own memory, and calls count_runs about once a second, beside its acks. So a run alone costs
-- the server nothing, and a killed worker loses the counts of its last second.
--
--   count_runs            clean_up, 2 minutes later      after an hour    after 2 days   after 90 days
--   -----------> tally_part -------------------> minute --------> hour -----------> day ------------> gone
--                     '-----------------------------------------------------------------------------> all
--
-- Each run is counted in one row of tally_part, minute, hour or day, at any time and in every snapshot: a fold deletes
-- rows and adds them to others in one statement's snapshot and one transaction. `all` has the sum of all folded counts,
-- for counters that never fall. A job that did not run for 90 days is deleted.
--
-- Each writer has rows of its own in tally_part, so no worker waits for another one. If all workers updated one row of
-- the minute, each would wait for the commits of the others. A row is updated for only a minute, so it has at most
-- sixty dead versions, also while a snapshot is held for days.
--
-- A worker W whose connection broke does not know whether its call was committed, and repeats it. W numbers its
-- batches, and the rows have the number of W's last batch, so a batch is counted once. After two minutes the rows are
-- folded, and a repetition that late is counted twice.
--
-- A histogram is one number for each bucket; run_bounds() has the upper bounds of all but the last, which has none.
-- They are fixed: histograms with different bounds could not be added up.

CREATE OR REPLACE FUNCTION pgqueue.run_bounds() RETURNS float8[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN '{0.001,0.0025,0.005,0.01,0.025,0.05,0.1,0.25,0.5,1,2.5,5,10,30,60,120,300,600,1800,3600,14400}'::float8[];
COMMENT ON FUNCTION pgqueue.run_bounds IS
    'The upper bounds, in seconds, of the buckets of all histograms of jobs but the last bucket, which has no bound.';

-- By linear interpolation within the bucket, as Prometheus does it; in the last bucket its lower bound.
CREATE OR REPLACE FUNCTION pgqueue._percentile(counts bigint[], share float8) RETURNS float8
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    bounds CONSTANT float8[] := pgqueue.run_bounds();
    place  CONSTANT float8   := share * (SELECT sum(n) FROM unnest(counts) n);
    below  float8 := 0;
    low    float8;
BEGIN
    FOR i IN 1 .. coalesce(cardinality(counts), 0) LOOP
        IF counts[i] > 0 AND below + counts[i] >= place THEN
            low := CASE WHEN i = 1 THEN 0 ELSE bounds[i - 1] END;
            RETURN CASE WHEN i > cardinality(bounds) THEN low
                        ELSE low + (bounds[i] - low) * (place - below) / counts[i] END;
        END IF;
        below := below + counts[i];
    END LOOP;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._add_counts(a bigint[], b bigint[]) RETURNS bigint[]
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN ARRAY (SELECT u.x + u.y FROM unnest(a, b) WITH ORDINALITY u(x, y, place) ORDER BY u.place);
END $$;

-- Counts that a fold could not add up would stop clean_up for all.
CREATE OR REPLACE FUNCTION pgqueue._check_counts(job text, counts bigint[]) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF (cardinality(counts) = cardinality(pgqueue.run_bounds()) + 1 AND array_ndims(counts) = 1
        AND 0 <= ALL (counts) AND 1000000000 >= ALL (counts)) IS NOT TRUE THEN
        RAISE EXCEPTION 'runs: a histogram of job "%" must be % numbers from 0 to 1000000000', pgqueue._shown(job),
            cardinality(pgqueue.run_bounds()) + 1 USING ERRCODE = 'PQ002';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.count_runs(
    writer bigint,
    batch  int,
    runs   jsonb                             -- [{queue, job, done, ..., waited, ran, waits, runs}]; no number: 0
) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    most   CONSTANT int         := 1000;     -- jobs of a writer in a minute
    minute CONSTANT timestamptz := date_trunc('minute', clock_timestamp());
    given  record;
    n      int;
BEGIN
    PERFORM pgqueue._check_given('writer', writer), pgqueue._check_given('batch', batch),
            pgqueue._check_items('runs', runs);
    IF jsonb_array_length(runs) > most THEN
        RAISE EXCEPTION 'runs has at most % jobs, not %', most, jsonb_array_length(runs) USING ERRCODE = 'PQ002';
    END IF;
    IF NOT pgqueue._can_write('tally_part') THEN
        RETURN NULL;                              -- a wait would hold up the worker's acks
    END IF;
    FOR given IN
        SELECT r.*, q.id, q.guarded
          FROM jsonb_to_recordset(runs) r(queue text, job text, done bigint, failed bigint, retried bigint,
                                          timeouts bigint, cancelled bigint, waited float8, ran float8,
                                          waits bigint[], runs bigint[])
          LEFT JOIN pgqueue.queue q ON q.name = r.queue
    LOOP
        PERFORM pgqueue._check_given('the queue of a run', given.queue), pgqueue._check_given('job', given.job),
                pgqueue._check_text('a job', given.job, 255),
                pgqueue._check_counts(given.job, given.waits), pgqueue._check_counts(given.job, given.runs);
        IF NOT coalesce(least(given.done, given.failed, given.retried, given.timeouts, given.cancelled, 0) >= 0
                        AND greatest(given.done, given.failed, given.retried, given.timeouts, given.cancelled, 0) <= 1e9
                        AND coalesce(given.waited, 0) BETWEEN 0 AND 1e15 AND coalesce(given.ran, 0) BETWEEN 0 AND 1e15,
                        false) THEN
            RAISE EXCEPTION 'runs: the numbers of job "%" are out of range', pgqueue._shown(given.job)
                USING ERRCODE = 'PQ002';
        ELSIF given.guarded THEN
            PERFORM pgqueue._check_right(given.id, 'take');
        END IF;
    END LOOP;
    IF EXISTS (SELECT FROM pgqueue.tally_part p
                WHERE p.at BETWEEN minute - interval '2 min' AND minute
                  AND p.writer = count_runs.writer AND p.batch >= count_runs.batch) THEN
        RETURN 0;                                 -- a repetition
    ELSIF (SELECT count(*) FROM pgqueue.tally_part p WHERE p.at = minute AND p.writer = count_runs.writer) > most THEN
        RAISE EXCEPTION 'a worker counts the runs of at most % jobs', most USING ERRCODE = 'PQ002';
    END IF;
    INSERT INTO pgqueue.tally_part AS p (writer, at, batch, queue_id, job, done, failed, retried, timeouts, cancelled,
                                         waited, ran, waits, runs)
    SELECT count_runs.writer, minute, count_runs.batch, q.id, r.job, coalesce(r.done, 0), coalesce(r.failed, 0),
           coalesce(r.retried, 0), coalesce(r.timeouts, 0), coalesce(r.cancelled, 0),
           coalesce(r.waited, 0), coalesce(r.ran, 0), r.waits, r.runs
      FROM jsonb_to_recordset(count_runs.runs) r(queue text, job text, done bigint, failed bigint, retried bigint,
                                      timeouts bigint, cancelled bigint, waited float8, ran float8,
                                      waits bigint[], runs bigint[])
      JOIN pgqueue.queue q ON q.name = r.queue    -- a queue that was deleted has no statistics
        ON CONFLICT ON CONSTRAINT tally_part_pkey DO UPDATE
       SET batch = excluded.batch, done = p.done + excluded.done, failed = p.failed + excluded.failed,
           retried = p.retried + excluded.retried, timeouts = p.timeouts + excluded.timeouts,
           cancelled = p.cancelled + excluded.cancelled, waited = p.waited + excluded.waited,
           ran = p.ran + excluded.ran, waits = pgqueue._add_counts(p.waits, excluded.waits),
           runs = pgqueue._add_counts(p.runs, excluded.runs);
    GET DIAGNOSTICS n = ROW_COUNT;
    RETURN n;
EXCEPTION
    WHEN data_exception OR cardinality_violation THEN
        RAISE EXCEPTION 'runs: %', SQLERRM USING ERRCODE = 'PQ002';
END $$;
COMMENT ON FUNCTION pgqueue.count_runs IS
    'Count runs of jobs, as a worker does once a second. Each object of `runs` has queue, job (empty: a plain '
    'handler), done, failed, retried, timeouts, cancelled, the seconds waited and ran, and the histograms waits and '
    'runs with a number for each bucket of run_bounds(). A call with the batch of this writer''s last call is ignored. '
    'Returns the number of jobs counted; NULL: not now, since the table is locked.';

-- Add these rows up, by queue and job, into rows of this period.
CREATE OR REPLACE FUNCTION pgqueue._add_tallies(given pgqueue.tally[], into_period text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO pgqueue.tally AS t (at, last_at, queue_id, done, failed, retried, timeouts, cancelled, waited, ran,
                                    period, job, waits, runs)
    WITH g AS (
        SELECT o.*,
               CASE into_period WHEN 'all' THEN '-infinity' ELSE date_trunc(into_period, o.at, 'UTC') END AS into_at
          FROM unnest(given) o WHERE EXISTS (SELECT FROM pgqueue.queue q WHERE q.id = o.queue_id)),
    bucket AS (
        SELECT g.into_at, g.queue_id, g.job, u.place, sum(u.w)::bigint AS w, sum(u.r)::bigint AS r
          FROM g, unnest(g.waits, g.runs) WITH ORDINALITY u(w, r, place) GROUP BY 1, 2, 3, 4),
    histogram AS (
        SELECT b.into_at, b.queue_id, b.job, array_agg(b.w ORDER BY b.place) AS waits,
               array_agg(b.r ORDER BY b.place) AS runs
          FROM bucket b GROUP BY 1, 2, 3)
    SELECT g.into_at, max(g.last_at), g.queue_id, sum(g.done), sum(g.failed), sum(g.retried), sum(g.timeouts),
           sum(g.cancelled), sum(g.waited), sum(g.ran), into_period, g.job, h.waits, h.runs
      FROM g JOIN histogram h ON h.into_at = g.into_at AND h.queue_id = g.queue_id AND h.job = g.job
     GROUP BY g.into_at, g.queue_id, g.job, h.waits, h.runs
        ON CONFLICT (period, at, queue_id, job) DO UPDATE
       SET last_at = greatest(t.last_at, excluded.last_at), done = t.done + excluded.done,
           failed = t.failed + excluded.failed, retried = t.retried + excluded.retried,
           timeouts = t.timeouts + excluded.timeouts, cancelled = t.cancelled + excluded.cancelled,
           waited = t.waited + excluded.waited, ran = t.ran + excluded.ran,
           waits = pgqueue._add_counts(t.waits, excluded.waits), runs = pgqueue._add_counts(t.runs, excluded.runs);
END $$;

-- The rows of `all` bound the number of a queue's job names: runs of further jobs are counted as one job.
CREATE OR REPLACE FUNCTION pgqueue._tally_name(queue_id int, job text) RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN CASE WHEN EXISTS (SELECT FROM pgqueue.tally t
                              WHERE t.period = 'all' AND t.at = '-infinity'
                                AND t.queue_id = _tally_name.queue_id AND t.job = _tally_name.job)
                  OR (SELECT count(*) FROM pgqueue.tally t
                       WHERE t.period = 'all' AND t.at = '-infinity' AND t.queue_id = _tally_name.queue_id) < 1000
                THEN job ELSE '(others)' END;
END $$;

-- Delete the rows of a period that began before a moment. Returns them; NULL: there are none.
CREATE OR REPLACE FUNCTION pgqueue._drop_tallies(of_period text, before timestamptz) RETURNS pgqueue.tally[]
LANGUAGE plpgsql AS $$
DECLARE
    rows pgqueue.tally[];
BEGIN
    WITH gone AS (
        DELETE FROM pgqueue.tally t WHERE t.period = of_period AND t.at < before RETURNING t)
    SELECT array_agg(g.t) INTO rows FROM gone g;
    RETURN rows;
END $$;

-- Part of clean_up, which one transaction does at a time.
CREATE OR REPLACE FUNCTION pgqueue._fold_tallies() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    rows   pgqueue.tally[];
BEGIN
    WITH gone AS (
        DELETE FROM pgqueue.tally_part
         WHERE ctid = ANY (ARRAY (SELECT p.ctid FROM pgqueue.tally_part p
                                   WHERE p.at < date_trunc('minute', moment) - interval '2 min'
                                   ORDER BY p.at LIMIT 10000 FOR UPDATE SKIP LOCKED))
        RETURNING *)
    SELECT array_agg(ROW (g.at, g.at, g.queue_id, g.done, g.failed, g.retried, g.timeouts, g.cancelled, g.waited, g.ran,
                          'part', pgqueue._tally_name(g.queue_id, g.job), g.waits, g.runs)::pgqueue.tally)
      INTO rows FROM gone g;
    IF rows IS NOT NULL THEN
        PERFORM pgqueue._add_tallies(rows, 'all'), pgqueue._add_tallies(rows, 'minute');
    END IF;
    rows := pgqueue._drop_tallies('minute', moment - interval '1 hour');
    IF rows IS NOT NULL THEN
        PERFORM pgqueue._add_tallies(rows, 'hour');
    END IF;
    rows := pgqueue._drop_tallies('hour', moment - interval '2 days');
    IF rows IS NOT NULL THEN
        PERFORM pgqueue._add_tallies(rows, 'day');
    END IF;
    PERFORM pgqueue._drop_tallies('day', moment - interval '90 days');
    DELETE FROM pgqueue.tally t
     WHERE t.period = 'all' AND t.last_at < moment - interval '90 days'
        OR NOT EXISTS (SELECT FROM pgqueue.queue q WHERE q.id = t.queue_id);
END $$;

-- For monitors, and for roles that look into a queue. The runs in this much time up to now, an hour at most; NULL: of
-- all times.
CREATE OR REPLACE FUNCTION pgqueue.job_runs(since interval DEFAULT '1 hour')
RETURNS TABLE (queue text, job text, done bigint, failed bigint, retried bigint, timeouts bigint, cancelled bigint,
               waited float8, ran float8, waits bigint[], runs bigint[], last_at timestamptz)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    moment timestamptz;
BEGIN
    IF since NOT BETWEEN '0' AND interval '1 hour' THEN
        RAISE EXCEPTION 'since must be from 0 to 1 hour, or NULL for all times, not %', since USING ERRCODE = 'PQ002';
    END IF;
    moment := clock_timestamp() - coalesce(since, '0') - interval '1 min';
    RETURN QUERY
        WITH g AS (
            SELECT p.queue_id, p.job, p.at AS last_at, p.done, p.failed, p.retried, p.timeouts, p.cancelled, p.waited,
                   p.ran, p.waits, p.runs
              FROM pgqueue.tally_part p WHERE since IS NULL OR p.at > moment
             UNION ALL
            SELECT t.queue_id, t.job, t.last_at, t.done, t.failed, t.retried, t.timeouts, t.cancelled, t.waited,
                   t.ran, t.waits, t.runs
              FROM pgqueue.tally t
             WHERE CASE WHEN since IS NULL THEN t.period = 'all'
                        ELSE t.period = 'minute' AND t.at > moment END),
        bucket AS (
            SELECT g.queue_id, g.job, u.place, sum(u.w)::bigint AS w, sum(u.r)::bigint AS r
              FROM g, unnest(g.waits, g.runs) WITH ORDINALITY u(w, r, place) GROUP BY 1, 2, 3),
        histogram AS (
            SELECT b.queue_id, b.job, array_agg(b.w ORDER BY b.place) AS waits, array_agg(b.r ORDER BY b.place) AS runs
              FROM bucket b GROUP BY 1, 2),
        s AS (
            SELECT g.queue_id, g.job, sum(g.done)::bigint AS done, sum(g.failed)::bigint AS failed,
                   sum(g.retried)::bigint AS retried, sum(g.timeouts)::bigint AS timeouts,
                   sum(g.cancelled)::bigint AS cancelled, sum(g.waited) AS waited, sum(g.ran) AS ran,
                   max(g.last_at) AS last_at
              FROM g GROUP BY 1, 2)
        SELECT seen.name, s.job, s.done, s.failed, s.retried, s.timeouts, s.cancelled, s.waited, s.ran,
               h.waits, h.runs, s.last_at
          FROM s JOIN histogram h ON h.queue_id = s.queue_id AND h.job = s.job
          JOIN pgqueue._seen seen ON seen.id = s.queue_id;
END $$;
COMMENT ON FUNCTION pgqueue.job_runs IS
    'The counts of workers for each job in this much time up to now, at most an hour, in whole minutes; NULL: of all '
    'times. waits, runs: histograms of the seconds from ready to begun and from begun to ended, with the buckets of '
    'run_bounds(); waited, ran: the sums of these seconds.';

-- Names of jobs are shown to monitors, which may not see data. So a task counts under the name in its data only if that
-- is the name of a job of the worker that has the task.
CREATE OR REPLACE FUNCTION pgqueue._jobs_taken() RETURNS TABLE (queue text, job text, taken bigint)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
        WITH w AS (
            SELECT n.session_id, array_agg(DISTINCT j.name) AS jobs
              FROM pgqueue.worker n LEFT JOIN LATERAL unnest(n.jobs) j(name) ON true GROUP BY n.session_id)
        SELECT seen.name, coalesce(n.job, ''), count(*)
          FROM w JOIN pgqueue.take k ON k.session_id = w.session_id
          JOIN pgqueue._seen seen ON seen.id = k.queue_id
          JOIN pgqueue.task t ON t.id = k.task_id
         CROSS JOIN LATERAL (SELECT CASE WHEN t.data ->> 'job' = ANY (w.jobs) THEN t.data ->> 'job' END) n(job)
         WHERE k.deadline > clock_timestamp()
         GROUP BY 1, 2;
END $$;

CREATE OR REPLACE VIEW pgqueue.job_stats AS
SELECT coalesce(s.queue, k.queue) AS queue, coalesce(s.job, k.job) AS job,
       coalesce(s.done, 0) AS done, coalesce(s.failed, 0) AS failed, coalesce(s.retried, 0) AS retried,
       coalesce(s.timeouts, 0) AS timeouts, coalesce(s.cancelled, 0) AS cancelled, coalesce(k.taken, 0) AS taken,
       pgqueue._percentile(s.waits, 0.5) AS wait_p50, pgqueue._percentile(s.waits, 0.95) AS wait_p95,
       pgqueue._percentile(s.runs, 0.5) AS run_p50, pgqueue._percentile(s.runs, 0.95) AS run_p95, s.last_at
  FROM pgqueue.job_runs() s FULL JOIN pgqueue._jobs_taken() k ON k.queue = s.queue AND k.job = s.job;
COMMENT ON VIEW pgqueue.job_stats IS
    'Each job in the last hour, by queue: how many runs were done, failed for good (the task was buried), failed and '
    'are retried; timeouts: of both, those that a time limit ended; taken: tasks that a worker has now; the median and '
    'the 95th percentile of the seconds that tasks waited and runs took, estimated from buckets; last_at: the last '
    'minute with runs. An empty job: the plain handler of the queue.';

CREATE OR REPLACE VIEW pgqueue.job_history WITH (security_barrier) AS
SELECT seen.name AS queue, h.job, h.period, h.at, h.done, h.failed, h.retried, h.timeouts, h.cancelled,
       pgqueue._percentile(h.waits, 0.5) AS wait_p50, pgqueue._percentile(h.waits, 0.95) AS wait_p95,
       pgqueue._percentile(h.runs, 0.5) AS run_p50, pgqueue._percentile(h.runs, 0.95) AS run_p95,
       h.waited, h.ran, h.waits, h.runs
  FROM pgqueue.tally h JOIN pgqueue._seen seen ON seen.id = h.queue_id
 WHERE h.period <> 'all';
COMMENT ON VIEW pgqueue.job_history IS
    'The same for each minute of the last hour, each hour of the two days before, and each day of the last ninety, '
    'without the last three minutes. Each run is counted in one row.';
