-- Links: a dependant's dependencies become followed, and are deleted when the dependant is gone. The theory is in
-- flows/waiting.sql. A put does its own part at once; ticks, which all queues share, do a bounded part at a time.

-- Among these dependencies, not followed yet, refuse those on tasks, living or ended, that the roles of the dependants
-- may not look at: such a task is gone for them. The put has checked the tasks that it could see, but not tasks of
-- transactions that had not committed. There are few roles and few queues, and many tasks: so each pair of a role and a
-- queue is checked once. Returns whether a dependency was refused.
--
-- With IS TRUE a list is no index condition; with one the planner would probe for each pair of a dependant and a task.
CREATE OR REPLACE FUNCTION pgqueue._refuse_links(links tid[], ids bigint[], others bigint[]) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    refused boolean := false;
    pair    record;
BEGIN
    FOR pair IN
        SELECT w.role_id, q.id AS queue_id
          FROM (SELECT DISTINCT d.role_id FROM pgqueue.dependant d WHERE d.task_id = ANY (ids)) w,
               (SELECT t.queue_id FROM pgqueue.task t WHERE t.id = ANY (others)
                 UNION SELECT r.queue_id FROM pgqueue.result r WHERE r.task_id = ANY (others)) o
          JOIN pgqueue.queue q ON q.id = o.queue_id
         WHERE q.guarded AND NOT pgqueue._may(q.id, 'look', pgqueue._living_role(w.role_id))
    LOOP
        refused := true;
        UPDATE pgqueue.dependency d SET state = 'G'
         WHERE d.ctid = ANY (links) AND d.state = 'N'
           AND (d.task_id IN (SELECT w.task_id FROM pgqueue.dependant w
                               WHERE w.task_id = ANY (ids) AND w.role_id IS NOT DISTINCT FROM pair.role_id)) IS TRUE
           AND (d.on_id IN (SELECT t.id FROM pgqueue.task t WHERE t.id = ANY (others) AND t.queue_id = pair.queue_id
                             UNION SELECT r.task_id FROM pgqueue.result r
                                    WHERE r.task_id = ANY (others) AND r.queue_id = pair.queue_id)) IS TRUE;
    END LOOP;
    RETURN refused;
END $$;

