-- Bound: objects bound at creation refer only to functions, types and tables of the server or of pgqueue.
--
-- Views, defaults, CHECKs, indexes, conditions of triggers and functions with a parsed body keep the functions,
-- operators, types and tables that their names meant when they were created. Under a search_path with a schema in which
-- other roles may create, the names may have meant another role's objects (settings.sql). PostgreSQL records each such
-- binding, except those to its own objects. So one query finds wrong bindings, by whatever role and tool the files were
-- run, also those of an earlier installation in an upgrade.
--
-- An application's triggers on pgqueue's tables call the application's functions: these are not checked.

DO $$
DECLARE
    search_path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    stray       record;
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    SELECT pg_describe_object(d.classid, d.objid, 0) AS object,
           pg_describe_object(d.refclassid, d.refobjid, 0) AS meaning INTO stray
      FROM (SELECT 'pg_class'::regclass AS class, c.oid FROM pg_class c WHERE c.relnamespace = 'pgqueue'::regnamespace
             UNION ALL
            SELECT 'pg_rewrite'::regclass, w.oid
              FROM pg_rewrite w JOIN pg_class c ON c.oid = w.ev_class WHERE c.relnamespace = 'pgqueue'::regnamespace
             UNION ALL
            SELECT 'pg_attrdef'::regclass, a.oid
              FROM pg_attrdef a JOIN pg_class c ON c.oid = a.adrelid WHERE c.relnamespace = 'pgqueue'::regnamespace
             UNION ALL
            SELECT 'pg_constraint'::regclass, k.oid FROM pg_constraint k WHERE k.connamespace = 'pgqueue'::regnamespace
             UNION ALL
            SELECT 'pg_proc'::regclass, p.oid FROM pg_proc p WHERE p.pronamespace = 'pgqueue'::regnamespace
             UNION ALL
            SELECT 'pg_trigger'::regclass, t.oid
              FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid WHERE p.pronamespace = 'pgqueue'::regnamespace) ours
      JOIN pg_depend d ON d.classid = ours.class AND d.objid = ours.oid
     CROSS JOIN LATERAL pg_identify_object(d.refclassid, d.refobjid, 0) i
     WHERE i.schema NOT IN ('pgqueue', 'pg_catalog')
     ORDER BY 1, 2 LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '% was bound to %, which is neither PostgreSQL''s nor pgqueue''s', stray.object, stray.meaning
            USING ERRCODE = 'PQ091',
                  HINT = 'Find the owner of that object, and drop it, with CASCADE if need be; then upgrade again.';
    END IF;
    PERFORM set_config('search_path', search_path, true);
END $$;
