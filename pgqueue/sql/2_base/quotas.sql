-- Quotas: how many objects of a kind one role may have made. They stop a runaway or hostile program before it slows
-- down the others: each queue costs every idle client a little, and each node and binding costs memory
-- and disk. Tasks, statuses and results have no quota: they are data, and a queue has capacity and maxlen.
--
-- The quotas also hold for superusers and for the owner of the schema, whose programs can run wild too. The owner sets
-- them.
--
-- The count walks over an index, or over the sessions, up to the quota and no further. It is made when an object is
-- created, which is rare. A row with the number of each role would be cheaper to read, but every creation and every end
-- of a session would wait for it. Two transactions T1 and T2 that create objects at the same time do not see each
-- other's, and may exceed the quota by that number. That does no harm: a quota only has to stop unbounded growth.

CREATE OR REPLACE VIEW pgqueue.quotas AS
SELECT q.what, q.number FROM pgqueue.quota q;
COMMENT ON VIEW pgqueue.quotas IS
    'How many objects of each kind one role may have made; NULL: any number. More raise PQ006. Payloads: the bytes of '
    'posts that are too large for NOTIFY and were made in the last minute or two.';

-- The stored payloads of posts are counted in bytes, and other objects one by one.
CREATE OR REPLACE FUNCTION pgqueue._made(what text, role oid, most bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN CASE what
        WHEN 'queues' THEN (SELECT count(*) FROM (
            SELECT FROM pgqueue.queue q WHERE q.role_id = _made.role LIMIT most) t)
        WHEN 'exchanges' THEN (SELECT count(*) FROM (
            SELECT FROM pgqueue.exchange e WHERE e.role_id = _made.role LIMIT most) t)
        WHEN 'bindings' THEN (SELECT count(*) FROM (
            SELECT FROM pgqueue.binding b WHERE b.role_id = _made.role LIMIT most) t)
        WHEN 'batches' THEN (SELECT count(*) FROM (
            SELECT FROM pgqueue.batch b WHERE b.role_id = _made.role AND b.closed_at IS NULL LIMIT most) t)
        WHEN 'nodes' THEN (SELECT count(*) FROM (
            SELECT FROM pgqueue.node n WHERE n.role_id = _made.role LIMIT most) t)
        WHEN 'schedules' THEN (SELECT count(*) FROM (
            SELECT FROM pgqueue.schedule s WHERE s.role_id = _made.role LIMIT most) t)
        WHEN 'sessions' THEN (SELECT count(*) FROM (        -- those within others: the rest need a connection each
            SELECT FROM pgqueue.session s
             WHERE s.parent IS NOT NULL AND s.role::oid = _made.role LIMIT most) t)
        WHEN 'payloads' THEN (SELECT coalesce(sum(p.size), 0) FROM pgqueue.payload p WHERE p.role_id = _made.role)
    END;
END $$;

-- For the owner of the schema: it runs with the caller's rights, and other roles have none on the tables.
CREATE OR REPLACE FUNCTION pgqueue.set_quota(what text, number bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF number < 0 THEN
        RAISE EXCEPTION 'a quota is 0 or more, or NULL for none, not %', number USING ERRCODE = 'PQ002';
    END IF;
    IF pgqueue._made(what, 0, 0) IS NULL THEN
        RAISE EXCEPTION 'there is no quota of %: the view pgqueue.quotas has all', pgqueue._shown(what)
            USING ERRCODE = 'PQ002';
    END IF;
    INSERT INTO pgqueue.quota AS q (what, number) VALUES (what, number)
        ON CONFLICT ON CONSTRAINT quota_pkey DO UPDATE SET number = excluded.number;
    PERFORM pgqueue._record('set_quota', object => what, detail => coalesce(number::text, 'without limit'));
END $$;
COMMENT ON FUNCTION pgqueue.set_quota IS
    'Set how many queues, exchanges, bindings, open batches, nodes, schedules or sessions within others, or how many '
    'bytes of stored payloads, each role may have made; NULL: any number. Existing ones stay. Only the owner of the '
    'schema may call it.';

-- Called before one more is made. While the row of a quota is missing no role can make any: an unlimited quota is a row
-- with NULL.
CREATE OR REPLACE FUNCTION pgqueue._check_quota(what text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    most bigint;
BEGIN
    SELECT q.number INTO most FROM pgqueue.quota q WHERE q.what = _check_quota.what;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the table of quotas has none of %: it has lost the row', what
            USING ERRCODE = 'PQ006',
                  HINT = format('The owner of the schema can set it: SELECT pgqueue.set_quota(%L, %s)', what,
                                CASE what WHEN 'payloads' THEN 1073741824 ELSE 10000 END);
    END IF;
    IF most IS NOT NULL AND pgqueue._made(what, pgqueue._caller_role(), most) >= most THEN
        RAISE EXCEPTION 'role % has reached its limit of % %', pgqueue._caller(), most,
            CASE what WHEN 'payloads' THEN 'bytes of payloads' ELSE what END
            USING ERRCODE = 'PQ006',
                  HINT = format('The owner of the schema can raise it: SELECT pgqueue.set_quota(%L, %s)', what,
                                2 * most);
    END IF;
END $$;
