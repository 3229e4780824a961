-- Suspects: which task killed its process?
--
-- Theory of operation
-- -------------------
-- A task may kill the process that handles it: by a crash of the interpreter, by exhausting the memory. No handler can
-- count such an attempt, and a session that dies leaves several takes: tasks that its process was handling at the same
-- time, and tasks that it had not begun. Charging all of them with an attempt does not work: with eight handlers at
-- once each crash charges seven neighbours too, and they are buried before they have begun.
--
-- Most processes die for other reasons: a deployment, or a crash of their host. So the first death of a group
-- charges none of its tasks and restricts none; it leaves a mark (task.killed_after). The second death makes each task
-- with a mark a suspect (task.suspect), and a suspect is charged only if it was tried alone:
--
--   the session held                      charged with an attempt
--   one task                              that task
--   a suspect whose limit is 1            that suspect
--   anything else                         none
--
-- The limit of a suspect (task.suspect) is the number of suspects that a session may hold at a time while it holds
-- this one, besides any number of tasks that are not suspects. It is a quarter of the number of suspects that died
-- together, or of marked tasks, and 1 at least. So a task that kills its process is in a group of at most a quarter at
-- each death from the third on, and soon alone: of 100 tasks at the fifth death, of eight at the fourth. Then it is
-- charged at each death, and is buried by max_attempts of its worker or max_takes of its queue. With a limit of 1 from
-- the beginning, the 100 tasks of a process that was killed for another reason would be handled one after another. With
-- a quarter after the first death, eight long tasks of a killed worker would run two at a time.
--
-- A death can bury a task only where attempts have a limit: max_takes of the queue, or max_attempts that a worker of
-- the queue has registered (workers.sql). Elsewhere no task can be buried for it, and a death leaves no mark. In both
-- cases the death counts as a release (task.releases), by which the next take knows that the task was delivered before.
--
-- A task that kills its process does so before the process has lived longer than it did the last time. So a take that
-- lasts longer than the life of the session that died with the task (task.killed_after) clears the task: from then on
-- it counts for no limit, and at a death as a task without a mark. A comparison with the time for which that session
-- had held the task does not work: a task that kills may wait in its process behind others, longer than the last time.
-- killed_after never falls while the mark is there, so a task that kills is cleared only by processes that each live
-- longer than the one before. A sweep may find a death late, for example when the only worker is started again. So the
-- life of a session is measured to the sweep that missed it, and the length of its takes to the last one before
-- (session.seen_at).
--
-- A suspect that is innocent is charged wrongly only if a task that is not yet a suspect kills the process beside it.
-- That task is a suspect after its second death, and the two are not held together again once both have the limit 1. If
-- the tasks beside a suspect stayed unmarked, the same two tasks would be taken together again, and the innocent one
-- would be buried.
--
-- The mark is cleared by an end that shows that the process lived on: release, requeue, bury, or a kick after it
-- (settle.sql, pick.sql). It stays after a passed deadline, and after release_many, which gives back tasks that were
-- not begun. Only a death sets it, so for nearly every task both columns stay NULL, and use no byte.
--
-- session.suspects has the suspects that the session took and may still hold. A suspect counts only as long as the
-- session has a take of it, so no settling has to reset anything. Two claims C1 and C2 of one session lock the
-- session's row before they look for these takes, in a new snapshot: C2 skips the locked row and takes no suspect, or
-- it sees C1's takes. A session without a row takes no suspect. take_id takes any task, as the caller names it; a claim
-- of messages belongs to no session.

-- Whether a take of this length clears its task.
CREATE OR REPLACE FUNCTION pgqueue._is_cleared(killed_after interval, lasted interval) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN coalesce(lasted > killed_after, false);

-- The tasks among these that a death could bury.
CREATE OR REPLACE FUNCTION pgqueue._burials(ids bigint[]) RETURNS SETOF bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
        WITH held AS MATERIALIZED (
            SELECT t.id, t.queue_id FROM pgqueue.task t WHERE t.id = ANY (ids)),
        limited AS MATERIALIZED (
            SELECT q.id FROM pgqueue.queue q
             WHERE q.id IN (SELECT held.queue_id FROM held)
               AND (q.max_takes IS NOT NULL
                    OR EXISTS (SELECT FROM pgqueue.worker w
                                WHERE q.name = ANY (w.queues) AND w.limits ? 'max_attempts')))
        SELECT held.id FROM held WHERE held.queue_id IN (SELECT limited.id FROM limited);
