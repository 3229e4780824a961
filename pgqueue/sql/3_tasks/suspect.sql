-- Suspects: which task killed its process?
--
-- Theory of operation
-- -------------------
-- A task may kill the process that handles it: by a crash of the interpreter, by exhausting the memory. No handler can
-- count such an attempt, and a session that dies leaves several takes: tasks that its process was handling at the same
-- time, and tasks that it had not begun. To charge all of them with an attempt is the simpler form, and does not work:
-- with eight handlers at once each crash charges seven neighbours too, and they are buried before they have begun.
--
-- So a death makes each task that the session held a suspect, and charges a task only if it was tried alone:
--
--   the session held                      charged with an attempt
--   one task                              that task
--   a suspect whose limit is 1            that suspect
--   anything else                         none
--
-- The limit of a suspect (task.suspect) is the number of suspects that a session may hold at a time while it holds this
-- one, besides any number of tasks that are not suspects. It is a quarter of the number of suspects that died together,
-- or of other tasks, and 1 at least. So a task that kills its process is in a group of at most a quarter at each death,
-- and soon alone: of 100 tasks at the fourth death, of eight at the third. Then it is charged at each death, and is
-- buried by max_attempts of its worker or max_takes of its queue. A limit of 1 from the beginning is the simpler form:
-- then the 100 tasks of a process that was killed for no fault of theirs are handled one after another.
--
-- A suspect that is innocent is charged wrongly only if a task that is not yet a suspect kills the process beside it.
-- That task is a suspect from then on, and the two are not held together again once both have the limit 1. To leave the
-- tasks beside a suspect unmarked is the simpler form: then the same two tasks are taken together again, and the
-- innocent one is buried.
--
-- The mark is cleared by an end that shows that the process lived on: release, requeue, bury, or a kick after it
-- (settle.sql, pick.sql). It stays after a deadline that passed, and after release_many, which gives back what was not
-- begun. Only a death sets it, so the column is NULL in the life of nearly every task, and costs no byte.
--
-- session.suspects has the suspects that the session took and may still hold. A suspect counts only as long as the
-- session has a take of it, so no settling has to reset anything. Two claims C1 and C2 of one session lock the
-- session's row before they look for these takes, in a new snapshot: C2 skips the locked row and takes no suspect, or
-- it sees what C1 took. A session without a row takes none. take_id takes any task, as the caller names it; a claim of
-- messages belongs to no session.

-- Of the suspects that a claim has found, in their order, those that the session must not take. The others count as
-- held. At REPEATABLE READ a claim that meets another one of its session fails, as any claim does there (take.sql).
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
       AND o.suspect IS NOT NULL;                  -- the session may have released it, and taken it again
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

-- A session died with takes of these tasks, which have none any more. As _count_attempt, it passes over locked tasks.
CREATE OR REPLACE FUNCTION pgqueue._count_death(ids bigint[], reason text, began timestamptz[], taker text)
RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    part CONSTANT int := 4;
    charged  bigint[];
    suspects int;
BEGIN
    SELECT array_agg(t.id) FILTER (WHERE t.suspect = 1 OR cardinality(ids) = 1), count(t.suspect) INTO charged, suspects
      FROM pgqueue.task t WHERE t.id = ANY (_count_death.ids);
    UPDATE pgqueue.task
       SET suspect = CASE WHEN suspect IS NULL THEN greatest(1, (cardinality(ids) - suspects) / part)
                          ELSE least(suspect, greatest(1, suspects / part)) END
     WHERE id = ANY (ARRAY (SELECT t.id FROM pgqueue.task t
                             WHERE t.id = ANY (_count_death.ids) FOR UPDATE SKIP LOCKED));
    IF charged IS NOT NULL THEN
        PERFORM pgqueue._count_attempt(charged, reason, array_agg(u.began ORDER BY c.place),
                                       array_fill(taker, ARRAY [cardinality(charged)]))
           FROM unnest(charged) WITH ORDINALITY c(id, place) JOIN unnest(ids, began) u(id, began) ON u.id = c.id;
    END IF;
END $$;
