-- The deadline of a take: extending it, and the time left. The fence is that of settle.sql.

CREATE OR REPLACE FUNCTION pgqueue.touch(
    id           bigint,
    token        bigint   DEFAULT NULL,
    session      int      DEFAULT NULL,
    more         interval DEFAULT NULL,
    OUT state    text,
    OUT problem  text,
    OUT holder   text,
    OUT deadline timestamptz                       -- from now on; NULL: none
)
LANGUAGE plpgsql AS $$
DECLARE
    queue_id int;
BEGIN
    IF more IS NOT NULL THEN
        PERFORM pgqueue._check_time('more', more, zero => true);
    END IF;
    session := CASE WHEN token IS NULL THEN pgqueue._named_session(session) END;
    UPDATE pgqueue.take k
       SET deadline = CASE
               WHEN more IS NOT NULL THEN pgqueue._longer(k.deadline, more)
               ELSE greatest(k.deadline, (SELECT coalesce(pgqueue._deadline(clock_timestamp(), t.ttr, t.expires_at),
                                                            'infinity')
                                            FROM pgqueue.task t WHERE t.id = k.task_id))
           END
     WHERE k.task_id = touch.id AND k.deadline > clock_timestamp() AND k.session_id <> 0     -- claims: renew_claim
       AND (k.token = touch.token OR touch.token IS NULL AND pgqueue._is_ours(k.session_id, touch.session))
    RETURNING k.queue_id, nullif(k.deadline, 'infinity') INTO queue_id, deadline;
    IF FOUND THEN
        state := 'taken';
        IF more > '0' THEN
            UPDATE pgqueue.task t SET expires_at = pgqueue._longer(t.expires_at, more)
             WHERE t.id = touch.id AND t.expires_at IS NOT NULL;
        END IF;
        PERFORM pgqueue._check_verb(queue_id, NULL, NULL, touch => true), pgqueue._note(queue_id, 'touch', ARRAY [id]);
    ELSE
        SELECT * INTO state, problem, holder FROM pgqueue._explain_refusal(id);
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.touch IS
    'Give the holder more time: add to the deadline and to the time to live, or set the deadline to the task''s ttr '
    'from now. A later deadline stays: a touch never shortens it.';

CREATE OR REPLACE FUNCTION pgqueue.time_left(ids bigint[], tokens bigint[])
RETURNS TABLE (id bigint, seconds double precision)
LANGUAGE plpgsql AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
BEGIN
    PERFORM pgqueue._check_takes(ids, tokens);
    RETURN QUERY
        SELECT k.task_id, CASE WHEN k.deadline < 'infinity' THEN extract(epoch FROM k.deadline - moment)::float8 END
          FROM unnest(time_left.ids, time_left.tokens) asked(id, token), pgqueue.take k
         WHERE k.task_id = asked.id AND k.token = asked.token AND k.deadline > moment;
END $$;
COMMENT ON FUNCTION pgqueue.time_left IS
    'In how many seconds these takes pass their deadlines; NULL: never. A take that has ended, or whose deadline has '
    'passed, has no row: its holder has lost the task.';
