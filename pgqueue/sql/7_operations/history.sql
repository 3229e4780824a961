-- The history: the calls and the length of each queue, by minutes, hours and days.
--
-- Theory of operation
-- -------------------
--   counters          the tick after a minute      after a day        after 31 days     after a year
--   (stats.sql) - last mark -----------> minute --------------> hour --------------> day -----------> gone
--
-- Counters only grow. A round reads them for some queues, writes the differences from the marks of these queues into
-- rows of the minute, and leaves new marks. It reads counters and marks in one snapshot, and counters are exact in
-- every snapshot. So each call is in one difference, whenever the rounds run: a call that commits late, a round that
-- rolls back, an hour without a client or a statement that fails only move calls into a later minute.
--
-- A crash empties counters and marks together, since both are UNLOGGED, and the next difference is that from zero. The
-- difference from the last row of the history would be negative after a crash, or too small. A counter below its mark
-- has begun again, for example after a TRUNCATE by hand.
--
-- A queue that had no call in the minute, and is empty, gets no row. Where there are many queues most are like this,
-- and each costs a look at its counters.
--
-- A folding deletes rows and adds them to others in one transaction, so each call is in one row, in every snapshot.
--
-- Rounds. Only one client ticks at a time (ticks.sql), so one transaction writes at a time. A round has at most 1,000
-- queues, and the next tick goes on from history_turn. This is a sequence, which is not rolled back, so a round that
-- fails is not tried again at each tick, but in the next minute. An error becomes a warning, since the tick has more
-- important work. If a minute is written twice, after a step of the clock, the row adds up both.

