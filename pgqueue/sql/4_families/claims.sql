-- Messages and claims, as OpenStack's Zaqar has them.
--
-- Theory of operation
-- -------------------
-- A message is a task. A claim is several takes that were made together: they have one token, which is the claim's id;
-- they are of nobody's session (0), so no process has to stay alive for them; and they have one deadline, its end.
--
--   claim_messages   takes, and a row in `claim` with their ids. From now on a claimed message lives for at least as
--                    long as the claim and its grace.
--   delete_message   an ack, if the claim is named; otherwise only what nobody holds is deleted.
--   renew_claim      another deadline for the takes that are left.
--   delete_claim     gives back what is left.
--   the end          the deadlines have passed: whoever claims or takes next gives the messages back (due.sql).
--
-- Nothing has to run for that last one. A claim that is over counts as absent from that moment, and its row goes when
-- the next claim is made, of whatever queue.
--
-- What a message is held by is its take, each checked by itself. The original's Redis driver claims all that follows
-- the first message which nobody holds, and counts claims by a number kept beside them; both go wrong as soon as
-- claims end in another order than they were made. Here the number is the number of takes.
--
-- A message that comes back from a claim counts as an attempt, whether the claim was deleted or its time was over: so
-- max_takes and dead_letter are Zaqar's _max_claim_count and _dead_letter_queue.
--
-- Locks: the claim's row, then its takes, then their tasks. A take that some transaction is settling at this moment is
-- left to that one. Whoever acks messages in a long transaction renews the claim from beside it: a renewal that waited
-- for the ack would hold back the new deadlines of all the others until they have passed, and deadlock if the next ack
-- is for one of those. If the ack rolls back, that message has the claim's old end, or the next renewal's.

CREATE OR REPLACE FUNCTION pgqueue._check_claim(ttl interval, grace interval) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF ttl <= '0' OR ttl IS NULL OR grace < '0' OR grace IS NULL THEN
        RAISE EXCEPTION 'a claim''s ttl is positive and its grace not negative: the ttl is %, the grace is %', ttl, grace
            USING ERRCODE = 'PQ002';
    END IF;
END $$;

-- What a claim holds, whatever it held at first. By key: `take` must not be scanned (take.sql).
CREATE OR REPLACE FUNCTION pgqueue._claimed_messages(claim bigint)
RETURNS TABLE (id bigint, priority int, attempts int, deadline timestamptz, data jsonb)
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
        SELECT t.id, t.priority, t.attempts, k.deadline, t.data
          FROM pgqueue.claim c, unnest(c.task_ids) held(id), pgqueue.take k, pgqueue.task t
         WHERE c.token = _claimed_messages.claim AND k.task_id = held.id AND k.token = c.token AND t.id = held.id
         ORDER BY t.priority, t.id;
END $$;

-- Of these tasks, those whose takes have the token and are not being settled; nobody settles them now.
CREATE OR REPLACE FUNCTION pgqueue._lock_claimed(ids bigint[], claim bigint) RETURNS bigint[]
LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY (SELECT k.task_id FROM pgqueue.take k
                   WHERE k.task_id = ANY (ids) AND k.token = claim FOR UPDATE SKIP LOCKED);
END $$;

-- The claim's end for its takes, and for its messages a life that is longer by the grace; those that live long enough,
-- or for ever, are not touched. Whether a deadline has just passed is no matter: the token is there, so nobody else
-- had it meanwhile, and from now on it has not passed. Returns the messages that it still holds.
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

-- A few that are over, for each that is made: so they cannot pile up.
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
    session int      DEFAULT NULL            -- only for a queue that is exclusive, or goes with its takers
) RETURNS TABLE (claim bigint, id bigint, priority int, attempts int, deadline timestamptz, data jsonb)
LANGUAGE plpgsql AS $$
DECLARE
    new_id CONSTANT bigint := pgqueue._new_token() & 9223372036854775807;   -- people read it: not below 0
    q      record;
    ids    bigint[];
