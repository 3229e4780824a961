-- Grants: the rights of roles. Run last, since it covers the functions of all other files.
--
-- No role but the owner has rights on the tables. The public functions run with their owner's rights (settings.sql) and
-- are the only way in; helpers run with the caller's, so that a direct call fails at the tables. EXECUTE is revoked
-- from PUBLIC, to which PostgreSQL grants it by default.
--
-- A grant is rows of `privilege` (rights.sql has the rules), and EXECUTE on the functions of its verbs. A revoke with
-- the same arguments undoes exactly that grant: a function stays granted as long as another privilege of the role needs
-- it. An upgrade grants no function that existed before it. A new function is granted to the roles that have its verb
-- and may execute all the other functions of that verb, so a function that an administrator revoked by hand stays
-- revoked.

-- The functions and views that a verb needs. Every verb but monitor needs those of a client.
CREATE OR REPLACE FUNCTION pgqueue._grantables(verb text)
RETURNS TABLE (kind text, object oid, name text, is_new boolean)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
        SELECT 'FUNCTION', p.oid, p.oid::regprocedure::text, p.proacl IS NULL
          FROM (VALUES
               ('view',
                'count_version first_task history job_runs last_tick own_id own_session queue_rates queue_stats '
                'run_bounds server_number why _advisory_locks _bucket _caller _check_health _could_begin_now '
                '_foreign_locks _health_stats _held_up _is_attended _is_awaited _is_callers _is_owner _jobs_taken '
                '_label_host _label_pid _lost_roles _may_see _may_see_all _percentile _rate _readable _session_alive '
                '_session_lock _strange_objects _unserved _vacuums _waiter_lock'),
               ('client',
                'arm arm_again await_ends clean_up close_session disarm due_schedules fire_schedule forget_undo '
                'identify leave_ends leave_line next_due open_session pass_on promote_all queue_id servers '
                'session_deadline stop_hearing sweep tick tick_ages undo_take '
                '_await_lock _calling_lock _hear _hear_alone _hearing_lock _lock_holders _others_wait _silent_lock'),
               ('put',
                'allow_flows allow_lanes close_batch create_batch data_key declare_schedules delete_batch '
                'delete_schedule pause_schedule publish put put_flow put_flow_many put_graph put_many resume_schedule '
                'run_schedule set_schedule urgent_priority'),
               ('take',
                'ack ack_many bury cancelled_takes claim_messages count_runs declare_limit delete_message '
                'delete_strict '
                'enter_line fail finish finish_many get_claim get_step pop predecessors progress record_step '
                'register_worker release release_claim release_many renew_claim requeue take take_id take_many '
                'take_or_listen time_left touch unregister_worker'),
               ('look',
                'await_outcome find_key find_tasks list_messages message_stats neighbours newest_tasks observe outcome '
                'predecessors search_tasks unobserve'),
               ('monitor', 'find_tasks message_stats neighbours newest_tasks search_tasks'),    -- without data
               ('manage',
                'act_on_tasks alter_queue bind bury cancel cancel_key cancel_many create_queue delete delete_messages '
                'delete_queue delete_schedule delete_strict drain_queue drain_queues drop_limit kick kick_task '
                'move_in move_out moving_lanes pause_queue pause_schedule put_again release_all rename_queue '
                'resume_schedule run_schedule set_limit staying truncate_queue unbind'),
               ('share',
                'ask_lock children clear_will create_node declare_exchange delete_exchange delete_node delete_status '
                'drop_lock get_status join_group post set_node set_status set_will stored_payload try_lock unlock '
                'watch_node')
               ) needs(verb, names)
          JOIN pg_proc p ON p.pronamespace = 'pgqueue'::regnamespace
                        AND p.proname = ANY (string_to_array(needs.names, ' '))
         WHERE needs.verb IN ('view', _grantables.verb) OR needs.verb = 'client' AND _grantables.verb <> 'monitor'
         UNION
        SELECT 'TABLE', c.oid, c.oid::regclass::text, c.relacl IS NULL
          FROM pg_class c
         WHERE c.relnamespace = 'pgqueue'::regnamespace
           AND (c.relkind = 'v' AND NOT starts_with(c.relname, '_') OR c.relname = 'schema_version');
