"""Clients made of Django's settings, and what is said about settings that cannot be."""

from __future__ import annotations

import pytest
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connection, connections
from django.test import override_settings
from psycopg.conninfo import conninfo_to_dict

import pgqueue
from pgqueue import migrate
from pgqueue.contrib.django import client, clients, database, queue
from pgqueue.contrib.django.checks import check_schema, check_settings
from pgqueue.errors import SetupError

pytestmark = pytest.mark.once


def ids(messages):
    return [message.id.removeprefix("pgqueue.") for message in messages]


def test_one_client_a_database(django_db):
    assert client() is client("default")
    assert client().queue("mail").put(1).peek().data == 1
    with override_settings(PGQUEUE={"default": {"max_data_size": 10}}):
        with pytest.raises(pgqueue.BadData):
            queue("mail").put("x" * 100)
        with pytest.raises(pgqueue.BadData):
            client().queue("mail").put("x" * 100)
    assert queue("mail").put("x" * 100).id


def test_another_database_is_another_client(dsn, other_dsn, point):
    point("default", dsn)
    before = client()
    before.queue("mail").put("one")
    connection.close()
    connection.settings_dict["NAME"] = conninfo_to_dict(other_dsn)["dbname"]  # as test runners do
    assert client().queue("mail").stats()["ready"] == queue("mail").stats()["ready"] == 0
    with pytest.raises(pgqueue.ClosedError):
        before.queue("mail").put("two")


def test_everything_that_django_knows_of_a_database(point):
    options = {"sslmode": "prefer", "pool": True, "options": "-c jit=off", "assume_role": "the owner"}
    options |= {"isolation_level": 2, "prepare_threshold": 3, "server_side_binding": True, "application_name": "shop"}
    point("other", "host=db.example.org port=6432 dbname=shop user=ada password='p w'", OPTIONS=options, CONN_MAX_AGE=0)
    known = conninfo_to_dict(clients.conninfo("other"))
    assert known.pop("client_encoding") == "UTF8"
    assert known == {
        "host": "db.example.org",
        "port": "6432",
        "dbname": "shop",
        "user": "ada",
        "password": "p w",
        "sslmode": "prefer",
        "application_name": "shop",
        "options": r"-c jit=off -c role=the\ owner",
    }


@pytest.mark.slow
def test_a_service(point):
    point("other", "", NAME="", OPTIONS={"service": "shop", "passfile": ".pgpass"})
    known = conninfo_to_dict(clients.conninfo("other"))
    assert (known["service"], known["passfile"]) == ("shop", ".pgpass")
    assert "dbname" not in known


def test_a_database_from_a_dsn(monkeypatch):
    monkeypatch.setenv("PGQUEUE_DSN", "postgresql://ada:p%20w@db.example.org:6432/shop?sslmode=require")
    assert database(ATOMIC_REQUESTS=True, OPTIONS={"pool": True}) == {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "shop",
        "USER": "ada",
        "PASSWORD": "p w",
        "HOST": "db.example.org",
        "PORT": "6432",
        "ATOMIC_REQUESTS": True,
        "OPTIONS": {"sslmode": "require", "pool": True},
    }
    with pytest.raises(ImproperlyConfigured, match="not a DSN"):
        database("no=dsn")


def test_the_role_that_django_assumes(dsn, point):
    point("default", dsn, OPTIONS={"assume_role": "pg_monitor"})
    with pytest.raises(SetupError, match="grant_to"):
        client().queue("mail").put(1)


@pytest.mark.parametrize(
    ("using", "says"),
    [
        ("nowhere", "there is no database 'nowhere' in DATABASES, only 'default', 'other', 'lite'"),
        ("lite", "is SQLite"),
    ],
)
def test_where_no_client_can_be(using, says):
    for make in (client, clients.conninfo, lambda using: queue("mail", using)):
        with pytest.raises(ImproperlyConfigured, match=says):
            make(using)


