-- Settings: with which rights and which plans functions run. One list, in place of some lines in the head of each
-- function.
--
-- Rights. A public function runs as its owner (SECURITY DEFINER), since no other role has rights on the tables. Its
-- search_path is pinned, as it must be then, and by that path the triggers tell it from raw SQL (count.sql). A helper
-- runs as its caller: as the owner inside a public function, and without rights on any table when a role calls it
-- directly. Public functions that run as their caller touch no table (arm, arm_again, disarm, own_session), read only
-- views (why), or are the owner's own (grant, revoke, grant_to, grant_monitor).
--
-- Plans. take.sql argues why they are pinned. generic: one plan for all parameters, made once for each connection.
-- by_key: no scan of a whole table, none by bitmap, and no compilation. in_order: rows come in the order of an index
-- and are not sorted. loops: a join looks up row by row.
--
-- CREATE OR REPLACE resets rights and plans, so this file is run after the others, in the same transaction. A file that
-- is run alone by hand leaves its public functions with the rights of their caller. That is safe: calls fail with
-- "permission denied" until this file has been run as well.

DO $$
DECLARE
    search_path CONSTANT text := pg_catalog.current_setting('search_path');
    definer     CONSTANT text := ' SECURITY DEFINER SET search_path = pg_catalog, pg_temp';
    path        CONSTANT text := ' SET search_path = pg_catalog, pg_temp';
    generic     CONSTANT text := ' SET plan_cache_mode = force_generic_plan';
    no_jit      CONSTANT text := ' SET jit = off';
    no_seqscan  CONSTANT text := ' SET enable_seqscan = off';
    no_bitmap   CONSTANT text := ' SET enable_bitmapscan = off';
    by_key      CONSTANT text := no_jit || no_seqscan || no_bitmap;
    in_order    CONSTANT text := ' SET enable_sort = off';
    loops       CONSTANT text := ' SET enable_hashjoin = off SET enable_mergejoin = off';
    f record;
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    FOR f IN
        SELECT l.settings, n.name, p.oid::regprocedure AS signature
          FROM (VALUES
               -- public functions
               (definer,
                'allow_lanes alter_queue ask_lock bind children clean_up clear_will close_session create_node '
                'create_queue declare_exchange delete_exchange delete_node delete_queue drain_queue '
                'drain_queues drop_lock identify join_group last_tick observe open_session pause_queue post '
                'queue_id release_all rename_queue session_deadline set_node set_will stored_payload sweep '
                'truncate_queue try_lock unbind undo_take unlock unobserve'),
               (definer || generic, 'delete_status get_status publish put put_many set_status'),
               (definer || generic || by_key,
                'ack bury delete delete_message delete_messages delete_strict fail finish get_claim kick_task '
                'progress promote_all queue_stats release release_claim renew_claim requeue take_id touch'),
               (definer || by_key || in_order || loops, 'find_tasks'),
               (definer || generic || by_key || in_order,
                'claim_messages first_task kick message_stats next_due take take_many urgent_priority'),
               (definer || generic || by_key || loops, 'ack_many finish_many outcome release_many'),
               (definer || generic || by_key || in_order || loops, 'list_messages pop'),
               -- triggers
               (definer, '_ask_recount _count_updates'),
               -- helpers, and why
               (by_key, '_clean_routes'),
               (generic,
                '_arrived _count_new _count_places _count_takes _defaults _deliver _enter_queue _free_session '
                '_is_counted _note _routes _tell_change'),
               (no_jit, '_check_health why'),
               (generic || by_key,
                '_count_anew _count_attempt _delete_tasks _die _drop_old_claims _fold_deltas _known '
                '_lock_claimed _meet_key _move _put_special _remove_task _take_sample _trim_queue _untaken'),
               (generic || no_jit, '_put_together'),
               (generic || by_key || in_order, '_drop_expired_results _find_oldest _promote'),
               (generic || by_key || loops,
                '_claimed_messages _clean_done _end_tasks _hold_messages _remove_batch _stamp_tasks _tell_lanes'),
               (generic || no_jit || no_bitmap, '_clean_results _clean_statuses'),
               (generic || no_jit || no_seqscan, '_is_message _last_fold _live_claim'),
               -- pinned by itself, for _fold_deltas is also called by hand: its DELETE must not look like raw SQL
               (path || generic || no_jit, '_correct_counts'),
               (generic || by_key || in_order || loops, '_check_all_lanes _claim _claim_lanes _remove_tasks')
               ) l(settings, names),
               unnest(string_to_array(l.names, ' ')) n(name)
          LEFT JOIN pg_proc p ON p.pronamespace = 'pgqueue'::regnamespace AND p.proname = n.name
    LOOP
        IF f.signature IS NULL THEN
            RAISE EXCEPTION 'settings.sql has a function % that does not exist', f.name;
        END IF;
        EXECUTE format('ALTER FUNCTION %s%s', f.signature, f.settings);
    END LOOP;
    PERFORM set_config('search_path', search_path, true);
END $$;