END $$;

-- The suspects, among those that a claim has found, in their order, that the session must not take. The others count as
-- held. At REPEATABLE READ a claim that meets another claim of its session fails, as any claim does there (take.sql).
CREATE OR REPLACE FUNCTION pgqueue._refuse_suspects(session int, ids bigint[]) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    refused bigint[] := '{}'::bigint[];
    held    bigint[];
    least_limit int;
    t       record;
BEGIN
    IF session = 0 THEN
        RETURN refused;
    END IF;
    PERFORM FROM pgqueue.session s WHERE s.id = _refuse_suspects.session FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN ids;
    END IF;
    SELECT coalesce(array_agg(o.id), '{}'), min(o.suspect) INTO held, least_limit
      FROM pgqueue.session s, unnest(s.suspects) u(id), pgqueue.take k, pgqueue.task o
     WHERE s.id = _refuse_suspects.session AND k.task_id = u.id AND k.session_id = s.id AND o.id = u.id
       AND o.suspect IS NOT NULL                   -- the session may have released it, and taken it again
       AND NOT pgqueue._is_cleared(o.killed_after, clock_timestamp() - k.taken_at);
    FOR t IN SELECT o.id, o.suspect FROM unnest(ids) WITH ORDINALITY u(id, place) JOIN pgqueue.task o ON o.id = u.id
              ORDER BY u.place LOOP
        IF cardinality(held) < least(least_limit, t.suspect) THEN
            held := held || t.id;
            least_limit := least(least_limit, t.suspect);
        ELSE
            refused := refused || t.id;
        END IF;
    END LOOP;
    IF cardinality(refused) < cardinality(ids) THEN
        UPDATE pgqueue.session s SET suspects = held WHERE s.id = _refuse_suspects.session;
    END IF;
    RETURN refused;
END $$;

-- A session died that held these tasks; their takes are ended. As _count_attempt, this function passes over locked
-- tasks.
CREATE OR REPLACE FUNCTION pgqueue._count_death(ids bigint[], reason text, began timestamptz[], session int)
RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    part CONSTANT int := 4;
    seen_at timestamptz;
    lived   interval;
    burials CONSTANT bigint[] := ARRAY (SELECT pgqueue._burials(ids));
    cleared bigint[];
    found   record;
BEGIN
    SELECT s.seen_at, least(s.missing_since, clock_timestamp()) - s.started_at INTO seen_at, lived
      FROM pgqueue.session s WHERE s.id = _count_death.session;
    cleared := ARRAY (SELECT t.id FROM unnest(ids, began) u(id, began), pgqueue.task t
                       WHERE t.id = u.id AND pgqueue._is_cleared(t.killed_after, seen_at - u.began));
    SELECT array_agg(t.id) FILTER (WHERE t.suspect = 1 AND t.id <> ALL (cleared) OR cardinality(ids) = 1) AS charged,
           count(t.suspect) AS suspects, count(t.killed_after) - count(t.suspect) AS marked
      INTO found
      FROM pgqueue.task t WHERE t.id = ANY (_count_death.ids);
    UPDATE pgqueue.task
       SET suspect = CASE WHEN id <> ALL (burials) THEN suspect
                          WHEN killed_after IS NULL OR id = ANY (cleared) THEN NULL
                          WHEN suspect IS NULL THEN greatest(1, found.marked / part)
                          ELSE least(suspect, greatest(1, found.suspects / part)) END,
           killed_after = CASE WHEN id = ANY (burials) THEN greatest(killed_after, lived) ELSE killed_after END,
           releases = coalesce(releases, 0) + 1
     WHERE id = ANY (ARRAY (SELECT t.id FROM pgqueue.task t
                             WHERE t.id = ANY (_count_death.ids) FOR UPDATE SKIP LOCKED));
    IF found.charged IS NOT NULL THEN
        PERFORM pgqueue._count_attempt(found.charged, reason, array_agg(u.began ORDER BY c.place),
                                       array_fill(pgqueue._label_of(session), ARRAY [cardinality(found.charged)]))
           FROM unnest(found.charged) WITH ORDINALITY c(id, place)
           JOIN unnest(ids, began) u(id, began) ON u.id = c.id;
    END IF;
END $$;
