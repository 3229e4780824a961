-- Roles: what outlives a server names its role twice.
--
--   role       the name, which a dump brings to any server
--   role_id    the OID of the role that had this name when the row was written; NULL: there was none
--
-- Every right is asked by role_id. So a role that is renamed keeps what it has, and a role that gets its old name later
-- gets nothing. A dump leaves role_id out, since it is generated, and a restore finds it anew by the name: on a server
-- without such a role the row is there and belongs to no role. The simpler forms fail. A name alone gives all to the
-- role that gets the name; an OID alone is another role's on another server; the type regrole keeps a whole table from
-- being restored if one of its roles is missing.
--
-- role_id is set again only where role is, and it is a lie that the function is IMMUTABLE: PostgreSQL requires it for a
-- generated column, and nothing else may call it.

CREATE FUNCTION pgqueue._role_id(name name) RETURNS oid
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN pg_catalog.to_regrole(pg_catalog.quote_ident(name));
END $$;
