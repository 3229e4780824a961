-- The end of a session: its will is published; its exclusive and temporary queues, queues that lost their last taker,
-- and its exchanges are deleted.
--
-- _free_routes runs inside the sweep, and in close_session. It never waits: locked rows are skipped, and the next sweep
-- finds them, since it looks for all queues and exchanges of sessions that are gone. So it also removes those that a
-- server crash left: the crash empties the tables of sessions, wills and takers.

CREATE OR REPLACE FUNCTION pgqueue.set_will(
    exchange text,
    key      text,
    data     jsonb,
    retain   boolean DEFAULT false,
    session  int     DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    me CONSTANT int := pgqueue._live_session(session);
BEGIN
    PERFORM pgqueue._check_publishing(exchange, key, retain), pgqueue._check_data('data', data);
    IF exchange <> '' THEN                         -- the rights are checked when it is published
        PERFORM pgqueue._exchange_type(exchange);
    ELSE
        PERFORM pgqueue._check_guarded(r.id, 'put') FROM pgqueue._routes(exchange, key) r(id);
    END IF;
    INSERT INTO pgqueue.will (session_id, role, exchange, key, retain, data)
    VALUES (me, pgqueue._caller_role(), exchange, key, coalesce(retain, false), data)
        ON CONFLICT (session_id) DO UPDATE
       SET role = excluded.role, exchange = excluded.exchange, key = excluded.key, retain = excluded.retain,
           data = excluded.data;
END $$;
COMMENT ON FUNCTION pgqueue.set_will IS
    'Set the message that is published when the session dies, but not when it is closed. A second will replaces the '
    'first. It reaches the queues into which the role that set it may put by then.';

CREATE OR REPLACE FUNCTION pgqueue.clear_will(session int DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM pgqueue.will w WHERE w.session_id = pgqueue._named_session(session);
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION pgqueue.clear_will IS 'Remove the session''s will; false if there was none.';

-- Whether a session has ended, or ends now. ending: NULL if none ends now, so the comparison alone gives NULL for a
-- session that lives, and NOT _has_ended(...) would not hold for it.
CREATE OR REPLACE FUNCTION pgqueue._has_ended(id int, ending int) RETURNS boolean
LANGUAGE sql STABLE
RETURN id IS NOT DISTINCT FROM ending OR NOT EXISTS (SELECT FROM pgqueue.session s WHERE s.id = _has_ended.id);

CREATE OR REPLACE FUNCTION pgqueue._free_routes(session int, died boolean) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    w   pgqueue.will;
    ids int[];
    r   record;
BEGIN
    IF NOT died THEN
        DELETE FROM pgqueue.will k WHERE k.session_id = session;
    END IF;
    FOR w IN SELECT * FROM pgqueue.will k WHERE pgqueue._has_ended(k.session_id, session) FOR UPDATE SKIP LOCKED LOOP
        IF w.retain AND pgqueue._may_share(w.role) THEN
            PERFORM FROM pgqueue.exchange e WHERE e.name = w.exchange FOR UPDATE SKIP LOCKED;
            IF FOUND THEN
                PERFORM pgqueue._retain(w.exchange, w.key, w.data);
            ELSIF EXISTS (SELECT FROM pgqueue.exchange e WHERE e.name = w.exchange) THEN
                CONTINUE;                         -- a bind or a retained message is under way: later
            END IF;
        END IF;
        ids := ARRAY (SELECT pgqueue._routes_for(w.role, w.exchange, w.key));
        IF ids = '{}'::int[] THEN
            PERFORM pgqueue._count_unmatched(w.exchange);
        END IF;
        PERFORM pgqueue._deliver(ids, w.key, w.data);
        DELETE FROM pgqueue.will k WHERE k.session_id = w.session_id;
    END LOOP;

    FOR r IN
        SELECT q.id FROM pgqueue.queue q
         WHERE q.session_id IS NOT NULL AND pgqueue._has_ended(q.session_id, session)
            OR q.auto_delete
           AND EXISTS (SELECT FROM pgqueue.taker k WHERE k.queue_id = q.id)
           AND NOT EXISTS (SELECT FROM pgqueue.taker k
                            WHERE k.queue_id = q.id AND NOT pgqueue._has_ended(k.session_id, session))
           FOR UPDATE OF q SKIP LOCKED
    LOOP
        PERFORM pgqueue._remove_queue(r.id, most => 10000);
    END LOOP;
    DELETE FROM pgqueue.taker
     WHERE ctid = ANY (ARRAY (
           SELECT k.ctid FROM pgqueue.taker k
            WHERE pgqueue._has_ended(k.session_id, session)
              AND (NOT EXISTS (SELECT FROM pgqueue.queue q WHERE q.id = k.queue_id)
                   OR EXISTS (SELECT FROM pgqueue.taker o
                               WHERE o.queue_id = k.queue_id AND NOT pgqueue._has_ended(o.session_id, session)))
              FOR UPDATE OF k SKIP LOCKED));

    FOR r IN
        SELECT e.name FROM pgqueue.exchange e
         WHERE e.session_id IS NOT NULL AND pgqueue._has_ended(e.session_id, session)
           FOR UPDATE OF e SKIP LOCKED
    LOOP
        -- In a new snapshot: a bind may have committed before the exchange was locked.
        ids := ARRAY (SELECT DISTINCT b.queue_id FROM pgqueue.binding b WHERE b.exchange = r.name);
        IF cardinality(ids) = cardinality(ARRAY (
               SELECT q.id FROM pgqueue.queue q WHERE q.id = ANY (ids) FOR UPDATE SKIP LOCKED)) THEN
            DELETE FROM pgqueue.exchange e WHERE e.name = r.name;
        END IF;
    END LOOP;
END $$;

-- Part of clean_up: remove queues, exchanges and tasks of sessions and queues that are gone, and tasks beyond a maxlen.
CREATE OR REPLACE FUNCTION pgqueue._clean_routes() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    next int;
BEGIN
    PERFORM pgqueue._free_routes(NULL, true);
    -- Tasks of a put that was under way while its queue was deleted. From one queue's tasks to the next by the index.
    LOOP
        SELECT least((SELECT t.queue_id FROM pgqueue.task t
                       WHERE t.state = 'R' AND t.queue_id > coalesce(next, 0) ORDER BY t.queue_id LIMIT 1),
                     (SELECT t.queue_id FROM pgqueue.task t
                       WHERE t.state = 'D' AND t.queue_id > coalesce(next, 0) ORDER BY t.queue_id LIMIT 1),
                     (SELECT t.queue_id FROM pgqueue.task t
                       WHERE t.state = 'B' AND t.queue_id > coalesce(next, 0) ORDER BY t.queue_id LIMIT 1),
                     (SELECT h.queue_id FROM pgqueue._in_lane h            -- L alone would walk over all that are R
                       WHERE h.queue_id > coalesce(next, 0) ORDER BY h.queue_id LIMIT 1),
                     (SELECT t.queue_id FROM pgqueue.task t
                       WHERE t.state = 'W' AND t.queue_id > coalesce(next, 0) ORDER BY t.queue_id LIMIT 1),
                     (SELECT t.queue_id FROM pgqueue.task t
                       WHERE t.state = 'C' AND t.queue_id > coalesce(next, 0) ORDER BY t.queue_id LIMIT 1),
                     (SELECT t.queue_id FROM pgqueue.task t
                       WHERE t.state = 'F' AND t.queue_id > coalesce(next, 0) ORDER BY t.queue_id LIMIT 1)) INTO next;
        EXIT WHEN next IS NULL;
        IF NOT EXISTS (SELECT FROM pgqueue.queue q WHERE q.id = next) THEN
            PERFORM pgqueue._remove_tasks(next, most => 10000);
        END IF;
    END LOOP;
    PERFORM pgqueue._trim_queue(q.id, q.maxlen) FROM pgqueue.queue q WHERE q.maxlen IS NOT NULL;
END $$;
