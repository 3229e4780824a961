-- Ticks are shared: one of many clients does the periodic work, and the others see that it was done.
--
-- Theory of operation
-- -------------------
-- sweep and promote_all have to be done four times a second, by any client. If each client did both, the cost would
-- grow with the square of their number, since a sweep probes the session of every client. So the work stamps its time.
-- A listener first calls tick_ages, which reads the stamps; if the work was done less than an interval ago, the
-- listener calls again after the interval and a random time. The random time grows with the number of clients
-- (_engine/ticks.py), so about as many calls are made at a time, however many clients there are.
--
-- The client that ticked last ticks again a little before the interval is over, so the others find a new stamp. It goes
-- on for twenty ticks: the first tick of a connection compiles the functions, which costs several times as much. If
-- each client ticked in turn, most ticks of a hundred clients would be such first ones. But no client is elected as the
-- ticker, a role that it could keep without doing the work. If the client whose turn it is dies, stops or is cut off,
-- it leaves no stamp, and the first of the others to call ticks: no client has to detect the failure. The last client
-- that is left of four ticks within 0.35 s of the last stamp, of ten within 0.5 s, of a hundred within 4.75 s; if half
-- of a hundred are left, the first ticks within 0.35 s on average. A client that finds a stamp newer than its
-- own last tick gives up its turn, so there is one at a time. And since turns end, each session is also probed from
-- another connection: its own would not see that the lock is gone.
--
-- A stamp must not claim work that was not done. So a transaction T1 stamps only
--
--   at the end of the work         an error before it leaves no stamp, and neither does work that T1 left out, since
--                                  another transaction was at it or had a table locked
--   if T1 has written nothing      a stamp is not rolled back. If T1 gave tasks back, and then rolled back or failed to
--                                  commit, its stamp would keep all others from doing so, four times a second, forever.
--                                  If T1 has only read, its stamp is true: there was nothing to do at that time. After
--                                  work that wrote something the next client looks once more
--   at READ COMMITTED              an older snapshot may hide the work from T1
--   if no work is due earlier      while the grace of a session is about to end, each client sweeps for itself
--
-- A stamp is the last_value of a sequence: all transactions see it at once, it leaves no dead row under a held
-- snapshot, and an UNLOGGED sequence needs neither write-ahead log nor a transaction id. A row of a table would have
-- all three costs. A notification with each tick would wake all listeners; a call of tick_ages costs less.
--
-- One at a time
-- ---------------
-- Of several transactions that do the work one, T1, does it alone: it has the lock (class, 0) until it ends. A client's
-- T1 ends at once. But any role may do the work in a transaction that it leaves open, and any role may hold the lock.
-- So T1 notes when it began, and if that is two seconds ago, T2 goes on without the lock: it skips the rows that T1 has
-- locked, and leaves out the parts that would wait for T1. And T1, once it is two seconds old, does no more of the
-- work: else it could take rows that T2 is about to find. The work that T1 has already done counts from its commit.
-- Health names T1: each transaction that does the work shares (class, the second in which it began).
--
-- Two other rules do not work. If the lock were freed at the end of the call, a second transaction would, at each tick,
-- repeat work that the first has not committed. If T2 went on whenever the stamp is old, it would do so on every busy
-- server, where ticks write and leave no stamp.
--
-- Clocks. A stamp in the future was made before the clock stepped back, or by another server, and counts as none. A
-- step back can make an old stamp look new, for less than an interval: it delays one tick.

CREATE OR REPLACE FUNCTION pgqueue._micros() RETURNS bigint
LANGUAGE sql VOLATILE RETURN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;

-- due: in how many seconds the work has to be done again; NULL: no such time.
CREATE OR REPLACE FUNCTION pgqueue._stamp(work regclass, due double precision DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF pg_current_xact_id_if_assigned() IS NULL AND coalesce(due >= 0.25, true)
       AND current_setting('transaction_isolation') = 'read committed' THEN
        PERFORM setval(work, pgqueue._micros());
    END IF;
END $$;

-- Begin the work: whether to go on, and whether this transaction does it alone. `begun`: when the last transaction
-- began that did it alone.
CREATE OR REPLACE FUNCTION pgqueue._begin_work(
    class int, begun regclass, OUT goes_on boolean, OUT alone boolean
)
LANGUAGE plpgsql AS $$
DECLARE
    patience CONSTANT bigint := 2000000;
    mine     CONSTANT bigint := (extract(epoch FROM now()) * 1000000)::bigint;
BEGIN
    alone := pg_try_advisory_xact_lock(class, 0);
    goes_on := pgqueue._micros() - mine < patience
           AND (alone OR pgqueue._micros() - coalesce(pg_sequence_last_value(begun), 0) NOT BETWEEN 0 AND patience);
    IF goes_on AND pg_try_advisory_xact_lock_shared(class, (mine / 1000000)::int) AND alone THEN
        PERFORM setval(begun, mine);
    END IF;
END $$;

-- Do a part of the work, one call, beside another transaction; leave it out if it would have to wait.
CREATE OR REPLACE FUNCTION pgqueue._do_beside(part text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    patience CONSTANT text := current_setting('lock_timeout');
BEGIN
    PERFORM set_config('lock_timeout', '100ms', true);
    EXECUTE 'SELECT ' || part;
    PERFORM pgqueue._restore_patience(patience);
EXCEPTION WHEN lock_not_available THEN             -- which also sets the timeout back
END $$;

CREATE OR REPLACE FUNCTION pgqueue.tick_ages(
    OUT tick double precision, OUT cleaning double precision, OUT alive boolean, OUT clients bigint,
    OUT expiring boolean
)
LANGUAGE plpgsql AS $$
DECLARE
    me CONSTANT int := pgqueue.own_session();
    swept    bigint;
    promoted bigint;
    cleaned  bigint;
    moment   bigint;                               -- read last: a stamp of this moment is not in the future
BEGIN
    SELECT s.last_value, p.last_value, c.last_value, n.last_value INTO swept, promoted, cleaned, clients
      FROM pgqueue.last_sweep s, pgqueue.last_promotion p, pgqueue.last_cleaning c, pgqueue.clients n;
    moment := pgqueue._micros();
    tick := CASE WHEN greatest(swept, promoted) <= moment THEN (moment - least(swept, promoted)) / 1e6 END;
    cleaning := CASE WHEN cleaned <= moment THEN (moment - cleaned) / 1e6 END;
    alive := true;
    expiring := true;
    IF me IS NOT NULL THEN
        BEGIN
            LOCK TABLE pgqueue.session, pgqueue.queue IN ACCESS SHARE MODE NOWAIT;
            alive := EXISTS (SELECT FROM pgqueue.session own WHERE own.id = me);
            expiring := pgqueue._queues_expire();
        EXCEPTION WHEN lock_not_available THEN     -- the next call returns it
        END;
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.tick_ages IS
    'For clients, before a tick: how many seconds ago any client found that nothing was left to sweep and to promote '
    '(tick), and to clean up (cleaning); NULL: not known. alive: false if the session that was opened on this '
    'connection is not registered any more. clients: how many sessions live. expiring: whether a queue has expires.';