BEGIN
    PERFORM pgqueue._check_claim(ttl, grace);
    IF n < 1 OR n IS NULL THEN
        RAISE EXCEPTION 'cannot claim % messages', n USING ERRCODE = 'PQ002';
    END IF;
    SELECT * INTO q FROM pgqueue._queue_due named WHERE named.name = claim_messages.queue;
    IF q.delay_over OR q.ttr_over THEN
        PERFORM pgqueue._promote(q.id);
    END IF;
    IF q.id IS NULL OR q.special AND NOT pgqueue._enter_queue(q.id, coalesce(session, pgqueue.own_session())) THEN
        RETURN;
    END IF;
    IF q.lanes THEN
        ids := ARRAY (SELECT c.id FROM pgqueue._claim_lanes(q.id, q.name, n, 0, new_id, NULL, NULL) c);
    ELSE
        ids := ARRAY (SELECT c.id FROM pgqueue._claim(q.id, q.name, n, 0, new_id, NULL, NULL, q.special) c);
    END IF;
    IF ids = '{}' THEN
        RETURN;
    END IF;
    PERFORM pgqueue._drop_old_claims();
    INSERT INTO pgqueue.claim (token, queue_id, ttl, grace, renewed_at, expires_at, task_ids)
    SELECT new_id, q.id, claim_messages.ttl, claim_messages.grace, moment, moment + claim_messages.ttl, ids
      FROM clock_timestamp() moment;
    PERFORM pgqueue._hold_messages(new_id);
    RETURN QUERY SELECT new_id, m.id, m.priority, m.attempts, m.deadline, m.data FROM pgqueue._claimed_messages(new_id) m;
END $$;
COMMENT ON FUNCTION pgqueue.claim_messages IS
    'Claim up to n messages for as long as ttl, the first by (priority, id); no rows, and no claim, if there are none.';

CREATE OR REPLACE FUNCTION pgqueue._live_claim(queue text, claim bigint) RETURNS SETOF pgqueue.claim
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
        SELECT c.* FROM pgqueue.claim c
         WHERE c.token = _live_claim.claim AND c.expires_at > clock_timestamp()
           AND c.queue_id = (SELECT q.id FROM pgqueue.queue q WHERE q.name = _live_claim.queue);
END $$;

CREATE OR REPLACE FUNCTION pgqueue.get_claim(queue text, claim bigint)
RETURNS TABLE (ttl interval, grace interval, age interval,
               id bigint, priority int, attempts int, deadline timestamptz, data jsonb)
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
        SELECT c.ttl, c.grace, clock_timestamp() - c.renewed_at, m.id, m.priority, m.attempts, m.deadline, m.data
          FROM pgqueue._live_claim(queue, claim) c
          LEFT JOIN pgqueue._claimed_messages(c.token) m ON true;
END $$;
COMMENT ON FUNCTION pgqueue.get_claim IS
    'A claim and the messages that it still holds, a row each; one row without a message if it holds none. No rows: '
    'there is no such claim, or it is over.';

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
    'A new life for a claim, from now, and for what it holds; false if there is no such claim, or it is over.';

CREATE OR REPLACE FUNCTION pgqueue.delete_claim(queue text, claim bigint) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    q   int;
    ids bigint[];
BEGIN
    DELETE FROM pgqueue.claim c
     WHERE c.token = delete_claim.claim
       AND c.queue_id = (SELECT named.id FROM pgqueue.queue named WHERE named.name = delete_claim.queue)
    RETURNING c.queue_id, c.task_ids INTO q, ids;
    ids := pgqueue._lock_claimed(ids, claim);
    IF ids <> '{}' THEN
        DELETE FROM pgqueue.take k WHERE k.task_id = ANY (ids);
        INSERT INTO pgqueue.delta (queue_id, taken) VALUES (q, -cardinality(ids));
        PERFORM pgqueue._note(q, 'release', ids), pgqueue._count_attempt(ids, 'its claim was deleted'), pgqueue._signal(q);
    END IF;
    RETURN cardinality(ids);
END $$;
COMMENT ON FUNCTION pgqueue.delete_claim IS
    'Give back what a claim still holds, and end it; returns how many messages. One that is not there is ended '
    'already.';

CREATE OR REPLACE FUNCTION pgqueue._is_message(queue text, id bigint) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM pgqueue.task t, pgqueue.queue q
                    WHERE t.id = _is_message.id AND t.state <> 'F' AND q.id = t.queue_id AND q.name = _is_message.queue);
END $$;
