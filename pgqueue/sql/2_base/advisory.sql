-- Advisory locks: every class that pgqueue uses, with its holder, its mode and how long it is held.
--
-- A lock is (class, number); the class says what the lock is for. The numbers begin at x'70677101', "pgq" and a 1, so
-- that they do not meet those of an application. Each class is a function that PostgreSQL inlines: an expression with
-- it is planned as with the literal. (In a DECLARE it would cost 0.2 us a call: write it where it is used.)
--
-- Two locks are a single bigint, which is another space of keys: a lock by name (4_families/locks.sql) is
-- hashtextextended(name, 0), and one migration at a time holds pgqueue.migrate.LOCK.

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
-- that gives the session takes as an heir. open_session with an id, close_session and undo_take wait for it, the sweep
-- and clean_up try it, exclusively, until their transaction ends. session.sql
CREATE OR REPLACE FUNCTION pgqueue._claiming_lock() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1885827332;

-- (_sweeping_lock, 0): the sweep tries it exclusively: one sweep at a time in a database. Until its transaction ends.
CREATE OR REPLACE FUNCTION pgqueue._sweeping_lock() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1885827333;

-- (_promoting_lock, 0): promote_all tries it exclusively, until its transaction ends.
CREATE OR REPLACE FUNCTION pgqueue._promoting_lock() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1885827334;

-- (_cleaning_lock, 0): clean_up tries it exclusively, until its transaction ends.
CREATE OR REPLACE FUNCTION pgqueue._cleaning_lock() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1885827335;

-- (_filling_lock, queue): a put into a queue with a capacity waits for it and holds it exclusively until its
-- transaction ends. special.sql
CREATE OR REPLACE FUNCTION pgqueue._filling_lock() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1885827336;

-- (_entering_lock, bucket of a lane): a claim that takes a task of the lane tries it exclusively, until its transaction
-- ends. lane.sql
CREATE OR REPLACE FUNCTION pgqueue._entering_lock() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1885827337;

-- (_folding_lock, 0): a fold of the statistics tries it exclusively, until its transaction ends. stats.sql
CREATE OR REPLACE FUNCTION pgqueue._folding_lock() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1885827338;

-- Queues and lanes by the thousand share 1024 locks each, so that they cannot fill the lock table.

CREATE OR REPLACE FUNCTION pgqueue._bucket(queue_id int) RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN queue_id & 1023;

CREATE OR REPLACE FUNCTION pgqueue._lane_bucket(queue_id int, lane text) RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN (hashtextextended(lane, queue_id) & 1023)::int;

-- From now on no other transaction puts into a queue with a capacity, until this one ends.
CREATE OR REPLACE FUNCTION pgqueue._lock_room(q pgqueue.queue) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF q.capacity IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(pgqueue._filling_lock(), q.id);
    END IF;
END $$;

-- The rooms of all queues that an ack hands tasks on to, before it locks any task, and in the order of the queues' ids:
-- otherwise T1 and T2 that hand on to the same two queues could wait for each other.
CREATE OR REPLACE FUNCTION pgqueue._lock_rooms(puts jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue._lock_room(q)
       FROM (SELECT * FROM pgqueue.queue named
              WHERE named.name IN (SELECT p ->> 'queue' FROM jsonb_array_elements(puts) p) ORDER BY named.id) q;
END $$;
