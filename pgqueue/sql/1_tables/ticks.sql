-- When the periodic work was last done: 7_operations/ticks.sql has the theory.

-- Sequences can be UNLOGGED from PostgreSQL 15 on. Before that each setval writes a short record to the WAL.
DO $$
DECLARE
    kind CONSTANT pg_catalog.text := CASE WHEN pg_catalog.current_setting('server_version_num')::int >= 150000
                                          THEN 'UNLOGGED' ELSE '' END;
BEGIN
    EXECUTE pg_catalog.format('CREATE %s SEQUENCE pgqueue.last_sweep', kind);
    EXECUTE pg_catalog.format('CREATE %s SEQUENCE pgqueue.last_promotion', kind);
    EXECUTE pg_catalog.format('CREATE %s SEQUENCE pgqueue.last_cleaning', kind);
    EXECUTE pg_catalog.format('CREATE %s SEQUENCE pgqueue.begun_sweep', kind);
    EXECUTE pg_catalog.format('CREATE %s SEQUENCE pgqueue.begun_promotion', kind);
    EXECUTE pg_catalog.format('CREATE %s SEQUENCE pgqueue.begun_cleaning', kind);
    EXECUTE pg_catalog.format('CREATE %s SEQUENCE pgqueue.clients', kind);
    EXECUTE pg_catalog.format('CREATE %s SEQUENCE pgqueue.history_turn MINVALUE 0', kind);
END $$;
COMMENT ON SEQUENCE pgqueue.last_sweep IS
    'When a sweep last found nothing to write: microseconds since 1970, by the server''s clock.';
COMMENT ON SEQUENCE pgqueue.last_promotion IS 'The same of promote_all.';
COMMENT ON SEQUENCE pgqueue.last_cleaning IS 'The same of clean_up.';
COMMENT ON SEQUENCE pgqueue.begun_sweep IS
    'When the last transaction that swept alone began: microseconds since 1970, by the server''s clock.';
COMMENT ON SEQUENCE pgqueue.begun_promotion IS 'The same of promote_all.';
COMMENT ON SEQUENCE pgqueue.begun_cleaning IS 'The same of clean_up.';
COMMENT ON SEQUENCE pgqueue.clients IS 'How many living sessions the sweep of last_sweep found, its own included.';
COMMENT ON SEQUENCE pgqueue.history_turn IS
    'The position up to which the history is written: a minute since 1970, and the id of a queue in the lower 31 bits.';
