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
--
-- Rows are tried by SKIP LOCKED. But at a foreign key the server locks rows by itself, and waits for them: a row R that
-- is written locks the row of its queue FOR KEY SHARE, and the deletion of a queue locks each R. (An UPDATE of R locks
-- the queue only if the key changes, or if this transaction has written R before. So a second UPDATE of R is enough to
-- make a tick wait.) Hence one order for ticks: they try the queue's row first, and then the rows that refer to it. A
-- tick that deletes a queue has its row FOR UPDATE, and one that locks an R has it FOR KEY SHARE. So the one leaves the
-- queue to the other. If R was locked first, it would stay locked where the queue is not to be had, and the transaction
-- that deletes the queue would wait for it.
--
-- Calls that alter a queue lock it FOR NO KEY UPDATE, which does not conflict with KEY SHARE (_known_queue). So ticks
-- leave out a queue only while it is renamed or deleted.

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
-- the rest of the transaction. What changes lock_timeout for a part of the transaction must not undo that: neither
-- with a SET on a function that calls this one, nor with set_config. _restore_patience does not. (fire_schedule has a
-- SET: no listener calls it.)
CREATE OR REPLACE FUNCTION pgqueue._notify(channel text, payload text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify(channel, payload);
    IF current_setting('pgqueue.listener', true) = 'yes' THEN
        PERFORM set_config('lock_timeout', '0', true);
    END IF;
END $$;

-- Set lock_timeout back to what it was before a part of the transaction, unless _notify has lifted it in that part.
CREATE OR REPLACE FUNCTION pgqueue._restore_patience(patience text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('lock_timeout') <> '0' THEN
        PERFORM set_config('lock_timeout', patience, true);
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
