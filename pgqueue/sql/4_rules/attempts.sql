-- Recording attempts that failed: when they began and ended, which worker made them, and why they failed.
--
-- The statement that ends a take with an error records the attempt too, so that there is one call and one transaction
-- for both: release, bury and fail with an error. A deadline that passed and a charge for a death are recorded by the
-- call that counts them (due.sql, suspect.sql). The caller has updated or locked the task's row: so numbers follow each
-- other, and two transactions never choose the same one.
--
-- The last ten attempts of a task are kept, and the length of a traceback is bounded: a task that fails for a year must
-- not fill a disk. An ack does not delete the attempts: that would make every ack slower, and they are of use while the
-- result is kept. clean_up removes them some time after the task and its result.

-- A traceback within its bound: the middle is cut, since the head shows the entry point and the tail the exception. The
-- characters of a text that is not ASCII may have four bytes each.
CREATE OR REPLACE FUNCTION pgqueue._bounded(traceback text) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    most CONSTANT int := 16384;
    half CONSTANT int := CASE WHEN octet_length(traceback) = length(traceback) THEN 8000 ELSE 2000 END;
BEGIN
    RETURN CASE WHEN (octet_length(traceback) > most) IS NOT TRUE THEN traceback
                ELSE format(E'%s\n[... %s characters are cut ...]\n%s', left(traceback, half),
                            length(traceback) - 2 * half, right(traceback, half)) END;
END $$;

-- Record attempts that have ended now: for each task when the attempt began, and its worker. NULL: the label is not
-- known.
CREATE OR REPLACE FUNCTION pgqueue._record_attempts(
    ids bigint[], began timestamptz[], workers text[], state text, error text, traceback text DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    kept CONSTANT int := 10;
    old  bigint[];
BEGIN
    WITH new AS (
        INSERT INTO pgqueue.attempt AS a
               (task_id, number, queue_id, began_at, ended_at, worker, state, error, traceback)
        SELECT u.id,
               1 + coalesce((SELECT p.number FROM pgqueue.attempt p
                              WHERE p.task_id = u.id ORDER BY p.number DESC LIMIT 1), 0),
               t.queue_id, u.began, clock_timestamp(), left(u.worker, 200), _record_attempts.state,
               _record_attempts.error, pgqueue._bounded(_record_attempts.traceback)
          FROM unnest(ids, began, workers) u(id, began, worker) JOIN pgqueue.task t ON t.id = u.id
        RETURNING a.task_id, a.number)
    SELECT array_agg(new.task_id) INTO old FROM new WHERE new.number > kept;
    IF old IS NOT NULL THEN
        DELETE FROM pgqueue.attempt a
         WHERE a.task_id = ANY (old)
           AND a.number <= (SELECT max(p.number) FROM pgqueue.attempt p WHERE p.task_id = a.task_id) - kept;
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._check_attempt(worker text, ended_as text, began timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue._check_text('the name of a worker', worker, 200);
    IF ended_as IS NULL OR ended_as NOT IN ('failed', 'timeout', 'cancelled') THEN
        RAISE EXCEPTION 'an attempt ends as failed, timeout or cancelled, not %', pgqueue._shown(ended_as)
            USING ERRCODE = 'PQ002';
    ELSIF NOT isfinite(began) OR began NOT BETWEEN clock_timestamp() - pgqueue._longest()
                                               AND clock_timestamp() + pgqueue._longest() THEN
        RAISE EXCEPTION 'began must be a point in time, at most 1e+09 seconds from now, not %', began
            USING ERRCODE = 'PQ002';
    END IF;
END $$;

-- The label of a session, as a worker's name.
CREATE OR REPLACE FUNCTION pgqueue._label_of(session int) RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN coalesce((SELECT s.label FROM pgqueue.session s WHERE s.id = _label_of.session),
                    CASE session WHEN 0 THEN 'a claim' ELSE 'session ' || session END);
END $$;

CREATE OR REPLACE VIEW pgqueue.attempts WITH (security_barrier) AS
SELECT a.task_id AS id, q.name AS queue, a.number, a.began_at, a.ended_at, a.worker, a.state,
       CASE WHEN q.looks THEN a.error END AS error, CASE WHEN q.looks THEN a.traceback END AS traceback
  FROM pgqueue.attempt a
  JOIN pgqueue._seen q ON q.id = a.queue_id;
COMMENT ON VIEW pgqueue.attempts IS
    'The last ten failed attempts of each task, kept as long as the task and its result, and each for an hour at '
    'least. Monitors see neither errors nor tracebacks.';

-- Part of clean_up: delete attempts of tasks that have been gone for an hour, and their results too; in a part of the
-- table: a search that begins with the oldest would walk over those of all buried tasks each time.
CREATE OR REPLACE FUNCTION pgqueue._clean_attempts() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    part   record;
BEGIN
    SELECT * INTO part FROM pgqueue._part_to_clean('pgqueue.attempt');
    DELETE FROM pgqueue.attempt
     WHERE ctid = ANY (ARRAY (
           SELECT a.ctid FROM pgqueue.attempt a
            WHERE a.ctid >= part.low AND a.ctid < part.high
              AND a.ended_at < moment - interval '1 h'
              AND (SELECT t.id FROM pgqueue.task t WHERE t.id = a.task_id) IS NULL
              AND (SELECT r.task_id FROM pgqueue.result r WHERE r.task_id = a.task_id AND r.expires_at > moment) IS NULL
            LIMIT 5000 FOR UPDATE SKIP LOCKED));
END $$;
