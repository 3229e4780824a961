-- Messages: deleting them, listing them page by page without missing a late commit, and counting them as Zaqar does.
--
-- A marker that is only an id loses messages: a put gets its id at once and shows it at its commit, so a reader that
-- has passed id 7 never sees an id 5 of a transaction that was still open. Pages are ordered by (xid, id), the
-- transaction that put the message (or gave it its place later: listed.sql) and its id, and end before the oldest
-- transaction that is still open: below the snapshot's xmin every transaction has ended, so no message can appear
-- before a marker any more. The queue has to be `listed` for this.

-- Delete a message that is not claimed. Lock order: an expired take first, which need not be given back any more, then
-- the task. Then a new snapshot: a claim that had the task's row before has committed its take.
CREATE OR REPLACE FUNCTION pgqueue._delete_free_message(id bigint) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    of_queue int;
BEGIN
    PERFORM pgqueue._check_read_committed('delete_message without a claim');
    PERFORM pgqueue._check_tasks(ARRAY [id], 'take');
    PERFORM pgqueue._untake_tasks(ARRAY [id], waits => true, only_late => true);
    SELECT t.queue_id INTO of_queue FROM pgqueue.task t WHERE t.id = _delete_free_message.id FOR UPDATE;
    PERFORM pgqueue._check_guarded(of_queue, 'take');
    IF EXISTS (SELECT FROM pgqueue.take k WHERE k.task_id = _delete_free_message.id) THEN
        RETURN 'claimed';
    ELSIF of_queue IS NOT NULL THEN
        PERFORM pgqueue._remove_task(id, of_queue);
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.delete_message(queue text, id bigint, claim bigint DEFAULT NULL, OUT problem text)
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT pgqueue._is_message(queue, id) THEN
        PERFORM pgqueue._check_server(id);
        RETURN;                                    -- it is already deleted
    ELSIF claim IS NULL THEN
        problem := pgqueue._delete_free_message(id);
        RETURN;
    ELSIF EXISTS (SELECT FROM pgqueue.claim c WHERE c.token = delete_message.claim
                                                AND NOT pgqueue._is_callers(c.role)) THEN
        claim := -1;                               -- as a claim that does not exist: claims.sql
    END IF;
    SELECT CASE a.problem WHEN 'not taken' THEN 'not claimed' WHEN 'taken by another' THEN 'claimed by another' END
      INTO problem FROM pgqueue.ack(id => delete_message.id, token => claim) a;
    IF problem = 'claimed by another' AND NOT EXISTS (SELECT FROM pgqueue._live_claim(queue, claim)) THEN
        problem := 'no claim';
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.delete_message IS
    'Delete a message; a claimed one only with its claim. problem: claimed, not claimed, claimed by another, or no '
    'claim; then nothing changed. For a message that does not exist there is none.';

CREATE OR REPLACE FUNCTION pgqueue.delete_messages(queue text, ids bigint[])
RETURNS TABLE (id bigint, priority int, attempts int, data jsonb, age interval, ttl interval)
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue._check_array('ids', ids);
    PERFORM pgqueue._check_server(given.id) FROM unnest(ids) given(id);
    FOR id, priority, attempts, data, age, ttl IN
        SELECT t.id, t.priority, t.attempts,
               CASE WHEN NOT q.guarded OR pgqueue._may(q.id, 'look') THEN t.data END, pgqueue._age(t), pgqueue._ttl(t)
          FROM pgqueue.task t JOIN pgqueue.queue q ON q.id = t.queue_id
         WHERE q.name = delete_messages.queue AND t.id = ANY (ids) ORDER BY t.id
    LOOP
        IF pgqueue._is_message(queue, id) AND pgqueue.delete(id) THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;
COMMENT ON FUNCTION pgqueue.delete_messages IS
    'Delete messages, claimed or not; returns those that existed. Without the verb look their data is NULL.';

CREATE OR REPLACE FUNCTION pgqueue.list_messages(
    queue           text,
    after           text    DEFAULT NULL,    -- the marker of the last message of the page before
    n               int     DEFAULT 10,
    sender          uuid    DEFAULT NULL,    -- the client that lists
    echo            boolean DEFAULT false,   -- also list messages that this client has put
    include_claimed boolean DEFAULT false,
    include_delayed boolean DEFAULT false
) RETURNS TABLE (
    marker text, id bigint, state text, priority int, attempts int, created_at timestamptz, sent_by uuid, data jsonb,
    age interval, ttl interval
)
LANGUAGE plpgsql AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    q       int;
    listed  boolean;
    guarded boolean;
