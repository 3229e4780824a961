-- Settings: the rights, the search_path and the plans of functions. One list, in place of some lines in the head of
-- each function.
--
-- Rights. A public function runs as its owner (SECURITY DEFINER), since no other role has rights on the tables. A
-- helper runs as its caller: as the owner inside a public function, and without rights on any table when a role calls
-- it directly. Public functions that run as their caller touch no table (arm, arm_again, data_key, disarm,
-- own_session, run_bounds, server_number, stop_hearing), or are only for the owner (grants.sql, set_quota of
-- quotas.sql, set_server of server.sql, the changes of servers.sql). Some helpers run as the owner because a view
-- calls them, with the rights of its reader: _may_see, _may_see_all, _foreign_locks, _is_attended, _lost_roles,
-- _health_stats, _unserved, _could_begin_now.
--
-- search_path. With a caller's path, a function or an operator that another role has planted in the schema `public`
-- could fit a call in a function of pgqueue better than the server's own, and would run with the rights of that
-- function. So pgqueue resolves no name by a caller's path:
--
--   parsed bodies    A RETURN without $$ is bound once when the function is created, as are views, defaults, CHECKs
--                    and the conditions of triggers. The migration pins its path; bound.sql checks the result.
--   hot helpers      Puts, takes and acks call them. They have the path of the public function that calls them, since a
--                    SET costs each call 1 us. Only the owner may call them directly.
--   all the others   get `path` below. By it the triggers tell pgqueue from raw SQL (count.sql): its last schema is
--                    named twice, which has no effect, and is found in no other function.
--   DO blocks        pin the path themselves and restore it. Their declarations name pg_catalog.
--
-- Plans. take.sql explains why they are pinned. generic: one plan for all parameters, made once for each connection.
-- by_key: no scan of a whole table, none by bitmap, and no compilation. in_order: rows are read in the order of an
-- index and are not sorted. loops: a join looks up row by row. hashed: a join may be by a hash, even if the caller has
-- switched that off.
--
-- patient: a call that waits for a lock no longer than a second, and reports it (6_families/schedules.sql).
--
-- CREATE OR REPLACE resets all of these, so this file is run after the others, in the same transaction. A file that is
-- run alone by hand leaves its public functions with the rights of their caller. That is safe: calls fail with
-- "permission denied" until this file has been run as well. A file that is run by hand needs the path pinned for it:
--
--   PGOPTIONS='-c search_path=pg_catalog,pg_temp' \
--       psql -1 -f 5_verbs/put/put.sql -f 8_grants/bound.sql -f 8_grants/settings.sql

