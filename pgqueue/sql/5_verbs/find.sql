-- Finding tasks of a queue by state, job, error, age, key, lane and data, page by page; and acting on all that are
-- found.
--
-- A page is read from an index, whatever the backlog: the query has constants, by which the planner finds the index of
-- that state and needs no sort. Each state has an order of its own, and the place of a task in it is a JSON array: the
-- marker. The next page begins behind the marker of the last task of this one. OFFSET would read all pages before it.
--
-- A filter that few tasks pass reads the tasks that it leaves out: in find_tasks all of them. search_tasks has a bound
-- in time: once that is over, its condition lets every task pass, so the next task is the place at which the search
-- stopped, and its marker the one with which to go on. A bound on the number of tasks would not do: a task costs half a
-- microsecond, or, with 256 kB of data, half a millisecond. A key, and a lane of ready or blocked tasks,
-- are found by an index.
--
-- act_on_tasks looks for ids first, without locks. Then it locks those rows, skipping rows that another transaction has
-- locked, and looks in a new snapshot which tasks are still in that state. So a task that was kicked and taken in the
-- meantime is not deleted. It acts on one page, and its caller commits between pages. The marker is that of the last
-- task that was read, so a task that was skipped is not met again in the same pass.

-- The columns that order the tasks in a state. The last one is the id.
CREATE OR REPLACE FUNCTION pgqueue._order_of(state text) RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE state WHEN 'taken'   THEN '{taken_at,id}'::text[]
                  WHEN 'delayed' THEN '{run_at,id}'
                  WHEN 'done'    THEN '{done_at,id}'
                  WHEN 'blocked' THEN '{lane,priority,id}'
                  ELSE                '{priority,id}' END;

-- The same columns as values: the place of a task among those of its state.
CREATE OR REPLACE FUNCTION pgqueue._place(
    state text, priority int, lane text, taken_at timestamptz, run_at timestamptz, done_at timestamptz, id bigint
) RETURNS jsonb
LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE state WHEN 'taken'   THEN jsonb_build_array(taken_at, id)
                  WHEN 'delayed' THEN jsonb_build_array(run_at, id)
                  WHEN 'done'    THEN jsonb_build_array(done_at, id)
                  WHEN 'blocked' THEN jsonb_build_array(lane, priority, id)
                  ELSE                jsonb_build_array(priority, id) END;

-- ORDER BY of a page, with the columns of this alias.
CREATE OR REPLACE FUNCTION pgqueue._ordering(state text, backwards boolean, alias text) RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT string_agg(format(CASE WHEN backwards THEN '%s.%s DESC' ELSE '%s.%s' END, alias, f.name), ', '
                              ORDER BY f.n)
              FROM unnest(pgqueue._order_of(state)) WITH ORDINALITY f(name, n));
END $$;

-- The condition for tasks behind the marker $8.
CREATE OR REPLACE FUNCTION pgqueue._behind(state text, backwards boolean, alias text) RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT format(' AND (%s) %s (%s)', string_agg(alias || '.' || f.name, ', ' ORDER BY f.n),
                          CASE WHEN backwards THEN '<' ELSE '>' END,
                          string_agg(format('($8 ->> %s)::%s', f.n - 1,
                                            CASE f.name WHEN 'id' THEN 'bigint' WHEN 'priority' THEN 'int'
                                                        WHEN 'lane' THEN 'text' ELSE 'timestamptz' END),
                                     ', ' ORDER BY f.n))
              FROM unnest(pgqueue._order_of(state)) WITH ORDINALITY f(name, n));
END $$;

