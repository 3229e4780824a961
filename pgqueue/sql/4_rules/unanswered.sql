-- Calls without an answer: the net under the line (2_base/line.sql). Part of every tick.

-- How many tasks of a queue can be taken now, up to 10.
CREATE OR REPLACE FUNCTION pgqueue._ready(queue_id int) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    q record;
BEGIN
    SELECT n.lanes, n.metered, n.paused_until INTO q FROM pgqueue.queue n WHERE n.id = queue_id;
    IF NOT FOUND OR q.paused_until > clock_timestamp() THEN
        RETURN 0;
    END IF;
    RETURN (SELECT count(*)
              FROM (SELECT FROM pgqueue.task t
                     WHERE t.queue_id = _ready.queue_id AND t.state = 'R' AND t.lane IS NULL
                       AND (t.expires_at IS NULL OR t.expires_at > clock_timestamp())
                       AND (SELECT k.task_id FROM pgqueue.take k WHERE k.task_id = t.id) IS NULL
                     ORDER BY t.priority, t.id LIMIT 10) head)
         + (q.lanes AND pgqueue._lanes_due(queue_id))::int
         + (q.metered AND pgqueue._limits_due(queue_id))::int;
END $$;

-- End the line of a queue: every process is woken, and processes that still wait enter it again.
CREATE OR REPLACE FUNCTION pgqueue._end_line(queue_id int) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM pgqueue.line
     WHERE ctid = ANY (ARRAY (SELECT l.ctid FROM pgqueue.line l
                               WHERE l.queue_id = _end_line.queue_id FOR UPDATE SKIP LOCKED));
    PERFORM pgqueue._signal(queue_id);
END $$;

-- Call again for each queue in line that had a task ready at the last tick already. Ticks of several listeners follow
-- each other closely: a tick within 0.15 s of the previous one does not count. If that call has no answer either, many
-- processes at the head may be stopped, for example all processes of a machine that hangs: calling them one by one
-- would take a tick for each. So the second call ends the line, and then every eighth: otherwise a locked task would
-- end it at each tick. Not alone: another tick may have locked the notes in `unanswered`, so they are not read.
CREATE OR REPLACE FUNCTION pgqueue._call_again(alone boolean DEFAULT true) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    moment  CONSTANT timestamptz := clock_timestamp();
    ready   int[] := '{}'::int[];
    q       int   := 0;
    n       int;
    seen    timestamptz;
    number  int;
BEGIN
    IF NOT pgqueue._can_write('line', 'unanswered') THEN
        RETURN;
    END IF;
    LOOP                                           -- each queue in line, by one step in the index
        q := (SELECT l.queue_id FROM pgqueue.line l WHERE l.queue_id > q ORDER BY l.queue_id LIMIT 1);
        EXIT WHEN q IS NULL;
        n := pgqueue._ready(q);
        CONTINUE WHEN n = 0;
        IF NOT alone THEN
            PERFORM pgqueue._signal(q, n);
            CONTINUE;
        END IF;
        ready := ready || q;
        seen := (SELECT u.seen_at FROM pgqueue.unanswered u WHERE u.queue_id = q);
        IF seen IS NULL THEN
            INSERT INTO pgqueue.unanswered (queue_id, seen_at) VALUES (q, moment);
        ELSIF seen NOT BETWEEN moment - interval '0.15 s' AND moment THEN
            UPDATE pgqueue.unanswered u SET seen_at = moment, calls = u.calls % 8 + 1 WHERE u.queue_id = q
            RETURNING u.calls INTO number;
            IF number = 2 AND current_setting('transaction_isolation') = 'read committed' THEN
                PERFORM pgqueue._end_line(q);
            ELSE
                PERFORM pgqueue._signal(q, n);
            END IF;
        END IF;
    END LOOP;
    IF alone THEN
        DELETE FROM pgqueue.unanswered u WHERE u.queue_id <> ALL (ready);
    END IF;
END $$;
