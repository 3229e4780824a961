-- Identities: sessions that act as one.
--
-- Theory of operation
-- -------------------
-- A session may have an identity, a uuid, as with Tarantool's queue.identify. Other sessions of its role join it by
-- that uuid: more connections of one application, or a process that was started again. An identity is the pair of role
-- and uuid: sessions of another role with the same uuid are another identity. The members of an identity settle each
-- other's tasks by id (a token needs no identity), and inherit each other's takes:
--
--     a member dies, or is closed  --its grace is over-->  another member is left:  it inherits the takes
--                                                          it was the last one:     the takes are given back
--
-- So the takes are kept until the last member has been gone for its grace. A member that is dead, but in its grace, is
-- an heir as well: a process that joins in time finds it, and inherits from it in turn. Closing a session leaves its
-- row and its takes behind for that; without a grace, closing passes the takes on, or gives them back, at once.
--
-- Races:
--   T1 joins an identity, T2 ends its last member   T1 holds the rows of the members by key shares until its commit,
--                                                   so that none is deleted. T2 locks the row of its session first,
--                                                   and looks for heirs after that, in a new snapshot.
--   T1 gives takes to an heir that T2 ends          A take that came to the heir after T2 last looked at its takes
--                                                   would stay permanently, as with a claim, and the cure is the same:
--                                                   T1 shares the heir's CLAIMING until its commit. T1 only tries:
--                                                   two members may be about to end at once.

CREATE OR REPLACE FUNCTION pgqueue.identify(identity uuid DEFAULT NULL, session int DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql AS $$
DECLARE
    me    CONSTANT int := pgqueue._live_session(session);
    mine  uuid;
BEGIN
    IF identity IS NOT NULL THEN
        PERFORM FROM pgqueue.session s
          WHERE s.identity = identify.identity
            AND s.role = (SELECT o.role FROM pgqueue.session o WHERE o.id = me)
            FOR KEY SHARE OF s;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'there is no identity %: no session has it, or its last one was gone for too long', identity
                USING ERRCODE = 'PQ070', HINT = 'Make a new one with pgqueue.identify().';
        END IF;
    END IF;
    UPDATE pgqueue.session s SET identity = coalesce(identify.identity, s.identity, gen_random_uuid())
     WHERE s.id = me RETURNING s.identity INTO mine;
    RETURN mine;
END $$;
COMMENT ON FUNCTION pgqueue.identify IS
    'The identity of a session, which gets a new one if it has none; with a uuid, join that identity: its sessions '
    'settle each other''s tasks and inherit each other''s takes. PQ070: no session of the same role has it.';

-- Whether the session may settle a take of `holder` without its token. The session comes from _named_session, which is
-- called once for each call, and not for each of its tasks.
CREATE OR REPLACE FUNCTION pgqueue._is_ours(holder int, session int) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF holder = session THEN                       -- nearly always: without the query below
        RETURN true;
    END IF;
    RETURN EXISTS (SELECT FROM pgqueue.session s JOIN pgqueue.session o ON o.identity = s.identity AND o.role = s.role
                    WHERE s.id = _is_ours.session AND o.id = holder);
END $$;

-- The session that inherits the takes of a session that ends; it can be given takes until this transaction commits. 0:
-- there is no heir. NULL: there is an heir, but it cannot be given takes now. The caller has locked the row of the
-- session that ends, in an earlier statement.
CREATE OR REPLACE FUNCTION pgqueue._heir(session int) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    other int;
BEGIN
    FOR other IN
        SELECT o.id
          FROM pgqueue.session s JOIN pgqueue.session o ON o.identity = s.identity AND o.role = s.role AND o.id <> s.id
         WHERE s.id = _heir.session
         ORDER BY pgqueue._session_alive(coalesce(o.parent, o.id)) DESC
    LOOP
        IF pg_try_advisory_xact_lock_shared(pgqueue._claiming_lock(), other)
           AND EXISTS (SELECT FROM pgqueue.session o WHERE o.id = other) THEN
            RETURN other;
        END IF;
    END LOOP;
    RETURN CASE WHEN other IS NULL THEN 0 END;
END $$;