BEGIN
    PERFORM pgqueue._check_count('n', n);
    IF after !~ '^[0-9]{1,18}\.[0-9]{1,18}$' THEN
        RAISE EXCEPTION '"%" is not the marker of a message', pgqueue._shown(after) USING ERRCODE = 'PQ002';
    END IF;
    SELECT named.id, named.listed, named.guarded INTO q, listed, guarded
      FROM pgqueue.queue named WHERE named.name = list_messages.queue;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no queue "%"', pgqueue._shown(queue) USING ERRCODE = 'PQ032';
    ELSIF guarded THEN
        PERFORM pgqueue._check_right(q, 'look');
    END IF;
    IF NOT listed THEN
        RAISE EXCEPTION 'the messages of queue "%" cannot be listed: its option "listed" is off', queue
            USING ERRCODE = 'PQ060';
    END IF;
    RETURN QUERY
        SELECT page.xid || '.' || page.id, t.id, t.state, t.priority, t.attempts, t.created_at, t.sender, t.data,
               page.age, page.ttl
          FROM (SELECT m.xid, m.id, pgqueue._age(m) AS age, pgqueue._ttl(m) AS ttl
                  FROM pgqueue.task m
                 WHERE m.queue_id = q AND m.xid IS NOT NULL AND m.state <> 'F'
                   AND (m.xid, m.id) > (coalesce(split_part(after, '.', 1), '0')::xid8,
                                        coalesce(split_part(after, '.', 2), '0')::bigint)
                   AND m.xid < pg_snapshot_xmin(pg_current_snapshot())
                   AND (m.expires_at IS NULL OR m.expires_at > moment)
                   AND (include_delayed OR m.state <> 'D' OR m.run_at <= moment)
                   AND (include_claimed
                        OR (SELECT k.task_id FROM pgqueue.take k
                             WHERE k.task_id = m.id AND k.deadline > moment) IS NULL)
                   AND (echo OR m.sender IS NULL OR list_messages.sender IS NULL OR m.sender <> list_messages.sender)
                 ORDER BY m.xid, m.id
                 LIMIT n) page,
               LATERAL (SELECT * FROM pgqueue._tasks seen WHERE seen.id = page.id) t
         ORDER BY page.xid, page.id;
END $$;
COMMENT ON FUNCTION pgqueue.list_messages IS
    'The messages after a marker, oldest first, with the markers of the next pages; PQ060 unless the queue is listed. '
    'age: for how long the message has been ready; ttl: how long it lives from then on, NULL for no limit.';

CREATE OR REPLACE FUNCTION pgqueue.message_stats(
    queue text,
    OUT free bigint, OUT claimed bigint, OUT total bigint,
    OUT oldest timestamptz, OUT newest timestamptz       -- when put; only of a queue that is listed
)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    q      CONSTANT int         := (SELECT seen.id FROM pgqueue._seen seen WHERE seen.name = message_stats.queue);
BEGIN
    SELECT coalesce(sum(s.total - s.taken), 0), coalesce(sum(s.taken), 0), coalesce(sum(s.total), 0)
      INTO free, claimed, total FROM pgqueue.stats s WHERE s.queue = message_stats.queue;
    SELECT t.created_at INTO oldest FROM pgqueue.task t
     WHERE t.queue_id = q AND t.xid IS NOT NULL AND t.state <> 'F' AND (t.expires_at IS NULL OR t.expires_at > moment)
     ORDER BY t.xid, t.id LIMIT 1;
    SELECT t.created_at INTO newest FROM pgqueue.task t
     WHERE t.queue_id = q AND t.xid IS NOT NULL AND t.state <> 'F' AND (t.expires_at IS NULL OR t.expires_at > moment)
     ORDER BY t.xid DESC, t.id DESC LIMIT 1;
END $$;
COMMENT ON FUNCTION pgqueue.message_stats IS
    'How many messages of a queue are free, are claimed, and are there in all; and when the oldest and the newest of '
    'a queue that is listed were put.';