DO $$
DECLARE
    search_path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    definer     CONSTANT pg_catalog.text := ' SECURITY DEFINER';
    path        CONSTANT pg_catalog.text := ' SET search_path = pg_catalog, pg_temp, pg_temp';
    generic     CONSTANT pg_catalog.text := ' SET plan_cache_mode = force_generic_plan';
    no_jit      CONSTANT pg_catalog.text := ' SET jit = off';
    no_seqscan  CONSTANT pg_catalog.text := ' SET enable_seqscan = off';
    no_bitmap   CONSTANT pg_catalog.text := ' SET enable_bitmapscan = off';
    by_key      CONSTANT pg_catalog.text := ' SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off';
    in_order    CONSTANT pg_catalog.text := ' SET enable_sort = off';
    patient     CONSTANT pg_catalog.text := ' SET lock_timeout = ''1s''';
    loops       CONSTANT pg_catalog.text := ' SET enable_hashjoin = off SET enable_mergejoin = off';
    hashed      CONSTANT pg_catalog.text := ' SET enable_hashjoin = on';
    hot         CONSTANT pg_catalog.text :=
        '_add_death _add_members _admit _admit_task _arrived _ask_holders _await_slots _bounded _bury _call _call_up
         _can_call _check_admission _check_after _check_attempt _check_batch _check_batches _check_guarded _check_home
         _check_keep _check_lanes _check_name _check_not_default _check_publish _check_publishing _check_put
         _check_put_many _check_read_committed _check_right _check_room _check_size _check_time _check_times
         _check_type _check_verb _claim _claim_heads _claim_key _close_meter _come_back _count_attempt _count_new
         _count_places _count_takes _delay_until _delete_tasks _deliver _die _die_one _drop_take _drop_takes
         _end_cancelled _end_expired _end_limit_wait _end_tasks _enter_batch _enter_claim _enter_flow _enter_lane
         _enter_own _enter_queue _enter_within _exchange_type _explain_refusal _explain_refusals _find _find_heads
         _find_limited _find_oldest _follow _follow_each _follow_tasks _given_back _has_waiter _hold_back _insert_takes
         _is_circle _is_counted _is_held _is_ours _keep_result _keep_tasks _label_of _latched _limit_of _limits_due
         _line_start _lock_heads _lock_room _lock_rooms _make_wait _mark_members _may _meet_key _meter _meter_of_put
         _meter_value _move _move_behind _note _note_use _notify _open_meter _places _promote _put_alike _put_all
         _put_checked _put_each _put_in_flow _put_many _put_once _put_over _put_special _put_task _put_together
         _queue_length _queue_of_put _read_puts _ready_state _record_attempts _refuse_suspects _release_dropped _retain
         _role_id _routes _routes_for _signal _tell_change _tell_ends _tell_lanes _tell_meters _there _trim_queue
         _type_lacks _unblock _untake _untake_tasks _untaken _waits_for_tasks';
    f record;
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    FOR f IN
        SELECT l.settings, n.name, p.oid::regprocedure AS signature
          FROM (VALUES
               -- public functions
               (definer,
                'allow_flows allow_lanes alter_queue ask_lock await_ends bind children clean_up clear_will '
                'close_session create_node create_queue declare_exchange declare_limit declare_schedules '
                'delete_exchange delete_node delete_queue delete_schedule drain_queue drain_queues drop_limit '
                'drop_lock forget_undo identify join_group last_tick leave_ends move_in observe open_session own_id '
                'pause_queue pause_schedule post queue_id register_worker release_all rename_queue resume_schedule '
                'run_schedule servers session_deadline set_limit set_node set_schedule set_will stored_payload sweep '
                'take_or_listen tick truncate_queue try_lock unbind undo_take unlock unobserve unregister_worker '
                'watch_node _may_see _may_see_all'),
               (definer || generic,
                'count_runs delete_status due_schedules get_status publish put put_flow_many put_many set_status '
                'tick_ages'),
               (definer || generic || patient, 'fire_schedule'),
               (definer || generic || by_key,
                'ack bury cancel cancel_key close_batch create_batch delete delete_batch delete_message '
                'delete_messages delete_strict fail finish get_claim get_step kick_task predecessors progress '
                'promote_all put_flow put_graph queue_stats record_step release release_claim renew_claim requeue '
                'take_id touch'),
               (definer || by_key || in_order || loops,
                'act_on_tasks find_key find_tasks move_out moving_lanes neighbours newest_tasks put_again search_tasks '
                'staying'),
               (definer || generic || by_key || in_order,
                'claim_messages enter_line first_task kick leave_line message_stats next_due pass_on take take_many '
                'urgent_priority'),
               (definer || generic || by_key || loops,
                'ack_many await_outcome cancel_many cancelled_takes finish_many outcome release_many time_left'),
               (definer || generic || by_key || in_order || loops, 'list_messages pop'),
               -- triggers
               (definer, '_ask_recount _count_updates'),
               (definer || no_jit, 'why'),
               -- of a view, since a monitor cannot read the tables
               (definer || no_jit, '_foreign_locks'),
               (definer, '_could_begin_now _is_attended _lost_roles _unserved'),
               (definer || no_jit, 'history job_runs queue_rates _jobs_taken'),
               (definer || generic || by_key, '_health_stats count_version'),
               -- helpers
               (by_key, '_clean_routes _clean_unused _put_each _put_task _queues_expire'),
               (by_key || in_order || loops, '_remove_states'),
               (generic,
                '_arrived _count_new _count_places _count_takes _enter_queue _free_session _is_counted '
                '_note _note_use _routes _tell_change'),
               (no_jit, '_check_health'),
               (generic || by_key,
                '_burials _bury _call_up _count_attempt _count_death _delete_tasks _deliver _die '
                '_drop_old_claims _end_takes _fold_deltas _lock_claimed _make_ready _move '
                '_record_attempts _refuse_suspects _remove_task _take_sample _trim_queue _untaken '
                '_write_history'),
               (generic || by_key || hashed, '_add_history _count_anew _counts _known _write_minute'),
               (generic || no_jit, '_correct_counts _places _totals _used_queues'),
               (generic || by_key || in_order, '_call _call_again _drop_expired_results _find_oldest _promote '
                '_promote_or_wait _ready _clean_checks _go_on_limits _recheck'),
               (generic || by_key || loops,
                '_ask_holders _await_slots _bury_dependants _check_batches _claimed_messages _clean_cancellations '
                '_clean_done _decide _delay _end_batches _end_cancelled _end_left _end_tasks _follow_tasks '
                '_forget_dependants _given_back _hold_messages _keep_for_dependants _link _mark_members _open '
                '_remove_batch _restamp_tasks _schedules_in_reach _settle_flows _stamp_tasks _tell_lanes'),
               (generic || no_jit || no_bitmap, '_clean_attempts _clean_recent_keys _clean_results _clean_statuses'),
               (generic || no_jit || no_seqscan, '_is_message _last_fold _live_claim'),
               (generic || by_key || in_order || loops,
                '_check_all_lanes _claim _claim_heads _insert_takes _move_history _queue_stats _remove_tasks')
               ) l(settings, names),
               unnest(string_to_array(l.names, ' ')) n(name)
          LEFT JOIN pg_proc p ON p.pronamespace = 'pgqueue'::regnamespace AND p.proname = n.name
    LOOP
        IF f.signature IS NULL THEN
            RAISE EXCEPTION 'settings.sql has a function % that does not exist', f.name;
        END IF;
        EXECUTE format('ALTER FUNCTION %s%s', f.signature, f.settings);
    END LOOP;
    FOR f IN
        SELECT p.oid::regprocedure AS signature
          FROM pg_proc p
         WHERE p.pronamespace = 'pgqueue'::regnamespace AND p.prokind = 'f' AND p.prosqlbody IS NULL
           AND p.proname <> ALL (regexp_split_to_array(hot, '\s+'))
    LOOP
        EXECUTE format('ALTER FUNCTION %s%s', f.signature, path);
    END LOOP;
    PERFORM set_config('search_path', search_path, true);
END $$;
