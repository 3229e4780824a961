-- Channels with secret names: for notifications that carry facts.
--
-- PostgreSQL lets every role that may connect to the database send any payload on any channel. So a notification is a
-- hint: a client that hears one looks into the database, and a forged one costs a look. Two kinds of notifications
-- carry facts that no look can check, since the fact may be over: that a task was taken (6_families/changes.sql), and
-- that a node was created (6_families/nodes.sql). A client believes them because of their channel. The name of such a
-- channel is a hash of a secret and of the channel's subject, and the functions that return the name check their
-- caller. A role cannot send to a channel whose name it does not know.
--
-- A secret in the payload does not work: the first listener learns it, and channels can be guessed. A query that
-- verifies each event would need a log of all events.
--
-- The secret is never returned, only hashes: a role that learns one channel's name can forge this channel's events and
-- no others. The server shows the name in the text of LISTEN, to the role itself, to superusers, and to members of
-- pg_read_all_stats. The hash is SHA-256: servers in FIPS mode have no MD5. A name has 47 bytes, and NOTIFY allows 63.

CREATE OR REPLACE FUNCTION pgqueue._secret_channel(kind text, about text) RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT format('pgqueue:%s:%s', kind,
                          left(encode(sha256(convert_to(s.value || kind || ':' || about, 'UTF8')), 'hex'), 32))
              FROM pgqueue.secret s);
END $$;