-- The condition of a filter: $5 job, $6 error, $7 older, $9 key, $10 lane, $11 contains. Raises PQ002.
CREATE OR REPLACE FUNCTION pgqueue._filter(
    job text, error text, older interval, key text, lane text, contains jsonb
) RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM pgqueue._check_text('a job', job), pgqueue._check_text('an error', error),
            pgqueue._check_time('older', older, zero => true), pgqueue._check_text('a key', key),
            pgqueue._check_text('a lane', lane), pgqueue._check_data('contains', contains, nulls => true);
    RETURN CASE WHEN job IS NULL THEN '' WHEN job = '' THEN $s$ AND coalesce(t.data ->> 'job', '') = ''$s$
                ELSE $s$ AND t.data ->> 'job' = $5$s$ END
        || CASE WHEN error IS NULL THEN '' WHEN error = '' THEN $s$ AND coalesce(t.error, '') = ''$s$
                ELSE ' AND strpos(t.error, $6) > 0' END
        || CASE WHEN older IS NULL THEN '' ELSE ' AND t.created_at <= now() - $7' END
        || CASE WHEN key IS NULL THEN '' ELSE ' AND t.key = $9' END
        || CASE WHEN lane IS NULL THEN '' ELSE ' AND t.lane = $10' END
        || CASE WHEN contains IS NULL THEN '' ELSE ' AND t.data @> $11' END;
END $$;

-- The query for a page of the tasks that may be in a state, and meet the condition: $1 the queue, $2 the state, $3 n,
-- $4 how many to skip, $8 after; and those of the condition. `first`: read only as many takes as the page has tasks.
-- `by_key`: the condition has the key of a task that is not done. The index of the state has the order, so the planner
-- prefers it to that of the keys, unless the query does not name the stored state.
CREATE OR REPLACE FUNCTION pgqueue._tasks_query(
    state text, backwards boolean, condition text, first boolean, by_key boolean, after jsonb
) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    ordering CONSTANT text   := pgqueue._ordering(state, backwards, 't');
    behind   CONSTANT text   := CASE WHEN after IS NULL THEN '' ELSE pgqueue._behind(state, backwards, 't') END;
    -- An index of takes by taken_at would cost each claim. So the takes of the queue are sorted, and no more of their
    -- tasks are read than fill the page.
    by_take  CONSTANT text   := replace(pgqueue._ordering(state, backwards, 'k'), 'k.id', 'k.task_id');
    takes    CONSTANT text   := 'SELECT k.taken_at, k.task_id FROM pgqueue.take k WHERE k.queue_id = $1'
                                || ' AND k.deadline > now()'
                                || CASE WHEN after IS NULL THEN ''
                                        ELSE replace(pgqueue._behind(state, backwards, 'k'), 'k.id', 'k.task_id') END
                                || ' ORDER BY ' || by_take || CASE WHEN first THEN ' LIMIT $3::int8 + $4' ELSE '' END;
    keyed    CONSTANT text   := 't.id = ANY (ARRAY (SELECT k.id FROM pgqueue.task k WHERE k.queue_id = $1'
                                || $s$ AND k.key = $9 AND k.state <> 'F'))$s$;
    likely            text[] := CASE state                          -- rows that may be in this state
        WHEN 'ready'   THEN ARRAY [$s$t.stored = 'R'$s$, $s$t.stored = 'D' AND t.run_at <= now()$s$]
        WHEN 'taken'   THEN ARRAY ['t.id = k.task_id']
        WHEN 'delayed' THEN ARRAY [$s$t.stored = 'D'$s$]
        WHEN 'buried'  THEN ARRAY [$s$t.stored = 'B'$s$]
        WHEN 'blocked' THEN ARRAY [$s$t.stored IN ('R', 'L') AND t.lane IS NOT NULL$s$]
        WHEN 'waiting' THEN ARRAY [$s$t.stored = 'W'$s$]
        WHEN 'cancelling' THEN ARRAY [$s$t.stored = 'C'$s$]
        WHEN 'done'    THEN ARRAY [$s$t.stored = 'F'$s$] END;
