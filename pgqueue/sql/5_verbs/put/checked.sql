-- Putting one task whose own options were checked: into a flow, once for a time, or directly.

-- Put a task that waits for others, or belongs to a batch, and was checked but for that.
CREATE OR REPLACE FUNCTION pgqueue._put_in_flow(
    q pgqueue.queue, s pgqueue.specification, later timestamptz, alone boolean
) RETURNS pgqueue.put_outcome
LANGUAGE plpgsql AS $$
DECLARE
    waits CONSTANT boolean := coalesce(s.after <> '{}', false);
    new   pgqueue.put_outcome;
BEGIN
    PERFORM pgqueue._enter_flow(q, s);
    new := pgqueue._put_special(q, s, CASE WHEN NOT waits THEN later END);
    IF new.id IS NULL OR new.existed THEN
        RETURN new;
    ELSIF s.batch IS NOT NULL THEN
        PERFORM pgqueue._add_members(s.batch, ARRAY [new.id]);
    END IF;
    IF waits THEN
        new.state := pgqueue._make_wait(new.id, q, s, alone);
    END IF;
    RETURN new;
END $$;

-- Put a task whose own options were checked. later: as for _put_special.
CREATE OR REPLACE FUNCTION pgqueue._put_checked(
    q pgqueue.queue, s pgqueue.specification, later timestamptz, alone boolean
) RETURNS pgqueue.put_outcome
LANGUAGE plpgsql AS $$
BEGIN
    IF s.after IS NOT NULL OR s.batch IS NOT NULL THEN
        RETURN pgqueue._put_in_flow(q, s, later, alone);
    ELSIF s.unique_for IS NOT NULL THEN
        RETURN pgqueue._put_once(q, s, later);
    END IF;
    RETURN pgqueue._put_special(q, s, later);
END $$;
