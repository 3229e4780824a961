-- Who may do what.
--
-- A role needs USAGE on the schema and SELECT on the views, and nothing on the tables: the public functions run with
-- their owner's rights (SECURITY DEFINER) and are the only way in. The helpers among them run with the caller's
-- rights, so that calling one directly ends at the tables. Without USAGE on the schema nothing here can be reached.

CREATE OR REPLACE FUNCTION pgqueue.grant_to(role regrole) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA pgqueue TO %s', role);
    EXECUTE format('GRANT SELECT ON pgqueue.tasks, pgqueue.queues, pgqueue.sessions, pgqueue.stats, '
        'pgqueue.statuses, pgqueue.results, pgqueue.nodes, pgqueue.locks, '
        'pgqueue.exchanges, pgqueue.bindings, pgqueue.dead_letters, pgqueue.schema_version TO %s', role);
END $$;
COMMENT ON FUNCTION pgqueue.grant_to IS 'Let a role use the queues: put, take, settle and look. To be called by the owner of the schema.';