BEGIN
    IF likely IS NULL THEN
        RAISE EXCEPTION 'no task is ever "%": the states are ready, delayed, taken, buried, blocked, waiting, '
            'cancelling and done', pgqueue._shown(state)
            USING ERRCODE = 'PQ002';
    ELSIF jsonb_typeof(after) <> 'array' OR jsonb_array_length(after) <> cardinality(pgqueue._order_of(state)) THEN
        RAISE EXCEPTION 'after is not the marker of a task that is %: %', state, pgqueue._shown(after::text)
            USING ERRCODE = 'PQ002',
                  HINT = 'It is the JSON array of the columns by which the state is ordered, of one task.';
    END IF;
    IF by_key THEN
        likely := ARRAY [keyed];
    END IF;
    RETURN (SELECT format('SELECT * FROM (%s) t ORDER BY %s LIMIT $3 OFFSET $4',
                          string_agg(CASE WHEN state = 'taken' AND NOT by_key THEN
                                         format('(SELECT t.* FROM (%s) k CROSS JOIN LATERAL (SELECT * FROM'
                                                ' pgqueue._tasks t WHERE t.queue_id = $1 AND %s%s OFFSET 0) t'
                                                ' ORDER BY %s LIMIT $3::int8 + $4)', takes, rows, condition, by_take)
                                     ELSE
                                         format('(SELECT * FROM pgqueue._tasks t WHERE t.queue_id = $1'
                                                ' AND %s%s%s ORDER BY %s LIMIT $3::int8 + $4)',
                                                rows, behind, condition, ordering) END, ' UNION ALL '), ordering)
              FROM unnest(likely) rows);
END $$;

-- Whether the caller filters by a field that it may not see: it may monitor the queue, but not look into it.
CREATE OR REPLACE FUNCTION pgqueue._check_finding(
    queue_id int, job text, error text, key text, lane text, contains jsonb
) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
DECLARE
    looks CONSTANT boolean := (SELECT seen.looks FROM pgqueue._seen seen WHERE seen.id = _check_finding.queue_id);
BEGIN
    IF queue_id IS NOT NULL
       AND (looks IS NULL OR NOT looks AND coalesce(job, error, key, lane, contains::text) IS NOT NULL) THEN
        PERFORM pgqueue._check_right(queue_id, 'look');
    END IF;
    RETURN coalesce(looks, false);
END $$;

CREATE OR REPLACE FUNCTION pgqueue.find_tasks(
    queue     text,
    state     text,
    n         int      DEFAULT 100,
    skip      int      DEFAULT 0,             -- each costs time, as OFFSET does
    backwards boolean  DEFAULT false,
    job       text     DEFAULT NULL,          -- empty: tasks of no job
    error     text     DEFAULT NULL,          -- a part of the error, for example its class; empty: tasks without one
    older     interval DEFAULT NULL,          -- put at least this long ago
    key       text     DEFAULT NULL,
    lane      text     DEFAULT NULL,
    contains  jsonb    DEFAULT NULL,          -- data @> contains
    after     jsonb    DEFAULT NULL           -- of the last task before, for example: jsonb_build_array(priority, id)
) RETURNS SETOF pgqueue.tasks
LANGUAGE plpgsql STABLE AS $$
DECLARE
    q      CONSTANT int  := (SELECT named.id FROM pgqueue.queue named WHERE named.name = find_tasks.queue);
    looks  CONSTANT bool := pgqueue._check_finding(q, job, error, key, lane, contains);
    filter CONSTANT text := pgqueue._filter(job, error, older, key, lane, contains);
    -- Without a filter the first n takes suffice.
    query  CONSTANT text := pgqueue._tasks_query(
        state, backwards, ' AND t.state = $2' || filter, filter = '', key IS NOT NULL AND state <> 'done', after);
BEGIN
    PERFORM pgqueue._check_count('n', n, low => 0), pgqueue._check_count('skip', skip, low => 0);
    -- A monitor gets the same tasks through the view, which hides their data. The view has security_barrier: a join
    -- without LATERAL and OFFSET 0 reads every task.
    RETURN QUERY EXECUTE CASE
        WHEN looks IS NOT FALSE THEN query
        ELSE format('SELECT v.* FROM (%s) t CROSS JOIN LATERAL'
                    ' (SELECT * FROM pgqueue.tasks w WHERE w.id = t.id OFFSET 0) v ORDER BY %s',
                    query, pgqueue._ordering(state, backwards, 't')) END
        USING q, state, n, skip, job, error, older, after, key, lane, contains;
