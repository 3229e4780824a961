-- Undoing a claim whose answer was lost.
--
-- Theory of operation
-- -------------------
-- The answer of a claim C never arrived: its taker was cancelled, or its connection broke. C may have committed; it may
-- be under way; or it may still be on its way to the server, or stalled there before its first step, and commit minutes
-- later, for a taker that no longer knows of it. One look for takes of C is not enough. So C shares the lock KEY(token)
-- from its first step until its commit, and the undo U takes it exclusively and keeps it:
--
--   U is granted KEY(token)   C has committed: U's next statement sees its takes, and gives them back. Or C has not
--                             entered: it will be refused (PQ005) for as long as U's connection keeps the lock.
--   U is refused              C is under way: the client calls U again.
--
-- The lock is tried, so U waits neither for C nor for other claims of the session. A lock knows no snapshots: C is
-- refused at any isolation level. The lock makes a claim 2 % slower. A table of undone tokens would not be seen by a
-- claim with an older snapshot, and would have to be cleaned. If U's connection breaks, the client calls undo_take
-- again on its next one (the client's jobs.py).
--
-- Rights. The token is enough, as for every settling (settle.sql): undo_take checks neither a verb nor a session.

CREATE OR REPLACE FUNCTION pgqueue.undo_take(token bigint) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    gone record;
BEGIN
    IF NOT pgqueue._can_write('take', 'delta')
       OR NOT pg_try_advisory_xact_lock(pgqueue._token_lock(token)) THEN
        RETURN NULL;
    END IF;
    -- By the token alone: if the session has been given up, its heir has the takes.
    SELECT * INTO gone FROM pgqueue._untake(ARRAY (
               SELECT k.ctid FROM pgqueue.take k WHERE k.token = undo_take.token FOR UPDATE SKIP LOCKED));
    PERFORM pgqueue._given_back(gone.queues, gone.ids, NULL);
    IF EXISTS (SELECT FROM pgqueue.take k WHERE k.token = undo_take.token) THEN
        RETURN NULL;                               -- another transaction has locked it, perhaps to give it to an heir
    END IF;
    -- Last, and granted at once: after this lock an error would roll back everything but the lock.
    PERFORM pg_advisory_lock(pgqueue._token_lock(token));
    RETURN coalesce(cardinality(gone.ids), 0);
END $$;
COMMENT ON FUNCTION pgqueue.undo_take IS
    'For clients: give back all tasks taken under this token, and refuse its claim from now on, until forget_undo or '
    'the end of this connection. Returns how many tasks; NULL: the claim is under way, or a task is locked: call it '
    'again.';

CREATE OR REPLACE FUNCTION pgqueue.forget_undo(token bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    RETURN pg_advisory_unlock(pgqueue._token_lock(token)) IS TRUE;
END $$;
COMMENT ON FUNCTION pgqueue.forget_undo IS
    'For clients: no longer refuse the claim of a token that this connection undid, since it cannot arrive any more.';
