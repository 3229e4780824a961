-- The ends of takes. Every take ends here, except in an ack of one task (ack.sql), which ends it inline.
--
-- The end of a take is counted in the statement's function, in the delta of its queue. Nothing else follows from the
-- take; moves.sql has the consequences for its task.
--
--   _drop_take, _drop_takes   by the holder, which presents a token or a session: the fence of settle.sql
--   _untake                   by others: takes that the caller has chosen and locked
--   _untake_tasks             by others: the takes of some tasks
--
-- The lock order is the take first, then the task (1_tables/schema.sql). A transaction T1 that has the row of a task
-- must not wait for its take: a locked take is being settled by T2, which may wait for the row. So T1 passes over
-- locked takes (SKIP LOCKED), and only a call that has no row yet may wait.
--
-- `_untake` deletes by ctid, in a statement after the one that locked the takes. In a single statement a take that T2
-- was touching when T1 locked it would stay: its new version is not in the snapshot of that statement.

-- End these takes, which the caller has locked.
CREATE OR REPLACE FUNCTION pgqueue._untake(
    takes tid[], OUT queues int[], OUT ids bigint[], OUT began timestamptz[], OUT takers int[]
)
LANGUAGE plpgsql AS $$
BEGIN
    WITH gone AS (
        DELETE FROM pgqueue.take WHERE ctid = ANY (takes)
        RETURNING take.queue_id, take.task_id, take.taken_at, take.session_id)
    SELECT array_agg(gone.queue_id), array_agg(gone.task_id), array_agg(gone.taken_at), array_agg(gone.session_id)
      INTO queues, ids, began, takers FROM gone;
    PERFORM pgqueue._count_takes(queues, -1);
END $$;

-- End the takes of these tasks, by any holder; only_late: those that are past their deadlines. A take that is being
-- settled is left alone, or, with waits, waited for. For a transaction T1 that removes a task, also after it has ended
-- its take: a claim T2 may have been under way when T1 looked. T2 has ended once T1 has the row.
CREATE OR REPLACE FUNCTION pgqueue._untake_tasks(
    ids bigint[], waits boolean DEFAULT false, only_late boolean DEFAULT false
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    until CONSTANT timestamptz := CASE WHEN only_late THEN clock_timestamp() ELSE 'infinity' END;
    takes tid[];
BEGIN
    IF waits THEN
        takes := ARRAY (SELECT (SELECT k.ctid FROM pgqueue.take k
                                 WHERE k.task_id = u.id AND k.deadline <= until FOR UPDATE)
                          FROM unnest(_untake_tasks.ids) u(id));
    ELSE
        takes := ARRAY (SELECT (SELECT k.ctid FROM pgqueue.take k
                                 WHERE k.task_id = u.id AND k.deadline <= until FOR UPDATE SKIP LOCKED)
                          FROM unnest(_untake_tasks.ids) u(id));
    END IF;
    IF array_remove(takes, NULL) <> '{}' THEN
        PERFORM pgqueue._untake(takes);
    END IF;
END $$;

-- Whether a task is taken. A take past its deadline is ended, for its holder cannot settle any more; unless the holder
-- is settling it now.
CREATE OR REPLACE FUNCTION pgqueue._is_held(id bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue._untake_tasks(ARRAY [id], only_late => true);
    RETURN EXISTS (SELECT FROM pgqueue.take k WHERE k.task_id = _is_held.id);
END $$;

-- End a take by its holder. Returns its queue, when it began and its session; NULL if there is no take that the caller
-- may end.
CREATE OR REPLACE FUNCTION pgqueue._drop_take(
    id bigint, token bigint, session int, OUT queue_id int, OUT taken_at timestamptz, OUT taker int
)
LANGUAGE plpgsql AS $$
BEGIN
    session := CASE WHEN token IS NULL THEN pgqueue._named_session(session) END;
    DELETE FROM pgqueue.take k
     WHERE k.task_id = _drop_take.id AND k.deadline > clock_timestamp()
       AND (k.token = _drop_take.token
            OR _drop_take.token IS NULL AND pgqueue._is_ours(k.session_id, _drop_take.session))
    RETURNING k.queue_id, k.taken_at, k.session_id INTO _drop_take.queue_id, _drop_take.taken_at, _drop_take.taker;
    IF FOUND THEN
        INSERT INTO pgqueue.delta (queue_id, taken) VALUES (_drop_take.queue_id, -1);
    END IF;
END $$;

-- End takes of many tasks by their holder. Returns the tasks of which a take ended, and the lowest and the highest of
-- their queues. The caller counts, in the row of its verb. The takes are locked in the order of the ids: two calls with
-- the same tasks cannot deadlock.
--
-- Each DELETE walks over the primary key, in its order, and compares the fence in a filter. If transaction T2 is
-- touching a take, the DELETE waits for T2 and looks at the new version of the row. The takes of one claim have one
-- token, which is compared at once. Otherwise each id goes with its own token. The pairs are in an OR, and so
-- in a hash table: by themselves they would become a join, which the settings of these functions make a nested loop,
-- with all pairs for each take.
CREATE OR REPLACE FUNCTION pgqueue._drop_takes(
    ids bigint[], tokens bigint[], session int, OUT dropped bigint[], OUT low int, OUT high int
)
LANGUAGE plpgsql AS $$
DECLARE
    moment      CONSTANT timestamptz := clock_timestamp();
    by_session  boolean;
BEGIN
    PERFORM pgqueue._check_takes(ids, tokens);
    IF tokens [1] = ALL (tokens) THEN
        WITH gone AS (
            DELETE FROM pgqueue.take k
             WHERE k.task_id = ANY (ids) AND k.token = tokens [1] AND k.deadline > moment
            RETURNING k.task_id, k.queue_id)
        SELECT coalesce(array_agg(gone.task_id), '{}'), min(gone.queue_id), max(gone.queue_id) INTO dropped, low, high
          FROM gone;
        RETURN;
    END IF;
    -- Not before the check, which refuses an array of arrays: array_position raises for one.
    by_session := tokens IS NULL OR array_position(tokens, NULL) IS NOT NULL;
    session := CASE WHEN by_session THEN pgqueue._named_session(session) END;
    WITH gone AS (
        DELETE FROM pgqueue.take k
         WHERE k.task_id = ANY (ids) AND k.deadline > moment
           AND ((k.task_id, k.token) IN (SELECT u.id, u.token FROM unnest(ids, tokens) u(id, token))
                OR by_session AND pgqueue._is_ours(k.session_id, _drop_takes.session)
                   AND k.task_id IN (SELECT u.id FROM unnest(ids, tokens) u(id, token) WHERE u.token IS NULL))
        RETURNING k.task_id, k.queue_id)
    SELECT coalesce(array_agg(gone.task_id), '{}'), min(gone.queue_id), max(gone.queue_id) INTO dropped, low, high
      FROM gone;
END $$;
