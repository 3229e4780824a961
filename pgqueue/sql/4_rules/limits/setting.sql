-- The rules of limits: setting, declaring and dropping them. limits/following.sql has the ticks' work while tasks still
-- follow an earlier form.
--
-- Theory of operation
-- -------------------
-- A transaction T1 alters a limit, or makes or drops one. From its commit on, each claim that begins follows the new
-- form. Three kinds of transactions may still follow the old one:
--
--   a put T2         made a task R or W as the old form says, and may commit at any time. A task that should wait is
--                    made W by the claim that meets it. One that waits for a dropped limit has left a check.
--   a claim T3       took a task without admission, since the queue had no limit for it: it has no meter, and is not
--                    counted. Or T3 saw a full meter and deleted a check, and by the new form there is room.
--   an ack T4        saw a queue without limits, and leaves no check for the slot of its task.
--
-- So until no such transaction is left, each tick gives a meter to tasks of the limit that are taken without one, and
-- leaves a check for each meter with a task that waits. A check costs a claim a look, and never admits too many.
-- changeover.sql has the argument by which a tick knows that none is left.
--
-- Tasks that run when a limit is made are counted from the first tick on, at most a second later. If T1 gave them a
-- meter it would lock their rows until it ends, and an ack would wait for a user's long transaction.
--
-- A limit that is dropped stays as a row until no task waits for it. Claims make such tasks ready, 1000 at a time, and
-- so do ticks for queues without takers. The row of a limit whose argument changes is dropped, and another one made:
-- the values of the two cannot be compared.

