"""The table of a cluster's servers: who changes it, what it refuses, and which of two copies counts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from eventually import eventually
from rights_victim import drop_roles, make_role
from statements import row, rows, value

pytestmark = pytest.mark.once

SERVERS = "SELECT number, dsn, listen_dsn, state, is_home FROM pgqueue.servers()"
OTHER = "6c0d3c4e-8e43-4d0b-9f5c-0e5d9a3a7a51"


@pytest.fixture
def home(db: psycopg.Connection) -> psycopg.Connection:
    """The home server, number 1, of a cluster of two."""
    db.execute(
        "SELECT pgqueue.set_server(1), pgqueue.add_server(1, 'service=db1'), pgqueue.add_server(2, 'service=db2')"
    )
    return db


def refused(conn: psycopg.Connection, call: str, *args: Any) -> tuple[str | None, str | None]:
    with pytest.raises(psycopg.Error) as error:
        conn.execute(f"SELECT pgqueue.{call}", args)  # type: ignore[arg-type]
    return error.value.sqlstate, error.value.diag.message_primary


def member(number: int, state: str = "active", is_home: bool = False) -> dict[str, Any]:
    return {"number": number, "dsn": f"service=db{number}", "state": state, "is_home": is_home}


def copied(conn: psycopg.Connection, version: int, *members: dict[str, Any], cluster: str | None = None) -> Any:
    cluster = cluster or str(value(conn, "SELECT id FROM pgqueue.cluster"))
    return value(conn, "SELECT pgqueue.copy_servers(%s, %s, %s)", cluster, version, json.dumps(members))


# --- changes


def test_the_first_server_is_the_home_server_and_each_change_raises_the_version(home: psycopg.Connection) -> None:
    assert rows(home, SERVERS) == [
        (1, "service=db1", None, "active", True),
        (2, "service=db2", None, "active", False),
    ]
    assert value(home, "SELECT DISTINCT version FROM pgqueue.servers()") == 2
    assert value(home, "SELECT pgqueue.set_server_state(2, 'draining')") == 3
    assert value(home, "SELECT pgqueue.remove_server(2)") == 4
    assert rows(home, SERVERS)[1][3] == "gone"


def test_adding_a_server_again_gives_it_other_dsns(home: psycopg.Connection) -> None:
    home.execute(
        "SELECT pgqueue.set_server_state(2, 'draining'), pgqueue.add_server(2, 'service=new', 'service=direct')"
    )
    assert rows(home, SERVERS)[1] == (2, "service=new", "service=direct", "draining", False)


def test_each_change_and_copy_notifies(home: psycopg.Connection) -> None:
    home.execute('LISTEN "pgqueue:servers"')
    home.execute("SELECT pgqueue.set_server_state(2, 'draining')")
    assert copied(home, 9, member(1, is_home=True))
    heard = [(one.channel, one.payload) for one in home.notifies(timeout=30, stop_after=2)]
    assert heard == [("pgqueue:servers", "3"), ("pgqueue:servers", "9")]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("set_server_state(7, 'draining')", "the cluster has no server 7"),
        ("set_server_state(1, 'draining')", "server 1 is the home server, which stays"),
        ("remove_server(7)", "the cluster has no server 7"),
        ("remove_server(2)", "server 2 is active: a server is drained before it is removed"),
        ("remove_server(1)", "server 1 is active: a server is drained before it is removed"),
    ],
)
def test_what_does_not_fit_the_table_is_refused(home: psycopg.Connection, call: str, message: str) -> None:
    state, said = refused(home, call)
    assert state == "PQ049"
    assert said is not None
    assert said.startswith(message)
    assert value(home, "SELECT DISTINCT version FROM pgqueue.servers()") == 2


def test_a_number_of_a_server_that_is_gone_stays_taken(home: psycopg.Connection) -> None:
    home.execute("SELECT pgqueue.set_server_state(2, 'draining'), pgqueue.remove_server(2)")
    assert refused(home, "add_server(2, 'service=db2')")[0] == "PQ049"
    assert refused(home, "set_server_state(2, 'active')")[0] == "PQ049"
    assert refused(home, "remove_server(2)")[0] == "PQ049"


def test_the_table_is_changed_on_the_home_server_only(home: psycopg.Connection) -> None:
    assert copied(home, 9, member(1), member(2, is_home=True))
    for call in ("add_server(3, 'service=db3')", "set_server_state(1, 'draining')", "remove_server(1)"):
        assert refused(home, call) == (
            "PQ049",
            "the table of servers is changed on its home server 2, and this is server 1",
        )


def test_a_cluster_begins_on_its_home_server(db: psycopg.Connection) -> None:
    assert refused(db, "add_server(2, 'service=db2')")[0] == "PQ049"
    assert refused(db, "set_server_state(2, 'draining')")[0] == "PQ049"
    db.execute("SELECT pgqueue.add_server(0, 'service=db0')")
    assert refused(db, "set_server(3)") == ("PQ048", "this is server 0 of a cluster, so it cannot become server 3")


@pytest.mark.parametrize("number", [None, -1, 1024])
def test_other_numbers_are_refused(home: psycopg.Connection, number: int | None) -> None:
    assert refused(home, "add_server(%s::int, 'service=db')", number)[0] == "PQ002"


def test_of_two_that_begin_a_cluster_at_once_the_second_changes_the_firsts(
    db: psycopg.Connection, connect: Callable[..., psycopg.Connection], threads: ThreadPoolExecutor
) -> None:
    one, other = connect(), connect()
    one.execute("BEGIN")
    one.execute("SELECT pgqueue.add_server(0, 'service=a')")
    done = threads.submit(other.execute, "SELECT pgqueue.add_server(0, 'service=b')")
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = %s"
    eventually(lambda: value(db, waiting, other.info.backend_pid) == 1)
    one.execute("COMMIT")
    done.result(30)
    assert rows(db, "SELECT dsn, version FROM pgqueue.servers()") == [("service=b", 2)]


# --- passwords


@pytest.mark.parametrize(
    "given",
    [
        "host=db1 password=xyzzy",
        "host=db1 PASSWORD = 'xyzzy'",
        "password=xyzzy",
        "sslpassword=xyzzy",
        "postgresql://app:xyzzy@db1/app",
        "postgres://:xyzzy@db1",
        "postgresql://db1,db2/app?password=xyzzy",
        "postgresql://db1/app?user=app&pass%77ord=xyzzy",
    ],
)
def test_a_dsn_with_a_password_is_refused(home: psycopg.Connection, given: str) -> None:
    for call in ("add_server(3, %s)", "add_server(3, 'service=db3', %s)"):
        state, said = refused(home, call, given)
        assert state == "PQ002"
        assert said is not None
        assert "PGPASSFILE" in said
        assert "xyzzy" not in said


@pytest.mark.parametrize(
    "given",
    [
        "service=db1",
        "host=db1 user=app passfile=/etc/pgpass",
        "postgresql://app@db1:5432,db2:5433/app?target_session_attrs=read-write",
        "postgresql://[::1]:5432/app?application_name=a@b",
        "postgresql://db1/app?options=-c%20x%3Dy",
    ],
)
def test_a_dsn_without_one_is_kept(home: psycopg.Connection, given: str) -> None:
    home.execute("SELECT pgqueue.add_server(3, %s)", [given])
    assert rows(home, SERVERS)[2][1] == given


# --- copies


def test_the_newer_copy_wins(home: psycopg.Connection) -> None:
    assert copied(home, 7, member(1, is_home=True), member(2, "draining"), member(3))
    assert [one[0] for one in rows(home, SERVERS)] == [1, 2, 3]
    for version in (6, 7):
        assert copied(home, version, member(1, is_home=True)) is False
    assert [one[0] for one in rows(home, SERVERS)] == [1, 2, 3]


def test_a_server_of_no_cluster_gets_its_first_copy(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.set_server(2)")
    assert copied(db, 1, member(1, is_home=True), member(2), cluster=OTHER)
    assert row(db, "SELECT DISTINCT version, cluster::text FROM pgqueue.servers()") == (1, OTHER)


def test_a_copy_of_another_cluster_and_one_without_this_server_are_refused(home: psycopg.Connection) -> None:
    call = "copy_servers(%s, 9, %s)"
    assert refused(home, call, OTHER, json.dumps([member(1)])) == ("PQ049", "server 1 belongs to another cluster")
    cluster = value(home, "SELECT id FROM pgqueue.cluster")
    assert refused(home, call, cluster, json.dumps([member(2)])) == (
        "PQ049",
        "this is server 1, which the copy does not have",
    )
    assert len(rows(home, SERVERS)) == 2


@pytest.mark.parametrize(
    "servers",
    ["{}", "[1]", "[{}]", '[{"number": "x"}]', '[{"number": 1, "dsn": "", "state": "active", "is_home": true}]'],
)
def test_what_is_no_copy_is_refused(home: psycopg.Connection, servers: str) -> None:
    cluster = value(home, "SELECT id FROM pgqueue.cluster")
    assert refused(home, "copy_servers(%s, 9, %s)", cluster, servers)[0] == "PQ002"
    assert len(rows(home, SERVERS)) == 2


def test_a_copy_with_a_password_is_refused(home: psycopg.Connection) -> None:
    cluster = value(home, "SELECT id FROM pgqueue.cluster")
    copy = json.dumps([member(1) | {"dsn": "host=a password=xyzzy"}])
    assert refused(home, "copy_servers(%s, 9, %s)", cluster, copy)[0] == "PQ002"


# --- rights


@pytest.fixture
def roles(home: psycopg.Connection) -> Iterator[list[str]]:
    """One that takes, a monitor, and a stranger."""
    made = [make_role(home) for _ in range(3)]
    home.execute(f"SELECT pgqueue.create_queue('q'), pgqueue.grant('q', '{made[0]}', '{{take}}')")
    home.execute(f"SELECT pgqueue.grant_monitor('{made[1]}')")
    yield made
    drop_roles(home, made)


def test_roles_that_use_queues_read_the_table_and_only_the_owner_changes_it(
    home: psycopg.Connection, roles: list[str]
) -> None:
    for role, reads in zip(roles, (True, False, False), strict=True):
        home.execute(f"SET ROLE {role}")
        for call in ("add_server(3, 'x')", "remove_server(2)", "set_server_state(2, 'draining')"):
            assert refused(home, call)[0] == "42501"
        if reads:
            assert len(rows(home, SERVERS)) == 2
        else:
            assert refused(home, "servers()")[0] == "42501"
        home.execute("RESET ROLE")
