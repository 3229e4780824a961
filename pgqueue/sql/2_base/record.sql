-- The rows of the audit trail. 7_operations/audit.sql shows and removes them.
--
-- An operators' verb calls _record, in its own transaction: a call that is rolled back leaves no row. Put, take and the
-- holder's verbs write none, and neither do an application's declarations. A call that finds no task to change
-- writes none.
--
-- `role` and `login` come from the server and cannot be forged: only the owner of the schema can insert a row, and a
-- direct call of _record by any other role fails at the table. `actor` is set by the session: the dashboard names the
-- viewer, which is no role of the server. A trigger on each table does not work: it sees the rows of sweeps, workers
-- and schedules too, and does not see the verb.

CREATE OR REPLACE FUNCTION pgqueue._record(
    verb   text,
    queue  text   DEFAULT NULL,
    object text   DEFAULT NULL,               -- a task's id, or a name
    count  bigint DEFAULT NULL,               -- of tasks
    detail text   DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    longest CONSTANT int := 200;
BEGIN
    INSERT INTO pgqueue.audit_entry (at, count, role_oid, role, login, verb, queue, object, detail, actor)
    SELECT clock_timestamp(), _record.count, pgqueue._caller_role(), pgqueue._caller(), session_user, _record.verb,
           _record.queue, _record.object, left(_record.detail, longest),
           left(nullif(current_setting('pgqueue.actor', true), ''), longest);
END $$;

-- The same by the queue's id, where the verb does not name the queue.
CREATE OR REPLACE FUNCTION pgqueue._record_tasks(verb text, queue_id int, ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    n CONSTANT int := cardinality(ids);
BEGIN
    IF n > 0 THEN
        PERFORM pgqueue._record(verb, (SELECT q.name FROM pgqueue.queue q WHERE q.id = queue_id),
                                CASE WHEN n = 1 THEN ids [1]::text END, n);
    END IF;
END $$;
