-- The number of this server: which one of several servers it is, each of which has a pgqueue of its own.
--
-- Server n gives the ids from n << 43 on, and a server that was given no number is server 0. So an id names its server,
-- and no call can meet a task of the wrong server that happens to have the same id. A server has 8.8e12 ids, and the
-- largest of all is 2^53 - 1, which every reader of JSON reads exactly.
--
-- The number is the bounds of the sequence of ids, and stands nowhere else: a dump and a standby have it, and no put
-- pays for it. A server is given one before its first put, since the ids of tasks stay. The sequence tells, also of ids
-- whose tasks were rolled back or are gone. A nextval keeps its lock of the sequence until its transaction ends, and
-- ALTER SEQUENCE waits for that, so no id of the old number comes later.
--
-- A call that finds its task does not ask for the number: the task is here. One that does not find it asks before it
-- says so (_check_server), in place of a check at the head of every verb.

-- Not in SQL: such a function is planned again in each transaction, and cost the put of a limit with a home 100 us.
CREATE OR REPLACE FUNCTION pgqueue.server_number() RETURNS int
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
BEGIN
    RETURN (SELECT (s.seqmin >> 43)::int FROM pg_sequence s WHERE s.seqrelid = 'pgqueue.task_id_seq'::regclass);
END $$;
COMMENT ON FUNCTION pgqueue.server_number IS
    'The number of this server among several: set_server. 0: it was given none. Of a task or batch it is id >> 43.';

-- For the owner of the schema: it runs with the caller's rights, and other roles have none on the sequence.
CREATE OR REPLACE FUNCTION pgqueue.set_server(number int) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    present int := pgqueue.server_number();
    newest  bigint;
BEGIN
    IF (number BETWEEN 1 AND 1023) IS NOT TRUE THEN
        RAISE EXCEPTION 'the number of a server is 1 to 1023, not %', coalesce(number::text, 'NULL')
            USING ERRCODE = 'PQ002';
    ELSIF present = number THEN
        RETURN;
    END IF;
    ALTER SEQUENCE pgqueue.task_id_seq CACHE 1;    -- changes nothing: its lock keeps out puts, and another such call
    present := pgqueue.server_number();
    IF present = number THEN
        RETURN;
    ELSIF present <> 0 THEN
        RAISE EXCEPTION 'this is server % already, so it cannot become server %', present, number
            USING ERRCODE = 'PQ048';
    END IF;
    IF EXISTS (SELECT FROM pgqueue.cluster) THEN
        RAISE EXCEPTION 'this is server 0 of a cluster, so it cannot become server %', number USING ERRCODE = 'PQ048';
    END IF;
    SELECT s.last_value INTO newest FROM pgqueue.task_id_seq s WHERE s.is_called;
    IF FOUND THEN
        RAISE EXCEPTION 'this server has put tasks, the last with the id %, so it cannot become server %: a server '
                        'gets its number before its first put', newest, number USING ERRCODE = 'PQ048';
    END IF;
    EXECUTE format('ALTER SEQUENCE pgqueue.task_id_seq MINVALUE %1$s START %1$s RESTART %1$s MAXVALUE %2$s',
                   (number::bigint << 43) + 1, (number + 1::bigint << 43) - 1);
    PERFORM pgqueue._record('set_server', object => number::text);
END $$;
COMMENT ON FUNCTION pgqueue.set_server IS
    'Give this server its number among several servers, 1 to 1023, before its first put; it then stays. Ids of tasks '
    'and batches are behind number << 43. Only the owner of the schema may call it. PQ048: it has another number, '
    'belongs to a cluster, or has put tasks.';

-- The message for an id of another server; NULL: the id is of this server, or of none.
CREATE OR REPLACE FUNCTION pgqueue._elsewhere(id bigint, what text) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    ours CONSTANT int := pgqueue.server_number();
BEGIN
    RETURN CASE WHEN id >> 43 <> ours AND id >> 43 BETWEEN 0 AND 1023
                THEN format('%s %s belongs to server %s, this is server %s: call that one',
                            what, id, id >> 43, ours) END;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._check_server(id bigint) RETURNS void
LANGUAGE plpgsql STABLE AS $$
DECLARE
    message CONSTANT text := pgqueue._elsewhere(id, 'task');
BEGIN
    IF message IS NOT NULL THEN
        RAISE EXCEPTION '%', message USING ERRCODE = 'PQ047';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pgqueue.own_id(id bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM pgqueue._check_server(id);
    RETURN id;
END $$;
COMMENT ON FUNCTION pgqueue.own_id IS
    'This id, whether or not there is such a task, if it is of this server. PQ047: another server gave it.';

-- The answer of a call that has not found its task here.
CREATE OR REPLACE FUNCTION pgqueue._absent(id bigint, answer text DEFAULT 'not found') RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM pgqueue._check_server(id);
    RETURN answer;
END $$;
