-- Citus: a write of pgqueue has the transaction that it is part of commit in two phases.
--
-- Citus does not know of a write to pgqueue's tables, which are of one node. If a transaction has written to one other
-- node besides, Citus commits it there first and then here, and a crash in between leaves the row without its task. A
-- write to a table that Citus manages, with a shard on this node, has Citus prepare the transaction on the other nodes
-- and commit it there after it is committed here. A DELETE of no row is such a write. So in a database with the
-- extension a trigger of each logged table makes one, once a transaction. Elsewhere there is no trigger, and this file
-- changes nothing: a test for Citus in each put would cost all others something.
--
--   on            the DELETE is from                                 its shard
--   coordinator   pgqueue_citus.coordinator, local and managed       is here
--   other nodes   pgqueue_citus.node, distributed, by a key          of the first key that is on this node
--
-- The coordinator usually has no shards of distributed tables, and only there can Citus manage a local table. On a node
-- without shards, and on a coordinator that is not among the nodes, the DELETE is from all shards: this switches
-- two-phase commit on as well, and takes longer. A reference table would do on all nodes, but each write locks it on
-- all nodes until the transaction ends.
--
-- They are in a schema of their own, since Citus makes the schema of a table that it manages on all nodes. In the
-- schema pgqueue it would make that on nodes without pgqueue. The coordinator is therefore migrated first.
--
-- pgqueue's own connections (door.py marks them) run one call in a transaction, and write to no table of Citus. On a
-- caller's connection each transaction needs the DELETE, since it may write to another node after the put. Citus lets a
-- client prepare no such transaction: SET LOCAL pgqueue.two_phase = off leaves the DELETE out.
--
-- A function that Citus has delegated to this node runs on a connection of Citus's own. There Citus may refuse the
-- DELETE. In that case it refuses all writes to other nodes, so none is needed.

DO $$
DECLARE
    search_path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    propagation CONSTANT pg_catalog.text := pg_catalog.current_setting('citus.enable_ddl_propagation', true);
    here        int;
    listed      boolean;
    logged      regclass;
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    IF NOT EXISTS (SELECT FROM pg_extension e WHERE e.extname = 'citus') THEN
        PERFORM set_config('search_path', search_path, true);
        RETURN;
    END IF;
    SELECT g.groupid INTO here FROM pg_dist_local_group g;

    -- Its functions run with the rights of pgqueue's owner.
    IF to_regnamespace('pgqueue_citus') IS NOT NULL
       AND (SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = 'pgqueue_citus')
           <> (SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = 'pgqueue') THEN
        RAISE EXCEPTION 'the schema pgqueue_citus does not belong to the owner of the schema pgqueue'
            USING ERRCODE = 'PQ091', HINT = 'Look at what is in it, and drop it. Then migrate again.';
    END IF;
    PERFORM set_config('citus.enable_ddl_propagation', 'on', true);
    IF to_regclass('pgqueue_citus.node') IS NULL THEN
        IF here <> 0 THEN
            RAISE EXCEPTION 'this is a node of Citus whose coordinator has no pgqueue: migrate the coordinator first'
                USING ERRCODE = 'PQ048';
        END IF;
        IF to_regnamespace('pgqueue_citus') IS NULL THEN
            CREATE SCHEMA pgqueue_citus;           -- IF NOT EXISTS needs the right to create schemas in any case
        END IF;
        CREATE TABLE pgqueue_citus.coordinator (key int);
        CREATE TABLE pgqueue_citus.node (key int);
        PERFORM create_distributed_table('pgqueue_citus.node', 'key', colocate_with => 'none');
    END IF;
    listed := EXISTS (SELECT FROM pg_dist_node n WHERE n.groupid = here);
    IF here = 0 AND listed
       AND NOT EXISTS (SELECT FROM pg_dist_partition p WHERE p.logicalrelid = 'pgqueue_citus.coordinator'::regclass)
    THEN
        PERFORM citus_add_local_table_to_metadata('pgqueue_citus.coordinator');
    END IF;
    PERFORM set_config('citus.enable_ddl_propagation', 'off', true);

    IF here = 0 AND listed THEN
        CREATE OR REPLACE FUNCTION pgqueue_citus.touch() RETURNS void
        LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
        BEGIN
            DELETE FROM pgqueue_citus.coordinator;
        END $f$;
    ELSE
        CREATE OR REPLACE FUNCTION pgqueue_citus.touch() RETURNS void
        LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
        DECLARE
            -- For n nodes n keys are tried, on average. Shards move, so no key is kept. A generate_series in FROM would
            -- make all keys first.
            local CONSTANT int := (
                SELECT k.key FROM (SELECT generate_series(1, 1000)) k(key)
                 WHERE EXISTS (
                           SELECT FROM pg_dist_placement p JOIN pg_dist_local_group g ON g.groupid = p.groupid
                            WHERE p.shardid = get_shard_id_for_distribution_column('pgqueue_citus.node', k.key))
                 LIMIT 1);
        BEGIN
            IF local IS NULL THEN
                DELETE FROM pgqueue_citus.node;
            ELSE
                -- With the key as a parameter Citus would take longer.
                EXECUTE format('DELETE FROM pgqueue_citus.node n WHERE n.key = %s', local);
            END IF;
        END $f$;
    END IF;

    CREATE OR REPLACE FUNCTION pgqueue_citus.two_phase() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
    BEGIN
        IF current_setting('application_name') LIKE 'citus\_internal%' THEN
            BEGIN
                PERFORM pgqueue_citus.touch();
            EXCEPTION WHEN feature_not_supported OR internal_error THEN
                RETURN NULL;
            END;
        ELSE
            PERFORM pgqueue_citus.touch();
        END IF;
        PERFORM set_config('pgqueue.two_phase', 'done', true);
        RETURN NULL;
    END $f$;

    FOR logged IN
        SELECT c.oid FROM pg_class c
         WHERE c.relnamespace = 'pgqueue'::regnamespace AND c.relkind = 'r' AND c.relpersistence = 'p'
           AND c.relname <> 'schema_version'
           AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND t.tgname = 'two_phase')
    LOOP
        EXECUTE format(
            'CREATE TRIGGER two_phase BEFORE INSERT OR UPDATE OR DELETE ON %s FOR EACH STATEMENT '
            'WHEN (coalesce(current_setting(''pgqueue.direct'', true), '''') <> ''yes'' '
            'AND coalesce(current_setting(''pgqueue.two_phase'', true), '''') = '''') '
            'EXECUTE FUNCTION pgqueue_citus.two_phase()', logged);
    END LOOP;
    PERFORM set_config('citus.enable_ddl_propagation', propagation, true);
    PERFORM set_config('search_path', search_path, true);
END $$;