@pytest.mark.parametrize(
    ("given", "id", "says"),
    [
        ([], "E001", "must be a dict"),
        ({"nowhere": {}}, "E002", "no database 'nowhere'"),
        ({5: {}}, "E002", "no database 5"),
        ({"lite": {}}, "E002", "'lite' is SQLite"),
        ({"default": 5}, "E003", "must be a dict of options, not 5"),
        ({"default": {"dsn": "x"}}, "E004", "there is no option 'dsn', only listen_dsn, pool_size"),
        ({"default": {"pool_size": 0}}, "E004", "pool_size"),
        ({"default": {"poll": "often"}}, "E004", "poll"),
        ({"default": {"listen_dsn": "no=dsn"}}, "E004", "not a DSN"),
        ({"default": {"listen_dsn": 5}}, "E004", "listen_dsn"),
    ],
)
def test_settings_that_cannot_be(django_db, given, id, says):
    with override_settings(PGQUEUE=given):
        (message,) = check_settings(None)
        assert (message.id, message.level) == (f"pgqueue.{id}", checks.ERROR)
        assert says in message.msg
        with pytest.raises(SystemCheckError, match=id):
            call_command("check")
        if id == "E004":
            with pytest.raises(ImproperlyConfigured, match="default"):
                client()


def test_settings_that_can_be(django_db):
    everything = {
        "listen_dsn": "postgresql://db",
        "pool_size": 3,
        "connect_timeout": 5,
        "session_grace": 0,
        "poll": None,
    }
    for given in ({}, {"default": {}}, {"default": everything, "other": {"idle_timeout": 1, "max_data_size": 9}}):
        with override_settings(PGQUEUE=given):
            assert check_settings(None) == []
    assert not [message for message in checks.run_checks() if "pgqueue" in (message.id or "")]


def test_a_pooler_without_a_way_around_it(dsn, point):
    point("default", dsn, DISABLE_SERVER_SIDE_CURSORS=True)
    for given, expected in (
        ({"default": {}}, ["W001"]),
        ({"default": {"listen_dsn": dsn}}, []),
        ({}, ["W001"]),
    ):
        with override_settings(PGQUEUE=given):
            assert ids(check_settings(None)) == expected


def test_the_schema_that_is_there(django_db, dsn):
    assert check_schema(None) == []  # not asked for
    assert check_schema(None, databases=["default", "lite"]) == []
    connection.close()
    migrate.down(dsn, revision="base")
    (message,) = check_schema(None, databases=["default"])
    assert (message.id, message.level) == ("pgqueue.E005", checks.ERROR)
    assert "this database has no pgqueue schema" in message.msg
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO pgqueue.schema_version VALUES ('9999')")
    (message,) = check_schema(None, databases=["default"])
    assert "9999" in message.msg
    with pytest.raises(SystemCheckError, match="E005"):
        call_command("check", databases=["default"])


def test_what_migrate_will_mend_is_no_error(empty_dsn, point):
    point("default", empty_dsn)
    assert check_schema(None, databases=["default"]) == []


def test_a_server_that_is_not_there():
    (message,) = check_schema(None, databases=["default"])
    assert message.id == "pgqueue.E006"
    assert connections["default"].connection is None


@pytest.mark.slow
def test_test_databases_come_and_go(empty_dsn, point):
    """Django drops a test database only when nobody is connected to it: clients that were used let go by themselves."""
    point("default", empty_dsn)
    name = connection.settings_dict["NAME"]
    creation = connection.creation
    try:
        test_name = creation.create_test_db(verbosity=0, autoclobber=True)
        assert test_name == f"test_{name}"
        queue("mail").put("in the database of tests")
        assert client().queue("mail").take(5).data == "in the database of tests"
    finally:
        creation.destroy_test_db(name, verbosity=0)
        connection.settings_dict["NAME"] = name
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_database WHERE datname = %s", [test_name])
        assert cursor.fetchone() == (0,)
