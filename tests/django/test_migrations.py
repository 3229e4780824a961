"""`manage.py migrate` and `pgqueue migrate`: one schema, one version table, and either takes over from the other."""

from __future__ import annotations

from importlib import import_module

import pytest
from catalogue import describe
from commands import run
from django.core.management import CommandError, call_command
from django.db import connections
from django.db.migrations.loader import MigrationLoader
from django.test import override_settings

from pgqueue import migrate
from pgqueue import sql as schema
from pgqueue.contrib.django import queue
from pgqueue.contrib.django.operations import Schema


class Nowhere:
    """A router that keeps the app from a database."""

    def allow_migrate(self, db, app_label, **hints):
        return app_label != "pgqueue"


@pytest.fixture
def empty(empty_dsn, point):
    """Django's default database has nothing in it."""
    point("default", empty_dsn)
    return empty_dsn


def django_migrate(*arguments, **options):
    call_command("migrate", "pgqueue", *arguments, **({"verbosity": 0} | options))


def there(database="default"):
    with connections[database].cursor() as cursor:
        cursor.execute("SELECT to_regclass('pgqueue.task') IS NOT NULL")
        return cursor.fetchone()[0]


@pytest.mark.slow
def test_django_makes_what_alembic_makes(empty, dsn, db):
    django_migrate()
    assert run("--dsn", empty, "migrate", "status").stdout.startswith("up to date")
    with connections["default"].cursor() as cursor:
        assert describe(cursor.connection) == describe(db)
    migrate.up(empty)
    queue("mail").put(1)
    django_migrate("zero", fake=True)  # forgotten by Django, but there
    django_migrate()
    assert queue("mail").stats()["ready"] == 1


@pytest.mark.slow
def test_alembic_first(empty):
    migrate.up(empty)
    queue("mail").put(1)
    django_migrate()
    assert migrate.status(empty).state == "up to date"
    assert queue("mail").stats()["ready"] == 1


@pytest.mark.slow
def test_back_to_nothing_by_either(empty):
    django_migrate()
    django_migrate("zero")
    assert not there()
    assert migrate.status(empty).state == "not installed"
    django_migrate()
    migrate.down(empty, revision="base")
    django_migrate("zero")
    django_migrate()
    assert there()


@pytest.mark.slow
def test_tasks_are_not_lost(empty):
    django_migrate()
    queue("mail").put(1)
    refusal = r"^pgqueue: the queues still hold 1 tasks, which would be lost `manage.py pgqueue migrate --down --force`"
    with pytest.raises(CommandError, match=refusal):
        django_migrate("zero")
    assert queue("mail").stats()["ready"] == 1
    with pytest.raises(CommandError, match="would be lost"):
        call_command("pgqueue", "migrate", "--down", verbosity=0)
    call_command("pgqueue", "migrate", "--down", "--force", verbosity=0)
    assert not there()


@pytest.mark.slow
def test_what_fails_leaves_nothing(empty, monkeypatch):
    """Both the schema and Django's note of it are of one transaction."""
    monkeypatch.setattr(schema, "CODE", (*schema.CODE, "1_tables/tasks.sql"))  # which are there already
    with pytest.raises(Exception, match="already exists"):
        django_migrate()
    assert not there()
    monkeypatch.undo()
    django_migrate()
    assert there()


@pytest.mark.slow
def test_a_newer_schema_is_left_alone(empty):
    migrate.up(empty)
    with connections["default"].cursor() as cursor:
        cursor.execute("UPDATE pgqueue.schema_version SET version_num = '9999'")
    django_migrate()
    assert migrate.status(empty).current == "9999"


def test_a_router_keeps_it_out(empty):
    with override_settings(DATABASE_ROUTERS=[Nowhere()]):
        django_migrate()
        assert not there()
        django_migrate("zero")


def test_other_databases_than_postgresql_go_without(capsys):
    call_command("migrate", "pgqueue", database="lite", verbosity=0)
    call_command("migrate", "pgqueue", "zero", database="lite", verbosity=0)
    call_command("sqlmigrate", "pgqueue", "0001", database="lite")
    assert "TABLE" not in capsys.readouterr().out
    connections["lite"].close()


@pytest.mark.slow
def test_sqlmigrate(empty, capsys, db):
    call_command("sqlmigrate", "pgqueue", "0001")
    script = capsys.readouterr().out
    assert script.count("BEGIN;") == script.count("COMMIT;") == 1
    with connections["default"].cursor() as cursor:
        cursor.connection.execute(script)
        assert describe(cursor.connection) == describe(db)
    assert migrate.status(empty).state == "up to date"
    django_migrate()
    call_command("sqlmigrate", "pgqueue", "0001", backwards=True)
    with connections["default"].cursor() as cursor:
        cursor.connection.execute(capsys.readouterr().out)
    assert not there()


def test_nothing_is_missing(empty):
    """The migrations lead to this library's schema, step by step, and the models need no more of them."""
    call_command("makemigrations", "pgqueue", check=True, dry_run=True, verbosity=0)
    loader = MigrationLoader(None)
    names = sorted(name for app, name in loader.disk_migrations if app == "pgqueue")
    steps = [
        operation
        for name in names
        for operation in import_module(f"pgqueue.contrib.django.migrations.{name}").Migration.operations
        if isinstance(operation, Schema)
    ]
    assert steps[0].before == "base"
    assert [step.before for step in steps[1:]] == [step.revision for step in steps[:-1]]
    assert steps[-1].revision == schema.NEWEST
