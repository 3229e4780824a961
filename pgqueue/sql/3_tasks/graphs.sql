-- Graphs: tasks that wait for each other, put in one call. The theory is in flows.sql.

CREATE OR REPLACE FUNCTION pgqueue.put_graph(puts jsonb, alone boolean DEFAULT false) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    given CONSTANT record := pgqueue._read_puts(puts);
BEGIN
    PERFORM pgqueue._lock_rooms(given.queues);
    RETURN pgqueue._put_all(given.queues, given.specs, coalesce(alone, false));
END $$;
COMMENT ON FUNCTION pgqueue.put_graph IS
    'Put tasks that wait for each other, all or none: an array, as for ack. In `after`, -1 is the first task of the '
    'array, -2 the second, and so on; a task follows the tasks that it waits for. Returns their ids, in that order. '
    'alone: as for put_flow.';
