-- Who may do what. Run last: it is about all that the other files made.
--
-- Nobody has rights on the tables. The public functions run with their owner's rights (SECURITY DEFINER) and are the
-- only way in; the helpers among them run with the caller's, so that calling one directly ends at the tables. Functions
-- are everybody's by PostgreSQL's own default, which would let a role that may look put and take as well: so they are
-- not.

CREATE OR REPLACE FUNCTION pgqueue.grant_monitor(role regrole) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA pgqueue TO %s', role);
    EXECUTE format('GRANT SELECT ON pgqueue.tasks, pgqueue.queues, pgqueue.sessions, pgqueue.stats, '
        'pgqueue.statuses, pgqueue.results, pgqueue.nodes, pgqueue.locks, '
        'pgqueue.exchanges, pgqueue.bindings, pgqueue.dead_letters, pgqueue.schema_version, '
        'pgqueue.rates, pgqueue.takes, pgqueue.listeners, pgqueue.tables, pgqueue.snapshots, pgqueue.health TO %s', role);
    -- Those to be asked, and those that the views ask with the reader's rights.
    EXECUTE format('GRANT EXECUTE ON FUNCTION pgqueue.find_tasks, pgqueue.first_task, pgqueue.why(text), pgqueue.why(bigint), '
        'pgqueue.queue_stats, pgqueue._check_health, pgqueue.last_tick, pgqueue._rate, pgqueue._label_host, pgqueue._label_pid, '
        'pgqueue._advisory_locks, pgqueue._session_alive, pgqueue.own_session, pgqueue._is_awaited, pgqueue._bucket, '
        'pgqueue._waiter_lock, pgqueue._session_lock TO %s', role);
END $$;
COMMENT ON FUNCTION pgqueue.grant_monitor IS
    'Let a role look at everything, and do nothing. To be called by the owner of the schema.';

CREATE OR REPLACE FUNCTION pgqueue.grant_to(role regrole) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue.grant_monitor(role);
    EXECUTE format('GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pgqueue TO %s', role);
END $$;
COMMENT ON FUNCTION pgqueue.grant_to IS
    'Let a role use the queues: put, take, settle and look. To be called by the owner of the schema.';

-- By the owner: they run with the caller's rights, and end at the tables for anybody else.
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
    'Let a role use a queue, and from then on only the roles that were granted it, and the owner of the schema.';

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
    'Take a grant back; without a role all of them, and the queue is open to everyone again.';

REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA pgqueue FROM PUBLIC;

-- What is new, and what a migration had to drop and make again, goes to those whom the two functions above let in
-- before: they are known by a function that nobody would grant by hand. Grants of one's own are left as they are.
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
