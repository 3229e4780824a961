-- Back to nothing: drops all that is in the schema except the version table, which Alembic keeps. What is there is read
-- from the catalogue, as functions have no history: these may be an older or a newer library's.
--
-- Not DROP SCHEMA ... CASCADE: it would silently take along what users built on top (a view over our views, a trigger on
-- their table). Without CASCADE, however, the order matters, and we do not know it: drop whatever can be dropped, again
-- and again, until nothing is left or nothing gives way.

DO $$
DECLARE
    search_path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    object      pg_catalog.text;
    progress    boolean;
    detail      pg_catalog.text;
    obstacle    pg_catalog.text;
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    -- Before counting: a task put between the count and the drop would be lost.
    LOCK TABLE pgqueue.task IN ACCESS EXCLUSIVE MODE;
    IF current_setting('pgqueue.force', true) IS DISTINCT FROM 'on' AND EXISTS (SELECT FROM pgqueue.task) THEN
        RAISE EXCEPTION 'the queues still hold % tasks, which would be lost', (SELECT count(*) FROM pgqueue.task)
              USING ERRCODE = 'PQ090', HINT = 'Repeat with --force (force=True) to lose them.';
    END IF;

    LOOP
        progress := false;
        obstacle := NULL;
        -- As an array: read row by row, a name behind an object that is already gone would be its number.
        FOREACH object IN ARRAY ARRAY(
            SELECT format('TRIGGER %I ON %s', t.tgname, c.oid::regclass)
              FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
             WHERE c.relnamespace = 'pgqueue'::regnamespace AND NOT t.tgisinternal
             UNION ALL
            SELECT CASE c.relkind WHEN 'v' THEN 'VIEW ' WHEN 'm' THEN 'MATERIALIZED VIEW ' WHEN 'S' THEN 'SEQUENCE '
                                  WHEN 'c' THEN 'TYPE ' ELSE 'TABLE ' END || c.oid::regclass
              FROM pg_class c
             WHERE c.relnamespace = 'pgqueue'::regnamespace AND c.relkind IN ('v', 'm', 'r', 'p', 'S', 'c')
               AND c.relname <> 'schema_version'
             UNION ALL
            SELECT 'ROUTINE ' || p.oid::regprocedure FROM pg_proc p WHERE p.pronamespace = 'pgqueue'::regnamespace
             UNION ALL
            SELECT 'TYPE ' || t.oid::regtype FROM pg_type t
             WHERE t.typnamespace = 'pgqueue'::regnamespace AND t.typtype IN ('e', 'd', 'r'))
        LOOP
            BEGIN
                EXECUTE 'DROP ' || object;
                progress := true;
            EXCEPTION
                WHEN dependent_objects_still_exist THEN
                    GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
                    obstacle := coalesce(nullif(detail, ''), obstacle, '');  -- '': for the sequence of a column
                WHEN undefined_table OR undefined_function OR undefined_object THEN
                    progress := true;  -- went along with its owner, such as the sequence of an identity column
            END;
        END LOOP;
        EXIT WHEN obstacle IS NULL;
        IF NOT progress THEN
            -- In the message, since Citus takes the detail of an error away.
            RAISE EXCEPTION E'something else depends on the pgqueue schema\n%', obstacle
                  USING ERRCODE = 'dependent_objects_still_exist';
        END IF;
    END LOOP;
    PERFORM set_config('search_path', search_path, true);
END $$;
