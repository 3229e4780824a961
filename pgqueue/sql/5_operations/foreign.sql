-- Advisory locks of ours that are held by a backend that cannot be a client's: the check foreign_locks of health.
--
-- Any role that may connect to the database can hold any advisory lock (2_base/advisory.sql). A call that waits for one
-- fails with PQ007, which names the holder. But most locks are only tried, and then the work is left undone in silence:
-- dead sessions keep their tasks, delayed tasks stay delayed. So health looks for holders like these:
--
--   a lock that we keep for a transaction    held outside of any transaction
--   SESSION(id)                              held outside of any transaction, and not by that session's backend
--   WAITER(k), exclusively                   held outside of any transaction
--   any of these                             held by a role without USAGE on the schema
--   a named lock with requests in line       held without a row in lock_holder, and not by a transaction of ours
--
-- A lock's `virtualtransaction` tells whether its holder is in a transaction. The server shows it to every role, which
-- it does not do with a backend's state. At its commit a backend is out of the transaction for some microseconds before
-- its locks are free, and longer if the machine is busy. So a suspect is looked at several times within 0.2 s, and
-- counts if it is there each time.
--
-- A role without USAGE may call a SECURITY DEFINER function of the application's that puts. The locks of such a put
-- count as foreign while its transaction is open.
--
-- pg_locks is read once if all is well. The lock manager is locked meanwhile: for people and monitors, not for ticks.

CREATE OR REPLACE FUNCTION pgqueue._odd_locks() RETURNS TABLE (lock text, pid int, role text, blocks text)
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
        WITH l AS MATERIALIZED (
            SELECT k.pid, k.virtualtransaction AS vxid, k.virtualtransaction LIKE '%/0' AS idle,
                   k.objsubid = 1 AS named,
                   k.classid::bigint AS class, k.objid::int AS number, k.classid::bigint << 32 | k.objid::bigint AS key,
                   k.mode = 'ExclusiveLock' AS exclusive
              FROM pg_catalog.pg_locks k
              JOIN pg_catalog.pg_database d ON d.oid = k.database AND d.datname = current_database()
             WHERE k.locktype = 'advisory' AND k.granted AND k.pid IS NOT NULL
               AND (k.objsubid = 1 OR k.classid::bigint BETWEEN pgqueue._waiter_lock() AND pgqueue._calling_lock())),
        b AS MATERIALIZED (
            SELECT a.pid, a.usename::text AS role, NOT has_schema_privilege(a.usesysid, 'pgqueue', 'USAGE') AS outside
              FROM pg_catalog.pg_stat_activity a WHERE a.pid IN (SELECT l.pid FROM l)),
        odd AS (
            SELECT l.*,
                   CASE l.class WHEN pgqueue._waiter_lock() THEN 'puts, which notify needlessly'
                                WHEN pgqueue._silent_lock() THEN 'takers that wait, which poll'
                                WHEN pgqueue._session_lock() THEN 'the return of the tasks of session ' || l.number
                                WHEN pgqueue._claiming_lock() THEN 'claims of session ' || l.number
                                WHEN pgqueue._sweeping_lock() THEN 'the return of the tasks of dead sessions'
                                WHEN pgqueue._promoting_lock() THEN 'delayed tasks, deadlines and statistics'
                                WHEN pgqueue._cleaning_lock() THEN 'the cleaning'
                                WHEN pgqueue._filling_lock() THEN
                                    'puts into queue ' || coalesce((SELECT quote_ident(q.name) FROM pgqueue.queue q
                                                                     WHERE q.id = l.number), l.number::text)
                                WHEN pgqueue._entering_lock() THEN 'takes from lanes'
                                WHEN pgqueue._awaiting_lock() THEN 'results, which notify needlessly'
                                WHEN pgqueue._untold_lock() THEN 'clients that wait for results, which poll'
                                WHEN pgqueue._hearing_lock() THEN 'puts, which wake every process'
                                WHEN pgqueue._calling_lock() THEN 'puts, which wake every process'
                                ELSE 'statistics' END AS purpose,
                   CASE l.class WHEN pgqueue._waiter_lock() THEN l.idle AND l.exclusive
                                WHEN pgqueue._awaiting_lock() THEN l.idle AND l.exclusive
                                WHEN pgqueue._hearing_lock() THEN l.idle AND l.exclusive
                                WHEN pgqueue._session_lock() THEN
                                    l.idle AND EXISTS (SELECT FROM pgqueue.session s
                                                        WHERE s.id = l.number AND s.backend_pid <> l.pid)
                                ELSE l.idle END AS strange
              FROM l WHERE NOT l.named
             UNION ALL
            SELECT l.*, 'the lock ' || quote_ident(t.name), l.idle
              FROM (SELECT DISTINCT w.name FROM pgqueue.lock_ticket w) t
              JOIN l ON l.named AND l.key = hashtextextended(t.name, 0)
             WHERE NOT EXISTS (SELECT FROM pgqueue.lock_holder h WHERE h.backend_pid = l.pid AND h.name = t.name))
        SELECT concat_ws(' ', odd.pid, odd.vxid, odd.key, odd.named), odd.pid, coalesce(b.role, '?'), odd.purpose
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
