-- The audit trail for its readers; 2_base/record.sql writes it.

-- Part of clean_up. The oldest rows are deleted first, a portion at a time.
CREATE OR REPLACE FUNCTION pgqueue._clean_audit() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    kept    CONSTANT int    := 10000;
    portion CONSTANT int    := 100000;             -- more than an application can cancel one by one in a minute
    last    CONSTANT bigint := (SELECT a.id FROM pgqueue.audit_entry a ORDER BY a.id DESC OFFSET kept LIMIT 1);
BEGIN
    DELETE FROM pgqueue.audit_entry
     WHERE ctid = ANY (ARRAY (SELECT a.ctid FROM pgqueue.audit_entry a
                               WHERE a.id <= last ORDER BY a.id LIMIT portion FOR UPDATE SKIP LOCKED));
END $$;

CREATE OR REPLACE VIEW pgqueue.audit WITH (security_barrier) AS
SELECT a.id, a.at, a.role::text AS role, a.login::text AS login, a.actor, a.verb, a.queue, a.object, a.count, a.detail
  FROM pgqueue.audit_entry a
 WHERE (SELECT pgqueue._may_see_all('monitor'))
    OR EXISTS (SELECT FROM pgqueue._own_roles o JOIN pg_roles r ON r.oid = o.oid
                WHERE r.oid = a.role_oid AND r.rolname = a.role);
COMMENT ON VIEW pgqueue.audit IS
    'The newest 10,000 calls of operators'' verbs, except those that found no task. role: of the call; login: the role '
    'that connected; actor: the session''s own setting pgqueue.actor, unproved; object: a task''s id, or a name; '
    'count: of tasks. A role sees its own; monitors see all.';
