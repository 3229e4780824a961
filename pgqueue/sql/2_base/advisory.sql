-- Advisory locks: every class that pgqueue uses, with its holder, its mode and how long it is held.
--
-- A lock is (class, number); the class is its purpose. The numbers begin at x'70677101', "pgq" and a 1, so that they do
-- not collide with an application's. Each class is a function that PostgreSQL inlines: an expression with
-- it is planned as with the literal. (In a DECLARE it would cost 0.2 us a call: write it where it is used.)
--
-- Three locks are a single bigint, which is another space of keys: a lock by name (6_families/locks.sql) is
-- hashtextextended(name, 0), a claim's token is _token_lock(token), and one migration at a time holds
-- pgqueue.migrate.LOCK. Counters of Dramatiq have digests of names in that space (contrib/dramatiq/limits.py).

-- (_waiter_lock, bucket of a queue): a listener shares it for as long as one of its takers sleeps on a queue of the
-- bucket. A put tries it exclusively and frees it at once. wake.sql
CREATE OR REPLACE FUNCTION pgqueue._waiter_lock() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1885827329;

-- (_silent_lock, bucket of a queue): a put that saw no waiter shares it until its transaction ends. A listener tries
-- it exclusively, in autocommit, and so holds it to the end of that statement. wake.sql
CREATE OR REPLACE FUNCTION pgqueue._silent_lock() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1885827330;

-- (_session_lock, session): the listener's connection holds it exclusively for as long as the session lives. The
-- sweep, and each claim for a session of another connection, try to share it until their transaction ends. session.sql
CREATE OR REPLACE FUNCTION pgqueue._session_lock() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1885827331;

-- (_claiming_lock, session): a claim for the session shares it until its transaction ends, and so does a transaction
-- that gives the session takes as an heir. open_session with an id and close_session wait for it, the sweep and
-- clean_up try it, exclusively, until their transaction ends. session.sql
CREATE OR REPLACE FUNCTION pgqueue._claiming_lock() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1885827332;

-- (_sweeping_lock, 0): the sweep tries it exclusively: one sweep at a time in a database. Until its transaction ends.
-- (_sweeping_lock, second): each sweep shares the second in which its transaction began, for as long. ticks.sql
CREATE OR REPLACE FUNCTION pgqueue._sweeping_lock() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1885827333;

-- (_promoting_lock, 0) and (_promoting_lock, second): promote_all, as the sweep does.
CREATE OR REPLACE FUNCTION pgqueue._promoting_lock() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1885827334;

-- (_cleaning_lock, 0) and (_cleaning_lock, second): clean_up, as the sweep does.
CREATE OR REPLACE FUNCTION pgqueue._cleaning_lock() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1885827335;

-- (_filling_lock, queue): a put into a queue with a capacity waits for it and holds it exclusively until its
-- transaction ends. special.sql
CREATE OR REPLACE FUNCTION pgqueue._filling_lock() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1885827336;

-- (_folding_lock, 0): a fold of the statistics tries it exclusively, until its transaction ends. stats.sql
CREATE OR REPLACE FUNCTION pgqueue._folding_lock() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1885827337;

-- (_awaiting_lock, bucket of a task): a listener shares it once for each task of the bucket that one of its waiters
-- waits for. A call that settles a task, or reports progress, tries it exclusively and frees it at once. announce.sql
CREATE OR REPLACE FUNCTION pgqueue._awaiting_lock() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1885827338;

-- (_untold_lock, bucket of a task): a call that saw no waiter shares it until its transaction ends. A waiter's look
-- tries it exclusively and frees it at once. announce.sql
CREATE OR REPLACE FUNCTION pgqueue._untold_lock() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1885827339;

-- (_hearing_lock, bucket of a queue): a listener that needs to hear of every put shares it for as long as one of its
-- takers sleeps on a queue of the bucket. A put, and a listener that enters the line, try it exclusively and free it at
-- once. wake.sql
CREATE OR REPLACE FUNCTION pgqueue._hearing_lock() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1885827340;

-- (_calling_lock, bucket of a queue): a put that calls the first in line, and no others, shares it until its
-- transaction ends. A listener tries it exclusively, in autocommit, and so holds it to the end of that statement.
-- wake.sql
CREATE OR REPLACE FUNCTION pgqueue._calling_lock() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1885827341;

-- (_closing_lock, bucket of a batch): a put into the batch shares it until its transaction ends. close_batch waits for
-- it exclusively, and holds it until its transaction ends. 4_rules/flows/waiting.sql
CREATE OR REPLACE FUNCTION pgqueue._closing_lock() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1885827342;

