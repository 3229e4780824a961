-- Table locks that are tried and not waited for: every tick begins with them.
--
-- CREATE INDEX, ALTER TABLE, VACUUM FULL or an application's LOCK hold a table for as long as they take. A tick
-- that waited for them would keep a snapshot and the listener's thread for as long; a lock_timeout, however short, is
-- still a wait, and its error ends all of the tick. So each part of a tick first calls _can_write with the tables that
-- it may write. If one is locked, the part is left out until the next tick, and the other parts go on. Once granted,
-- the locks last until the transaction ends, so that no statement after it can wait for a table.
--
-- The mode is that of INSERT, UPDATE and DELETE: it conflicts with the locks that conflict with these, and no others.
-- An index alone is never locked against writes: REINDEX also locks its table.

-- Whether these tables can be written without waiting. If so, they can be until the end of the transaction.
CREATE OR REPLACE FUNCTION pgqueue._can_write(VARIADIC tables text[]) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE 'LOCK TABLE pgqueue.' || array_to_string(tables, ', pgqueue.') || ' IN ROW EXCLUSIVE MODE NOWAIT';
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- Send a notification when the transaction commits. For functions that listeners call: a commit with a notification
-- waits for a lock, since PostgreSQL lets one such commit pass after another. A listener's lock_timeout would end this
-- wait under load, and each tick would be rolled back with all its work. So this function sets lock_timeout to 0 for
-- the rest of the transaction.
CREATE OR REPLACE FUNCTION pgqueue._notify(channel text, payload text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify(channel, payload);
    IF current_setting('pgqueue.listener', true) = 'yes' THEN
        PERFORM set_config('lock_timeout', '0', true);
    END IF;
END $$;

-- The tables that may be written when a task comes back, moves, or dies.
CREATE OR REPLACE FUNCTION pgqueue._can_move_tasks() RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    RETURN pgqueue._can_write('queue', 'task', 'take', 'delta', 'lane_check', 'listing', 'exchange', 'binding',
                              'meter_check', 'bucket', 'task_limit',
                              'flow_check', 'dependency', 'dependant', 'batch', 'member',
                              'counter', 'fold', 'recount', 'privilege', 'secret', 'result', 'attempt', 'cancellation',
                              'unmatched');
END $$;

-- The other tables that may be written when a session ends.
CREATE OR REPLACE FUNCTION pgqueue._can_end_sessions() RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    RETURN pgqueue._can_move_tasks()
       AND pgqueue._can_write('session', 'lock_holder', 'lock_ticket', 'node', 'will', 'taker', 'retained',
                              'observer', 'worker', 'unused');
END $$;