END $$;
COMMENT ON FUNCTION pgqueue.find_tasks IS
    'n tasks of a queue in one state, after the first `skip`, or behind the marker `after`, fast with millions of '
    'tasks: ready, buried, waiting and cancelling by (priority, id), taken by (taken_at, id), delayed by (run_at, '
    'id), blocked by (lane, priority, id), done (only tasks that the queue keeps) by (done_at, id); or backwards. '
    'Filters: the job, a part of the error, the age, the key, the lane, data that contain this; all but the age need '
    'the right to look. It also reads the tasks that a filter leaves out: search_tasks stops after a time.';

-- The ids of n tasks in a state that pass a filter, and the marker of the last task that was read; NULL: no task is
-- behind it. For functions, which have checked rights.
CREATE OR REPLACE FUNCTION pgqueue._search(
    queue_id int, state text, n int, job text, error text, older interval, key text, lane text, contains jsonb,
    after jsonb, within interval, OUT ids bigint[], OUT next jsonb
)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    until  timestamptz;
    -- The state last: finding out a task's state may cost more than the other conditions.
    filter CONSTANT text := '(true' || pgqueue._filter(job, error, older, key, lane, contains)
                         || ' AND t.state = $2)';
    id     bigint;
    passes boolean;
    place  jsonb;
BEGIN
    PERFORM pgqueue._check_count('n', n), pgqueue._check_time('within', within, zero => true);
    until := coalesce(clock_timestamp() + within, 'infinity');
    ids := '{}';
    FOR id, passes, place IN
        EXECUTE format('SELECT t.id, %s AS passes, pgqueue._place($2, t.priority, t.lane, t.taken_at, t.run_at,'
                       ' t.done_at, t.id) AS place FROM (%s) t',
                       filter, pgqueue._tasks_query(
                           state, false, CASE WHEN lane IS NOT NULL AND state IN ('ready', 'blocked')
                                              THEN ' AND t.lane = $10' ELSE '' END
                                         || format(' AND CASE WHEN clock_timestamp() < $12 THEN %s ELSE true END',
                                                   filter),
                           false, key IS NOT NULL AND state <> 'done', after))
          USING queue_id, state, n, 0, job, error, older, after, key, lane, contains, until
    LOOP
        next := place;
        IF passes THEN
            ids := ids || id;
        END IF;
        IF cardinality(ids) = n OR clock_timestamp() >= until THEN
            RETURN;
        END IF;
    END LOOP;
    next := NULL;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.search_tasks(
    queue    text,
    state    text,
    n        int      DEFAULT 100,
    job      text     DEFAULT NULL,           -- these as for find_tasks
    error    text     DEFAULT NULL,
    older    interval DEFAULT NULL,
    key      text     DEFAULT NULL,
    lane     text     DEFAULT NULL,
    contains jsonb    DEFAULT NULL,
    after    jsonb    DEFAULT NULL,
    within   interval DEFAULT '1 s',          -- it stops then, with the ids found so far; NULL: it reads all tasks
    OUT ids  bigint[],
    OUT next jsonb
)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    q CONSTANT int := (SELECT named.id FROM pgqueue.queue named WHERE named.name = search_tasks.queue);
BEGIN
    PERFORM pgqueue._check_finding(q, job, error, key, lane, contains);
    SELECT * INTO ids, next
      FROM pgqueue._search(q, state, n, job, error, older, key, lane, contains, after, within);
END $$;
COMMENT ON FUNCTION pgqueue.search_tasks IS
    'The ids of up to n tasks that find_tasks would find, searched for a bounded time. next: the marker with which to '
    'go on, also if fewer than n tasks, or none, were found so far; NULL: there are no more.';

