-- Flows at the end of a followed task: the hooks that follow.sql calls, and the functions that decide which
-- tasks need not wait any more. The theory is in flows/waiting.sql.

-- Mark members of batches as ended; returns the batches.
CREATE OR REPLACE FUNCTION pgqueue._mark_members(ids bigint[], ended "char") RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    touched bigint[];
BEGIN
    IF ended = 'D' THEN
        WITH done AS (DELETE FROM pgqueue.member m WHERE m.task_id = ANY (ids) RETURNING m.batch_id)
        SELECT array_agg(DISTINCT d.batch_id) INTO touched FROM done d;
    ELSE
        WITH failed AS (
            UPDATE pgqueue.member m SET state = ended WHERE m.task_id = ANY (ids) AND m.state <> ended
            RETURNING m.batch_id)
        SELECT array_agg(DISTINCT f.batch_id) INTO touched FROM failed f;
    END IF;
    RETURN touched;
END $$;

-- Leave a check for each batch of which n tasks have ended, `last` with the highest id: for the next claim on the queue
-- of a task that waits for the batch, if it may be about to end; else for the next tick, which looks once for all ends
-- of a quarter of a second. The last ends may be those of several workers, each of which sees the tasks of the others
-- as open. Nearly always no task need be counted: the batch is not closed yet; or a task far above is open, since tasks
-- usually end in the order of their ids.
CREATE OR REPLACE FUNCTION pgqueue._check_batches(ids bigint[], n int, last bigint DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    near CONSTANT int    := 50 + 2 * n;
    far  CONSTANT bigint := last + 4 * near;
    b    record;
BEGIN
    FOR b IN
        SELECT u.id,
               CASE WHEN (SELECT c.closed_at FROM pgqueue.batch c WHERE c.id = u.id) IS NULL
                      OR (SELECT m.task_id FROM pgqueue.member m WHERE m.batch_id = u.id AND m.state = 'O'
                           ORDER BY m.task_id DESC LIMIT 1) > far
                    THEN NULL
                    WHEN (SELECT count(*) FROM (SELECT FROM pgqueue.member m
                                                 WHERE m.batch_id = u.id AND m.state = 'O'
                                                 ORDER BY m.task_id DESC LIMIT near) o) < near
                    THEN (SELECT t.queue_id FROM pgqueue.dependency d JOIN pgqueue.task t ON t.id = d.task_id
                           WHERE d.on_id = u.id LIMIT 1) END AS queue_id
          FROM unnest(ids) u(id) ORDER BY u.id
    LOOP
        INSERT INTO pgqueue.flow_check (id, queue_id) VALUES (b.id, coalesce(b.queue_id, 0));
        IF b.queue_id IS NOT NULL THEN
            PERFORM pgqueue._signal(b.queue_id);
        END IF;
    END LOOP;
END $$;

-- These tasks of a queue have ended, as `how` says: mark the rows that name them, and leave a check for each task and
-- batch that waits for them. No other transaction can have these rows locked for long: the rows that name a task are
-- marked only by transactions that have the task's row.
CREATE OR REPLACE FUNCTION pgqueue._follow_tasks(queue_id int, ids bigint[], how text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    ended   CONSTANT "char" := CASE WHEN how = 'done' THEN 'D' WHEN how IN ('buried', 'dead') THEN 'F' ELSE 'G' END;
    waiting CONSTANT "char" := 'W';                -- a variable: see _open_meter
    low     bigint;
    high    bigint;
    touched bigint[];
    queues  int[];
BEGIN
    SELECT min(u.id), max(u.id) INTO low, high FROM unnest(ids) u(id);
    -- Usually no task waits for a member of a batch, and no member waited: one probe for all members shows that.
    IF EXISTS (SELECT FROM pgqueue.dependency d WHERE d.on_id BETWEEN low AND high) THEN
        WITH marked AS (
            UPDATE pgqueue.dependency d SET state = ended
             WHERE d.on_id = ANY (ids) AND d.state <> 'D' AND d.state <> ended
            RETURNING d.task_id),
        left_behind AS (
            INSERT INTO pgqueue.flow_check (id, queue_id)
            SELECT t.id, t.queue_id FROM pgqueue.task t
             WHERE t.id = ANY (ARRAY (SELECT m.task_id FROM marked m)) AND t.state = waiting
            RETURNING flow_check.queue_id)
        SELECT array_agg(DISTINCT l.queue_id) INTO queues FROM left_behind l;
        PERFORM pgqueue._signal(q) FROM unnest(queues) q;
    END IF;
    touched := pgqueue._mark_members(ids, ended);
    IF touched IS NOT NULL THEN
        PERFORM pgqueue._check_batches(touched, cardinality(ids), high);
    END IF;
    -- The next tick deletes their dependencies.
    IF how NOT IN ('buried', 'dead')
       AND EXISTS (SELECT FROM pgqueue.dependant d WHERE d.task_id BETWEEN low AND high) THEN
        INSERT INTO pgqueue.flow_check (id, queue_id)
        SELECT d.task_id, 0 FROM pgqueue.dependant d WHERE d.task_id = ANY (ids);
    END IF;
END $$;

-- Whether a followed task that would be ready has to wait for other tasks. A task that was buried and is kicked does
-- not have to, nor a task that came back from a take.
CREATE OR REPLACE FUNCTION pgqueue._waits_for_tasks(t pgqueue.task) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN t.state IN ('W', 'D')
       AND EXISTS (SELECT FROM pgqueue.dependant d WHERE d.task_id = t.id AND NOT d.opened);
END $$;

-- Make dependants that wait for nothing any more ready, or delayed. A tick looks again at those whose rows are locked.
CREATE OR REPLACE FUNCTION pgqueue._open(ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    waiting CONSTANT "char" := 'W';                -- a variable: see _open_meter
    moment  CONSTANT timestamptz := clock_timestamp();
    held    CONSTANT bigint[] := ARRAY (SELECT t.id FROM pgqueue.task t WHERE t.id = ANY (ids) AND t.state = waiting
                                         ORDER BY t.id FOR UPDATE SKIP LOCKED);
    q       record;
BEGIN
    INSERT INTO pgqueue.flow_check (id, queue_id) SELECT u.id, 0 FROM unnest(ids) u(id) WHERE u.id <> ALL (held);
    UPDATE pgqueue.dependant d SET opened = true WHERE d.task_id = ANY (held);
    UPDATE pgqueue.task t SET expires_at = greatest(coalesce(d.run_at, moment + d.delay), moment) + d.ttl
      FROM pgqueue.dependant d WHERE t.id = ANY (held) AND d.task_id = t.id AND d.ttl IS NOT NULL;
    FOR q IN
        SELECT t.queue_id AS id, array_agg(t.id) FILTER (WHERE later.at > moment) AS delayed,
               array_agg(later.at) FILTER (WHERE later.at > moment) AS times,
               array_agg(t.id) FILTER (WHERE (later.at > moment) IS NOT TRUE) AS free
          FROM pgqueue.task t JOIN pgqueue.dependant d ON d.task_id = t.id,
               LATERAL (SELECT coalesce(d.run_at, moment + d.delay) AS at) later
         WHERE t.id = ANY (held) GROUP BY t.queue_id
    LOOP
        IF q.delayed IS NOT NULL THEN
            PERFORM pgqueue._delay(q.delayed, q.times), pgqueue._signal(q.id);
        END IF;
        PERFORM pgqueue._make_ready(q.id, q.free, NULL);
    END LOOP;
END $$;

-- Bury dependants whose dependencies failed; returns those that were buried.
CREATE OR REPLACE FUNCTION pgqueue._bury_dependants(ids bigint[]) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    waiting CONSTANT "char" := 'W';                -- a variable: see _open_meter
    held    CONSTANT bigint[] := ARRAY (SELECT t.id FROM pgqueue.task t WHERE t.id = ANY (ids) AND t.state = waiting
                                         ORDER BY t.id FOR UPDATE SKIP LOCKED);
BEGIN
    INSERT INTO pgqueue.flow_check (id, queue_id) SELECT u.id, 0 FROM unnest(ids) u(id) WHERE u.id <> ALL (held);
    PERFORM pgqueue._bury(held, ARRAY (
                SELECT (SELECT format('%s %s, for which this task waited, %s',
                                      CASE WHEN b.id IS NULL THEN 'task' ELSE 'batch' END, d.on_id,
                                      CASE d.state WHEN 'F' THEN 'failed' ELSE 'is gone and was not done' END)
                          FROM pgqueue.dependency d LEFT JOIN pgqueue.batch b ON b.id = d.on_id
                         WHERE d.task_id = u.id AND d.state IN ('F', 'G') ORDER BY d.state DESC, d.position LIMIT 1)
                  FROM unnest(held) WITH ORDINALITY u(id, place) ORDER BY u.place));
    PERFORM pgqueue._note(q.id, 'bury', q.ids)
       FROM (SELECT t.queue_id AS id, array_agg(t.id ORDER BY t.id) AS ids FROM pgqueue.task t WHERE t.id = ANY (held)
              GROUP BY t.queue_id) q;
    RETURN held;
END $$;

-- End batches; returns those that end now, or whose end changed because a task that had failed is done after all.
CREATE OR REPLACE FUNCTION pgqueue._end_batches(ids bigint[]) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    b     record;
    ended bigint[] := '{}'::bigint[];
BEGIN
    FOR b IN
        SELECT c.id, (SELECT m.task_id FROM pgqueue.member m WHERE m.batch_id = c.id AND m.state <> 'O'
                       ORDER BY m.task_id LIMIT 1) IS NOT NULL AS failed, c.failed AS known
          FROM pgqueue.batch c
         WHERE c.id = ANY (ids) AND c.closed_at IS NOT NULL
           AND (SELECT m.task_id FROM pgqueue.member m WHERE m.batch_id = c.id AND m.state = 'O'
                 ORDER BY m.task_id DESC LIMIT 1) IS NULL
         ORDER BY c.id
    LOOP
        CONTINUE WHEN b.failed = b.known;
        PERFORM FROM pgqueue.batch c WHERE c.id = b.id FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            INSERT INTO pgqueue.flow_check (id, queue_id) VALUES (b.id, 0);
            CONTINUE;
        END IF;
        UPDATE pgqueue.batch c SET ended_at = coalesce(c.ended_at, clock_timestamp()), failed = b.failed
         WHERE c.id = b.id;
        UPDATE pgqueue.dependency d SET state = CASE WHEN b.failed THEN 'F' ELSE 'D' END
         WHERE d.on_id = b.id AND d.state <> 'D';
        ended := ended || b.id;
    END LOOP;
    RETURN ended;
END $$;

-- Decide about dependants and batches, each in a snapshot that is newer than the ends that the caller knows of. Then
-- decide about those that wait for the tasks that this ended, and so on, for ten rounds or a thousand tasks. The next
-- tick goes on: all queues share the ticks, and a chain of 1,500 tasks whose first was buried made one last ten
-- seconds.
CREATE OR REPLACE FUNCTION pgqueue._decide(ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    left_over int := 1000;
    failed    bigint[];
    free      bigint[];
    ended     bigint[];
BEGIN
    LOOP
        ended := pgqueue._end_batches(ids);
        SELECT array_agg(v.id) FILTER (WHERE v.verdict = 'bury'), array_agg(v.id) FILTER (WHERE v.verdict = 'open')
          INTO failed, free
          FROM (SELECT d.task_id AS id,
                       CASE WHEN d.on_failure <> 'r' AND EXISTS (
                                 SELECT FROM pgqueue.dependency e
                                  WHERE e.task_id = d.task_id AND e.state IN ('F', 'G')
                                    AND (d.on_failure = 'b' OR e.state = 'G')) THEN 'bury'
                            WHEN NOT EXISTS (
                                 SELECT FROM pgqueue.dependency e
                                  WHERE e.task_id = d.task_id AND e.state IN ('N', 'O'))
                             AND (d.on_failure = 'r' OR NOT EXISTS (
                                  SELECT FROM pgqueue.dependency e
                                   WHERE e.task_id = d.task_id AND e.state IN ('F', 'G'))) THEN 'open'
                            END AS verdict
                  FROM pgqueue.dependant d
                  JOIN pgqueue.task t ON t.id = d.task_id AND t.state = 'W'
                 WHERE d.task_id = ANY (ids) AND NOT d.opened) v;
        IF free IS NOT NULL THEN
            PERFORM pgqueue._open(free);
        END IF;
        IF failed IS NOT NULL THEN
            ended := ended || pgqueue._bury_dependants(failed);
        END IF;
        EXIT WHEN ended = '{}';
        ids := ARRAY (SELECT d.task_id FROM pgqueue.dependency d WHERE d.on_id = ANY (ended)
                       UNION SELECT m.batch_id FROM pgqueue.member m WHERE m.task_id = ANY (ended));
        left_over := left_over - greatest(cardinality(ids), 100);
        IF left_over < 0 THEN
            INSERT INTO pgqueue.flow_check (id, queue_id) SELECT u.id, 0 FROM unnest(ids) u(id);
            EXIT;
        END IF;
        EXIT WHEN ids = '{}';
    END LOOP;
END $$;

-- Look at the dependants and batches with a check for a queue's next claim, or, for queue 0, for the next tick; up to
-- 1000. A claim may be in a user's long transaction, so it locks no row for which an ack could wait: only ticks mark
-- tasks as followed, and delete dependencies. Above READ COMMITTED an old snapshot decides nothing.
CREATE OR REPLACE FUNCTION pgqueue._settle_flows(queue_id int) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    me  CONSTANT xid8 := pg_current_xact_id_if_assigned();
    ids bigint[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN;
    END IF;
    WITH seen AS (
        DELETE FROM pgqueue.flow_check
         WHERE ctid = ANY (ARRAY (SELECT c.ctid FROM pgqueue.flow_check c
                                   WHERE c.queue_id = _settle_flows.queue_id AND c.xid IS DISTINCT FROM me
                                   LIMIT 1000 FOR UPDATE SKIP LOCKED))
        RETURNING flow_check.id)
    SELECT array_agg(DISTINCT s.id) INTO ids FROM seen s;
    IF ids IS NULL THEN
        RETURN;
    ELSIF queue_id = 0 THEN
        PERFORM pgqueue._forget_dependants(ids), pgqueue._link(ids, mine => false, most => 2000);
        INSERT INTO pgqueue.flow_check (id, queue_id)          -- not linked yet, or locked: a tick looks again
        SELECT u.id, 0 FROM unnest(ids) u(id)
         WHERE (SELECT d.task_id FROM pgqueue.dependency d
                 WHERE d.task_id = u.id AND d.state = 'N' LIMIT 1) IS NOT NULL;
    END IF;
    PERFORM pgqueue._decide(ids);
END $$;
