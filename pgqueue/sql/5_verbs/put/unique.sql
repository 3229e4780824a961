-- Puts that are unique for a time: of all puts with one key, within that time only the first one puts a task.
--
-- A key alone (special.sql) belongs to a task that is not done. With unique_for the key itself has a row, which
-- outlives the task: it counts until its time is over, also if the task is done or deleted before.
--
-- Two puts T1 and T2 with one key: T1 inserts the row. The INSERT of T2 waits for the end of T1. If T1 commits, T2
-- finds a row that has not expired, and puts nothing; if T1 rolls back, T2 inserts its own. A look for the row before
-- the INSERT would let both put. The row is inserted before the task: in the other order, T2 would have put its task
-- when it meets the row, since the task of T1 may be done by then. Above READ COMMITTED, T2 fails with a serialization
-- failure if it meets a row that its snapshot does not show.
--
-- A put without unique_for costs one more test for NULL, beside others.

CREATE OR REPLACE FUNCTION pgqueue.data_key(data jsonb) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
RETURN encode(sha256(convert_to(
           CASE WHEN jsonb_typeof(data) = 'object' AND data ? 'job'
                THEN jsonb_build_object('job', data -> 'job', 'args', data -> 'args')
                ELSE data END::text, 'UTF8')), 'hex');
COMMENT ON FUNCTION pgqueue.data_key IS
    'A key that tasks with equal data share: a digest of the data, or, for a job''s task, of its name and arguments.';

-- Claim the row of a key for the caller; known: another put has the row, and it has not expired.
CREATE OR REPLACE FUNCTION pgqueue._claim_key(
    queue_id int, key text, unique_for interval, OUT known boolean, OUT task_id bigint
)
LANGUAGE plpgsql AS $$
BEGIN
    LOOP
        INSERT INTO pgqueue.recent_key AS r (queue_id, key, expires_at)
        VALUES (_claim_key.queue_id, _claim_key.key, clock_timestamp() + unique_for)
            ON CONFLICT ON CONSTRAINT recent_key_pkey DO UPDATE
           SET expires_at = excluded.expires_at, task_id = NULL WHERE r.expires_at <= clock_timestamp();
        known := NOT FOUND;
        EXIT WHEN NOT known;
        SELECT r.task_id INTO task_id FROM pgqueue.recent_key r
         WHERE r.queue_id = _claim_key.queue_id AND r.key = _claim_key.key;
        EXIT WHEN FOUND;                           -- else a cleaning has removed it since
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._put_once(
    q pgqueue.queue, s pgqueue.specification, later timestamptz
) RETURNS pgqueue.put_outcome
LANGUAGE plpgsql AS $$
DECLARE
    own boolean;
    new pgqueue.put_outcome;
BEGIN
    PERFORM pgqueue._check_time('unique_for', s.unique_for);
    IF s.if_exists = 'replace' THEN
        RAISE EXCEPTION 'a put that replaces a task cannot be unique for a time' USING ERRCODE = 'PQ002';
    END IF;
    PERFORM pgqueue._check_size(q, s.data), pgqueue._lock_room(q);    -- the lock of the room comes before all others
    s.key := coalesce(s.key, pgqueue.data_key(s.data));
    SELECT NOT c.known, c.task_id INTO own, new.id FROM pgqueue._claim_key(q.id, s.key, s.unique_for) c;
    IF NOT own THEN
        IF s.if_exists = 'error' THEN
            RAISE EXCEPTION 'queue "%" had a task with the key "%" within the time of unique_for: task %',
                q.name, s.key, new.id
                USING ERRCODE = 'PQ038';
        END IF;
        new.existed := true;
        SELECT t.state, CASE WHEN NOT q.guarded OR pgqueue._may(q.id, 'look') THEN t.data END INTO new.state, new.kept
          FROM pgqueue._tasks t WHERE t.id = new.id;
        new.state := coalesce(new.state, 'unknown');
        RETURN new;
    END IF;
    new := pgqueue._put_special(q, s, later);
    IF new.existed OR new.id IS NULL THEN                  -- nothing was put: the key has a task, or there is no room
        DELETE FROM pgqueue.recent_key r WHERE r.queue_id = q.id AND r.key = s.key;
    ELSE
        UPDATE pgqueue.recent_key r SET task_id = new.id WHERE r.queue_id = q.id AND r.key = s.key;
    END IF;
    RETURN new;
END $$;

-- Part of clean_up.
CREATE OR REPLACE FUNCTION pgqueue._clean_recent_keys() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    portion CONSTANT int         := 5000;
    moment  CONSTANT timestamptz := clock_timestamp();
BEGIN
    DELETE FROM pgqueue.recent_key
     WHERE ctid = ANY (ARRAY (SELECT r.ctid FROM pgqueue.recent_key r
                               WHERE r.expires_at <= moment
                               ORDER BY r.expires_at LIMIT portion FOR UPDATE SKIP LOCKED));
END $$;
