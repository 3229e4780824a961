-- Claims of messages, as in OpenStack's Zaqar.
--
-- Theory of operation
-- -------------------
-- A message is a task. A claim is a set of takes that were made together: they have one token, which is the claim's id;
-- they belong to no session (0), so no process has to stay alive for them; and they have one deadline, the claim's end.
--
--   claim_messages   takes, and a row in `claim` with their ids. From now on a claimed message lives for at least as
--                    long as the claim and its grace.
--   delete_message   an ack, if the claim is named; otherwise only a message that is not claimed is deleted.
--   renew_claim      sets another deadline for the remaining takes.
--   release_claim    gives back the remaining messages.
--   the end          the deadlines have passed: the next claim or take of the queue gives the messages back (due.sql).
--
-- The end needs no process. A claim that is over counts as absent from that moment, and its row is deleted when the
-- next claim of any queue is made.
--
-- Each message is held by its own take, and each take is checked separately. Zaqar's Redis driver claims all messages
-- after the first free one, and stores the number of claims beside them; both go wrong as soon as claims end in another
-- order than that in which they were made. Here the takes are counted.
--
-- A message that comes back because its claim's time was over counts as an attempt (due.sql): so max_takes and
-- dead_letter are Zaqar's _max_claim_count and _dead_letter_queue. A claim that is released gives its messages back
-- without one: its holder lives, and has not failed.
--
-- A claim belongs to the role that made it. To other roles it does not exist: get_claim has no rows, renew_claim is
-- false, release_claim gives back nothing. An error would tell a role that guesses numbers which of them are claims.
-- The id is a token as well, and a token settles a message for every role (settle.sql): so no view shows the id of
-- another role's claim.
--
-- Locks: the claim's row, then its takes, then their tasks. A take that a transaction T1 is settling at this moment is
-- left to T1. For example, an application acks messages in a long transaction T1 and renews the claim in another one,
-- T2: if T2 waited for T1, the new deadlines of all other messages would not be committed until they have passed, and
-- T2 would deadlock with T1's next ack of one of those messages. If T1 rolls back, its message has the claim's old end,
-- or that of the next renewal.

CREATE OR REPLACE FUNCTION pgqueue._check_claim(ttl interval, grace interval) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF ttl IS NULL OR grace IS NULL THEN
        RAISE EXCEPTION 'a claim needs a ttl and a grace: the ttl is %, the grace is %', ttl, grace
            USING ERRCODE = 'PQ002';
    END IF;
    PERFORM pgqueue._check_time('ttl', ttl), pgqueue._check_time('grace', grace, zero => true);
END $$;

-- The messages that a claim still holds. By key: `take` must not be scanned (take.sql).
CREATE OR REPLACE FUNCTION pgqueue._claimed_messages(claim bigint)
RETURNS TABLE (id bigint, priority int, attempts int, deadline timestamptz, data jsonb, age interval, ttl interval)
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
        SELECT t.id, t.priority, t.attempts, k.deadline, t.data, pgqueue._age(t), pgqueue._ttl(t)
          FROM pgqueue.claim c, unnest(c.task_ids) held(id), pgqueue.take k, pgqueue.task t
         WHERE c.token = _claimed_messages.claim AND k.task_id = held.id AND k.token = c.token AND t.id = held.id
         ORDER BY t.priority, t.id;
END $$;

-- The tasks among these with a take of this token that is not being settled. Locks these takes.
CREATE OR REPLACE FUNCTION pgqueue._lock_claimed(ids bigint[], claim bigint) RETURNS bigint[]
LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY (SELECT k.task_id FROM pgqueue.take k
                   WHERE k.task_id = ANY (ids) AND k.token = claim FOR UPDATE SKIP LOCKED);
END $$;

-- Set the deadline of a claim's takes to its end, and let its messages live for the grace longer; a message that lives
-- long enough, or without limit, is not changed. A deadline that has just passed does not matter: the take has the
-- token, so no other session has had the message, and the take has a new deadline from now on. Returns the messages
-- that the claim still holds.
CREATE OR REPLACE FUNCTION pgqueue._hold_messages(claim bigint) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    c   pgqueue.claim;
    ids bigint[];
BEGIN
    SELECT * INTO c FROM pgqueue.claim named WHERE named.token = _hold_messages.claim;
    ids := pgqueue._lock_claimed(c.task_ids, claim);
    UPDATE pgqueue.take k SET deadline = c.expires_at WHERE k.task_id = ANY (ids);
    UPDATE pgqueue.task t SET expires_at = c.expires_at + c.grace
     WHERE t.id = ANY (ids) AND t.expires_at < c.expires_at + c.grace;
    RETURN ids;
END $$;

-- Each new claim deletes a few expired ones: so they cannot pile up.
CREATE OR REPLACE FUNCTION pgqueue._drop_old_claims() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM pgqueue.claim
     WHERE token = ANY (ARRAY (SELECT c.token FROM pgqueue.claim c
                                WHERE c.expires_at <= statement_timestamp()
                                ORDER BY c.expires_at LIMIT 10 FOR UPDATE SKIP LOCKED));
END $$;

CREATE OR REPLACE FUNCTION pgqueue.claim_messages(
    queue   text,
    n       int      DEFAULT 10,
    ttl     interval DEFAULT '60 s',
    grace   interval DEFAULT '60 s',
    session int      DEFAULT NULL            -- only for a queue that is exclusive or auto_delete
) RETURNS TABLE (claim bigint, id bigint, priority int, attempts int, deadline timestamptz, data jsonb,
                 message_age interval, message_ttl interval)