-- Lock the tasks that are still in this state.
CREATE OR REPLACE FUNCTION pgqueue._locked_in_state(queue_id int, ids bigint[], state text) RETURNS bigint[]
LANGUAGE plpgsql AS $$
BEGIN
    ids := ARRAY (SELECT t.id FROM pgqueue.task t WHERE t.id = ANY (ids) FOR UPDATE SKIP LOCKED);
    RETURN ARRAY (SELECT t.id FROM pgqueue._tasks t                    -- in a new snapshot
                   WHERE t.id = ANY (ids) AND t.queue_id = _locked_in_state.queue_id
                     AND t.state = _locked_in_state.state);
END $$;

CREATE OR REPLACE FUNCTION pgqueue.act_on_tasks(
    queue    text,
    verb     text,                            -- kick, release, cancel, delete or put_again
    state    text,
    n        int      DEFAULT 1000,
    job      text     DEFAULT NULL,           -- these as for find_tasks
    error    text     DEFAULT NULL,
    older    interval DEFAULT NULL,
    key      text     DEFAULT NULL,
    lane     text     DEFAULT NULL,
    contains jsonb    DEFAULT NULL,
    after    jsonb    DEFAULT NULL,
    within   interval DEFAULT '1 s',          -- as for search_tasks
    OUT acted int,
    OUT next  jsonb
)
LANGUAGE plpgsql AS $$
DECLARE
    q   CONSTANT int := (pgqueue._known_queue(queue, 'manage')).id;
    ids bigint[];
BEGIN
    PERFORM pgqueue._check_read_committed('act_on_tasks');
    IF coalesce(job, error, key, lane, contains::text) IS NOT NULL THEN
        PERFORM pgqueue._check_guarded(q, 'look');
    END IF;
    IF (verb IN ('cancel', 'delete') OR verb = 'kick' AND state IN ('buried', 'delayed')
        OR verb = 'release' AND state = 'taken' OR verb = 'put_again' AND state IN ('buried', 'done')) IS NOT TRUE THEN
        RAISE EXCEPTION '% is not for tasks that are %: kick is for buried and delayed tasks, release for taken ones, '
            'put_again for buried and done ones, cancel and delete are for all', pgqueue._shown(verb), state
            USING ERRCODE = 'PQ002';
    END IF;
    SELECT * INTO ids, next
      FROM pgqueue._search(q, state, n, job, error, older, key, lane, contains, after, within);
    acted := 0;
    IF verb = 'release' THEN
        acted := pgqueue._end_takes(q, ids);
        IF acted > 0 THEN
            PERFORM pgqueue._record('release', queue, count => acted);
        END IF;
    ELSIF verb = 'put_again' THEN
        acted := cardinality(pgqueue._put_again(q, ids));
    ELSIF ids <> '{}' THEN
        ids := pgqueue._locked_in_state(q, ids, state);
        acted := cardinality(ids);
        IF acted = 0 THEN
            RETURN;
        ELSIF verb = 'kick' THEN
            PERFORM pgqueue._make_ready(q, ids, 'kick'), pgqueue._record_tasks('kick', q, ids);
        ELSIF verb = 'cancel' THEN
            PERFORM pgqueue.cancel_many(ids);                           -- which records it
        ELSE
            PERFORM pgqueue._note(q, 'delete', ids), pgqueue._remove_batch(ids),
                    pgqueue._record_tasks('delete', q, ids);
        END IF;
    END IF;
END $$;
COMMENT ON FUNCTION pgqueue.act_on_tasks IS
    'Kick, release, cancel, delete or put again up to n tasks that search_tasks would find. acted: how many; next: the '
    'marker with which to go on, in a new transaction, also if it found none so far; NULL: there are no more. A task '
    'that another transaction has locked is left out. PQ002: not at READ COMMITTED, or the verb does not fit the '
    'state. PQ032: there is no such queue. PQ037: it has no room for the tasks to put again.';
