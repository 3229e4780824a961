-- Changeovers: until when a transaction may follow the earlier form of a row that was altered.
--
-- Theory of operation
-- -------------------
-- A transaction T1 alters a row that other transactions follow: it switches `listed` of a queue on, or alters a limit.
-- A transaction T2 that read the row before T1 committed follows the old form, and may commit at any time after. T1
-- leaves a row with two columns, in which the ticks note how far the changeover is:
--
--   altered is set   A snapshot may be in use that does not see T1: its xmin is at most T1. When a tick finds no such
--                    snapshot in the database, all T2 have ended their statements, and have an xid. The tick clears
--                    `altered`.
--   both are NULL    The next tick sets `ended` to its own xid, which is higher than those of all T2.
--   ended is set     When the xmin of a tick is above it, all T2 have ended, and the next statement sees their changes.
--
-- A transaction at READ COMMITTED that begins later sees T1. One at REPEATABLE READ keeps its snapshot, and with it
-- `altered`, until it ends. A tick must get its xid after it has read the row; so this is always the first
-- step of a transaction, and at READ COMMITTED, where each statement has a new snapshot. A row that was changed since
-- it was read is left to the next tick.

-- Whether a statement in this database may use a snapshot that does not see this transaction's commit.
CREATE OR REPLACE FUNCTION pgqueue._is_unseen(xid xid8) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_stat_clear_snapshot();
    RETURN EXISTS (SELECT FROM pg_catalog.pg_stat_activity a
                    WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
                      AND age(a.backend_xmin) >= age(_is_unseen.xid::xid));
END $$;

-- Whether all transactions that followed the old form have ended.
CREATE OR REPLACE FUNCTION pgqueue._is_over(ended xid8) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    RETURN coalesce(ended < pg_snapshot_xmin(pg_current_snapshot()), false);
END $$;

-- One step of a tick: takes and returns the two columns of a row.
CREATE OR REPLACE FUNCTION pgqueue._go_on(INOUT altered xid8, INOUT ended xid8)
LANGUAGE plpgsql AS $$
BEGIN
    IF altered IS NULL THEN
        ended := coalesce(ended, pg_current_xact_id());
    ELSIF NOT pgqueue._is_unseen(altered) THEN
        altered := NULL;
    END IF;
END $$;