END $$;

CREATE OR REPLACE FUNCTION pgqueue._known_verbs(verbs text[], allowed text[]) RETURNS text[]
LANGUAGE plpgsql AS $$
BEGIN
    IF verbs IS NULL OR verbs = '{}' OR NOT verbs <@ allowed THEN
        RAISE EXCEPTION 'the verbs of this grant are %, not %', array_to_string(allowed, ', '),
            coalesce(nullif(array_to_string(verbs, ', '), ''), 'none') USING ERRCODE = 'PQ002';
    END IF;
    RETURN verbs;
END $$;

-- Set whether Citus, if it is installed, sends grants to its other nodes. Returns the setting before; NULL: none.
-- Each node has a schema of its own, so a grant is for one node, as a migration is (migrations/env.py).
CREATE OR REPLACE FUNCTION pgqueue._propagate(setting text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    before CONSTANT text := nullif(current_setting('citus.enable_ddl_propagation', true), '');
BEGIN
    IF before IS NOT NULL THEN
        PERFORM set_config('citus.enable_ddl_propagation', setting, true);
    END IF;
    RETURN before;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._grant_verbs(role regrole, verbs text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    propagated CONSTANT text := pgqueue._propagate('off');
    g          record;
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA pgqueue TO %s', role);
    FOR g IN
        SELECT k.kind, string_agg(DISTINCT k.name, ', ') AS names
          FROM unnest(verbs) v(verb), pgqueue._grantables(v.verb) k GROUP BY k.kind
    LOOP
        EXECUTE format('GRANT %s ON %s %s TO %s', CASE g.kind WHEN 'TABLE' THEN 'SELECT' ELSE 'EXECUTE' END,
                       g.kind, g.names, role);
    END LOOP;
    PERFORM pgqueue._propagate(propagated);
END $$;

-- Revoke the functions that these verbs needed, and the role's other verbs do not.
CREATE OR REPLACE FUNCTION pgqueue._revoke_verbs(role regrole, verbs text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    kept CONSTANT text[] := ARRAY (SELECT DISTINCT p.verb FROM pgqueue.privilege p
                                    WHERE p.role_id = _revoke_verbs.role);
    propagated CONSTANT text := pgqueue._propagate('off');
    g record;
BEGIN
    FOR g IN
        SELECT k.kind, string_agg(DISTINCT k.name, ', ') AS names
          FROM unnest(verbs) v(verb), pgqueue._grantables(v.verb) k
         WHERE k.object NOT IN (SELECT o.object FROM unnest(kept) other(verb), pgqueue._grantables(other.verb) o)
         GROUP BY k.kind
    LOOP
        EXECUTE format('REVOKE %s ON %s %s FROM %s', CASE g.kind WHEN 'TABLE' THEN 'SELECT' ELSE 'EXECUTE' END,
                       g.kind, g.names, role);
    END LOOP;
    IF kept = '{}' THEN
        EXECUTE format('REVOKE USAGE ON SCHEMA pgqueue FROM %s', role);
    END IF;
    PERFORM pgqueue._propagate(propagated);
END $$;

-- Revoke the rights that roles had for deleted queues. The deletion of a queue cannot do so: it is often part of a
-- sweep, in which a REVOKE fails if another transaction grants or revokes at the same time. Deleting only the
-- privileges with the queue does not work: the role keeps EXECUTE without a privilege, and so all queues become
-- guarded.
CREATE OR REPLACE FUNCTION pgqueue._forget_queues() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    r record;
BEGIN
    FOR r IN
        WITH gone AS (
            DELETE FROM pgqueue.privilege p
             WHERE p.queue_id IS NOT NULL AND NOT EXISTS (SELECT FROM pgqueue.queue q WHERE q.id = p.queue_id)
            RETURNING p.role_id, p.verb)
        SELECT known.oid AS role, array_agg(DISTINCT gone.verb) AS verbs
          FROM gone JOIN pg_roles known ON known.oid = gone.role_id GROUP BY known.oid
    LOOP
        PERFORM pgqueue._revoke_verbs(r.role, r.verbs);
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._record_grant(
    verb text, role regrole, verbs text[], queue_id int, pattern text
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue._record(verb, (SELECT q.name FROM pgqueue.queue q WHERE q.id = queue_id),
                            pg_get_userbyid(role)::text,
                            detail => array_to_string(verbs, ', ') || coalesce(' of ' || pattern, ''));
END $$;

CREATE OR REPLACE FUNCTION pgqueue._add_privileges(role regrole, verbs text[], queue_id int, pattern text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    mask CONSTANT text := replace(regexp_replace(pattern, '([\\%_])', '\\\1', 'g'), '*', '%');
BEGIN
    LOCK TABLE pgqueue.queue IN EXCLUSIVE MODE;    -- the race of rights.sql
    INSERT INTO pgqueue.privilege (role, verb, queue_id, pattern, mask)
    SELECT pg_get_userbyid(_add_privileges.role), v.verb, _add_privileges.queue_id, _add_privileges.pattern, mask
      FROM unnest(verbs) v(verb)
        ON CONFLICT DO NOTHING;
    -- _set_guards deletes the rows of dropped roles by their OIDs, so it runs before _follow_renames, which removes the
    -- OIDs.
    PERFORM pgqueue._forget_queues(), pgqueue._grant_verbs(role, verbs), pgqueue._set_guards(),
            pgqueue._follow_renames(), pgqueue._record_grant('grant', role, verbs, queue_id, pattern);
END $$;

CREATE OR REPLACE FUNCTION pgqueue._remove_privileges(role regrole, verbs text[], queue_id int, pattern text)
RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    LOCK TABLE pgqueue.queue IN EXCLUSIVE MODE;
    DELETE FROM pgqueue.privilege p
     WHERE p.role_id = _remove_privileges.role AND p.verb = ANY (verbs)
       AND p.queue_id IS NOT DISTINCT FROM _remove_privileges.queue_id
       AND p.pattern IS NOT DISTINCT FROM _remove_privileges.pattern;
    PERFORM pgqueue._revoke_verbs(role, verbs), pgqueue._forget_queues(), pgqueue._set_guards(),
            pgqueue._record_grant('revoke', role, verbs, queue_id, pattern);
END $$;

-- The verbs of grant_to and revoke_from if their caller names none.
CREATE OR REPLACE FUNCTION pgqueue._verbs_for(verbs text[], pattern text) RETURNS text[]
LANGUAGE plpgsql AS $$
BEGIN
    IF pattern IS NULL OR length(pattern) NOT BETWEEN 1 AND 200 THEN
        RAISE EXCEPTION 'a pattern of names has 1 to 200 characters, this one has %', coalesce(length(pattern), 0)
            USING ERRCODE = 'PQ001', HINT = 'The pattern of all names is *.';
    ELSIF pattern = '*' THEN
        RETURN pgqueue._known_verbs(coalesce(verbs, '{put,take,look,manage,share}'),
                                    '{put,take,look,manage,share,monitor}');
    END IF;
    RETURN pgqueue._known_verbs(coalesce(verbs, '{put,take,look,manage}'), '{put,take,look,manage,monitor}');
END $$;

-- Part of an upgrade: privileges that a restore could give to no role are given to the roles that the server has by
-- now.
CREATE OR REPLACE FUNCTION pgqueue._bind_roles() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    r record;
BEGIN
    FOR r IN
        WITH found AS (
            DELETE FROM pgqueue.privilege p USING pg_roles here
             WHERE p.role_id IS NULL AND here.rolname = p.role RETURNING here.oid, p.*),
        bound AS (
            INSERT INTO pgqueue.privilege (role, verb, queue_id, pattern, mask)
            SELECT f.role, f.verb, f.queue_id, f.pattern, f.mask FROM found f
                ON CONFLICT DO NOTHING)
        SELECT f.oid, array_agg(DISTINCT f.verb) AS verbs FROM found f GROUP BY f.oid
    LOOP
        PERFORM pgqueue._grant_verbs(r.oid, r.verbs);
    END LOOP;
    UPDATE pgqueue.queue SET role = role, dead_letter_role = dead_letter_role
     WHERE role_id IS NULL OR dead_letter_role_id IS NULL AND dead_letter_role IS NOT NULL;
    UPDATE pgqueue.schedule SET role = role WHERE role_id IS NULL;
    UPDATE pgqueue.exchange SET role = role WHERE role_id IS NULL;
    UPDATE pgqueue.binding SET role = role WHERE role_id IS NULL;
    UPDATE pgqueue.node SET role = role WHERE role_id IS NULL AND role IS NOT NULL;
    UPDATE pgqueue.batch SET role = role WHERE role_id IS NULL;
    UPDATE pgqueue.dependant SET role = role WHERE role_id IS NULL;
END $$;

-- For the owner of the schema: these functions run with the caller's rights, and other roles have none on the tables.

CREATE OR REPLACE FUNCTION pgqueue.grant_to(
    role    regrole,
    verbs   text[] DEFAULT NULL,             -- NULL: put, take, look, manage; with the pattern * also share
    pattern text   DEFAULT '*'
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue._add_privileges(role, pgqueue._verbs_for(verbs, pattern), NULL, pattern);
END $$;
COMMENT ON FUNCTION pgqueue.grant_to IS
    'Let a role use all open queues, or those whose names match a pattern, where * stands for any characters. verbs: '
    'put, take (and settle), look, manage, share (objects without a queue), monitor (no data). Only the owner of the '
    'schema may call it.';

CREATE OR REPLACE FUNCTION pgqueue.revoke_from(role regrole, verbs text[] DEFAULT NULL, pattern text DEFAULT '*')
RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue._remove_privileges(role, pgqueue._verbs_for(verbs, pattern), NULL, pattern);
END $$;
COMMENT ON FUNCTION pgqueue.revoke_from IS 'Undo grant_to with the same arguments, and no other grant.';

CREATE OR REPLACE FUNCTION pgqueue.grant(
    queue text, role regrole, verbs text[] DEFAULT '{put,take,look,manage}'
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    LOCK TABLE pgqueue.queue IN EXCLUSIVE MODE;    -- before the queue is created: two such calls would deadlock
    PERFORM pgqueue._add_privileges(role, pgqueue._known_verbs(verbs, '{put,take,look,manage,monitor}'),
                                    pgqueue.queue_id(queue), NULL);
END $$;
COMMENT ON FUNCTION pgqueue.grant IS
    'Let a role use one queue, which is created if it does not exist. restrict_queue keeps other roles out of it. Only '
    'the owner of the schema may call it.';

CREATE OR REPLACE FUNCTION pgqueue.revoke(
    queue text, role regrole, verbs text[] DEFAULT '{put,take,look,manage}'
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue._remove_privileges(role, pgqueue._known_verbs(verbs, '{put,take,look,manage,monitor}'),
                                       (pgqueue._known_queue(queue, 'manage')).id, NULL);
END $$;
COMMENT ON FUNCTION pgqueue.revoke IS
    'Undo grant with the same arguments, and no other grant. PQ032: there is no such queue.';

CREATE OR REPLACE FUNCTION pgqueue.grant_monitor(role regrole) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue.grant_to(role, '{monitor}');
END $$;
COMMENT ON FUNCTION pgqueue.grant_monitor IS
    'Let a role see names, numbers, ages, health and holders of all queues, and no data, errors, keys or lanes. Only '
    'the owner of the schema may call it.';

CREATE OR REPLACE FUNCTION pgqueue.revoke_monitor(role regrole) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue.revoke_from(role, '{monitor}');
END $$;
COMMENT ON FUNCTION pgqueue.revoke_monitor IS 'Undo grant_monitor.';

CREATE OR REPLACE FUNCTION pgqueue.restrict_queue(queue text, enabled boolean DEFAULT true) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    q int;
BEGIN
    LOCK TABLE pgqueue.queue IN EXCLUSIVE MODE;    -- first: another transaction may delete the queue, and open its name
    q := pgqueue.queue_id(queue);
    IF enabled IS NOT FALSE AND EXISTS (                        -- options that the owner sets later are its decision
           SELECT FROM pgqueue.queue r WHERE r.id = q AND NOT r.restricted
              AND (r.session_id IS NOT NULL OR r.auto_delete OR r.expires IS NOT NULL)) THEN
        RAISE EXCEPTION 'queue "%" ends with its session, or by auto_delete or expires: its name is open then', queue
            USING ERRCODE = 'PQ002', HINT = 'To reset options: alter_queue, {"auto_delete": false, "expires": null}.';
    END IF;
    UPDATE pgqueue.queue r SET restricted = coalesce(enabled, true) WHERE r.id = q;
    PERFORM pgqueue._set_guards(),
            pgqueue._record(CASE WHEN coalesce(enabled, true) THEN 'restrict' ELSE 'unrestrict' END, queue);
END $$;
COMMENT ON FUNCTION pgqueue.restrict_queue IS
    'From now on only roles that were granted this queue itself may use it, and the owner of the schema; a grant by a '
    'pattern does not count. Monitors still see its numbers. While it is restricted, only the owner can delete or '
    'rename it. PQ002: it would end by itself, with its session, or by its options auto_delete or expires. '
    'enabled = false opens the queue again. Only the owner of the schema may call it.';

DO $$
DECLARE
    search_path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    created     pg_catalog.regprocedure[];
    one         pg_catalog.regprocedure;
    f           record;
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    -- New functions have no ACL; or, by ALTER DEFAULT PRIVILEGES of the owner, one with PUBLIC in it, as after a GRANT.
    created := ARRAY (SELECT p.oid::regprocedure FROM pg_proc p
                       WHERE p.pronamespace = 'pgqueue'::regnamespace
                         AND (p.proacl IS NULL OR EXISTS (SELECT FROM aclexplode(p.proacl) a WHERE a.grantee = 0)));
    FOR f IN
        SELECT p.role, p.verb, g.kind, string_agg(g.name, ', ') FILTER (WHERE g.is_new) AS new
          FROM (SELECT DISTINCT r.oid::regrole AS role, k.verb
                  FROM pgqueue.privilege k JOIN pg_roles r ON r.oid = k.role_id) p, pgqueue._grantables(p.verb) g
         GROUP BY p.role, p.verb, g.kind
        HAVING bool_or(g.is_new)
           AND bool_and(g.is_new OR CASE g.kind WHEN 'TABLE' THEN has_table_privilege(p.role, g.object, 'SELECT')
                                                ELSE has_function_privilege(p.role, g.object, 'EXECUTE') END)
    LOOP
        EXECUTE format('GRANT %s ON %s %s TO %s', CASE f.kind WHEN 'TABLE' THEN 'SELECT' ELSE 'EXECUTE' END,
                       f.kind, f.new, f.role);
    END LOOP;
    FOREACH one IN ARRAY created LOOP
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', one);
    END LOOP;
    PERFORM pgqueue._bind_roles(), pgqueue._set_guards();
    PERFORM set_config('search_path', search_path, true);
END $$;
