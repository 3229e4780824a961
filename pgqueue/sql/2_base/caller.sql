-- The caller: the role that a call counts for.
--
-- Public functions run as their owner, and so current_user is the owner inside them. The caller is the session's role:
-- that of SET ROLE, else the role that logged in. PostgreSQL does not show a function's immediate caller
-- to the function. So a SECURITY DEFINER function of an application that calls pgqueue counts as the role of the
-- session, and not as that function's owner.

CREATE OR REPLACE FUNCTION pgqueue._caller() RETURNS name
LANGUAGE sql STABLE PARALLEL SAFE RETURN coalesce(nullif(current_setting('role'), 'none'), session_user)::name;

CREATE OR REPLACE FUNCTION pgqueue._caller_role() RETURNS regrole
LANGUAGE sql STABLE PARALLEL SAFE RETURN quote_ident(pgqueue._caller())::regrole;

CREATE OR REPLACE FUNCTION pgqueue._is_owner() RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE
RETURN pg_has_role(pgqueue._caller(), (SELECT s.nspowner FROM pg_namespace s WHERE s.nspname = 'pgqueue'), 'USAGE');

-- Whether the objects of this role belong to the caller: the caller is the role, inherits from it, or is the owner of
-- the schema. A superuser is all of these. The first comparison nearly always decides.
CREATE OR REPLACE FUNCTION pgqueue._is_callers(role oid) RETURNS boolean
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
BEGIN
    RETURN pg_get_userbyid(role) = pgqueue._caller() OR pg_has_role(pgqueue._caller(), role, 'USAGE')
        OR pgqueue._is_owner();
END $$;
