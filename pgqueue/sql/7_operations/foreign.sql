-- pgqueue's advisory locks that are held by a backend that cannot be a client's: the check foreign_locks of health.
--
-- Any role that may connect to the database can hold any advisory lock (2_base/advisory.sql). A call that waits for one
-- fails with PQ007, which names the holder. But most locks are only tried, and if that fails the work is left undone
-- without an error: dead sessions keep their tasks, delayed tasks stay delayed. So health looks for such holders:
--
--   a lock kept for a transaction            held outside of any transaction
--   a lock kept for a tick                   the same; or by a transaction that began more than 10 s ago, or is no tick
--   SESSION(id)                              held outside of any transaction, and not by that session's backend
--   a listener's lock, exclusively           held outside of any transaction
--   any of these                             held by a role without USAGE on the schema
--   a named lock with requests in line       held without a row in lock_holder, and not by a transaction of pgqueue
--
-- A lock's `virtualtransaction` tells whether its holder is in a transaction. The server shows it to every role, unlike
-- a backend's state. At its commit a backend is out of the transaction for some microseconds before its locks are free,
-- and longer if the machine is busy. So health checks a suspected holder several times within 0.2 s, and reports it if
-- it holds the lock each time.
--
-- A role without USAGE may call an application's SECURITY DEFINER function that puts. The locks of such a put
-- count as foreign while its transaction is open.
--
-- The view _lock_class (2_base/advisory.sql) has all classes. A lock that a user of a queue holds in a transaction of
-- its own, for example of a queue with a capacity, is none of these: only that queue's users wait for it.
--
-- pg_locks is read once if all is well. The read locks the lock manager: it is for people and monitors, not for ticks.

-- The meaning of a lock's number, in the text of its class: the name of a queue, if the reader has any verb for it.
-- Without this check a reader could take the lock of each number, and so learn all names.
CREATE OR REPLACE FUNCTION pgqueue._lock_subject(class bigint, number int) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    queue CONSTANT int := CASE class WHEN pgqueue._filling_lock() THEN number END;
BEGIN
    RETURN coalesce((SELECT quote_ident(q.name) FROM pgqueue.queue q
                      WHERE q.id = queue
                        AND EXISTS (SELECT FROM unnest('{monitor,put,take,look,manage}'::text[]) verb
                                     WHERE pgqueue._may(q.id, verb))), number::text);
END $$;

-- Whether a transaction with this lock of a tick began long ago (ticks.sql).
CREATE OR REPLACE FUNCTION pgqueue._is_old_tick(second int) RETURNS boolean
LANGUAGE sql STABLE
RETURN (extract(epoch FROM clock_timestamp()) - second BETWEEN -10 AND 10) IS NOT TRUE;

CREATE OR REPLACE FUNCTION pgqueue._odd_locks() RETURNS TABLE (lock text, pid int, role text, blocks text)
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
        WITH l AS MATERIALIZED (
            SELECT k.pid, k.virtualtransaction AS vxid, k.virtualtransaction LIKE '%/0' AS idle,
                   k.objsubid = 1 AS named, c.kept, c.blocks,
                   k.classid::bigint AS class, k.objid::int AS number, k.classid::bigint << 32 | k.objid::bigint AS key,
                   k.mode = 'ExclusiveLock' AS exclusive
              FROM pg_catalog.pg_locks k
              JOIN pg_catalog.pg_database d ON d.oid = k.database AND d.datname = current_database()
              LEFT JOIN pgqueue._lock_class c ON c.class = k.classid::bigint AND k.objsubid = 2
             WHERE k.locktype = 'advisory' AND k.granted AND k.pid IS NOT NULL
               AND (k.objsubid = 1 OR c.class IS NOT NULL)),
        b AS MATERIALIZED (
            SELECT a.pid, a.usename::text AS role, NOT has_schema_privilege(a.usesysid, 'pgqueue', 'USAGE') AS outside
              FROM pg_catalog.pg_stat_activity a WHERE a.pid IN (SELECT l.pid FROM l)),
        odd AS (
            SELECT l.pid, l.vxid, l.key, l.class, l.number, l.named, l.blocks,
                   CASE l.kept WHEN 'listener' THEN l.idle AND l.exclusive
                               WHEN 'tick' THEN
                                   l.idle OR (SELECT bool_and(NOT pgqueue._is_old_tick(own.number)) FROM l own
                                               WHERE own.pid = l.pid AND own.class = l.class
                                                 AND own.number <> 0) IS NOT TRUE   -- 0 says nothing
                               WHEN 'session' THEN
                                   l.idle AND EXISTS (SELECT FROM pgqueue.session s
                                                       WHERE s.id = l.number AND s.backend_pid <> l.pid)
                               ELSE l.idle END AS strange
              FROM l WHERE NOT l.named
             UNION ALL
            SELECT l.pid, l.vxid, l.key, l.class, l.number, l.named,
                   CASE WHEN t.is_told THEN 'the lock ' || quote_ident(t.name) ELSE 'a named lock' END, l.idle
              FROM (SELECT w.name, (SELECT pgqueue._may_see_all('monitor'))
                                OR bool_or(pgqueue._is_callers_session(w.session_id)) AS is_told
                      FROM pgqueue.lock_ticket w GROUP BY w.name) t
              JOIN l ON l.named AND l.key = hashtextextended(t.name, 0)
             WHERE NOT EXISTS (SELECT FROM pgqueue.lock_holder h WHERE h.backend_pid = l.pid AND h.name = t.name))
        SELECT concat_ws(' ', odd.pid, odd.vxid, odd.key, odd.named), odd.pid, coalesce(b.role, '?'),
               CASE WHEN odd.named THEN odd.blocks
                    ELSE format(odd.blocks, pgqueue._lock_subject(odd.class, odd.number)) END
          FROM odd LEFT JOIN b ON b.pid = odd.pid
         WHERE odd.strange OR b.outside;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._foreign_locks() RETURNS TABLE (pid int, role text, blocks text)
LANGUAGE plpgsql AS $$
DECLARE
    seen text[] := ARRAY (SELECT o.lock FROM pgqueue._odd_locks() o);
BEGIN
    FOR look IN 1..4 LOOP
        EXIT WHEN seen = '{}';
        PERFORM pg_sleep(0.05);
        seen := ARRAY (SELECT o.lock FROM pgqueue._odd_locks() o WHERE o.lock = ANY (seen));
    END LOOP;
    IF seen <> '{}' THEN
        RETURN QUERY SELECT DISTINCT o.pid, o.role, o.blocks FROM pgqueue._odd_locks() o
                      WHERE o.lock = ANY (seen) ORDER BY o.pid, o.blocks;
    END IF;
END $$;
