-- Steps: parts of a task that are not done twice. A holder records the value that a step returned, and the next holder
-- of the same task, after a crash or a failed attempt, reads it in place of doing the step again.
--
-- Theory of operation
-- -------------------
-- A step runs between two calls: get_step, which finds no record, and record_step. If the process dies between them,
-- the next holder runs the step again. So a step runs at least once, and not again once its record is committed. If the
-- work of the step is done in the transaction of the record (record_step on the caller's connection), both are
-- committed or neither is: the step takes effect exactly once.
--
-- The fence. Only the holder of the task reads and records. A holder T1 that slept past its deadline while T2 took the
-- task is refused, so it cannot record a step that T2 has done or will do. record_step keeps the take until its
-- transaction ends: FOR KEY SHARE makes the end of a take wait for T1, or leave the take alone (sweep and promotion
-- skip rows that are locked), while a touch, which changes the deadline only, goes on. FOR SHARE does not work: the
-- touches by which a worker keeps a long task would wait for the handler's transaction.
--
-- Two threads of one holder may run the same step at the same time. The first record is kept, and the second call
-- returns it: both go on with one value. The INSERT of the second waits for the transaction of the first, at the
-- primary key.
--
-- A record lives as long as its task: over retries, burials and kicks, and dead letters, which keep the id. It is
-- removed by clean_up once the task is gone, so that an ack of a task without steps pays nothing for them.

CREATE OR REPLACE FUNCTION pgqueue.get_step(
    id           bigint,
    token        bigint DEFAULT NULL,
    session      int    DEFAULT NULL,
    name         text   DEFAULT NULL,
    OUT recorded boolean,
    OUT value    jsonb,
    OUT state    text,
    OUT problem  text,
    OUT holder   text
)
LANGUAGE plpgsql AS $$
BEGIN
    session := CASE WHEN token IS NULL THEN pgqueue._named_session(session) END;
    SELECT s.task_id IS NOT NULL, s.value, 'taken' INTO recorded, value, state
      FROM pgqueue.take k LEFT JOIN pgqueue.step s ON s.task_id = k.task_id AND s.name = get_step.name
     WHERE k.task_id = get_step.id AND k.deadline > clock_timestamp()
       AND (k.token = get_step.token OR get_step.token IS NULL AND pgqueue._is_ours(k.session_id, get_step.session));
    IF NOT FOUND THEN
        recorded := false;
        SELECT e.state, e.problem, e.holder INTO state, problem, holder FROM pgqueue._explain_refusal(id) e;
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.get_step IS
    'Whether a step of a task is recorded, and its value. For the holder of the task; problem: as from ack.';

CREATE OR REPLACE FUNCTION pgqueue.record_step(
    id          bigint,
    token       bigint DEFAULT NULL,
    session     int    DEFAULT NULL,
    name        text   DEFAULT NULL,
    value       jsonb  DEFAULT NULL,
    OUT kept    jsonb,                       -- the value that counts: that of the first record of this name
    OUT state   text,
    OUT problem text,
    OUT holder  text
)
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue._check_data('the value of a step', value, nulls => true);
    IF (octet_length(name) BETWEEN 1 AND 255) IS NOT TRUE THEN
        RAISE EXCEPTION 'the name of a step has 1 to 255 bytes, this one has %', coalesce(octet_length(name), 0)
            USING ERRCODE = 'PQ001';
    END IF;
    session := CASE WHEN token IS NULL THEN pgqueue._named_session(session) END;
    PERFORM FROM pgqueue.take k
      WHERE k.task_id = record_step.id AND k.deadline > clock_timestamp()
        AND (k.token = record_step.token
             OR record_step.token IS NULL AND pgqueue._is_ours(k.session_id, record_step.session))
        FOR KEY SHARE;
    IF NOT FOUND THEN
        SELECT e.state, e.problem, e.holder INTO state, problem, holder FROM pgqueue._explain_refusal(id) e;
        RETURN;
    END IF;
    INSERT INTO pgqueue.step (task_id, recorded_at, name, value)
    VALUES (id, clock_timestamp(), record_step.name, coalesce(record_step.value, 'null'))
        ON CONFLICT DO NOTHING;
    state := 'taken';
    kept := value;
    IF NOT FOUND THEN
        SELECT s.value INTO kept FROM pgqueue.step s WHERE s.task_id = record_step.id AND s.name = record_step.name;
    END IF;
    kept := coalesce(kept, 'null');
END $$;
COMMENT ON FUNCTION pgqueue.record_step IS
    'Record the value that a step of a task returned: no later holder of the task does the step again. Only the holder '
    'may; a step that is already recorded keeps its value, which is returned.';

CREATE OR REPLACE VIEW pgqueue.steps WITH (security_barrier) AS
SELECT s.task_id AS id, q.name AS queue, s.name AS step, CASE WHEN q.looks THEN s.value END AS value, s.recorded_at
  FROM pgqueue.step s
  JOIN pgqueue.task t ON t.id = s.task_id
  JOIN pgqueue._seen q ON q.id = t.queue_id;
COMMENT ON VIEW pgqueue.steps IS 'The recorded steps of tasks that are not gone. Monitors see no value.';

-- Part of clean_up: delete steps of tasks that are gone or done, in a part of the table: an index by time would not
-- help, since old steps may belong to living tasks.
CREATE OR REPLACE FUNCTION pgqueue._clean_steps() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    part record;
BEGIN
    SELECT * INTO part FROM pgqueue._part_to_clean('pgqueue.step');
    DELETE FROM pgqueue.step
     WHERE ctid = ANY (ARRAY (
           SELECT s.ctid FROM pgqueue.step s
            WHERE s.ctid >= part.low AND s.ctid < part.high
              AND (SELECT t.id FROM pgqueue.task t WHERE t.id = s.task_id AND t.state <> 'F') IS NULL
            LIMIT 10000 FOR UPDATE SKIP LOCKED));
END $$;
