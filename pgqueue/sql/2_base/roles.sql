-- Roles as the tables name them: 1_tables/roles.sql says why by name and OID. Renames, drops and restores.

-- NULL: it was dropped, or the server of a restore does not have it.
CREATE OR REPLACE FUNCTION pgqueue._living_role(role_id oid) RETURNS oid
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT r.oid FROM pg_roles r WHERE r.oid = role_id);
END $$;

-- Store the new names of roles that were renamed, for the next dump. Dropped roles become "unknown (OID=...)", so that
-- a restore does not give their privileges to a role that got the name later. Part of clean_up and of each grant, so a
-- dump is wrong only if it is made within a minute after the rename. Rows of tasks that wait are left out: there may be
-- millions of them, and they are gone soon.
CREATE OR REPLACE FUNCTION pgqueue._follow_renames() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    -- The subquery locks the queue before the binding is locked: nowait.sql.
    kept CONSTANT text :=
        ', LATERAL (SELECT FROM pgqueue.queue q WHERE q.id = o.queue_id FOR KEY SHARE SKIP LOCKED) kept';
    one  text;
BEGIN
    FOREACH one IN ARRAY '{privilege,queue,schedule,exchange,binding,node,batch}'::text[] LOOP
        EXECUTE format('UPDATE pgqueue.%I SET role = pg_get_userbyid(role_id)'
                       ' WHERE ctid = ANY (ARRAY (SELECT o.ctid FROM pgqueue.%1$I o %s'
                       ' WHERE o.role <> pg_get_userbyid(o.role_id) FOR NO KEY UPDATE OF o SKIP LOCKED))',
                       one, CASE WHEN one = 'binding' THEN kept END);
    END LOOP;
    UPDATE pgqueue.queue SET dead_letter_role = pg_get_userbyid(dead_letter_role_id)
     WHERE ctid = ANY (ARRAY (SELECT q.ctid FROM pgqueue.queue q
                               WHERE q.dead_letter_role <> pg_get_userbyid(q.dead_letter_role_id)
                                 FOR NO KEY UPDATE SKIP LOCKED));
END $$;

-- Roles that have privileges and cannot use them, for the owner of the schema and for monitors: a restore did not find
-- the role, or could not grant to it. clean_up forgets roles that were dropped.
CREATE OR REPLACE FUNCTION pgqueue._lost_roles() RETURNS TABLE (role text, is_here boolean)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
        SELECT DISTINCT p.role::text, p.role_id IS NOT NULL
          FROM pgqueue.privilege p LEFT JOIN pg_roles r ON r.oid = p.role_id
         WHERE (p.role_id IS NULL OR NOT has_schema_privilege(r.oid, 'pgqueue', 'USAGE'))
           AND pgqueue._may_see_all('monitor')
         ORDER BY 1;
END $$;
