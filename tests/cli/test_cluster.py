"""`pgqueue cluster`: the table of servers by commands, and what is done on all servers or on none."""

from __future__ import annotations

import json
import uuid

import psycopg
import pytest
from commands import Commands
from members import change, copy
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from statements import column, rows, value

import pgqueue
from pgqueue import migrate

pytestmark = pytest.mark.once


@pytest.fixture
def dbs(dsns):
    conns = [psycopg.connect(dsn, autocommit=True) for dsn in dsns]
    yield conns
    for conn in conns:
        conn.close()


@pytest.fixture
def command(dsns):
    return Commands(dsns[0])


@pytest.fixture
def cluster(command, dsns, dbs):
    """Three servers, as `cluster add` leaves them."""
    for number, (dsn, db) in enumerate(zip(dsns, dbs, strict=True), 1):
        db.execute("SELECT pgqueue.set_server(%s)", [number])
        change(dbs[:1], "add_server", number, dsn)
    for db in dbs[1:]:
        copy(dbs[0], db)
    return command


def down(dsn):
    return make_conninfo(dsn, host="127.0.0.1", port="1")


def table(conn):
    return rows(conn, "SELECT number, state, is_home FROM pgqueue.servers()")


# --- add


@pytest.mark.slow
def test_add_numbers_the_servers_and_copies_the_table_to_all(command, dsns, dbs):
    for number, dsn in enumerate(dsns, 1):
        assert command.lines("cluster", "add", dsn) == [f"server {number} is in the cluster"]
    expected = [(1, "active", True), (2, "active", False), (3, "active", False)]
    assert [table(db) for db in dbs] == [expected] * 3
    assert [value(db, "SELECT pgqueue.server_number()") for db in dbs] == [1, 2, 3]


@pytest.mark.slow
def test_add_installs_the_schema(cluster, dbs, dsns, empty_dsn, without_password):
    assert cluster.lines("cluster", "add", without_password(empty_dsn)) == ["server 4 is in the cluster"]
    with pgqueue.Client(empty_dsn) as client:
        assert client.queue("q").put(1).id >> 43 == 4


@pytest.mark.slow
def test_a_server_with_tasks_begins_a_cluster_as_server_0(command, dbs, dsns):
    value(dbs[0], "SELECT id FROM pgqueue.put('q', '1')")
    command.lines("cluster", "add", dsns[0])
    command.lines("cluster", "add", dsns[1])
    assert table(dbs[1]) == [(0, "active", True), (1, "active", False)]


@pytest.mark.slow
def test_a_server_with_tasks_cannot_join_a_cluster(command, dbs, dsns):
    command.lines("cluster", "add", dsns[0])
    value(dbs[1], "SELECT id FROM pgqueue.put('q', '1')")
    assert "has put tasks" in command.fails(1, "cluster", "add", dsns[1])
    assert table(dbs[0]) == [(1, "active", True)]


@pytest.mark.slow
def test_add_gives_a_server_another_dsn(cluster, dbs, dsns):
    cluster.lines("cluster", "add", make_conninfo(dsns[1], application_name="moved"))
    assert column(dbs[2], "SELECT dsn FROM pgqueue.servers() WHERE dsn ~ 'moved'") != []
    assert len(table(dbs[0])) == 3


@pytest.mark.parametrize("option", ["password=xyzzy", "sslpassword=xyzzy"])
def test_a_dsn_with_a_password_is_refused_and_not_shown(command, dsns, option):
    line = command.fails(1, "cluster", "add", f"{dsns[0]} {option}")
    assert "has a password" in line
    assert "PGPASSFILE" in line
    assert "xyzzy" not in line
    assert "has a password" in command.fails(1, "cluster", "add", dsns[0], "--listen-dsn", "postgresql://a:xyzzy@h/d")


@pytest.mark.slow
def test_a_server_whose_number_is_anothers_is_refused_by_both_names(cluster, dbs, dsns, empty_dsn, without_password):
    migrate.up(empty_dsn, server=2)
    line = cluster.fails(1, "cluster", "add", without_password(empty_dsn))
    assert "server 2 of the cluster is another one" in line
    assert conninfo_to_dict(dsns[1])["dbname"] in line