-- The number of tasks that a verb was called for since the mark.
CREATE OR REPLACE FUNCTION pgqueue._calls_since(calls jsonb, before jsonb, verb text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN
    coalesce((calls ->> verb)::bigint, 0)
  - CASE WHEN (calls ->> verb)::bigint >= (before ->> verb)::bigint THEN (before ->> verb)::bigint ELSE 0 END;

-- A queue's length as the history stores it.
CREATE OR REPLACE FUNCTION pgqueue._as_length(n bigint) RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN least(greatest(n, 0), 2147483647)::int;

-- Add these rows up, by queue, into rows of this period.
CREATE OR REPLACE FUNCTION pgqueue._add_history(given pgqueue.history[], into_period "char") RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    field CONSTANT text := CASE into_period WHEN 'm' THEN 'minute' WHEN 'h' THEN 'hour' ELSE 'day' END;
BEGIN
    INSERT INTO pgqueue.history AS h (at, puts, takes, acks, deletes, releases, buries, timeouts, queue_id,
                                      ready, most_ready, taken, delayed, buried, blocked, oldest_age, period)
    SELECT date_trunc(field, g.at, 'UTC'), sum(g.puts), sum(g.takes), sum(g.acks), sum(g.deletes), sum(g.releases),
           sum(g.buries), sum(g.timeouts), g.queue_id,
           (array_agg(g.ready ORDER BY g.at DESC)) [1], max(g.most_ready), (array_agg(g.taken ORDER BY g.at DESC)) [1],
           (array_agg(g.delayed ORDER BY g.at DESC)) [1], (array_agg(g.buried ORDER BY g.at DESC)) [1],
           (array_agg(g.blocked ORDER BY g.at DESC)) [1], max(g.oldest_age), into_period
      FROM unnest(given) g
     GROUP BY g.queue_id, date_trunc(field, g.at, 'UTC') ORDER BY g.queue_id
        ON CONFLICT (queue_id, period, at) DO UPDATE
       SET puts = h.puts + excluded.puts, takes = h.takes + excluded.takes, acks = h.acks + excluded.acks,
           deletes = h.deletes + excluded.deletes, releases = h.releases + excluded.releases,
           buries = h.buries + excluded.buries, timeouts = h.timeouts + excluded.timeouts,
           ready = excluded.ready, most_ready = greatest(h.most_ready, excluded.most_ready),
           taken = excluded.taken, delayed = excluded.delayed, buried = excluded.buried,
           blocked = excluded.blocked, oldest_age = greatest(h.oldest_age, excluded.oldest_age);
END $$;

CREATE OR REPLACE FUNCTION pgqueue._write_minute(minute timestamptz, queues int[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    fresh  pgqueue.history[];
    marks  pgqueue.history_mark[];
BEGIN
    WITH known AS MATERIALIZED (
        SELECT c.queue_id, c.calls, n.total, coalesce(m.calls, '{}') AS before,
               c.calls <> coalesce(m.calls, '{}') OR n.total <> coalesce(m.total, 0) AS is_changed
          FROM pgqueue._counts(queues) c
         CROSS JOIN LATERAL (SELECT c.standing + c.delayed + c.buried + c.blocked) n(total)
          LEFT JOIN LATERAL (SELECT o.total, o.calls FROM pgqueue.history_mark o
                              WHERE o.queue_id = c.queue_id ORDER BY o.marked_at DESC LIMIT 1) m ON true),
    busy AS MATERIALIZED (
        SELECT k.* FROM known k WHERE k.is_changed OR k.total > 0)
    SELECT array_agg(ROW (minute, pgqueue._calls_since(b.calls, b.before, 'put'),
                          pgqueue._calls_since(b.calls, b.before, 'take'),
                          pgqueue._calls_since(b.calls, b.before, 'ack'),
                          pgqueue._calls_since(b.calls, b.before, 'delete'),
                          pgqueue._calls_since(b.calls, b.before, 'release'),
                          pgqueue._calls_since(b.calls, b.before, 'bury'),
                          pgqueue._calls_since(b.calls, b.before, 'ttr'), b.queue_id,
                          pgqueue._as_length(s.ready), pgqueue._as_length(s.ready), pgqueue._as_length(s.taken),
                          pgqueue._as_length(s.delayed), pgqueue._as_length(s.buried), pgqueue._as_length(s.blocked),
                          greatest(extract(epoch FROM s.oldest_ready_age), 0), 'm')::pgqueue.history),
           array_agg(ROW (b.queue_id, moment, b.total, b.calls)::pgqueue.history_mark) FILTER (WHERE b.is_changed)
      INTO fresh, marks
      FROM busy b JOIN pgqueue._queue_stats(ARRAY (SELECT o.queue_id FROM busy o)) s ON s.id = b.queue_id;
    PERFORM pgqueue._add_history(fresh, 'm');
    DELETE FROM pgqueue.history_mark old USING unnest(marks) m WHERE old.queue_id = m.queue_id;
    INSERT INTO pgqueue.history_mark SELECT * FROM unnest(marks);
END $$;

-- Write the minute that is over, or go on with it; every tick calls it.
CREATE OR REPLACE FUNCTION pgqueue._write_history() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    portion CONSTANT int    := 1000;
    most    CONSTANT bigint := 2147483647;         -- as the id of a queue: the minute is done
    over    CONSTANT bigint := floor(extract(epoch FROM clock_timestamp()) / 60)::bigint - 1;
    turn    CONSTANT bigint := coalesce(pg_sequence_last_value('pgqueue.history_turn'), most);
    minute  bigint := turn >> 31;
    after   bigint := turn & most;
    ids     int[];
BEGIN
    IF minute = over AND after = most OR current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN;
    ELSIF after = most OR minute NOT BETWEEN over - 10 AND over THEN
        minute := over;
        after := 0;
    END IF;
    IF NOT pgqueue._can_write('history', 'history_mark') THEN
        RETURN;
    END IF;
    ids := ARRAY (SELECT q.id FROM pgqueue.queue q WHERE q.id > after ORDER BY q.id LIMIT portion);
    PERFORM setval('pgqueue.history_turn', (minute << 31) + coalesce(ids [portion], most));
    BEGIN
        PERFORM pgqueue._write_minute(to_timestamp(minute * 60), ids);
    EXCEPTION WHEN OTHERS THEN
        RAISE WARNING 'pgqueue: % queues get no row for the minute % in their history: %', cardinality(ids),
            to_timestamp(minute * 60), SQLERRM
            USING HINT = 'Its calls count in the next minute that is written.';
    END;
END $$;

-- Move the rows of these queues that are of one period, and before a moment, into rows of a longer one; NULL: delete
-- them. At most 120 rows of each queue at a time, two hours of minutes.
CREATE OR REPLACE FUNCTION pgqueue._move_history(
    queues int[], of_period "char", before timestamptz, into_period "char"
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    old pgqueue.history[];
BEGIN
    WITH gone AS (
        DELETE FROM pgqueue.history h
         WHERE h.ctid = ANY (ARRAY (
               SELECT due.ctid
                 FROM unnest(queues) q(id), LATERAL (
                      SELECT o.ctid FROM pgqueue.history o
                       WHERE o.queue_id = q.id AND o.period = of_period AND o.at < before
                       ORDER BY o.at LIMIT 120 FOR UPDATE SKIP LOCKED) due))
        RETURNING h)
    SELECT array_agg(g.h) INTO old FROM gone g;
    IF old IS NOT NULL AND into_period IS NOT NULL THEN
        PERFORM pgqueue._add_history(old, into_period);
    END IF;
END $$;

-- Part of clean_up: fold the history of a hundred queues, chosen by the period of ten seconds. So a cleaning moves a
-- bounded number of rows, and every queue has its turn.
CREATE OR REPLACE FUNCTION pgqueue._fold_history(
    turn bigint DEFAULT floor(extract(epoch FROM clock_timestamp()) / 10)::bigint
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    portion CONSTANT int         := 100;
    moment  CONSTANT timestamptz := clock_timestamp();
    parts   CONSTANT bigint      := 1 + (SELECT count(*) FROM pgqueue.queue) / portion;
    ids     CONSTANT int[]       := ARRAY (
        SELECT q.id FROM pgqueue.queue q ORDER BY q.id
         LIMIT portion OFFSET portion * (turn % parts));
BEGIN
    PERFORM pgqueue._move_history(ids, 'm', date_trunc('hour', moment - interval '1 day', 'UTC'), 'h'),
            pgqueue._move_history(ids, 'h', date_trunc('day', moment - interval '31 days', 'UTC'), 'd'),
            pgqueue._move_history(ids, 'd', date_trunc('day', moment - interval '366 days', 'UTC'), NULL);
END $$;

-- Part of clean_up: delete the rows of queues that are gone.
CREATE OR REPLACE FUNCTION pgqueue._clean_history() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    part CONSTANT record := pgqueue._part_to_clean('pgqueue.history');
BEGIN
    DELETE FROM pgqueue.history
     WHERE ctid = ANY (ARRAY (SELECT h.ctid FROM pgqueue.history h
                               WHERE h.ctid >= part.low AND h.ctid < part.high
                                 AND h.queue_id NOT IN (SELECT q.id FROM pgqueue.queue q)
                               LIMIT 10000 FOR UPDATE SKIP LOCKED));
    DELETE FROM pgqueue.history_mark
     WHERE ctid = ANY (ARRAY (SELECT m.ctid FROM pgqueue.history_mark m
                               WHERE m.queue_id NOT IN (SELECT q.id FROM pgqueue.queue q)
                               LIMIT 10000 FOR UPDATE SKIP LOCKED));
END $$;

CREATE OR REPLACE VIEW pgqueue.queue_history WITH (security_barrier) AS
SELECT seen.name AS queue, CASE h.period WHEN 'm' THEN 'minute' WHEN 'h' THEN 'hour' ELSE 'day' END AS period, h.at,
       h.puts, h.takes, h.acks, h.acks + h.deletes AS done, h.releases, h.buries, h.timeouts,
       h.ready, h.most_ready, h.taken, h.delayed, h.buried, h.blocked,
       make_interval(secs => nullif(h.oldest_age, 0)) AS oldest_ready_age
  FROM pgqueue.history h JOIN pgqueue._seen seen ON seen.id = h.queue_id;
COMMENT ON VIEW pgqueue.queue_history IS
    'The calls and the length of each queue in each minute of the last day, each hour of the 30 days before, and each '
    'day before that, up to 366 days ago. Each call is in one row. A queue that was empty and had no call has none. '
    'ready to blocked: at the end of the period; most_ready, oldest_ready_age: the most at the end of any minute of '
    'it.';

-- The shortest spacing of a history of this length; and, among the spacings for charts, the shortest one that gives at
-- most a hundred periods.
CREATE OR REPLACE FUNCTION pgqueue._history_spacing(since interval, OUT shortest interval, OUT usual interval)
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    shortest := CASE WHEN since <= '1 day' THEN interval '1 min'
                     WHEN since <= '31 days' THEN interval '1 hour' ELSE interval '1 day' END;
    usual := (SELECT min(s.spacing)
                FROM unnest('{1 min,2 min,5 min,15 min,1 h,2 h,4 h,8 h,1 day,2 days,4 days}'::interval[]) s(spacing)
               WHERE s.spacing >= shortest AND s.spacing * 100 >= since);
END $$;

CREATE OR REPLACE FUNCTION pgqueue.history(
    queues text[]   DEFAULT NULL,            -- NULL: all
    since  interval DEFAULT '1 hour',        -- how long ago it begins, at most 366 days
    every  interval DEFAULT NULL             -- NULL: the shortest that gives at most a hundred periods
)
RETURNS TABLE (queue text, at timestamptz, puts bigint, takes bigint, acks bigint, done bigint, releases bigint,
               buries bigint, timeouts bigint, ready int, most_ready int, taken int, delayed int, buried int,
               blocked int, oldest_ready_age interval)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    origin  CONSTANT timestamptz := timestamptz '2001-01-01 00:00+00';        -- a Monday
    spacing record;
    step    interval;
    first   timestamptz;
BEGIN
    PERFORM pgqueue._check_given('since', since), pgqueue._check_array('queues', queues, nulls => true);
    IF since NOT BETWEEN '0' AND interval '366 days' THEN
        RAISE EXCEPTION 'since must be from 0 to 366 days, not %', since USING ERRCODE = 'PQ002';
    END IF;
    spacing := pgqueue._history_spacing(since);
    IF every NOT BETWEEN spacing.shortest AND interval '366 days'
       OR extract(epoch FROM every) % extract(epoch FROM spacing.shortest) <> 0 THEN
        RAISE EXCEPTION 'every must be a multiple of % for a history since %, up to 366 days, not %',
            spacing.shortest, since, every USING ERRCODE = 'PQ002';
    END IF;
    -- In seconds: date_bin takes no months.
    step := make_interval(secs => extract(epoch FROM coalesce(every, spacing.usual))::float8);
    first := date_bin(step, clock_timestamp() - since, origin);
    RETURN QUERY
        SELECT seen.name, b.at, sum(h.puts)::bigint, sum(h.takes)::bigint, sum(h.acks)::bigint,
               sum(h.acks + h.deletes)::bigint, sum(h.releases)::bigint, sum(h.buries)::bigint,
               sum(h.timeouts)::bigint, (array_agg(h.ready ORDER BY h.at DESC)) [1], max(h.most_ready),
               (array_agg(h.taken ORDER BY h.at DESC)) [1], (array_agg(h.delayed ORDER BY h.at DESC)) [1],
               (array_agg(h.buried ORDER BY h.at DESC)) [1], (array_agg(h.blocked ORDER BY h.at DESC)) [1],
               make_interval(secs => nullif(max(h.oldest_age), 0))
          FROM pgqueue._seen seen
          JOIN pgqueue.history h ON h.queue_id = seen.id AND h.period IN ('m', 'h', 'd') AND h.at >= first
         CROSS JOIN LATERAL (SELECT date_bin(step, h.at, origin) AS at) b
         WHERE queues IS NULL OR seen.name = ANY (queues)
         GROUP BY seen.name, b.at ORDER BY seen.name, b.at;
END $$;
COMMENT ON FUNCTION pgqueue.history IS
    'The view queue_history for this much time up to now, added up by periods: `every` is a multiple of a minute for '
    'up to a day, of an hour for up to 31 days, of a day beyond. A period without a row: the queue was empty and '
    'had no call, or no client ran.';
