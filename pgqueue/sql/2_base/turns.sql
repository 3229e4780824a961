-- Turns: how the listener of a client enters the line, leaves it, and passes a call on. line.sql has the theory.
--
-- Rights. A session enters only for itself, and only for queues that its role may take from: else a role without that
-- right would be called in place of a taker. A role that has the right and enters twice, or says that it has waited for
-- years, gets more calls than its share, as it could take more tasks than its share. Anyone may pass on: it wakes a
-- taker, as every put does.

-- Tell the process that hears every put of this bucket that it no longer waits alone. Queues share a bucket, so the
-- notification is sent on the channels of all of them: the process may wait on another queue than the caller.
CREATE OR REPLACE FUNCTION pgqueue._say_come(k int) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT (CASE WHEN pg_try_advisory_lock(pgqueue._hearing_lock(), k)
                 THEN pg_advisory_unlock(pgqueue._hearing_lock(), k) ELSE false END) THEN
        PERFORM pgqueue._notify(pgqueue._channel(id), 'come')
           FROM generate_series(k, (SELECT max(q.id) FROM pgqueue.queue q), 1024) named(id) WHERE id > 0;
    END IF;
END $$;

-- The moment of a place, from the number that enter_line returned. NULL: enter_line never returns such a number.
CREATE OR REPLACE FUNCTION pgqueue._place(seconds double precision) RETURNS timestamptz
LANGUAGE sql STABLE RETURN CASE WHEN seconds BETWEEN 0 AND 1e11 THEN to_timestamp(seconds) END;

CREATE OR REPLACE FUNCTION pgqueue.enter_line(
    queue_ids int[],
    waited    double precision[],                 -- seconds since the first taker began to wait
    places    double precision[] DEFAULT NULL,    -- the last answer for each queue; NULL: none
    hearing   int[]              DEFAULT '{}'     -- the queues whose every put this connection hears
) RETURNS TABLE (queue_id int, since double precision, hears boolean)
LANGUAGE plpgsql AS $$
DECLARE
    me CONSTANT int := pgqueue._own_session();
    q    record;
    k    int;
    held boolean;
    late timestamptz;
BEGIN
    PERFORM pgqueue._check_array('queue_ids', queue_ids), pgqueue._check_array('waited', waited),
            pgqueue._check_array('places', places, nulls => true), pgqueue._check_array('hearing', hearing);
    IF me IS NULL OR NOT pgqueue._can_call() THEN
        RETURN;
    END IF;
    FOR q IN
        SELECT named.id, u.waited, u.place
          FROM unnest(queue_ids, enter_line.waited, places) u(id, waited, place)
          JOIN pgqueue.queue named ON named.id = u.id
         WHERE NOT named.guarded OR pgqueue._may(named.id, 'take')
    LOOP
        k := pgqueue._bucket(q.id);
        held := q.id = ANY (hearing);
        IF held AND NOT pgqueue._others_wait(k) OR NOT held AND pgqueue._hear_alone(k) THEN
            RETURN QUERY SELECT q.id, NULL::double precision, true;
            CONTINUE;
        END IF;
        late := (SELECT l.since FROM pgqueue.line l
                  WHERE l.queue_id = q.id AND l.since = pgqueue._place(q.place) AND l.session_id = me LIMIT 1);
        IF late IS NULL THEN
            INSERT INTO pgqueue.line (queue_id, since, session_id)
            VALUES (q.id, clock_timestamp() - least(greatest(q.waited, 0), 1e9) * interval '1 s', me)
            RETURNING line.since INTO late;
        END IF;
        PERFORM pgqueue._say_come(k);
        RETURN QUERY SELECT q.id, extract(epoch FROM late)::double precision, false;
    END LOOP;
END $$;
COMMENT ON FUNCTION pgqueue.enter_line IS
    'For clients that armed with in_turn, on the connection of their session: puts call this session, on the channel '
    'pgqueue:call:SESSION, when its turn has come. A place that is still in line stays. hears: no other process waits, '
    'so this one hears of every put, and a taker has to look once more. A queue without a row: try again later. A '
    'connection that heard, and is in line now, calls stop_hearing.';

-- A statement of its own, after enter_line: the unlocking is not rolled back, and a place that failed to commit leaves
-- the lock. Unlocking in enter_line could leave a process that neither hears nor is in line.
CREATE OR REPLACE FUNCTION pgqueue.stop_hearing(queue_ids int[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    queue_id int;
BEGIN
    FOREACH queue_id IN ARRAY coalesce(queue_ids, '{}') LOOP
        IF pg_advisory_unlock_shared(pgqueue._hearing_lock(), pgqueue._bucket(queue_id)) THEN END IF;
    END LOOP;
END $$;
COMMENT ON FUNCTION pgqueue.stop_hearing IS
    'For clients: this connection, which heard of every put into these queues, has entered their lines.';

CREATE OR REPLACE FUNCTION pgqueue.leave_line(queue_ids int[], places double precision[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    me CONSTANT int := pgqueue._own_session();
BEGIN
    PERFORM pgqueue._check_array('queue_ids', queue_ids), pgqueue._check_array('places', places);
    IF pgqueue._can_call() THEN
        DELETE FROM pgqueue.line
         WHERE ctid = ANY (ARRAY (SELECT l.ctid
                                    FROM unnest(queue_ids, places) u(queue_id, place)
                                    JOIN pgqueue.line l ON l.queue_id = u.queue_id AND l.since = pgqueue._place(u.place)
                                   WHERE l.session_id = me FOR UPDATE OF l SKIP LOCKED));
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.leave_line IS
    'For clients: give up places that enter_line gave. A place that an open transaction is calling stays: if that '
    'commits, the session is called, and has to pass the call on.';

CREATE OR REPLACE FUNCTION pgqueue.pass_on(queue_ids int[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue._check_array('queue_ids', queue_ids);
    PERFORM pgqueue._signal(q.id, 1) FROM pgqueue.queue q WHERE q.id = ANY (queue_ids);
END $$;
COMMENT ON FUNCTION pgqueue.pass_on IS
    'For clients: this session was called for a task of these queues and will not take it. Calls the next in line.';
