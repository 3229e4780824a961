-- Owned: the schema and all objects in it belong to the role that migrates.
--
-- A role that may create in the database can make the schema before pgqueue is installed, and functions in it. CREATE
-- OR REPLACE keeps the owner of a function, and the owner may give it another body at any time; pgqueue's functions
-- would then call it with the rights of a superuser. So a migration runs this file first, before any function of the
-- schema can run, and again at its end. For the same reason no role but the owner migrates, not even a superuser: the
-- objects would have several owners.
--
-- PostgreSQL records in pg_depend the objects of a schema, and in pg_shdepend their owners, except for objects of the
-- first superuser (10).

DO $$
DECLARE
    search_path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    owner       name;
    stray       record;
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    SELECT pg_get_userbyid(s.nspowner) INTO owner FROM pg_namespace s WHERE s.nspname = 'pgqueue';
    IF owner <> current_user THEN
        RAISE EXCEPTION 'the schema pgqueue belongs to role %, and not to %, which migrates it',
            quote_ident(owner), quote_ident(current_user)
            USING ERRCODE = 'PQ091',
                  HINT = 'Migrate as that role, or SET ROLE. If it should not be the owner: look at what it made, drop '
                         'the schema, and install again.';
    END IF;
    SELECT pg_describe_object(o.classid, o.objid, 0) AS object, pg_get_userbyid(o.owner) AS owner INTO stray
      FROM (SELECT d.classid, d.objid,
                   coalesce((SELECT w.refobjid FROM pg_shdepend w
                              WHERE w.dbid = (SELECT b.oid FROM pg_database b WHERE b.datname = current_database())
                                AND w.classid = d.classid AND w.objid = d.objid AND w.deptype = 'o'), 10) AS owner
              FROM pg_depend d
             WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = 'pgqueue'::regnamespace
               AND d.classid = ANY ('{pg_class,pg_proc,pg_type,pg_operator,pg_opclass,pg_opfamily,pg_collation,
                                      pg_conversion,pg_ts_dict,pg_ts_config,pg_statistic_ext}'::regclass[])) o
     WHERE pg_get_userbyid(o.owner) <> current_user
     ORDER BY 1 LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '% belongs to role %, and the schema to %', stray.object, quote_ident(stray.owner),
            quote_ident(owner)
            USING ERRCODE = 'PQ091',
                  HINT = 'Look at what it does, and drop it, or ALTER ... OWNER TO that role. Then migrate again.';
    END IF;
    PERFORM set_config('search_path', search_path, true);
END $$;
