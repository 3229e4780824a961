-- Identities: sessions that act as one, as Tarantool's queue.identify has it.
--
-- Theory of operation
-- -------------------
-- A session may have an identity, a uuid. Others join it by that uuid: more connections of one application, or a
-- process that was started again. Members of an identity settle each other's tasks by id (with a token anybody may
-- settle), and inherit each other's takes:
--
--     a member dies, or is closed  --its grace is over-->  another member is left?  its takes become that one's
--                                                          it was the last?         they are given back
--
-- So the takes are kept until the last member has been gone for its grace. A member that is dead, and in its grace, is
-- as good an heir as any: a process that joins in time finds it, and inherits from it in turn. Closing leaves the
-- session's row and takes behind for that; without a grace to wait for it gives them on, or back, at once.
--
-- Races:
--   joining and the last member's end   who joins holds the rows of the members by key shares until its commit, so
--                                       that none is deleted; who ends a session locks its row first, and looks for
--                                       heirs after that, in a new snapshot.
--   inheriting and the heir's own end   a take that came to a session after the last look at its takes would belong to
--                                       nobody, as with a claim (session.sql), and the cure is the same: its CLAIMING
--                                       is shared until the commit. It is tried: two may be about to end at once.

CREATE OR REPLACE FUNCTION pgqueue.identify(identity uuid DEFAULT NULL, session int DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    me    CONSTANT int := pgqueue.live_session(session);
    mine  uuid;
BEGIN
    IF identity IS NOT NULL THEN
        PERFORM FROM pgqueue.session s WHERE s.identity = identify.identity FOR KEY SHARE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'there is no identity %: nobody has it, or who had it was gone for too long', identity
                USING ERRCODE = 'PQ070', HINT = 'Make a new one with pgqueue.identify().';
        END IF;
    END IF;
    UPDATE pgqueue.session s SET identity = coalesce(identify.identity, s.identity, gen_random_uuid())
     WHERE s.id = me RETURNING s.identity INTO mine;
    RETURN mine;
END $$;
COMMENT ON FUNCTION pgqueue.identify IS
    'The identity of a session, made if it has none; or, with one, join it: its members settle each other''s tasks and inherit each other''s takes. PQ070: nobody has it any more.';

-- Whether a take of `holder` may be settled by the session without its token.
CREATE OR REPLACE FUNCTION pgqueue.is_ours(holder int, session int) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
DECLARE
    me CONSTANT int := coalesce(session, pgqueue.own_session());
BEGIN
    IF holder = me THEN                            -- apart from the query below, which hardly anybody needs
        RETURN true;
    END IF;
    RETURN EXISTS (SELECT FROM pgqueue.session s JOIN pgqueue.session o ON o.identity = s.identity
                    WHERE s.id = me AND o.id = holder);
END $$;

-- Who inherits the takes of a session that ends, and can be given some until this transaction commits; 0: nobody does;
-- NULL: there is somebody, but not now. The session's row is locked by the caller, in an earlier statement.
CREATE OR REPLACE FUNCTION pgqueue.heir(session int) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    claiming CONSTANT int := 1885827332;
    other int;
BEGIN
    FOR other IN
        SELECT o.id FROM pgqueue.session s JOIN pgqueue.session o ON o.identity = s.identity AND o.id <> s.id
         WHERE s.id = heir.session
         ORDER BY pgqueue.session_alive(o.id) DESC
    LOOP
        IF pg_try_advisory_xact_lock_shared(claiming, other)
           AND EXISTS (SELECT FROM pgqueue.session o WHERE o.id = other) THEN
            RETURN other;
        END IF;
    END LOOP;
    RETURN CASE WHEN other IS NULL THEN 0 END;
END $$;
