-- Posting to named channels: NOTIFY, for payloads of up to 64 MiB.
--
-- A channel is a channel of PostgreSQL: LISTEN in psql hears posts, and wait() hears a NOTIFY from psql.
-- A post arrives when its transaction commits, and never when it rolls back; the same payload of up to 7999
-- bytes, posted twice in one transaction, arrives once, which is PostgreSQL's rule.
--
-- NOTIFY carries 7999 bytes. A larger payload is kept in a table, and NOTIFY carries its id behind a mark; a payload
-- that happens to begin with the mark is stored too. Listeners fetch it as soon as they hear of it.

CREATE OR REPLACE FUNCTION pgqueue.post(channel text, payload text DEFAULT '') RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    mark   CONSTANT text := E'\x01pgqueue:';
    new_id bigint;
BEGIN
    IF channel IS NULL OR octet_length(channel) NOT BETWEEN 1 AND 63 THEN
        RAISE EXCEPTION 'a channel''s name has 1 to 63 bytes, this one has %', coalesce(octet_length(channel), 0)
            USING ERRCODE = 'PQ001';
    ELSIF starts_with(channel, 'pgqueue:') THEN
        RAISE EXCEPTION 'channels that begin with pgqueue: are its own, as "%"', channel USING ERRCODE = 'PQ001';
    END IF;
    IF octet_length(payload) > 7999 OR starts_with(payload, mark) THEN
        PERFORM pgqueue._check_text('a payload', payload, pgqueue._most_data(), code => 'PQ036');
        INSERT INTO pgqueue.payload (role, size, payload)
        VALUES (pgqueue._caller(), octet_length(payload), post.payload) RETURNING id INTO new_id;
        -- Small payloads are summed up only from time to time: a sum at each post would walk over all those of the last
        -- minute.
        IF octet_length(payload) > 1000000 OR new_id % 64 = 0 THEN
            PERFORM pgqueue._check_quota('payloads');
        END IF;
        payload := mark || new_id;
    END IF;
    PERFORM pg_notify(channel, coalesce(payload, ''));
END $$;
COMMENT ON FUNCTION pgqueue.post IS 'Send a payload to all listeners of a channel, when the transaction commits.';

CREATE OR REPLACE FUNCTION pgqueue.stored_payload(id bigint) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    LOCK TABLE pgqueue.payload IN ACCESS SHARE MODE NOWAIT;        -- the listener waits for no table: it calls again
    RETURN (SELECT p.payload FROM pgqueue.payload p WHERE p.id = stored_payload.id);
END $$;
COMMENT ON FUNCTION pgqueue.stored_payload IS
    'For clients: the payload, by its id, of a post that was too large for NOTIFY. lock_not_available, at once: the '
    'table is locked.';

-- Delete stored payloads a minute after a cleaning first saw them, not after the post: that may be long before its
-- commit.
CREATE OR REPLACE FUNCTION pgqueue._clean_payloads() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM pgqueue.payload
     WHERE id = ANY (ARRAY (SELECT p.id FROM pgqueue.payload p
                             WHERE p.seen_at < clock_timestamp() - interval '1 min' FOR UPDATE SKIP LOCKED));
    UPDATE pgqueue.payload SET seen_at = clock_timestamp()
     WHERE id = ANY (ARRAY (SELECT p.id FROM pgqueue.payload p
                             WHERE p.seen_at IS NULL OR p.seen_at > clock_timestamp() FOR UPDATE SKIP LOCKED));
END $$;
