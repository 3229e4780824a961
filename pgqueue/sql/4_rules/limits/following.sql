-- Limits: the work of ticks while tasks still follow an earlier form of a limit. The theory is in limits/setting.sql.

-- Give a meter to tasks of a limit that were taken without it, so that they are counted. A task that is locked is left
-- to the next tick.
CREATE OR REPLACE FUNCTION pgqueue._count_running(l pgqueue.task_limit) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    ids bigint[];
BEGIN
    ids := ARRAY (SELECT t.id FROM pgqueue.task t
                   WHERE t.id IN (SELECT k.task_id FROM pgqueue.take k
                                   WHERE k.queue_id = l.queue_id AND k.lane IS NULL)
                     AND starts_with(pgqueue._meter(t.queue_id, t.data), l.id || ':')
                     AND t.meter IS DISTINCT FROM pgqueue._meter(t.queue_id, t.data)
                     FOR UPDATE SKIP LOCKED);
    UPDATE pgqueue.task t SET meter = pgqueue._meter(t.queue_id, t.data) WHERE t.id = ANY (ids);
END $$;

-- Remove a limit that no transaction follows and no task waits for.
CREATE OR REPLACE FUNCTION pgqueue._remove_limit(l pgqueue.task_limit) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT t.id FROM pgqueue.task t
         WHERE t.queue_id = l.queue_id AND t.meter >= l.id || ':' AND t.meter < l.id || ';' AND t.state = 'W'
         LIMIT 1) IS NOT NULL THEN
        RETURN;
    END IF;
    PERFORM FROM pgqueue.queue q WHERE q.id = l.queue_id FOR NO KEY UPDATE SKIP LOCKED;   -- set_limit waits for it
    IF FOUND THEN
        DELETE FROM pgqueue.task_limit t WHERE t.id = l.id;
        UPDATE pgqueue.queue q SET metered = false
         WHERE q.id = l.queue_id AND NOT EXISTS (SELECT FROM pgqueue.task_limit t WHERE t.queue_id = q.id);
    END IF;
END $$;

-- Drop the checks of queues that have no limits (any more), and make their tasks ready.
CREATE OR REPLACE FUNCTION pgqueue._clean_checks() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    next int := 0;
    lost text[];
BEGIN
    LOOP
        next := (SELECT c.queue_id FROM pgqueue.meter_check c WHERE c.queue_id > next ORDER BY c.queue_id LIMIT 1);
        EXIT WHEN next IS NULL;
        CONTINUE WHEN (SELECT q.metered FROM pgqueue.queue q WHERE q.id = next);
        WITH gone AS (
            DELETE FROM pgqueue.meter_check
             WHERE ctid = ANY (ARRAY (SELECT c.ctid FROM pgqueue.meter_check c
                                       WHERE c.queue_id = next ORDER BY c.id LIMIT 10000 FOR UPDATE SKIP LOCKED))
            RETURNING meter)
        SELECT array_agg(DISTINCT gone.meter) INTO lost FROM gone;
        PERFORM pgqueue._end_limit_wait(admitted => false, ids => ARRAY (
                    SELECT t.id FROM pgqueue.task t
                     WHERE t.queue_id = next AND t.meter = ANY (lost) AND t.state = 'W' FOR UPDATE SKIP LOCKED));
    END LOOP;
END $$;

-- Leave a tick's part of the missing checks of a limit; returns whether none is missing any more. While claims still
-- have as many checks to look at, no more are left, except at the last time.
CREATE OR REPLACE FUNCTION pgqueue._recheck_part(l pgqueue.task_limit, over boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    portion CONSTANT int         := 250;
    moment  CONSTANT timestamptz := clock_timestamp();
    reached text                 := CASE WHEN NOT over OR l.is_over THEN l.rechecked END;
BEGIN
    IF NOT over AND reached IS NULL THEN
        IF l.rechecked_at BETWEEN moment - interval '10 s' AND moment THEN
            RETURN false;
        ELSIF (SELECT count(*) FROM (SELECT FROM pgqueue.meter_check c
                                      WHERE c.queue_id = l.queue_id LIMIT portion) enough) = portion THEN
            UPDATE pgqueue.task_limit t SET rechecked_at = moment WHERE t.id = l.id;
            RETURN false;
        END IF;
    END IF;
    reached := pgqueue._recheck(l.queue_id, l.id, reached, portion);
    UPDATE pgqueue.task_limit t
       SET is_over = over, rechecked = reached,
           rechecked_at = CASE WHEN reached IS NULL THEN moment ELSE t.rechecked_at END
     WHERE t.id = l.id;
    RETURN (over AND reached IS NULL) IS TRUE;
END $$;

-- Part of promote_all: see the head of limits/setting.sql. `fresh`: the transaction had no id when it began.
CREATE OR REPLACE FUNCTION pgqueue._go_on_limits(fresh boolean) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    until CONSTANT timestamptz := clock_timestamp() + interval '50 ms';
    l     pgqueue.task_limit;
    over  boolean;
    next  record;
BEGIN
    PERFORM pgqueue._clean_checks();
    -- A taker that went to sleep before the tokens ran out does not know when the next one is added.
    PERFORM pgqueue._signal(q.id) FROM pgqueue.queue q WHERE q.metered AND pgqueue._limits_due(q.id);
    IF NOT fresh OR current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN;
    END IF;
    FOR l IN SELECT * FROM pgqueue.task_limit t WHERE t.changing ORDER BY t.rechecked_at NULLS FIRST LOOP
        EXIT WHEN clock_timestamp() > until;
        PERFORM FROM pgqueue.queue q WHERE q.id = l.queue_id FOR KEY SHARE SKIP LOCKED;         -- first: nowait.sql
        CONTINUE WHEN NOT FOUND;
        PERFORM FROM pgqueue.task_limit t WHERE t.id = l.id AND t = l FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;                   -- changed since it was read
        over := pgqueue._is_over(l.ended);
        IF l.dropped THEN
            CONTINUE WHEN pgqueue._release_dropped(l.queue_id, 1000) > 0;
        ELSE
            PERFORM pgqueue._count_running(l);
            CONTINUE WHEN NOT pgqueue._recheck_part(l, over) AND over;
        END IF;
        IF over AND l.dropped THEN
            PERFORM pgqueue._remove_limit(l);
        ELSIF over THEN
            UPDATE pgqueue.task_limit t SET changing = false WHERE t.id = l.id;
        ELSIF l.ended IS NULL THEN
            SELECT * INTO next FROM pgqueue._go_on(l.altered, l.ended);
            IF (l.altered, l.ended) IS DISTINCT FROM (next.altered, next.ended) THEN
                UPDATE pgqueue.task_limit t SET altered = next.altered, ended = next.ended WHERE t.id = l.id;
            END IF;
        END IF;
    END LOOP;
END $$;