LANGUAGE plpgsql AS $$
DECLARE
    me     CONSTANT int    := pgqueue._named_session(session);
    new_id CONSTANT bigint := pgqueue._new_token() & 9223372036854775807;   -- not below 0: people read it
    q      record;
    ids    bigint[];
BEGIN
    PERFORM pgqueue._check_claim(ttl, grace), pgqueue._check_count('n', n);
    SELECT * INTO q FROM pgqueue._queue_due named WHERE named.name = claim_messages.queue;
    IF q.delay_over OR q.ttr_over THEN
        PERFORM pgqueue._promote_or_wait(q.id);
    END IF;
    IF q.id IS NULL OR (q.special OR q.guarded) AND NOT pgqueue._enter_queue(q.id, me) THEN
        RETURN;
    END IF;
    IF q.by_heads THEN
        ids := ARRAY (SELECT c.id FROM pgqueue._claim_heads(q.id, q.name, n, 0, new_id, NULL, NULL) c);
    ELSE
        ids := ARRAY (SELECT c.id FROM pgqueue._claim(q.id, q.name, n, 0, new_id, NULL, NULL, q.special) c);
    END IF;
    IF ids = '{}' THEN
        RETURN;
    END IF;
    PERFORM pgqueue._drop_old_claims();
    INSERT INTO pgqueue.claim (token, role, queue_id, ttl, grace, renewed_at, expires_at, task_ids)
    SELECT new_id, pgqueue._caller_role(), q.id, claim_messages.ttl, claim_messages.grace, moment,
           moment + claim_messages.ttl, ids
      FROM clock_timestamp() moment;
    PERFORM pgqueue._hold_messages(new_id);
    RETURN QUERY
        SELECT new_id, m.id, m.priority, m.attempts, m.deadline, m.data, m.age, m.ttl
          FROM pgqueue._claimed_messages(new_id) m;
END $$;
COMMENT ON FUNCTION pgqueue.claim_messages IS
    'Claim up to n messages for the time of ttl, the first by (priority, id). No rows, and no claim, if there are '
    'none. message_age: for how long the message has been ready; message_ttl: how long it lives from then on, NULL '
    'for no limit.';

CREATE OR REPLACE FUNCTION pgqueue._live_claim(queue text, claim bigint) RETURNS SETOF pgqueue.claim
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
        SELECT c.* FROM pgqueue.claim c
         WHERE c.token = _live_claim.claim AND c.expires_at > clock_timestamp() AND pgqueue._is_callers(c.role)
           AND c.queue_id = (SELECT q.id FROM pgqueue.queue q WHERE q.name = _live_claim.queue);
END $$;

CREATE OR REPLACE FUNCTION pgqueue.get_claim(queue text, claim bigint)
RETURNS TABLE (ttl interval, grace interval, age interval,
               id bigint, priority int, attempts int, deadline timestamptz, data jsonb,
               message_age interval, message_ttl interval)
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
        SELECT c.ttl, c.grace, clock_timestamp() - c.renewed_at, m.id, m.priority, m.attempts, m.deadline, m.data,
               m.age, m.ttl
          FROM pgqueue._live_claim(queue, claim) c
          LEFT JOIN pgqueue._claimed_messages(c.token) m ON true;
END $$;
COMMENT ON FUNCTION pgqueue.get_claim IS
    'A claim and the messages that it still holds, one row for each; one row without a message if it holds none. No '
    'rows: the claim does not exist, or is over.';

CREATE OR REPLACE FUNCTION pgqueue.renew_claim(
    queue text, claim bigint, ttl interval DEFAULT '60 s', grace interval DEFAULT '60 s'
) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    q int;
BEGIN
    PERFORM pgqueue._check_claim(ttl, grace);
    UPDATE pgqueue.claim c
       SET ttl = renew_claim.ttl, grace = renew_claim.grace, renewed_at = moment, expires_at = moment + renew_claim.ttl
     WHERE c.token = (SELECT l.token FROM pgqueue._live_claim(queue, claim) l) AND c.expires_at > clock_timestamp()
    RETURNING c.queue_id INTO q;
    IF q IS NULL THEN
        RETURN false;
    END IF;
    PERFORM pgqueue._note(q, 'touch', pgqueue._hold_messages(claim));
    RETURN true;
END $$;
COMMENT ON FUNCTION pgqueue.renew_claim IS
    'Let a claim, and the messages that it holds, live for ttl from now. False if it does not exist, or is over.';

CREATE OR REPLACE FUNCTION pgqueue.release_claim(queue text, claim bigint) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    q   int;
    ids bigint[];
BEGIN
    DELETE FROM pgqueue.claim c
     WHERE c.token = release_claim.claim AND pgqueue._is_callers(c.role)
       AND c.queue_id = (SELECT named.id FROM pgqueue.queue named WHERE named.name = release_claim.queue)
    RETURNING c.queue_id, c.task_ids INTO q, ids;
    ids := pgqueue._lock_claimed(ids, claim);
    IF ids <> '{}' THEN
        PERFORM pgqueue._untake_tasks(ids),
                pgqueue._given_back(array_fill(q, ARRAY [cardinality(ids)]), ids, 'release');
    END IF;
    RETURN cardinality(ids);
END $$;
COMMENT ON FUNCTION pgqueue.release_claim IS
    'Give back the messages that a claim still holds, and end it; returns how many. This counts as no attempt: only '
    'the expiry of a claim does. A claim that does not exist has already ended.';

CREATE OR REPLACE FUNCTION pgqueue._is_message(queue text, id bigint) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM pgqueue.task t, pgqueue.queue q
                    WHERE t.id = _is_message.id AND t.state <> 'F'
                      AND q.id = t.queue_id AND q.name = _is_message.queue);
END $$;
