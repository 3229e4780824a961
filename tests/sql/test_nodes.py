"""Nodes in SQL: the tree, versions and counters, what waits for what, and what goes with a session."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from statements import column, notifications, row, rows, value
from stepping import die, waiting

Connect = Callable[..., psycopg.Connection]
SWEEP = "SELECT pgqueue.sweep()"


def create(conn: psycopg.Connection, path: str, **options: Any) -> tuple[str, str | None]:
    """Its path and the problem."""
    names = "".join(f", {name} => %s" for name in options)
    return rows(conn, f"SELECT path, problem FROM pgqueue.create_node(%s{names})", path, *options.values())[0]


def paths(conn: psycopg.Connection) -> list[str]:
    return column(conn, "SELECT path FROM pgqueue.nodes WHERE path <> '/' ORDER BY path")


def channel(conn: psycopg.Connection, path: str) -> str:
    return str(value(conn, "SELECT pgqueue._node_channel(%s)", path))


def dies(conn: psycopg.Connection, db: psycopg.Connection) -> None:
    """Its session has no grace."""
    die(conn, db)
    db.execute(SWEEP)


def mortal(connect: Connect) -> tuple[psycopg.Connection, int]:
    """A connection with a session that may be gone for no time at all."""
    conn = connect()
    return conn, int(value(conn, "SELECT pgqueue.open_session(grace => '0')"))


# --- the tree


def test_the_root_is_there(db: psycopg.Connection) -> None:
    assert rows(db, "SELECT path, parent, data, version, ephemeral, holder FROM pgqueue.nodes") == [
        ("/", None, None, 0, False, None)
    ]
    assert create(db, "/") == ("/", "exists")
    with pytest.raises(psycopg.DatabaseError, match="root") as raised:
        db.execute("SELECT pgqueue.delete_node('/')")
    assert raised.value.sqlstate == "PQ002"
    assert row(db, "SELECT version, problem FROM pgqueue.set_node('/', '1')") == (1, None)


def test_a_node_is_created_read_set_and_deleted(db: psycopg.Connection) -> None:
    made = row(db, "SELECT path, problem, version, holder FROM pgqueue.create_node('/a', '{\"x\": 1}')")
    assert made == ("/a", None, 0, None)
    assert row(db, "SELECT version, problem, ephemeral FROM pgqueue.set_node('/a', '[2]')") == (1, None, False)
    query = "SELECT data, version, ephemeral, holder, parent FROM pgqueue.nodes WHERE path = '/a'"
    assert row(db, query) == ([2], 1, False, None, "/")
    assert row(db, "SELECT problem, version FROM pgqueue.delete_node('/a')") == (None, 1)
    assert paths(db) == []


def test_times_and_ids(db: psycopg.Connection) -> None:
    first = row(db, "SELECT id, created_at FROM pgqueue.create_node('/a')")
    _, created_at, updated_at = rows(db, "SELECT id, created_at, updated_at FROM pgqueue.set_node('/a', '1')")[0]
    assert first is not None
    assert first[1] == created_at < updated_at
    db.execute("SELECT pgqueue.delete_node('/a')")
    again = row(db, "SELECT id FROM pgqueue.create_node('/a')")
    assert again is not None
    assert again[0] > first[0]


def test_problems_come_as_rows(db: psycopg.Connection) -> None:
    assert create(db, "/a/b") == ("/a/b", "no parent")
    create(db, "/a")
    assert create(db, "/a") == ("/a", "exists")
    create(db, "/a/b", ephemeral=True)
    assert create(db, "/a/b/c") == ("/a/b/c", "ephemeral parent")
    assert row(db, "SELECT problem, version FROM pgqueue.set_node('/none', '1')") == ("not found", None)
    assert row(db, "SELECT problem, version FROM pgqueue.set_node('/a', '1', 1)") == ("version", 0)
    assert row(db, "SELECT problem, version FROM pgqueue.delete_node('/none')") == ("not found", None)
    assert row(db, "SELECT problem, version FROM pgqueue.delete_node('/a', 1)") == ("version", 0)
    assert row(db, "SELECT problem FROM pgqueue.delete_node('/a', 0)") == ("not empty",)
    assert paths(db) == ["/a", "/a/b"]
    assert value(db, "SELECT data FROM pgqueue.nodes WHERE path = '/a'") is None


def test_a_node_is_deleted_by_its_id_and_no_later_one(db: psycopg.Connection) -> None:
    old = value(db, "SELECT id FROM pgqueue.create_node('/a')")
    db.execute("SELECT pgqueue.delete_node('/a')")
    new = value(db, "SELECT id FROM pgqueue.create_node('/a')")
    assert value(db, "SELECT problem FROM pgqueue.delete_node('/a', id => %s)", old) == "not found"
    assert value(db, "SELECT problem FROM pgqueue.delete_node('/a', id => %s)", new) is None


@pytest.mark.parametrize(
    "path",
    [None, "", "a", "//", "/a/", "/a//b", "a/b", "/.", "/..", "/a/./b", "/a/..", "/" + "x" * 1024, "/" + "€" * 700],
)
def test_pq001_for_what_is_not_a_path(db: psycopg.Connection, path: str | None) -> None:
    for call in ("create_node(%s)", "set_node(%s, '1')", "delete_node(%s)", "children(%s)"):
        with pytest.raises(psycopg.DatabaseError, match="not a path") as raised:
            db.execute(f"SELECT pgqueue.{call}", [path])
        assert raised.value.sqlstate == "PQ001"
    assert paths(db) == []


@pytest.mark.parametrize("path", ["/...", "/.a", "/a.", "/ä b\n", "/A", "/" + "x" * 1023, "/%s", "/\\", '/"'])
def test_a_path_may_be_strange(db: psycopg.Connection, path: str) -> None:
    assert create(db, path) == (path, None)
    assert paths(db) == [path]
    assert column(db, "SELECT pgqueue.children('/')") == [path[1:]]


def test_a_sequential_path_may_not_grow_too_long(db: psycopg.Connection) -> None:
    with pytest.raises(psycopg.DatabaseError, match="not a path"):
        create(db, "/" + "x" * 1014, sequential=True)
    assert create(db, "/" + "x" * 1013, sequential=True)[0].endswith("x0000000000")


def test_children_are_sorted_by_bytes(db: psycopg.Connection) -> None:
    for path in ("/a", "/a/b", "/a/Z", "/a/ä", "/a/a", "/ab", "/a/a/deep"):
        create(db, path)
    assert column(db, "SELECT pgqueue.children('/a')") == ["Z", "a", "b", "ä"]
    assert column(db, "SELECT pgqueue.children('/')") == ["a", "ab"]
    assert column(db, "SELECT pgqueue.children('/none')") == []


def test_null_data_is_json_null(db: psycopg.Connection) -> None:
    create(db, "/a", data=None)
    db.execute("SELECT pgqueue.set_node('/a', NULL)")
    assert value(db, "SELECT data::text FROM pgqueue.nodes WHERE path = '/a'") == "null"


# --- sequential


def test_numbers_count_up_per_parent_and_are_not_given_again(db: psycopg.Connection) -> None:
    create(db, "/a")
    create(db, "/b")
    assert create(db, "/a/x-", sequential=True)[0] == "/a/x-0000000000"
    assert create(db, "/a/y", sequential=True)[0] == "/a/y0000000001"
    assert create(db, "/b/x-", sequential=True)[0] == "/b/x-0000000000"
    db.execute("SELECT pgqueue.delete_node('/a/y0000000001')")
    assert create(db, "/a/y", sequential=True)[0] == "/a/y0000000002"
    create(db, "/a/y0000000003")
    assert create(db, "/a/y", sequential=True) == ("/a/y0000000003", "exists")
    assert create(db, "/a/y", sequential=True) == ("/a/y0000000004", None)


def test_numbers_are_unique_under_eight_creators(db: psycopg.Connection, connect: Connect) -> None:
    create(db, "/a")

    def many(conn: psycopg.Connection) -> list[str]:
        return [create(conn, "/a/n-", sequential=True)[0] for _ in range(50)]

    with ThreadPoolExecutor(8) as threads:
        made = [path for batch in threads.map(many, [connect() for _ in range(8)]) for path in batch]
    assert sorted(made) == [f"/a/n-{number:010}" for number in range(400)]


# --- what waits for what


def test_two_creators_of_one_path(db: psycopg.Connection, connect: Connect) -> None:
    first, second = connect(autocommit=False), connect()
    query = "SELECT problem FROM pgqueue.create_node('/a')"
    for end, problem in ((first.rollback, None), (first.commit, "exists")):
        db.execute("SELECT pgqueue.delete_node('/a')")
        create(first, "/a")
        with waiting(second, db, query) as outcome:
            end()
        assert outcome.result() == [(problem,)]


def test_others_create_below_the_same_parent_meanwhile(db: psycopg.Connection, connect: Connect) -> None:
    create(db, "/a")
    first, second = connect(autocommit=False), connect(autocommit=False)
    create(first, "/a/1")
    create(second, "/a/2", sequential=True)
    create(first, "/a/3")
    third = connect()
    with waiting(third, db, "SELECT path FROM pgqueue.create_node('/a/2', sequential => true)") as outcome:
        second.rollback()
    assert outcome.result() == [("/a/20000000000",)]
    first.commit()
    assert paths(db) == ["/a", "/a/1", "/a/20000000000", "/a/3"]


@pytest.mark.parametrize("sequential", [False, True])
def test_a_delete_waits_for_who_creates_below(db: psycopg.Connection, connect: Connect, sequential: bool) -> None:
    create(db, "/a")
    creator, deleter = connect(autocommit=False), connect()
    create(creator, "/a/b", sequential=sequential)
    with waiting(deleter, db, "SELECT problem FROM pgqueue.delete_node('/a')") as outcome:
        creator.commit()
    assert outcome.result() == [("not empty",)]


def test_a_creator_waits_for_who_deletes_its_parent(db: psycopg.Connection, connect: Connect) -> None:
    for end, problem in (("rollback", None), ("commit", "no parent")):
        create(db, "/a")
        deleter, creator = connect(autocommit=False), connect()
        deleter.execute("SELECT pgqueue.delete_node('/a')")
        with waiting(creator, db, "SELECT problem FROM pgqueue.create_node('/a/b')") as outcome:
            getattr(deleter, end)()
        assert outcome.result() == [(problem,)]
        db.execute("SELECT pgqueue.delete_node('/a/b')")


def test_an_old_snapshot_leaves_no_orphans(db: psycopg.Connection, connect: Connect) -> None:
    """At REPEATABLE READ a delete does not see the child that was created since."""
    create(db, "/a")
    old = connect(autocommit=False)
    old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    paths(old)
    create(db, "/a/b")
    with pytest.raises((psycopg.errors.ForeignKeyViolation, psycopg.errors.SerializationFailure)):
        old.execute("SELECT pgqueue.delete_node('/a')")
    old.rollback()
    assert paths(db) == ["/a", "/a/b"]


def test_a_set_with_a_version_waits_and_then_refuses(db: psycopg.Connection, connect: Connect) -> None:
    create(db, "/a")
    first, second = connect(autocommit=False), connect()
    first.execute("SELECT pgqueue.set_node('/a', '1', 0)")
    with waiting(second, db, "SELECT problem, version FROM pgqueue.set_node('/a', '2', 0)") as outcome:
        first.commit()
    assert outcome.result() == [("version", 1)]


@pytest.mark.slow
def test_creators_and_deleters_do_not_deadlock(db: psycopg.Connection, connect: Connect) -> None:
    """Of one parent and its children, as fast as they can: nobody gets an error, and the tree stays whole."""

    def work(conn: psycopg.Connection) -> None:
        for number in range(60):
            create(conn, "/a")
            made, problem = create(conn, "/a/n", sequential=number % 2 == 0)
            conn.execute("SELECT pgqueue.delete_node('/a')")
            if problem is None:
                conn.execute("SELECT pgqueue.set_node(%s, '1')", [made])
                conn.execute("SELECT pgqueue.delete_node(%s)", [made])

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, [connect() for _ in range(6)]))
    assert set(paths(db)) <= {"/a"}


# --- notifications


def events(listener: psycopg.Connection, sender: psycopg.Connection, *listened: str) -> list[tuple[str, str]]:
    """The payloads are a kind and a transaction; here, paths and kinds."""
    names = {channel(sender, path): path for path in listened}
    sender.execute("SELECT pg_notify('end', '')")
    found = []
    for note in listener.notifies(timeout=10):
        if note.channel == "end":
            return found
        found.append((names[note.channel], note.payload.partition(" ")[0]))
    raise AssertionError("the end did not arrive")


def test_every_change_notifies_at_its_commit(db: psycopg.Connection, connect: Connect) -> None:
    listener, changer = connect(), connect(autocommit=False)
    for path in ("/", "/a"):
        listener.execute(f'LISTEN "{channel(db, path)}"')
    listener.execute('LISTEN "end"')
    create(changer, "/a")
    assert events(listener, db, "/", "/a") == []
    changer.commit()
    assert events(listener, db, "/", "/a") == [("/a", "created"), ("/", "children")]
    changer.execute("SELECT pgqueue.set_node('/a', '1')")
    changer.commit()
    assert events(listener, db, "/", "/a") == [("/a", "changed")]
    changer.execute("SELECT pgqueue.delete_node('/a')")
    changer.commit()
    assert events(listener, db, "/", "/a") == [("/a", "deleted"), ("/", "children")]
    create(changer, "/a")
    changer.rollback()
    assert events(listener, db, "/", "/a") == []


def test_what_changes_nothing_is_silent(db: psycopg.Connection, connect: Connect) -> None:
    listener = connect()
    create(db, "/a")
    for path in ("/", "/a", "/none", "/none/b"):
        listener.execute(f'LISTEN "{channel(db, path)}"')
    for call in ("create_node('/a')", "set_node('/a', '1', 7)", "delete_node('/a', 7)", "create_node('/none/b')"):
        db.execute(f"SELECT pgqueue.{call}")
    db.execute("SELECT pgqueue._clean_nodes()")
    assert notifications(listener, db) == []


# --- ephemeral


def test_an_ephemeral_node_names_its_holder(db: psycopg.Connection, connect: Connect) -> None:
    conn = connect()
    conn.execute("SELECT pgqueue.open_session(label => 'host:1:psql')")
    query = "SELECT holder FROM pgqueue.create_node('/a', ephemeral => true)"
    assert value(conn, query) == "host:1:psql"
    assert row(db, "SELECT ephemeral, holder FROM pgqueue.nodes WHERE path = '/a'") == (True, "host:1:psql")
    assert row(db, "SELECT ephemeral, holder FROM pgqueue.set_node('/a', '1')") == (True, "host:1:psql")


def test_an_ephemeral_node_opens_a_session_if_there_is_none(db: psycopg.Connection, connect: Connect) -> None:
    conn = connect()
    assert create(conn, "/a", ephemeral=True) == ("/a", None)
    assert value(conn, "SELECT pgqueue.own_session()") == value(db, "SELECT id FROM pgqueue.sessions")


@pytest.mark.slow
def test_ephemeral_nodes_go_with_close(db: psycopg.Connection, connect: Connect) -> None:
    conn, listener = connect(), connect()
    create(db, "/a")
    listener.execute(f'LISTEN "{channel(db, "/a/1")}"; LISTEN "{channel(db, "/a")}"; LISTEN "end"')
    create(conn, "/a/1", ephemeral=True)
    create(conn, "/a/2", ephemeral=True)
    create(db, "/a/3")
    events(listener, db, "/a", "/a/1")
    conn.execute("SELECT pgqueue.close_session()")
    assert paths(db) == ["/a", "/a/3"]
    assert sorted(events(listener, db, "/a", "/a/1")) == [("/a", "children"), ("/a/1", "deleted")]


def test_ephemeral_nodes_go_with_a_death(db: psycopg.Connection, connect: Connect) -> None:
    dead, session = mortal(connect)
    create(dead, "/dead", ephemeral=True)
    living = connect()
    create(living, "/living", ephemeral=True)
    create(connect(), "/made elsewhere", ephemeral=True, session=session)
    dies(dead, db)
    assert paths(db) == ["/living"]


def test_they_survive_a_connection_that_comes_back(db: psycopg.Connection, connect: Connect) -> None:
    first = connect()
    session = value(first, "SELECT pgqueue.open_session(grace => '1 min')")
    create(first, "/a", ephemeral=True)
    dies(first, db)
    assert paths(db) == ["/a"]
    again = connect()
    assert value(again, "SELECT pgqueue.open_session(%s)", session) == session
    db.execute(SWEEP)
    assert paths(db) == ["/a"]
    assert create(db, "/a") == ("/a", "exists")


def test_pq004_for_a_session_that_is_dead(db: psycopg.Connection, connect: Connect) -> None:
    conn, session = mortal(connect)
    die(conn, db)
    for _ in range(2):
        for call in ("create_node('/a', ephemeral => true, session => %s)", "join_group('g', session => %s)"):
            with pytest.raises(psycopg.DatabaseError, match="not alive") as raised:
                db.execute(f"SELECT pgqueue.{call}", [session])
            assert raised.value.sqlstate == "PQ004"
        db.execute(SWEEP)
    assert paths(db) == []


def test_a_node_that_is_being_created_for_a_dying_session_does_not_survive(
    db: psycopg.Connection, connect: Connect
) -> None:
    """The sweep passes by while the create is under way, and finds the node afterwards."""
    dying, session = mortal(connect)
    creator = connect(autocommit=False)
    create(creator, "/a", ephemeral=True, session=session)
    die(dying, db)
    db.execute(SWEEP)
    assert column(db, "SELECT id FROM pgqueue.sessions") == [session]
    creator.commit()
    assert paths(db) == ["/a"]
    db.execute(SWEEP)
    assert paths(db) == []
    assert column(db, "SELECT id FROM pgqueue.sessions") == []


def test_a_close_waits_for_a_create_under_way(db: psycopg.Connection, connect: Connect) -> None:
    session = value(db, "SELECT pgqueue.open_session()")
    creator, other = connect(autocommit=False), connect()
    create(creator, "/a", ephemeral=True, session=session)
    with waiting(db, other, "SELECT pgqueue.close_session()"):
        creator.commit()
    assert paths(other) == []


def test_nothing_waits_for_a_lock_on_a_node_of_the_dead(db: psycopg.Connection, connect: Connect) -> None:
    """It goes as soon as somebody looks again, and is announced once."""
    dead, _ = mortal(connect)
    create(dead, "/locked", ephemeral=True)
    create(dead, "/free", ephemeral=True)
    locker, listener = connect(autocommit=False), connect()
    listener.execute(f'LISTEN "{channel(db, "/locked")}"')
    locker.execute("SELECT pgqueue.set_node('/locked', '1')")
    dies(dead, db)
    assert paths(db) == ["/locked"]
    locker.commit()
    db.execute(SWEEP)
    db.execute("SELECT pgqueue._clean_nodes(); SELECT pgqueue._clean_nodes()")
    assert paths(db) == []
    assert notifications(listener, db) == [channel(db, "/locked")] * 2  # changed, deleted


def test_a_refused_child_locks_nothing(db: psycopg.Connection, connect: Connect) -> None:
    """An ephemeral node is free to go though somebody tried to create below it."""
    dead, _ = mortal(connect)
    create(dead, "/a", ephemeral=True)
    trier = connect(autocommit=False)
    assert create(trier, "/a/b") == ("/a/b", "ephemeral parent")
    dies(dead, db)
    assert paths(db) == []


# --- after a crash of the server


def test_what_a_crash_left_is_cleaned(db: psycopg.Connection, connect: Connect) -> None:
    """A crash empties session, frees the locks, and leaves the nodes."""
    dead, _ = mortal(connect)
    listener = connect()
    create(dead, "/a", ephemeral=True)
    create(dead, "/b")
    die(dead, db)
    db.execute("TRUNCATE pgqueue.session")
    assert row(db, "SELECT holder LIKE 'session %%' FROM pgqueue.nodes WHERE path = '/a'") == (True,)
    listener.execute(f'LISTEN "{channel(db, "/a")}"')
    db.execute("SELECT pgqueue._clean_nodes()")
    assert paths(db) == ["/b"]
    assert notifications(listener, db) == [channel(db, "/a")]


def test_cleaning_leaves_to_the_sweep_who_may_come_back(db: psycopg.Connection, connect: Connect) -> None:
    """A clean restart frees the locks too, but keeps the rows of the sessions."""
    conn = connect()
    session = value(conn, "SELECT pgqueue.open_session(grace => '1 min')")
    create(conn, "/a", ephemeral=True)
    die(conn, db)
    db.execute("SELECT pgqueue._clean_nodes()")
    assert paths(db) == ["/a"]
    again = connect()
    assert value(again, "SELECT pgqueue.open_session(%s)", session) == session
    db.execute("SELECT pgqueue._clean_nodes()")
    assert paths(db) == ["/a"]


def test_cleaning_never_takes_from_the_living(db: psycopg.Connection, connect: Connect) -> None:
    """Even if its row is gone, as when somebody closed its session for it; nor from its own connection."""
    conn = connect()
    create(conn, "/a", ephemeral=True)
    create(db, "/b", ephemeral=True)
    db.execute("TRUNCATE pgqueue.session")
    db.execute("SELECT pgqueue._clean_nodes()")
    assert paths(db) == ["/a", "/b"]


def test_cleaning_waits_for_nobody(db: psycopg.Connection, connect: Connect) -> None:
    dead, _ = mortal(connect)
    create(dead, "/a", ephemeral=True)
    die(dead, db)
    db.execute("TRUNCATE pgqueue.session")
    locker = connect(autocommit=False)
    locker.execute("SELECT pgqueue.set_node('/a', '1')")
    db.execute("SET lock_timeout = '1s'; SELECT pgqueue._clean_nodes()")
    assert paths(db) == ["/a"]
    locker.rollback()
    db.execute("SELECT pgqueue._clean_nodes()")
    assert paths(db) == []


# --- groups


def test_a_group_is_made_by_its_first_member(db: psycopg.Connection) -> None:
    join = "SELECT path, problem FROM pgqueue.join_group(%s, %s, %s)"
    assert row(db, join, "g", '"x"', None) == ("/groups/g/member-0000000000", None)
    assert row(db, join, "g", "1", None) == ("/groups/g/member-0000000001", None)
    assert row(db, join, "g", "1", "ada") == ("/groups/g/ada", None)
    assert row(db, join, "g", "1", "ada") == ("/groups/g/ada", "exists")
    assert column(db, "SELECT ephemeral FROM pgqueue.nodes WHERE parent = '/groups/g'") == [True] * 3
    db.execute("SELECT pgqueue.close_session()")
    assert paths(db) == ["/groups", "/groups/g"]


@pytest.mark.parametrize(
    ("group", "member"), [(None, None), ("", None), ("a/b", None), ("..", None), ("g", ""), ("g", "."), ("g", "a/b")]
)
def test_pq001_for_the_names_of_a_group(db: psycopg.Connection, group: str | None, member: str | None) -> None:
    with pytest.raises(psycopg.DatabaseError) as raised:
        db.execute("SELECT pgqueue.join_group(%s, member => %s)", [group, member])
    assert raised.value.sqlstate == "PQ001"
    assert paths(db) == []


def test_a_new_group_is_joined_by_eight_at_once(db: psycopg.Connection, connect: Connect) -> None:
    """Each finds the group missing, or made by another since it looked."""
    groups = 25
    start = threading.Barrier(8)

    def join(conn: psycopg.Connection) -> None:
        for group in range(groups):
            start.wait(30)
            assert value(conn, "SELECT problem FROM pgqueue.join_group(%s)", str(group)) is None

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(join, [connect() for _ in range(8)]))
    assert column(db, "SELECT count(*) FROM pgqueue.nodes WHERE ephemeral GROUP BY parent") == [8] * groups


def test_joining_while_the_empty_group_is_deleted(db: psycopg.Connection, connect: Connect) -> None:
    """All of them get in, in whatever order the two come."""

    def join(conn: psycopg.Connection) -> None:
        for _ in range(40):
            path, problem = rows(conn, "SELECT path, problem FROM pgqueue.join_group('g')")[0]
            assert problem is None
            assert value(conn, "SELECT problem FROM pgqueue.delete_node(%s)", path) is None

    def delete(conn: psycopg.Connection) -> None:
        for _ in range(80):
            conn.execute("SELECT pgqueue.delete_node('/groups/g')")
            conn.execute("SELECT pgqueue.delete_node('/groups')")

    with ThreadPoolExecutor(4) as threads:
        working = [threads.submit(work, connect()) for work in (join, join, delete, delete)]
    for done in working:
        done.result()
    assert set(paths(db)) <= {"/groups", "/groups/g"}


# --- rights


def test_a_stranger_to_the_tables_can_use_nodes(db: psycopg.Connection, connect: Connect) -> None:
    role = f"pgqueue_test_node_{db.info.backend_pid}"
    db.execute(f"CREATE ROLE {role}")
    try:
        db.execute("SELECT pgqueue.grant_to(%s)", [role])
        user = connect(options=f"-c role={role}")
        assert create(user, "/a", ephemeral=True) == ("/a", None)
        assert row(user, "SELECT version FROM pgqueue.set_node('/a', '1')") == (1,)
        assert column(user, "SELECT path FROM pgqueue.nodes ORDER BY path") == ["/", "/a"]
        assert column(user, "SELECT pgqueue.children('/')") == ["a"]
        assert row(user, "SELECT problem FROM pgqueue.delete_node('/a')") == (None,)
        assert row(user, "SELECT problem FROM pgqueue.join_group('g')") == (None,)
        for statement in ("SELECT FROM pgqueue.node", "SELECT pgqueue._free_nodes(1)", "SELECT pgqueue._clean_nodes()"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                user.execute(statement)
        user.close()
    finally:
        db.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