-- The bigint of a claim's token: a claim shares it until its transaction ends. undo_take tries it exclusively, and
-- keeps it on the listener's connection. 5_verbs/take/undo.sql
CREATE OR REPLACE FUNCTION pgqueue._token_lock(token bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN hashint8extended(token, 1885827339);

-- Thousands of queues share 1024 locks, and so do thousands of tasks, so that they cannot fill the lock table. A lock
-- that is held for long costs other queues or tasks of its bucket a needless notification, or makes their clients poll.

CREATE OR REPLACE FUNCTION pgqueue._bucket(queue_id int) RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN queue_id & 1023;

CREATE OR REPLACE FUNCTION pgqueue._batch_bucket(id bigint) RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN (id & 2147483647)::int;

-- Waiting
-- -------
-- Any role that may connect to the database can hold any of these locks, for as long as it likes, and PostgreSQL cannot
-- forbid it. So each call that needs a lock tries it first, which costs no more than to wait for it, and if that fails
-- waits for it here, for a limited time. PQ007 then names the holder, and the view health shows holders that are not
-- pgqueue's (7_operations/foreign.sql).

-- All classes: for health, which names the sessions that hold such a lock and are not pgqueue's
-- (7_operations/foreign.sql). `kept` says how long pgqueue keeps it: by a listener (shared), for the life of a session,
-- to the end of a transaction, or to the end of a tick, which is a transaction of its own.
-- tests/sql/test_lock_classes.py compares the view with the functions above.
CREATE OR REPLACE VIEW pgqueue._lock_class AS
SELECT c.class, c.kept, c.blocks
  FROM (VALUES
       (pgqueue._waiter_lock(), 'listener', 'puts, which notify needlessly'),
       (pgqueue._silent_lock(), 'transaction', 'takers that wait, which poll'),
       (pgqueue._session_lock(), 'session', 'the return of the tasks of session %s'),
       (pgqueue._claiming_lock(), 'transaction', 'claims of session %s'),
       (pgqueue._sweeping_lock(), 'tick', 'the return of the tasks of dead sessions'),
       (pgqueue._promoting_lock(), 'tick', 'delayed tasks, deadlines and statistics'),
       (pgqueue._cleaning_lock(), 'tick', 'the cleaning'),
       (pgqueue._filling_lock(), 'transaction', 'puts into queue %s'),
       (pgqueue._folding_lock(), 'transaction', 'statistics'),
       (pgqueue._awaiting_lock(), 'listener', 'results, which notify needlessly'),
       (pgqueue._untold_lock(), 'transaction', 'clients that wait for results, which poll'),
       (pgqueue._hearing_lock(), 'listener', 'puts, which wake every process'),
       (pgqueue._calling_lock(), 'transaction', 'puts, which wake every process'),
       (pgqueue._closing_lock(), 'transaction', 'the closing of batch %s')
       ) c(class, kept, blocks);

-- The backends that hold a lock, for people.
CREATE OR REPLACE FUNCTION pgqueue._lock_holders(class int, key int) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT coalesce(string_agg(held.by, ', '), 'a backend that is gone by now')
              FROM (SELECT DISTINCT CASE WHEN l.pid IS NULL THEN 'a prepared transaction'
                                         ELSE format('backend %s of role %s', l.pid, coalesce(a.usename, '?')) END AS by
                      FROM pg_catalog.pg_locks l
                      JOIN pg_catalog.pg_database d ON d.oid = l.database AND d.datname = current_database()
                      LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
                     WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted
                       AND l.classid = class::oid AND l.objid = key::oid
                     ORDER BY 1 LIMIT 5) held);
END $$;

-- Wait for a lock that a try did not get, for `patience` at most, or the caller's own lock_timeout if that is shorter.
-- patience NULL: only the lock_timeout counts. kept: until the session ends, else until the transaction ends.
-- The setting holds for this wait alone: an error rolls it back with the block. (A SET clause of the function would do
-- the same, but its value is a constant.)
CREATE OR REPLACE FUNCTION pgqueue._await_lock(
    class int, key int, shared boolean, kept boolean, patience interval, purpose text
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    own CONSTANT text := current_setting('lock_timeout');
BEGIN
    IF patience IS NOT NULL AND (own::interval = '0' OR own::interval > patience) THEN
        PERFORM set_config('lock_timeout', greatest(1, extract(epoch FROM patience) * 1000)::int::text, true);
    END IF;
    IF shared AND kept THEN
        PERFORM pg_advisory_lock_shared(class, key);
    ELSIF shared THEN
        PERFORM pg_advisory_xact_lock_shared(class, key);
    ELSIF kept THEN
        PERFORM pg_advisory_lock(class, key);
    ELSE
        PERFORM pg_advisory_xact_lock(class, key);
    END IF;
    PERFORM set_config('lock_timeout', own, true);
EXCEPTION WHEN lock_not_available THEN
    RAISE EXCEPTION 'the lock for % was not free in time: % has it', purpose, pgqueue._lock_holders(class, key)
        USING ERRCODE = 'PQ007',
              HINT = 'The check foreign_locks of `pgqueue health` says whether the holder is a client of pgqueue. '
                     'pg_terminate_backend() ends it.';
END $$;

-- From now on no other transaction puts into a queue with a capacity, until this one ends. The holder may be another
-- producer with a long transaction, so the caller says how long to wait: a client by pgqueue.patience, in seconds.
CREATE OR REPLACE FUNCTION pgqueue._lock_room(q pgqueue.queue) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF q.capacity IS NOT NULL AND NOT pg_try_advisory_xact_lock(pgqueue._filling_lock(), q.id) THEN
        PERFORM pgqueue._await_lock(
                    pgqueue._filling_lock(), q.id, false, false,
                    nullif(current_setting('pgqueue.patience', true), '')::double precision * interval '1 s',
                    format('puts into queue "%s"', q.name));
    END IF;
END $$;
