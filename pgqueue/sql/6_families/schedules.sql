-- Schedules: tasks that are put again and again, at the times of a cron expression or at an interval.
--
-- Theory of operation
-- -------------------
-- SQL cannot read a cron expression, and clients can. So a client finds the times, and SQL decides. A clock is the
-- client's thread for this: due_schedules returns the schedules that are due by the clock of the database, and the
-- thread calls fire_schedule with the occurrences that are due, and the one after them.
--
--       set_schedule, resume_schedule          fire_schedule
--     -------------------------------> [next_at NULL] ------> [next_at 09:00] ---> [next_at 10:00] ---> ...
--                                                                  \                    \
--                                                                   put                  put
--
-- Once. fire_schedule compares next_at and the revision with those that the clock saw, puts the tasks, and moves
-- next_at forward: all in one transaction. Two clocks T1 and T2 find 09:00 due. T1 locks the row. T2 does not wait for
-- it, and gets `busy`; or T1 has committed, and T2 finds another next_at, and gets `lost`. If T1 is rolled back, so are
-- its tasks and its next_at, and the next clock fires. No clock holds a lock between two calls: a clock that is stopped
-- or killed there leaves the occurrence to the others. An elected leader would have to be found dead first, and a task
-- with the occurrence as its key would be put again once the first one is done.
--
-- Times. next_at only moves forward. After the clock steps back it lies in the future, and no occurrence is fired
-- twice; after a step forward the occurrences in between count as missed. resume_schedule begins again at the present
-- time.
--
-- Missed. Of the occurrences since the last look, `one` always fires the newest, `none` fires it only within a minute,
-- and `all` fires each of them, the last 100 if there are more.
--
-- Refused. If the queue or the rights refuse a put, the occurrence stays due, with the reason in `error`: the clocks
-- try again, and occurrences up to then count as missed. No call here waits for more than a second, so that a long
-- transaction with a key or with the room of a queue holds up this schedule and no other.
--
-- Rights. A schedule puts with the rights of the role that set it. To set one, a role needs the verb put for its queue.
-- The role itself, and roles that may manage the queue, change it. The same roles fire it. SQL cannot read a cron
-- expression, so it trusts the clock's arguments: the occurrences that are due, the next one, and the reason why none
-- can be found. With false arguments a clock changes the schedule. If every role that may take from the queue could
-- fire it, such a role could invent occurrences, and end the schedule permanently.

CREATE OR REPLACE FUNCTION pgqueue._tell_schedules() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('pgqueue:schedules', '');
END $$;

-- Whether the caller may do this with the queue, which need not exist.
CREATE OR REPLACE FUNCTION pgqueue._may_with(queue text, verb text) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
DECLARE
    q CONSTANT int := (SELECT named.id FROM pgqueue.queue named WHERE named.name = queue);
BEGIN
    RETURN CASE WHEN q IS NULL THEN pgqueue._may_name(queue, verb) ELSE pgqueue._may(q, verb) END;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._may_change(s pgqueue.schedule) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN coalesce(pgqueue._is_callers(s.role_id), false) OR pgqueue._may_with(s.queue, 'manage');
END $$;

-- Lock a schedule that the caller may change.
CREATE OR REPLACE FUNCTION pgqueue._own_schedule(name text) RETURNS pgqueue.schedule
LANGUAGE plpgsql AS $$
DECLARE
    s pgqueue.schedule;
BEGIN
    SELECT * INTO s FROM pgqueue.schedule k WHERE k.name = _own_schedule.name;
    IF FOUND AND NOT pgqueue._may_change(s) THEN
        RAISE EXCEPTION 'schedule "%" was set by role %, and role % may not manage its queue', pgqueue._shown(name),
            quote_ident(s.role), quote_ident(pgqueue._caller()) USING ERRCODE = 'insufficient_privilege';
    END IF;
    SELECT * INTO s FROM pgqueue.schedule k WHERE k.name = _own_schedule.name FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no schedule "%"', pgqueue._shown(name)
            USING ERRCODE = 'PQ080';
    END IF;
    RETURN s;
END $$;

