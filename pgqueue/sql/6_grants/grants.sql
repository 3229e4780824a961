-- Grants: which roles may call what. Run last, since it is about all that the other files made.
--
-- No role but the owner has rights on the tables. The public functions run with their owner's rights (settings.sql) and
-- are the only way in; helpers run with the caller's, so that a direct call ends at the tables. EXECUTE is revoked from
-- PUBLIC, which PostgreSQL grants by default; otherwise a read-only role could call put().

CREATE OR REPLACE FUNCTION pgqueue.grant_monitor(role regrole) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA pgqueue TO %s', role);
    EXECUTE format('GRANT SELECT ON pgqueue.tasks, pgqueue.queues, pgqueue.sessions, pgqueue.stats, '
        'pgqueue.statuses, pgqueue.results, pgqueue.nodes, pgqueue.locks, '
        'pgqueue.exchanges, pgqueue.bindings, pgqueue.dead_letters, pgqueue.schema_version, '
        'pgqueue.rates, pgqueue.takes, pgqueue.listeners, pgqueue.tables, pgqueue.snapshots, pgqueue.health TO %s',
        role);
    -- Functions to call, and functions that the views call with the reader's rights.
    EXECUTE format('GRANT EXECUTE ON FUNCTION '
        'pgqueue.find_tasks, pgqueue.first_task, pgqueue.why(text), pgqueue.why(bigint), pgqueue.queue_stats, '
        'pgqueue.last_tick, pgqueue._check_health, pgqueue._rate, pgqueue._label_host, pgqueue._label_pid, '
        'pgqueue._advisory_locks, pgqueue._session_alive, pgqueue.own_session, pgqueue._is_awaited, pgqueue._bucket, '
        'pgqueue._waiter_lock, pgqueue._session_lock TO %s', role);
END $$;
COMMENT ON FUNCTION pgqueue.grant_monitor IS
    'Let a role look at everything, and do nothing else. Only the owner of the schema may call it.';

CREATE OR REPLACE FUNCTION pgqueue.grant_to(role regrole) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue.grant_monitor(role);
    EXECUTE format('GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pgqueue TO %s', role);
END $$;
COMMENT ON FUNCTION pgqueue.grant_to IS
    'Let a role use the queues: put, take, settle and look. Only the owner of the schema may call it.';

-- For the owner of the schema: grant and revoke run with the caller's rights, and other roles have none on the tables.
CREATE OR REPLACE FUNCTION pgqueue.grant(queue text, role regrole) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    q CONSTANT int := pgqueue.queue_id(queue);
BEGIN
    PERFORM pgqueue.grant_to(role);
    INSERT INTO pgqueue.queue_grant (queue_id, role) VALUES (q, "grant".role) ON CONFLICT DO NOTHING;
    UPDATE pgqueue.queue granted SET restricted = true WHERE granted.id = q AND NOT granted.restricted;
END $$;
COMMENT ON FUNCTION pgqueue.grant IS
    'Let a role use a queue. From then on only roles that were granted it, and the owner of the schema, may use it.';

CREATE OR REPLACE FUNCTION pgqueue.revoke(queue text, role regrole DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    q CONSTANT int := (pgqueue._known_queue(queue)).id;
BEGIN
    DELETE FROM pgqueue.queue_grant g WHERE g.queue_id = q AND (revoke.role IS NULL OR g.role = revoke.role);
    IF role IS NULL THEN
        UPDATE pgqueue.queue opened SET restricted = false WHERE opened.id = q;
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.revoke IS
    'Take a grant back; without a role, all grants of the queue, which is open to every role again.';

REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA pgqueue FROM PUBLIC;

-- Grant functions that are new, or that a migration dropped and created again, to the roles that grant_monitor and
-- grant_to let in before: these roles have a function that is not granted by hand. Grants that an administrator made
-- are left as they are.
DO $$
DECLARE
    known record;
BEGIN
    FOR known IN
        SELECT a.grantee::regrole AS role, bool_or(p.proname = 'grant_to') AS uses
          FROM pg_catalog.pg_proc p, pg_catalog.aclexplode(p.proacl) a
         WHERE p.pronamespace = 'pgqueue'::regnamespace AND p.proname IN ('grant_to', '_check_health')
           AND a.grantee NOT IN (0, p.proowner)
         GROUP BY a.grantee
    LOOP
        IF known.uses THEN
            PERFORM pgqueue.grant_to(known.role);
        ELSE
            PERFORM pgqueue.grant_monitor(known.role);
        END IF;
    END LOOP;
END $$;