-- Leave a check in each meter of a limit in which a task waits, for up to n meters behind the meter `after`; returns
-- the last meter, NULL if there are no more. From one meter to the next by the index; no text is between m and m ||
-- chr(1).
CREATE OR REPLACE FUNCTION pgqueue._recheck(
    queue_id int, limit_id int, after text DEFAULT NULL, n int DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    high CONSTANT text := limit_id || ';';
    one  text          := after;
    seen int           := 0;
BEGIN
    LOOP
        one := (SELECT t.meter FROM pgqueue.task t
                  WHERE t.queue_id = _recheck.queue_id
                    AND t.meter >= coalesce(one || chr(1), limit_id || ':') AND t.meter < high AND t.state = 'W'
                  ORDER BY t.meter, t.state, t.priority, t.id LIMIT 1);
        EXIT WHEN one IS NULL;
        INSERT INTO pgqueue.meter_check (queue_id, meter) VALUES (_recheck.queue_id, one);
        seen := seen + 1;
        EXIT WHEN seen = n;
    END LOOP;
    IF seen > 0 THEN
        PERFORM pgqueue._signal(queue_id);
    END IF;
    RETURN one;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._check_terms(
    job text, concurrency int, rate int, per interval, burst int, argument text, home int DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF octet_length(job) NOT BETWEEN 1 AND 255 OR octet_length(argument) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'the names of a job and of an argument have 1 to 255 bytes: the job''s has %, the argument''s '
            'has %', octet_length(job), octet_length(argument) USING ERRCODE = 'PQ001';
    ELSIF concurrency IS NULL AND rate IS NULL THEN
        RAISE EXCEPTION 'a limit needs a concurrency, a rate, or both' USING ERRCODE = 'PQ002',
            HINT = 'drop_limit removes a limit.';
    ELSIF concurrency < 1 OR concurrency > 100000 OR rate < 1 OR rate > 1000000 OR burst < 1 OR burst > 1000000 THEN
        RAISE EXCEPTION 'a limit is at least 1, a concurrency at most 100000, a rate and a burst at most 1000000: '
            'concurrency is %, rate is %, burst is %', concurrency, rate, burst USING ERRCODE = 'PQ002',
            HINT = 'pause_queue stops all tasks of a queue.';
    ELSIF rate IS NULL AND burst IS NOT NULL THEN
        RAISE EXCEPTION 'a burst goes with a rate: burst is %', burst USING ERRCODE = 'PQ002';
    ELSIF rate IS NOT NULL AND per IS NULL THEN
        RAISE EXCEPTION 'a rate needs a period: rate is %, per is NULL', rate USING ERRCODE = 'PQ002';
    ELSIF home NOT BETWEEN 0 AND 1023 THEN
        RAISE EXCEPTION 'the home of a limit is the number of a server, from 0 to 1023, not %', home
            USING ERRCODE = 'PQ002';
    END IF;
    PERFORM pgqueue._check_time('per', per);
END $$;

-- Make or alter a limit of a queue whose row the caller has locked.
CREATE OR REPLACE FUNCTION pgqueue._put_limit(
    queue_id int, job text, concurrency int, rate int, per interval, burst int, argument text, declared boolean,
    home int DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    bucket  CONSTANT int      := CASE WHEN rate IS NOT NULL THEN coalesce(burst, greatest(1, rate / 10)) END;
    span    CONSTANT interval := CASE WHEN rate IS NOT NULL THEN per END;
    changed int;
BEGIN
    UPDATE pgqueue.task_limit l SET dropped = true, changing = true, altered = pg_current_xact_id(), ended = NULL
     WHERE l.queue_id = _put_limit.queue_id AND l.job IS NOT DISTINCT FROM _put_limit.job AND NOT l.dropped
       AND l.argument IS DISTINCT FROM _put_limit.argument;
    UPDATE pgqueue.task_limit l
       SET concurrency = _put_limit.concurrency, rate = _put_limit.rate, burst = bucket, period = span,
           declared = _put_limit.declared, home = _put_limit.home, changing = true, altered = pg_current_xact_id(),
           ended = NULL, is_over = false, rechecked = NULL, rechecked_at = clock_timestamp()
     WHERE l.queue_id = _put_limit.queue_id AND l.job IS NOT DISTINCT FROM _put_limit.job AND NOT l.dropped
    RETURNING l.id INTO changed;
    IF FOUND THEN
        PERFORM pgqueue._recheck(queue_id, changed);
    ELSE
        INSERT INTO pgqueue.task_limit (queue_id, job, argument, concurrency, rate, burst, period, declared, home)
        VALUES (_put_limit.queue_id, _put_limit.job, _put_limit.argument, _put_limit.concurrency, _put_limit.rate,
                bucket, span, _put_limit.declared, _put_limit.home);
    END IF;
    UPDATE pgqueue.queue q SET metered = true WHERE q.id = _put_limit.queue_id AND NOT q.metered;
    IF FOUND THEN
        PERFORM pgqueue._make_latches(queue_id);
    END IF;
    PERFORM pgqueue._signal(queue_id);
END $$;

CREATE OR REPLACE FUNCTION pgqueue.set_limit(
    queue       text,
    job         text     DEFAULT NULL,       -- NULL: all tasks of the queue whose job has no limit of its own
    concurrency int      DEFAULT NULL,       -- the most tasks that are taken at once
    rate        int      DEFAULT NULL,       -- the most tasks that begin in each `per`
    per         interval DEFAULT '1 s',
    burst       int      DEFAULT NULL,       -- the most that begin at once after a pause; NULL: a tenth of rate, or 1
    argument    text     DEFAULT NULL,       -- for each value of this argument separately
    home        int      DEFAULT NULL        -- the number of the server that alone gets its tasks; NULL: each has some
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue._check_terms(job, concurrency, rate, per, burst, argument, home);
    PERFORM pgqueue._put_limit((pgqueue._known_queue(queue, 'manage', lock => 'no key update')).id,
                               job, concurrency, rate, per, burst, argument, declared => false, home => home);
    PERFORM pgqueue._record('set_limit', queue, job,
                            detail => concat_ws(', ', 'concurrency ' || concurrency, rate || ' in ' || per,
                                                'burst ' || burst, 'for each ' || argument,
                                                'kept by server ' || home));
END $$;
COMMENT ON FUNCTION pgqueue.set_limit IS
    'Limit the tasks of a job, or of a queue, over all takers: how many are taken at once, and how many begin in a '
    'period. An earlier limit of the same job is replaced; tasks that run go on. With a home it counts over a cluster '
    'in which each server has it: the others refuse puts of its tasks. PQ032: there is no such queue.';

CREATE OR REPLACE FUNCTION pgqueue._end_limit(queue_id int, job text, only_declared boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    ended int;
BEGIN
    UPDATE pgqueue.task_limit l SET dropped = true, changing = true, altered = pg_current_xact_id(), ended = NULL
     WHERE l.queue_id = _end_limit.queue_id AND l.job IS NOT DISTINCT FROM _end_limit.job AND NOT l.dropped
       AND (l.declared OR NOT only_declared)
    RETURNING l.id INTO ended;
    IF FOUND THEN
        PERFORM pgqueue._recheck(queue_id, ended);
    END IF;
    RETURN ended IS NOT NULL;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.drop_limit(queue text, job text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    ended CONSTANT boolean := pgqueue._end_limit(
        (pgqueue._known_queue(queue, 'manage', lock => 'no key update')).id, job, only_declared => false);
BEGIN
    IF ended THEN
        PERFORM pgqueue._record('drop_limit', queue, job);
    END IF;
    RETURN ended;
END $$;
COMMENT ON FUNCTION pgqueue.drop_limit IS
    'Remove the limit of a job, or that of the queue; the tasks that wait for it become ready. False: there is none. '
    'PQ032: there is no such queue.';

CREATE OR REPLACE FUNCTION pgqueue.declare_limit(
    queue       text,
    job         text,
    concurrency int      DEFAULT NULL,       -- with rate NULL too: the job has no limit
    rate        int      DEFAULT NULL,
    per         interval DEFAULT '1 s',
    burst       int      DEFAULT NULL,
    argument    text     DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    none  CONSTANT boolean := concurrency IS NULL AND rate IS NULL;
    q     int;
    known record;
    same  boolean;
BEGIN
    PERFORM pgqueue._check_given('job', job);
    IF NOT none THEN
        PERFORM pgqueue._check_terms(job, concurrency, rate, per, burst, argument);
        q := pgqueue.queue_id(queue);
    END IF;
    SELECT l.*, n.id AS of_queue, n.guarded INTO known
      FROM pgqueue.queue n
      LEFT JOIN pgqueue.task_limit l ON l.queue_id = n.id AND l.job = declare_limit.job AND NOT l.dropped
     WHERE n.name = declare_limit.queue;
    IF known.guarded AND NOT pgqueue._may(known.of_queue, 'take') THEN
        PERFORM pgqueue._refuse('take', queue);
    END IF;
    same := CASE WHEN none THEN known.id IS NULL
                 ELSE (known.concurrency, known.rate, known.burst, known.period, known.argument) IS NOT DISTINCT FROM
                      (declare_limit.concurrency, declare_limit.rate,
                       CASE WHEN declare_limit.rate IS NOT NULL
                            THEN coalesce(declare_limit.burst, greatest(1, declare_limit.rate / 10)) END,
                       CASE WHEN declare_limit.rate IS NOT NULL THEN per END, declare_limit.argument) END;
    IF same THEN
        RETURN 'same';
    ELSIF NOT known.declared THEN                    -- by hand; NULL: there is none
        RETURN 'kept';
    END IF;
    q := (pgqueue._known_queue(queue, 'manage', lock => 'no key update')).id;
    IF none THEN
        RETURN CASE WHEN pgqueue._end_limit(q, job, only_declared => true) THEN 'dropped' ELSE 'same' END;
    END IF;
    PERFORM pgqueue._put_limit(q, job, concurrency, rate, per, burst, argument, declared => true);
    RETURN 'set';
END $$;
COMMENT ON FUNCTION pgqueue.declare_limit IS
    'For programs, at their start: the limit of a job as their code has it, or none. set, dropped, or same: no change, '
    'which needs no right to manage the queue. kept: another limit was set by set_limit, and stays.';

-- Part of clean_up: buckets that are full again, or whose limit is gone.
CREATE OR REPLACE FUNCTION pgqueue._clean_buckets() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM pgqueue.bucket
     WHERE ctid = ANY (ARRAY (
           SELECT b.ctid FROM pgqueue.bucket b
            WHERE NOT EXISTS (SELECT FROM pgqueue.task_limit l
                               WHERE l.id = split_part(b.meter, ':', 1)::int AND l.queue_id = b.queue_id
                                 AND (b.due_at IS NOT NULL
                                      OR b.filled_at > clock_timestamp() - l.burst * l.period / l.rate))
            LIMIT 10000 FOR UPDATE SKIP LOCKED));
END $$;

-- The limit that a task waits for, for people; NULL: it waits for none.
CREATE OR REPLACE FUNCTION pgqueue._awaited_limit(id bigint) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT format('for the limit of %s: %s%s%s', coalesce('job "' || l.job || '"', 'its queue'),
                          concat_ws(' and ', l.concurrency || ' at once', l.rate || ' in each ' || l.period),
                          ', for each ' || l.argument, ', the next at ' || b.due_at)
              FROM pgqueue.task t
              JOIN pgqueue.task_limit l ON l.id = split_part(t.meter, ':', 1)::int AND l.queue_id = t.queue_id
              LEFT JOIN pgqueue.bucket b ON b.queue_id = t.queue_id AND b.meter = t.meter
             WHERE t.id = _awaited_limit.id AND t.state = 'W');
END $$;

CREATE OR REPLACE VIEW pgqueue.limits WITH (security_barrier) AS
SELECT q.name AS queue, l.job, l.concurrency, l.rate, l.period AS per, l.burst, l.argument, l.declared,
       n.running, n.waiting,
       (SELECT min(b.due_at) FROM pgqueue.bucket b
         WHERE b.queue_id = l.queue_id AND b.meter >= l.id || ':' AND b.meter < l.id || ';') AS next_at,
       l.home
  FROM pgqueue.task_limit l
  JOIN pgqueue._seen q ON q.id = l.queue_id
 CROSS JOIN LATERAL (
       SELECT count(*) FILTER (WHERE t.state IN ('R', 'C')) AS running, count(*) FILTER (WHERE t.state = 'W') AS waiting
         FROM pgqueue.task t
        WHERE t.queue_id = l.queue_id AND t.meter >= l.id || ':' AND t.meter < l.id || ';' AND t.state <> 'F') n
 WHERE NOT l.dropped;
COMMENT ON VIEW pgqueue.limits IS
    'The limits of tasks. running: tasks that have a slot; waiting: tasks that wait for one, or for a token; next_at: '
    'when the next token is added, if a task waits for it. The view counts the tasks of each limit, one by one.';
COMMENT ON COLUMN pgqueue.limits.home     IS
    'The number of the server that alone gets new tasks of it. NULL: each server gets some, and counts its own.';
COMMENT ON COLUMN pgqueue.limits.declared IS 'A program declared it (declare_limit). Otherwise set_limit did.';