def test_a_cluster_begins_with_the_server_that_is_asked(command, dsns):
    line = command.fails(1, "cluster", "add", dsns[1])
    assert "belongs to no cluster: add it first, as the home server" in line


def test_a_server_without_a_cluster_has_no_status(command):
    assert "belongs to no cluster" in command.fails(1, "cluster", "status")


# --- status


@pytest.mark.slow
def test_status_shows_each_server(cluster, dbs, dsns):
    value(dbs[1], "SELECT id FROM pgqueue.put('q', '1')")
    found = cluster.json("cluster", "status")
    assert [(one["number"], one["tasks"], one["copy"], one["problem"]) for one in found] == [
        (1, 0, 3, None),
        (2, 1, 3, None),
        (3, 0, 3, None),
    ]
    head, *lines = cluster.lines("cluster", "status")
    assert head.split() == ["SERVER", "STATE", "HOME", "TASKS", "SCHEMA", "TABLE", "TIMELINE", "DSN", "PROBLEM"]
    assert len(lines) == 3


def test_status_names_a_server_with_a_problem_and_ends_with_1(cluster, dbs, dsns):
    dbs[0].execute("SELECT pgqueue.add_server(2, %s), pgqueue.add_server(3, %s)", [down(dsns[1]), dsns[1]])
    done = cluster("cluster", "status", "--json")
    assert done.returncode == 1
    assert "cannot connect to PostgreSQL (host=127.0.0.1 port=1" in done.stdout
    assert "has the number 2 in its database" in done.stdout


