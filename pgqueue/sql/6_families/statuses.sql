-- Status by key.
--
-- A status is a value under a key that the application chooses, for example md5(url). set_status announces it at
-- commit. Announcing costs a lock over the whole server at each commit (wake.sql); statuses are few beside puts and
-- acks.
--
-- An expired status counts as absent from that moment on. Cleanings remove it, no more than `portion` rows at a time.

-- With if_absent a status that has not expired stays as it is. Of two transactions T1 and T2 that set an absent one at
-- the same time, T2 waits for T1 at the primary key. If T1 commits, the ON CONFLICT of T2 reads its row, which has not
-- expired. If T1 rolls back, T2 inserts.

CREATE OR REPLACE FUNCTION pgqueue.set_status(
    key text, value jsonb, ttl interval DEFAULT NULL, if_absent boolean DEFAULT false
) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
BEGIN
    IF key IS NULL OR length(key) NOT BETWEEN 1 AND 200 THEN
        RAISE EXCEPTION 'a status key has 1 to 200 characters, this one has %', coalesce(length(key), 0)
            USING ERRCODE = 'PQ040', HINT = 'Take md5() of what is longer.';
    ELSIF value IS NULL OR value = 'null' THEN
        RAISE EXCEPTION 'a status is not null: that is what get_status says of a key without one'
            USING ERRCODE = 'PQ041', HINT = 'delete_status removes it.';
    END IF;
    PERFORM pgqueue._check_keep('ttl', ttl), pgqueue._check_data('a status', value);
    INSERT INTO pgqueue.status AS s (key, value, updated_at, expires_at)
    VALUES (key, value, moment, moment + ttl)
        ON CONFLICT ON CONSTRAINT status_pkey DO UPDATE
       SET value = excluded.value, updated_at = excluded.updated_at, expires_at = excluded.expires_at
     WHERE if_absent IS NOT TRUE OR s.expires_at <= moment;
    IF FOUND THEN
        PERFORM pg_notify('pgqueue:status:' || md5(key), '');
    END IF;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION pgqueue.set_status IS
    'Set the status of a key, for the time of ttl or permanently, and notify waiters at commit.
With if_absent only if it has none: false if it has one.';

CREATE OR REPLACE FUNCTION pgqueue.get_status(key text) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT s.value FROM pgqueue.status s
             WHERE s.key = get_status.key AND (s.expires_at IS NULL OR s.expires_at > clock_timestamp()));
END $$;
COMMENT ON FUNCTION pgqueue.get_status IS 'The status of a key; NULL if it has none, or it has expired.';

CREATE OR REPLACE FUNCTION pgqueue.delete_status(key text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    expired boolean;
BEGIN
    DELETE FROM pgqueue.status s WHERE s.key = delete_status.key
    RETURNING coalesce(s.expires_at <= clock_timestamp(), false) INTO expired;
    RETURN FOUND AND NOT expired;
END $$;
COMMENT ON FUNCTION pgqueue.delete_status IS 'Remove the status of a key; false if there was none.';

CREATE OR REPLACE VIEW pgqueue.statuses AS
SELECT s.key, s.value, s.updated_at, s.expires_at
  FROM pgqueue.status s
 WHERE (s.expires_at IS NULL OR s.expires_at > clock_timestamp()) AND (SELECT pgqueue._may_see_all('share'));
COMMENT ON VIEW pgqueue.statuses IS 'Every status that has not expired, for roles that may share.';

-- Part of clean_up.
CREATE OR REPLACE FUNCTION pgqueue._clean_statuses() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    portion CONSTANT int         := 5000;
    moment  CONSTANT timestamptz := clock_timestamp();
BEGIN
    DELETE FROM pgqueue.status
     WHERE ctid = ANY (ARRAY (SELECT s.ctid FROM pgqueue.status s
                               WHERE s.expires_at <= moment
                               ORDER BY s.expires_at LIMIT portion FOR UPDATE SKIP LOCKED));
END $$;