-- Mark the tasks and batches that these dependants wait for as followed, if they are not. mine: only those that this
-- transaction has put. most: the number of dependencies, approximately, some of each dependant; NULL: all.
CREATE OR REPLACE FUNCTION pgqueue._link(ids bigint[], mine boolean, most int DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    me    CONSTANT xid     := pg_current_xact_id()::xid;
    fresh CONSTANT boolean := current_setting('transaction_isolation') = 'read committed';
    part  CONSTANT int     := CASE WHEN most IS NOT NULL THEN greatest(1, most / greatest(1, cardinality(ids))) END;
    links  tid[];
    others bigint[];
    held   bigint[];
    found  record;
BEGIN
    SELECT array_agg(d.ctid), array_agg(d.on_id) INTO links, others
      FROM unnest(ids) u(id),
           LATERAL (SELECT k.ctid, k.on_id FROM pgqueue.dependency k
                     WHERE k.task_id = u.id AND k.state = 'N' LIMIT part) d;
    IF links IS NULL THEN
        RETURN;
    END IF;
    held := ARRAY (SELECT t.id FROM pgqueue.task t
                    WHERE t.id = ANY (others) AND (t.xmin = me OR NOT mine) ORDER BY t.id FOR UPDATE SKIP LOCKED)
         || ARRAY (SELECT b.id FROM pgqueue.batch b
                    WHERE b.id = ANY (others) AND (b.xmin = me OR NOT mine) ORDER BY b.id FOR UPDATE SKIP LOCKED);
    IF pgqueue._refuse_links(links, ids, others) THEN      -- in a snapshot that shows the locked rows
        held := ARRAY (SELECT u.id FROM unnest(held) u(id)
                        WHERE u.id IN (SELECT d.on_id FROM pgqueue.dependency d
                                        WHERE d.ctid = ANY (links) AND d.state = 'N'));
    END IF;
    UPDATE pgqueue.task t SET followed = true WHERE t.id = ANY (held) AND t.followed IS NULL AND t.state <> 'F';
    -- In a new snapshot: a task that has no row now, and was not locked, is gone. The states are read from the other
    -- tasks, in a statement of its own: one UPDATE FROM may be planned to search all others for each dependency.
    FOR found IN
        SELECT s.state, array_agg(s.link) AS links
          FROM (SELECT o.link,
                       CASE WHEN t.id IS NULL AND b.id IS NULL
                            THEN CASE WHEN NOT fresh THEN 'N' WHEN r.error IS NOT NULL THEN 'G' ELSE 'D' END
                            WHEN (o.id IN (SELECT u.id FROM unnest(held) u(id))) IS NOT TRUE THEN 'N'
                            WHEN t.state = 'F' OR NOT b.failed THEN 'D'
                            WHEN t.state = 'B' OR b.failed THEN 'F'
                            ELSE 'O' END::"char" AS state
                  FROM unnest(links, others) o(link, id)
                  LEFT JOIN pgqueue.task t ON t.id = o.id
                  LEFT JOIN pgqueue.batch b ON b.id = o.id
                  LEFT JOIN pgqueue.result r ON r.task_id = o.id) s
         WHERE s.state <> 'N'
         GROUP BY s.state
    LOOP
        UPDATE pgqueue.dependency d SET state = found.state WHERE d.ctid = ANY (found.links) AND d.state = 'N';
    END LOOP;
END $$;

-- Delete up to 2000 dependencies of those of these tasks that are gone, and keep results for them no longer. The next
-- tick goes on.
--
-- A tick that deletes a dependency has the result locked that is kept for it, and then looks whether another one is
-- left: of two ticks that delete the last two, one restores the time. An open transaction that ends the other task has
-- the dependency locked, or the result that it stores again: these are left to a later tick.
CREATE OR REPLACE FUNCTION pgqueue._forget_dependants(ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    kept   CONSTANT timestamptz := timestamptz '9999-12-30 00:00+00';
    links  tid[];
    others bigint[];
    held   bigint[];
    busy   bigint[];
BEGIN
    ids := ARRAY (SELECT d.task_id FROM pgqueue.dependant d
                   WHERE d.task_id = ANY (ids)
                     AND (SELECT t.id FROM pgqueue.task t WHERE t.id = d.task_id AND t.state <> 'F') IS NULL);
    SELECT array_agg(d.ctid), array_agg(d.on_id) INTO links, others
      FROM (SELECT k.ctid, k.on_id FROM pgqueue.dependency k
             WHERE k.task_id = ANY (ids) LIMIT 2000 FOR UPDATE SKIP LOCKED) d;
    held := ARRAY (SELECT r.task_id FROM pgqueue.result r
                    WHERE r.task_id = ANY (others) AND r.expires_at = kept FOR UPDATE SKIP LOCKED);
    busy := ARRAY (SELECT r.task_id FROM pgqueue.result r
                    WHERE r.task_id = ANY (others) AND r.expires_at = kept
                   EXCEPT SELECT u.id FROM unnest(held) u(id));
    DELETE FROM pgqueue.dependency d
     WHERE d.ctid = ANY (links) AND (d.on_id IN (SELECT u.id FROM unnest(busy) u(id))) IS NOT TRUE;
    UPDATE pgqueue.result r SET expires_at = r.kept_until
     WHERE r.task_id = ANY (held)
       AND (SELECT d.on_id FROM pgqueue.dependency d WHERE d.on_id = r.task_id LIMIT 1) IS NULL;
    INSERT INTO pgqueue.flow_check (id, queue_id)
    SELECT u.id, 0 FROM unnest(ids) u(id)
     WHERE (SELECT d.task_id FROM pgqueue.dependency d WHERE d.task_id = u.id LIMIT 1) IS NOT NULL;
    DELETE FROM pgqueue.dependant d
     WHERE d.task_id = ANY (ids)
       AND (SELECT o.task_id FROM pgqueue.dependency o WHERE o.task_id = d.task_id LIMIT 1) IS NULL;
END $$;