def test_status_comes_from_any_server_while_the_home_server_is_away(cluster, dbs, dsns):
    change(dbs, "add_server", 1, down(dsns[0]))
    done = Commands(dsns[1])("cluster", "status", "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(one["number"], bool(one["problem"])) for one in found] == [(1, True), (2, False), (3, False)]


# --- drain and remove


@pytest.mark.slow
def test_a_server_is_drained_emptied_and_removed(cluster, dbs):
    assert "a server is drained before it is removed" in cluster.fails(1, "cluster", "remove", "3")
    cluster.lines("cluster", "drain", "3")
    assert [table(db)[2] for db in dbs] == [(3, "draining", False)] * 3
    id = value(dbs[2], "SELECT id FROM pgqueue.put('mail', '1')")
    assert "server 3 still has 1 of queue mail" in cluster.fails(1, "cluster", "remove", "3")
    dbs[2].execute("SELECT pgqueue.delete(%s)", [id])
    cluster.lines("cluster", "remove", "3")
    assert [table(db)[2] for db in dbs[:2]] == [(3, "gone", False)] * 2
    assert [one["number"] for one in cluster.json("cluster", "status")] == [1, 2]


def test_drain_off_has_a_server_active_again(cluster, dbs):
    cluster.lines("cluster", "drain", "3")
    cluster.lines("cluster", "drain", "3", "--off")
    assert table(dbs[1])[2] == (3, "active", False)


def test_remove_with_force_leaves_the_tasks_and_a_server_that_is_away(cluster, dbs, dsns):
    value(dbs[2], "SELECT id FROM pgqueue.put('mail', '1')")
    cluster.lines("cluster", "drain", "3")
    cluster.lines("cluster", "remove", "3", "--force")
    cluster.lines("cluster", "drain", "2")
    dbs[0].execute("SELECT pgqueue.add_server(2, %s)", [down(dsns[1])])
    assert "cannot connect" in cluster.fails(1, "cluster", "remove", "2")
    cluster.lines("cluster", "remove", "2", "--force")
    assert table(dbs[0]) == [(1, "active", True), (2, "gone", False), (3, "gone", False)]


def test_the_home_server_stays(cluster):
    assert "server 1 is the home server, which stays" in cluster.fails(1, "cluster", "drain", "1")


def test_an_unknown_server_is_refused(cluster):
    assert "the cluster has no server 7" in cluster.fails(1, "cluster", "drain", "7")
    assert cluster("cluster", "drain", "1024").returncode == 2


@pytest.mark.slow
def test_a_server_that_is_away_gets_the_table_later_and_is_named(cluster, dbs, dsns):
    dbs[0].execute("SELECT pgqueue.add_server(3, %s)", [down(dsns[2])])
    assert "server 3 has no copy of version 5" in cluster("cluster", "drain", "2").stderr
    cluster.lines("cluster", "add", dsns[2])
    assert table(dbs[2])[1] == (2, "draining", False)


# --- on all servers or on none


@pytest.mark.slow
def test_migrate_goes_on_after_a_migration_that_was_cut_off(cluster, dbs):
    assert cluster.lines("cluster", "migrate") == [
        f"server {number} is at version {migrate.status(conninfo(dbs[0])).head}" for number in (2, 3, 1)
    ]


def conninfo(conn):
    return conn.info.dsn


@pytest.mark.parametrize("arguments", [["migrate"], ["grant", "nobody"]])
def test_nothing_begins_unless_all_servers_can_be_reached(cluster, dbs, dsns, arguments):
    dbs[0].execute("SELECT pgqueue.add_server(2, %s)", [down(dsns[1])])
    line = cluster.fails(1, "cluster", *arguments)
    assert "nothing was begun, since not all servers can be used: server 2: cannot connect" in line


def test_mixed_versions_are_refused_with_each_servers_version(cluster, dbs):
    version = value(dbs[1], "UPDATE pgqueue.schema_version SET version_num = '9999' RETURNING '0001'")
    line = cluster.fails(1, "cluster", "migrate")
    assert "the servers have different versions of the schema" in line
    assert "server 2 has 9999" in line
    dbs[1].execute("UPDATE pgqueue.schema_version SET version_num = %s", [version])


def test_grant_gives_rights_on_each_server(cluster, dbs):
    role = f"pgqueue_test_{uuid.uuid4().hex[:12]}"
    dbs[0].execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(role)))
    try:
        assert cluster.lines("cluster", "grant", role, "put", "-p", "mail*") == [
            f"server {number}: granted" for number in (1, 2, 3)
        ]
        asked = "SELECT role, verb, pattern FROM pgqueue.privileges"
        assert [rows(db, asked) for db in dbs] == [[(role, "put", "mail*")]] * 3
    finally:
        for db in dbs:
            db.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
        dbs[0].execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


@pytest.mark.slow
def test_move_empties_a_draining_server(cluster, dbs):
    dbs[1].execute("SELECT pgqueue.put('q', to_jsonb(n), key => 'k' || n) FROM generate_series(1, 30) n")
    dbs[1].execute("SELECT pgqueue.put('other', '1')")
    cluster.lines("cluster", "drain", "2")
    assert cluster.lines("cluster", "move", "--from", "2") == ["other: 1 moved", "q: 30 moved"]
    left = [value(db, "SELECT count(*) FROM pgqueue.task") for db in dbs]
    assert left[1] == 0
    assert sum(left) == 31
    assert cluster.lines("cluster", "remove", "2") == []


def test_move_says_what_stays(cluster, dbs):
    dbs[0].execute("SELECT pgqueue.put('q', '1'), pgqueue.put('q', '2')")
    dbs[0].execute("SELECT pgqueue.take('q')")
    done = cluster("cluster", "move", "q", "--from", "1", "--to", "2")
    assert (done.returncode, done.stderr, done.stdout) == (1, "", "q: 1 moved, 1 stay: 1 taken\n")
    assert value(dbs[1], "SELECT data FROM pgqueue.task") == 2


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--from", "9"], "the cluster has no server 9"),
        (["--from", "1", "--to", "1"], "there is no server to move to"),
        (["none", "--from", "1", "--to", "2"], 'there is no queue "none"'),
    ],
)
def test_moves_that_cannot_be(cluster, options, error):
    assert error in cluster.fails(1, "cluster", "move", *options)