-- Check everything but the cron expression, of which only the characters are checked here: a client reads it.
CREATE OR REPLACE FUNCTION pgqueue._check_schedule(
    name text, queue text, data jsonb, cron text, every interval, tz text, missed text, options jsonb
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    known CONSTANT text[] := '{priority,delay,ttr,ttl,lane,key,if_exists}'::text[];
    o     pgqueue.specification;
    q     pgqueue.queue;
BEGIN
    IF name IS NULL OR length(name) NOT BETWEEN 1 AND 200 THEN
        RAISE EXCEPTION 'a schedule''s name has 1 to 200 characters, this one has %', coalesce(length(name), 0)
            USING ERRCODE = 'PQ001';
    ELSIF (cron IS NULL) = (every IS NULL) THEN
        RAISE EXCEPTION 'schedule "%" needs a cron expression or a time for every, and not both', name
            USING ERRCODE = 'PQ002';
    ELSIF octet_length(cron) > 255 OR cron !~ '^(@[a-z]+|\s*([0-9A-Za-z*,/#-]+\s+){4,5}[0-9A-Za-z*,/#-]+\s*)$' THEN
        RAISE EXCEPTION 'schedule "%": a cron expression has 5 fields, or 6 with seconds first, not: %', name,
            pgqueue._shown(cron) USING ERRCODE = 'PQ002';
    ELSIF every < '1 s' OR every > pgqueue._longest() THEN
        RAISE EXCEPTION 'schedule "%": every must be 1 to 1e+09 seconds, not %', name, every USING ERRCODE = 'PQ002';
    ELSIF missed IS NULL OR missed NOT IN ('none', 'one', 'all') THEN
        RAISE EXCEPTION 'schedule "%": missed is none, one or all, not %', name, pgqueue._shown(missed)
            USING ERRCODE = 'PQ002';
    ELSIF options IS NULL OR jsonb_typeof(options) <> 'object' THEN
        RAISE EXCEPTION 'schedule "%": options must be a JSON object', name USING ERRCODE = 'PQ002';
    ELSIF EXISTS (SELECT FROM jsonb_object_keys(options) given WHERE given <> ALL (known)) THEN
        RAISE EXCEPTION 'schedule "%": the options of its puts are %, and no others', name,
            array_to_string(known, ', ') USING ERRCODE = 'PQ002';
    END IF;
    PERFORM pgqueue._check_given('tz', tz), pgqueue._check_text('tz', tz, 255), pgqueue._check_name(queue),
            pgqueue._check_data('data', data);
    BEGIN
        PERFORM now() AT TIME ZONE tz;
    EXCEPTION WHEN data_exception THEN             -- an unknown zone
        RAISE EXCEPTION 'schedule "%": %', name, SQLERRM USING ERRCODE = 'PQ002';
    END;
    o := (pgqueue._read_puts(jsonb_build_array(options), what => format('schedule "%s"', name))).specs [1];
    q.id := pgqueue.queue_id(queue);
    SELECT * INTO q FROM pgqueue.queue named WHERE named.id = q.id;
    q.draining := false;                           -- draining may end
    PERFORM pgqueue._check_times(o.delay, o.ttr, o.ttl),
            pgqueue._check_put(q, o);
END $$;

-- Returns created, changed or kept. A schedule whose times stay the same keeps its next_at, so that a missed occurrence
-- is not lost when a program starts again.
CREATE OR REPLACE FUNCTION pgqueue._set_schedule(
    name text, queue text, data jsonb, cron text, every interval, tz text, missed text, options jsonb, source text
) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    s pgqueue.schedule;
BEGIN
    PERFORM pgqueue._check_schedule(name, queue, data, cron, every, tz, missed, options);
    IF NOT EXISTS (SELECT FROM pgqueue.schedule k WHERE k.name = _set_schedule.name) THEN
        PERFORM pgqueue._check_quota('schedules');
        INSERT INTO pgqueue.schedule (name, role, queue, cron, every, tz, missed, data, options, declared)
        VALUES (name, pgqueue._caller(), queue, cron, every, tz, missed, data, options, source)
            ON CONFLICT DO NOTHING;
        IF FOUND THEN
            PERFORM pgqueue._tell_schedules();
            RETURN 'created';
        END IF;
    END IF;
    s := pgqueue._own_schedule(name);
    IF (s.role_id, s.queue, s.cron, s.every, s.tz, s.missed, s.data, s.options, s.declared, s.removed_at)
       IS NOT DISTINCT FROM (pgqueue._caller_role()::oid, _set_schedule.queue, _set_schedule.cron,
                             _set_schedule.every, _set_schedule.tz, _set_schedule.missed, _set_schedule.data,
                             _set_schedule.options, coalesce(source, s.declared), NULL) THEN
        RETURN 'kept';
    END IF;
    UPDATE pgqueue.schedule k
       SET role = pgqueue._caller(), queue = _set_schedule.queue, cron = _set_schedule.cron,
           every = _set_schedule.every, tz = _set_schedule.tz, missed = _set_schedule.missed,
           data = _set_schedule.data, options = _set_schedule.options, declared = coalesce(source, k.declared),
           removed_at = CASE WHEN source IS NULL THEN k.removed_at END, error = NULL, revision = k.revision + 1,
           next_at = CASE WHEN t.same THEN k.next_at END,
           counts_from = CASE WHEN t.same THEN k.counts_from ELSE clock_timestamp() END
      FROM (SELECT (s.cron, s.every, s.tz) IS NOT DISTINCT FROM
                   (_set_schedule.cron, _set_schedule.every, _set_schedule.tz)) t(same)
     WHERE k.name = s.name;
    PERFORM pgqueue._tell_schedules();
    RETURN 'changed';
END $$;

CREATE OR REPLACE FUNCTION pgqueue.set_schedule(
    name    text,
    queue   text,
    data    jsonb    DEFAULT 'null',
    cron    text     DEFAULT NULL,
    every   interval DEFAULT NULL,            -- in place of cron
    tz      text     DEFAULT 'UTC',           -- of cron
    missed  text     DEFAULT 'one',           -- none, one or all
    options jsonb    DEFAULT '{}'             -- of each put; durations in seconds
) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    done CONSTANT text := pgqueue._set_schedule(name, queue, data, cron, every, tz, missed, options, NULL);
BEGIN
    IF done <> 'kept' THEN
        PERFORM pgqueue._record('set_schedule', queue, name, detail => coalesce(cron, 'every ' || every));
    END IF;
    RETURN done;
END $$;
COMMENT ON FUNCTION pgqueue.set_schedule IS
    'Make a schedule, or change it: a client puts the data into the queue at each time of the cron expression, or at '
    'each multiple of `every`. Returns created, changed or kept. The caller needs the verb put, then and later.';

CREATE OR REPLACE FUNCTION pgqueue.declare_schedules(source text, items jsonb)
RETURNS TABLE (name text, what text)
LANGUAGE plpgsql AS $$
DECLARE
    item record;
BEGIN
    IF source IS NULL OR octet_length(source) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'the source of declared schedules has 1 to 255 bytes' USING ERRCODE = 'PQ001';
    END IF;
    PERFORM pgqueue._check_items('items', items);
    BEGIN
        PERFORM count(make_interval(secs => r.every)) FROM jsonb_to_recordset(items)
                r(name text, queue text, data jsonb, cron text, every float8, tz text, missed text, options jsonb);
    EXCEPTION WHEN data_exception THEN
        RAISE EXCEPTION 'items: %', SQLERRM USING ERRCODE = 'PQ002';
    END;
    FOR item IN                                    -- in one order, so that two programs that start cannot deadlock
        SELECT r.* FROM jsonb_to_recordset(items) r(name text, queue text, data jsonb, cron text, every float8, tz text,
                                                    missed text, options jsonb)
         ORDER BY r.name
    LOOP
        name := item.name;
        what := pgqueue._set_schedule(
                    item.name, item.queue, coalesce(item.data, 'null'), item.cron, make_interval(secs => item.every),
                    coalesce(item.tz, 'UTC'), coalesce(item.missed, 'one'), coalesce(item.options, '{}'), source);
        RETURN NEXT;
    END LOOP;
    FOR name IN
        SELECT s.name FROM pgqueue.schedule s
         WHERE s.declared = source AND (SELECT pgqueue._may_change(s))
           AND s.name NOT IN (SELECT coalesce(i ->> 'name', '') FROM jsonb_array_elements(items) i)
         ORDER BY s.name
    LOOP
        UPDATE pgqueue.schedule s SET removed_at = clock_timestamp()
         WHERE s.name = declare_schedules.name AND s.removed_at IS NULL;
        what := 'removed';
        RETURN NEXT;
    END LOOP;
END $$;
COMMENT ON FUNCTION pgqueue.declare_schedules IS
    'Set all schedules that the code of a program declares: [{name, queue, data, cron, every, tz, missed, options}], '
    'durations in seconds. Returns the result for each: created, changed, kept; or removed: earlier code of this '
    'source declared it, and it fires until delete_schedule. Other roles'' schedules are marked so if the caller may '
    'change them.';

CREATE OR REPLACE FUNCTION pgqueue.pause_schedule(name text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    s CONSTANT pgqueue.schedule := pgqueue._own_schedule(name);
BEGIN
    UPDATE pgqueue.schedule k SET paused = true, revision = k.revision + 1 WHERE k.name = s.name;
    IF NOT s.paused THEN
        PERFORM pgqueue._record('pause_schedule', s.queue, s.name);
    END IF;
    RETURN NOT s.paused;
END $$;
COMMENT ON FUNCTION pgqueue.pause_schedule IS
    'Fire a schedule no more until it is resumed; false if it is paused already. PQ080: there is none of this name.';

CREATE OR REPLACE FUNCTION pgqueue.resume_schedule(name text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    s CONSTANT pgqueue.schedule := pgqueue._own_schedule(name);
BEGIN
    UPDATE pgqueue.schedule k
       SET paused = false, next_at = NULL, counts_from = clock_timestamp(), error = NULL, revision = k.revision + 1
     WHERE k.name = s.name;
    PERFORM pgqueue._tell_schedules();
    IF s.paused THEN
        PERFORM pgqueue._record('resume_schedule', s.queue, s.name);
    END IF;
    RETURN s.paused;
END $$;
COMMENT ON FUNCTION pgqueue.resume_schedule IS
    'Go on with a schedule, from the present time: occurrences during the pause do not count as missed. False if it '
    'was not paused. PQ080: there is none of this name.';

CREATE OR REPLACE FUNCTION pgqueue.delete_schedule(name text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    s CONSTANT pgqueue.schedule := pgqueue._own_schedule(name);
BEGIN
    DELETE FROM pgqueue.schedule k WHERE k.name = s.name;
    PERFORM pgqueue._tell_schedules(), pgqueue._record('delete_schedule', s.queue, s.name);
END $$;
COMMENT ON FUNCTION pgqueue.delete_schedule IS
    'Remove a schedule; the tasks that it has put stay. PQ080: there is none of this name.';
