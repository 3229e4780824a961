-- Queues: created on first use or with options, altered, renamed, paused, drained, and deleted by name or with their
-- session (wills.sql).
--
-- Options are columns of the queue's row; an option that is not given has its default there. Hot functions read that
-- row at each call and do not lock it: a call that was under way when an option changed may still use the old one.
--
-- A queue with an option beyond the defaults of a put is `special`; the functions for putting and taking read the
-- options only of such a queue. Pausing and draining stop later calls, and do not wait for calls that are under way.

-- Check all options of a queue; returns them, with a capacity of 0 as NULL.
CREATE OR REPLACE FUNCTION pgqueue._checked_options(q pgqueue.queue) RETURNS pgqueue.queue
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgqueue._check_times(q.delay, q.ttr, q.ttl), pgqueue._check_time('keep_done', q.keep_done),
            pgqueue._check_time('expires', q.expires),
            pgqueue._check_data('metadata', q.metadata, 8388608, nulls => true);
    IF q.maxlen < 1 OR q.max_takes < 1 OR q.max_size < 1 OR q.capacity < 0 THEN
        RAISE EXCEPTION
            'maxlen, max_takes and max_size are at least 1, and capacity is not negative: '
            'maxlen is %, max_takes is %, max_size is %, capacity is %',
            q.maxlen, q.max_takes, q.max_size, q.capacity USING ERRCODE = 'PQ002';
    ELSIF q.dead_letter IS NULL AND q.dead_letter_key IS NOT NULL THEN
        RAISE EXCEPTION 'a dead_letter_key needs a dead_letter: '''' is the default exchange' USING ERRCODE = 'PQ002';
    ELSIF q.dead_letter = '' THEN
        IF q.dead_letter_key IS NULL THEN
            RAISE EXCEPTION
                'dead letters need a dead_letter_key, the name of their queue: else they would come back to this one'
                USING ERRCODE = 'PQ002';
        END IF;
        PERFORM pgqueue.queue_id(q.dead_letter_key);
    ELSIF q.dead_letter IS NOT NULL THEN
        PERFORM pgqueue._exchange_type(q.dead_letter), pgqueue._check_key(q.dead_letter_key);
    END IF;
    q.capacity := nullif(q.capacity, 0);
    IF q.type IS NOT NULL THEN
        PERFORM pgqueue._check_type(q.type, q.priority, q.delay, q.ttr, q.ttl, NULL, q.capacity);
    END IF;
    RETURN q;
END $$;

-- The queue with the caller as the role that set its dead_letter. The caller must have the right to put into the queue
-- that dead_letter names; dead.sql checks it at each death, also for the queues that are bound to an exchange by then.
CREATE OR REPLACE FUNCTION pgqueue._own_dead_letter(q pgqueue.queue) RETURNS pgqueue.queue
LANGUAGE plpgsql AS $$
BEGIN
    IF q.dead_letter = '' THEN
        PERFORM pgqueue._check_guarded(r.id, 'put')
           FROM pgqueue._routes('', coalesce(q.dead_letter_key, q.name)) r(id);
    END IF;
    q.dead_letter_role := CASE WHEN q.dead_letter IS NOT NULL THEN pgqueue._caller() END;
    RETURN q;
END $$;

-- Remove a queue, and at most `most` of its tasks. The caller has locked the queue's row FOR UPDATE, and thereby its
-- bindings (exchanges.sql). The function waits for no task or take: a locked task, or one beyond `most`, stays without
-- a queue until the next _clean_routes().
CREATE OR REPLACE FUNCTION pgqueue._remove_queue(queue_id int, most int DEFAULT NULL) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    removed int;
BEGIN
    DELETE FROM pgqueue.queue q WHERE q.id = _remove_queue.queue_id;
    removed := pgqueue._remove_tasks(queue_id, most);
    PERFORM pgqueue._signal(queue_id), pgqueue._signal(-queue_id);      -- sleepers learn that the queue is gone
    RETURN removed;
END $$;

-- Remove a queue whose session has ended, before the sweep or the cleaning does. As these it is for every role; and it
-- locks the queue only if it has ended.
CREATE OR REPLACE FUNCTION pgqueue._remove_ended(name text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    ended CONSTANT int := (SELECT q.id FROM pgqueue.queue q
                            WHERE q.name = _remove_ended.name AND q.session_id IS NOT NULL
                              AND NOT EXISTS (SELECT FROM pgqueue.session s WHERE s.id = q.session_id));
BEGIN
    IF ended IS NOT NULL THEN
        PERFORM FROM pgqueue.queue q WHERE q.id = ended FOR UPDATE;
        IF FOUND THEN                              -- else another transaction has just removed it
            PERFORM pgqueue._remove_queue(ended, most => 10000);
        END IF;
    END IF;
END $$;

-- The queue that create_queue leaves as it is; NULL if there is none. An exclusive one is of no use to another session.
CREATE OR REPLACE FUNCTION pgqueue._existing_queue(name text, session int) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    q pgqueue.queue;
BEGIN
    SELECT * INTO q FROM pgqueue.queue there WHERE there.name = _existing_queue.name;
    IF q.exclusive AND q.session_id IS DISTINCT FROM pgqueue._named_session(session) THEN
        RAISE EXCEPTION 'queue "%" is exclusive to another session: it can be created when that has ended', name
            USING ERRCODE = 'PQ033';
    END IF;
    RETURN q.id;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.create_queue(
    name            text,
    priority        int      DEFAULT 0,
    delay           interval DEFAULT '0',
    ttr             interval DEFAULT NULL,
    ttl             interval DEFAULT NULL,
    maxlen          int      DEFAULT NULL,
    max_takes       int      DEFAULT NULL,
    dead_letter     text     DEFAULT NULL,
    dead_letter_key text     DEFAULT NULL,
    exclusive       boolean  DEFAULT false,
    auto_delete     boolean  DEFAULT false,
    session         int      DEFAULT NULL,     -- of an exclusive or temporary queue; NULL: this connection's
    type            text     DEFAULT NULL,
    capacity        int      DEFAULT NULL,     -- 0: unlimited
    max_size        int      DEFAULT NULL,
    keep_done       interval DEFAULT NULL,
    expires         interval DEFAULT NULL,     -- the queue is deleted after this long without use
    listed          boolean  DEFAULT false,
    metadata        jsonb    DEFAULT NULL,
    temporary       boolean  DEFAULT false,    -- ends with the session, as if exclusive, but every session may take
    if_not_exists   boolean  DEFAULT false     -- if the queue exists, leave its options as they are
) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    q pgqueue.queue;
BEGIN
    PERFORM pgqueue._check_name(name);
    q.name := name;
    q.priority := coalesce(priority, 0);
    q.delay := coalesce(delay, '0');
    q.ttr := ttr;
    q.ttl := ttl;
    q.maxlen := maxlen;
    q.max_takes := max_takes;
    q.dead_letter := dead_letter;
    q.dead_letter_key := dead_letter_key;
    q.exclusive := coalesce(exclusive, false);
    q.auto_delete := coalesce(auto_delete, false);
    q.type := type;
    q.capacity := capacity;
    q.max_size := max_size;
    q.keep_done := keep_done;
    q.expires := expires;
    q.listed := coalesce(listed, false);
    q.metadata := metadata;
    q := pgqueue._checked_options(q);
    PERFORM pgqueue._remove_ended(name);
    IF if_not_exists THEN
        q.id := pgqueue._existing_queue(name, session);
        IF q.id IS NOT NULL THEN
            PERFORM pgqueue._note_use(q.id);
            RETURN q.id;
        END IF;
    END IF;
    IF NOT pgqueue._may_name(name, 'manage') THEN
        PERFORM pgqueue._refuse('manage', name);
    END IF;
    q := pgqueue._own_dead_letter(q);
    q.role := pgqueue._caller();
    IF exclusive OR temporary THEN
        q.session_id := pgqueue._live_session(session);
        q.role := (SELECT pg_get_userbyid(s.role) FROM pgqueue.session s WHERE s.id = q.session_id);
    END IF;
    PERFORM pgqueue._check_quota('queues');
    INSERT INTO pgqueue.queue
           (name, priority, delay, ttr, ttl, maxlen, max_takes, dead_letter, dead_letter_key,
            session_id, exclusive, auto_delete, type, capacity, max_size, keep_done, expires, listed, metadata,
            role, dead_letter_role, draining, guarded)
    VALUES (q.name, q.priority, q.delay, q.ttr, q.ttl, q.maxlen, q.max_takes, q.dead_letter, q.dead_letter_key,
            q.session_id, q.exclusive, q.auto_delete, q.type, q.capacity, q.max_size, q.keep_done, q.expires, q.listed,
            q.metadata, q.role, q.dead_letter_role, EXISTS (SELECT FROM pgqueue.draining),
            q.exclusive OR pgqueue._roles_are_limited())
    ON CONFLICT DO NOTHING RETURNING queue.id INTO q.id;
    IF NOT FOUND AND if_not_exists THEN            -- another transaction has just created it: a new statement sees it
        q.id := pgqueue._existing_queue(name, session);
    END IF;
    IF q.id IS NULL THEN
        RAISE EXCEPTION 'queue "%" exists already', name USING ERRCODE = 'PQ003';
    END IF;
    RETURN q.id;
END $$;
COMMENT ON FUNCTION pgqueue.create_queue IS
    'Create a queue with options; PQ003 if it exists. With if_not_exists it stays as it is; PQ033 if it is exclusive '
    'to another session. A put or a waiting take creates one with the defaults.';

CREATE OR REPLACE FUNCTION pgqueue.alter_queue(name text, options jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    -- Not the name: rename_queue changes that; not an option by which existing tasks were put; not the owning session.
    alterable CONSTANT text[] := '{priority,delay,ttr,ttl,maxlen,max_takes,dead_letter,dead_letter_key,auto_delete,'
                                 'capacity,max_size,keep_done,expires,listed,metadata}'::text[];
    q       pgqueue.queue := pgqueue._known_queue(name, 'manage', lock => 'no key update');
    before  CONSTANT pgqueue.queue := q;
    unknown text;
BEGIN
    IF jsonb_typeof(options) <> 'object' THEN
        RAISE EXCEPTION 'options must be a JSON object, not %', jsonb_typeof(options) USING ERRCODE = 'PQ002';
    END IF;
    SELECT given INTO unknown FROM jsonb_object_keys(options) given WHERE given <> ALL (alterable);
    IF FOUND THEN
        RAISE EXCEPTION 'a queue''s % cannot be altered: that can be %', pgqueue._shown(unknown),
            array_to_string(alterable, ', ') USING ERRCODE = 'PQ002';
    END IF;
    BEGIN
        q := jsonb_populate_record(q, options);
    EXCEPTION WHEN data_exception THEN             -- a value of another type
        RAISE EXCEPTION 'options: %', SQLERRM USING ERRCODE = 'PQ002';
    END;
    IF q.auto_delete AND NOT before.auto_delete
       OR q.expires IS NOT NULL AND q.expires IS DISTINCT FROM before.expires THEN
        PERFORM pgqueue._check_not_restricted(q);
    END IF;
    q := pgqueue._checked_options(q);
    IF options ?| '{dead_letter,dead_letter_key}' THEN
        q := pgqueue._own_dead_letter(q);
        UPDATE pgqueue.queue r SET dead_letter_role = q.dead_letter_role WHERE r.id = q.id;
    END IF;
    UPDATE pgqueue.queue altered
       SET priority = coalesce(q.priority, 0), delay = coalesce(q.delay, '0'), ttr = q.ttr, ttl = q.ttl,
           maxlen = q.maxlen, max_takes = q.max_takes, dead_letter = q.dead_letter, dead_letter_key = q.dead_letter_key,
           auto_delete = coalesce(q.auto_delete, false), capacity = q.capacity, max_size = q.max_size,
           keep_done = q.keep_done, expires = q.expires, listed = coalesce(q.listed, false), metadata = q.metadata
     WHERE altered.id = q.id;
    IF q.listed AND NOT before.listed THEN
        PERFORM pgqueue._begin_listing(q.id);
    ELSIF before.listed AND q.listed IS NOT TRUE THEN
        DELETE FROM pgqueue.listing l WHERE l.queue_id = q.id;
    END IF;
    IF q.maxlen IS NOT NULL THEN
        PERFORM pgqueue._trim_queue(q.id, q.maxlen);
    END IF;
    PERFORM pgqueue._note_use(q.id);
    PERFORM pgqueue._signal(-q.id);                -- there may be room for puts that wait (special.sql)
    PERFORM pgqueue._record('alter', q.name, detail => (options - 'metadata')::text);        -- metadata is data
END $$;
COMMENT ON FUNCTION pgqueue.alter_queue IS
    'Change the named options of a queue; null sets the default. Example: {"ttl": "1 h", "maxlen": null}. Existing '
    'tasks keep the options that they were put with; but with listed they are listed too, after the markers of earlier '
    'pages and in no order.';

CREATE OR REPLACE FUNCTION pgqueue.rename_queue(name text, new_name text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    q pgqueue.queue := pgqueue._known_queue(name, 'manage', lock => 'update');
BEGIN
    PERFORM pgqueue._check_name(new_name), pgqueue._check_not_restricted(q);
    IF NOT pgqueue._may_name(new_name, 'manage') THEN
        PERFORM pgqueue._refuse('manage', new_name);
    END IF;
    BEGIN
        UPDATE pgqueue.queue renamed SET name = new_name WHERE renamed.id = q.id;
    EXCEPTION WHEN unique_violation THEN
        RAISE EXCEPTION 'queue "%" exists already', new_name USING ERRCODE = 'PQ003';
    END;
    UPDATE pgqueue.queue d SET dead_letter_key = new_name
     WHERE d.dead_letter = '' AND d.dead_letter_key = rename_queue.name;
    UPDATE pgqueue.schedule s SET queue = new_name, revision = s.revision + 1 WHERE s.queue = rename_queue.name;
    PERFORM pgqueue._signal(q.id), pgqueue._signal(-q.id);      -- takers that wait under the old name look again
    PERFORM pgqueue._record('rename', name, new_name);
END $$;
COMMENT ON FUNCTION pgqueue.rename_queue IS
    'Give a queue another name; its tasks, takes, bindings and schedules stay. PQ003 if a queue of that name exists.';

CREATE OR REPLACE FUNCTION pgqueue.delete_queue(
    name      text,
    if_empty  boolean DEFAULT false,
    if_unused boolean DEFAULT false,
    force     boolean DEFAULT false           -- also while tasks of it are taken
) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    known   CONSTANT pgqueue.queue := pgqueue._known_queue(name, 'manage', lock => 'update');
    q       CONSTANT int := known.id;
    total   bigint;
    taken   bigint;
    awaited boolean;
    removed int;
BEGIN
    PERFORM pgqueue._check_not_restricted(known);
    IF if_empty OR if_unused OR force IS NOT TRUE THEN
        SELECT s.total, s.taken INTO total, taken FROM pgqueue._queue_stats(ARRAY [q]) s;
        awaited := if_unused AND pgqueue._is_awaited(q);
        IF if_empty AND total > 0 OR taken > 0 AND (if_unused OR force IS NOT TRUE) OR awaited THEN
            RAISE EXCEPTION 'queue "%" is in use: it holds % tasks, of which % are taken%', name, total, taken,
                CASE WHEN awaited THEN ', and a taker waits for more' ELSE '' END USING ERRCODE = 'PQ034';
        END IF;
    END IF;
    removed := pgqueue._remove_queue(q);
    PERFORM pgqueue._record('delete_queue', known.name, count => removed);
    RETURN removed;
END $$;
COMMENT ON FUNCTION pgqueue.delete_queue IS
    'Remove a queue with its tasks and bindings; returns how many tasks. PQ034: a task of it is taken; force removes '
    'the queue nevertheless. Also PQ034: with if_empty it has a task; with if_unused a task is taken, or a taker waits '
    'for one.';

CREATE OR REPLACE FUNCTION pgqueue.pause_queue(queue text, duration interval) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    q CONSTANT int := (pgqueue._known_queue(queue, 'manage')).id;
BEGIN
    IF duration IS NULL THEN
        RAISE EXCEPTION 'cannot pause a queue for NULL' USING ERRCODE = 'PQ002';
    END IF;
    PERFORM pgqueue._check_time('duration', duration, zero => true);
    UPDATE pgqueue.queue paused SET paused_until = CASE WHEN duration > '0' THEN clock_timestamp() + duration END
     WHERE paused.id = q;
    -- Also at the start of a pause: it may end sooner than the previous pause, until whose end takers sleep.
    PERFORM pgqueue._signal(q);
    PERFORM pgqueue._record(CASE WHEN duration > '0' THEN 'pause' ELSE 'resume' END, queue,
                            detail => CASE WHEN duration > '0' THEN duration::text END);
END $$;
COMMENT ON FUNCTION pgqueue.pause_queue IS
    'Take no tasks from a queue for this long; 0 ends a pause. Puts and holders of tasks go on. PQ032: there is '
    'no such queue.';

-- End the takes of these tasks of a queue, or of all, by any holder; returns how many.
CREATE OR REPLACE FUNCTION pgqueue._end_takes(queue_id int, ids bigint[] DEFAULT NULL) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    gone record;
BEGIN
    SELECT * INTO gone FROM pgqueue._untake(ARRAY (
               SELECT k.ctid FROM pgqueue.take k
                WHERE k.queue_id = _end_takes.queue_id AND (_end_takes.ids IS NULL OR k.task_id = ANY (_end_takes.ids))
                  FOR UPDATE SKIP LOCKED));
    PERFORM pgqueue._given_back(gone.queues, gone.ids, 'release');
    RETURN coalesce(cardinality(gone.ids), 0);
END $$;

CREATE OR REPLACE FUNCTION pgqueue.release_all(queue text) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    released int;
BEGIN
    released := pgqueue._end_takes((pgqueue._known_queue(queue, 'manage')).id);
    IF released > 0 THEN
        PERFORM pgqueue._record('release', queue, count => released);
    END IF;
    RETURN released;
END $$;
COMMENT ON FUNCTION pgqueue.release_all IS 'Give back all taken tasks of a queue, of every holder; returns how many.';
