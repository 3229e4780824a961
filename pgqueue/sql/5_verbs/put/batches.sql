-- Batches: sets of tasks that other tasks wait for as for one. The theory is in flows/waiting.sql.
--
-- A batch is open until close_batch, which puts the tasks that wait for it: so these exist if and only if the batch is
-- complete. If a process dies before it closes its batch, the batch stays open, never ends, and is deleted after a day.
-- Its tasks are done as any others.
--
-- Closing waits for the transactions that have put into the batch (_closing_lock): otherwise a task of an open
-- transaction could enter a batch that has ended. The lock is shared by puts, so these do not wait for each other.

CREATE OR REPLACE FUNCTION pgqueue.create_batch(name text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    id bigint;
BEGIN
    IF octet_length(name) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'the name of a batch has 1 to 255 bytes, this one has %', octet_length(name)
            USING ERRCODE = 'PQ001';
    END IF;
    PERFORM pgqueue._check_quota('batches');
    INSERT INTO pgqueue.batch AS b (id, name, role)
    VALUES (nextval('pgqueue.task_id_seq'), create_batch.name, pgqueue._caller())
    RETURNING b.id INTO id;
    RETURN id;
END $$;
COMMENT ON FUNCTION pgqueue.create_batch IS
    'Make an open batch; returns its id, for the argument batch of put_flow. A batch that is not closed within a day '
    'is deleted. PQ006: the role has too many open batches.';

-- The puts of a close, each of which waits for the batch as well.
CREATE OR REPLACE FUNCTION pgqueue._after_batch(specs pgqueue.specification[], batch bigint)
RETURNS pgqueue.specification[]
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    s pgqueue.specification;
BEGIN
    FOR i IN 1 .. coalesce(cardinality(specs), 0) LOOP
        s := specs [i];
        s.after := s.after || batch;
        specs [i] := s;
    END LOOP;
    RETURN specs;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.close_batch(
    id        bigint,
    puts      jsonb   DEFAULT NULL,          -- the tasks that wait for it: an array, as for ack; on_failure: run
    OUT total bigint,
    OUT ids   bigint[]
)
LANGUAGE plpgsql AS $$
DECLARE
    given  record;
    closed timestamptz;
BEGIN
    PERFORM pgqueue._check_batch(id);
    IF puts IS NOT NULL THEN
        given := pgqueue._read_puts(puts, on_failure => 'run');
        PERFORM pgqueue._lock_rooms(given.queues);
    END IF;
    IF NOT pg_try_advisory_xact_lock(pgqueue._closing_lock(), pgqueue._batch_bucket(id)) THEN
        PERFORM pgqueue._await_lock(pgqueue._closing_lock(), pgqueue._batch_bucket(id), false, false, '10 s',
                                    'closing batch ' || id);
    END IF;
    SELECT c.closed_at INTO closed FROM pgqueue.batch c WHERE c.id = close_batch.id FOR UPDATE;
    IF NOT FOUND THEN                              -- deleted while this call waited
        PERFORM pgqueue._check_batch(id);
    ELSIF closed IS NOT NULL THEN
        RAISE EXCEPTION 'batch % is closed already', id USING ERRCODE = 'PQ046';
    END IF;
    WITH parts AS (DELETE FROM pgqueue.batch_part p WHERE p.batch_id = close_batch.id RETURNING p.added)
    SELECT coalesce(sum(parts.added), 0) INTO total FROM parts;
    UPDATE pgqueue.batch c SET closed_at = clock_timestamp(), total = close_batch.total WHERE c.id = close_batch.id;
    IF puts IS NOT NULL THEN
        ids := pgqueue._put_all(given.queues, pgqueue._after_batch(given.specs, id));
    END IF;
    PERFORM pgqueue._check_batches(ARRAY [id], 0);
END $$;
COMMENT ON FUNCTION pgqueue.close_batch IS
    'Close a batch: no task is added to it any more, and it ends with the last of its tasks. The tasks in puts wait '
    'for that; unless their on_failure says otherwise they run also if tasks of the batch failed. Returns how many '
    'tasks the batch has, and the ids of the tasks in puts. Waits for transactions that have put into the batch, for '
    'ten seconds at most (PQ007).';

CREATE OR REPLACE FUNCTION pgqueue.delete_batch(id bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM pgqueue.batch b
      WHERE b.id = delete_batch.id AND b.closed_at IS NULL AND pgqueue._is_callers(b.role_id)
        FOR UPDATE;
    IF NOT FOUND THEN
        IF pgqueue._elsewhere(id, 'batch') IS NOT NULL THEN
            RAISE EXCEPTION '%', pgqueue._elsewhere(id, 'batch') USING ERRCODE = 'PQ045';
        END IF;
        RETURN false;
    END IF;
    DELETE FROM pgqueue.batch b WHERE b.id = delete_batch.id;
    DELETE FROM pgqueue.batch_part p WHERE p.batch_id = delete_batch.id;
    RETURN true;
END $$;
COMMENT ON FUNCTION pgqueue.delete_batch IS
    'Delete an open batch; its tasks stay. False if there is no such batch, or it is closed.';
