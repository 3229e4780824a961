-- Roles: rows that can outlive a server name their role twice.
--
--   role       the name, which a dump brings to any server
--   role_id    the OID of the role that had this name when the row was written; NULL: there was none
--
-- Every right is checked by role_id. So a renamed role keeps its rights, and a role that gets the old name later gets
-- none. A dump leaves role_id out, since it is generated, and a restore finds it again by the name: on a server without
-- such a role the row is there and belongs to no role. One column does not suffice. With a name alone, a role that gets
-- the name later gets all the rights; an OID alone is another role's on another server; the type regrole keeps a whole
-- table from being restored if one of its roles is missing.
--
-- role_id is computed again only when role is set. The function is declared IMMUTABLE although it is not: PostgreSQL
-- requires that for a generated column, and no other code may call it.

CREATE FUNCTION pgqueue._role_id(name name) RETURNS oid
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN pg_catalog.to_regrole(pg_catalog.quote_ident(name));
END $$;
