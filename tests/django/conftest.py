"""Django in the process of the tests, on databases that are each test's own.

Django is set up once a process, with tests/helpers/django_settings.py; where its databases are is changed under it for
each test. What its own `migrate` makes is cloned from a template, as pgqueue's schema is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import django
import pytest
from lending import Lender
from projects import Project
from servers import Server

os.environ["DJANGO_SETTINGS_MODULE"] = "django_settings"
django.setup()
del os.environ["DJANGO_SETTINGS_MODULE"]  # programs that tests start have settings of their own

# These need Django's settings, so they are imported late.
import errands  # noqa: E402
from browsing import Browser  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import connections  # noqa: E402
from tasking import configured  # noqa: E402

from pgqueue.contrib.django import clients, database, handlers  # noqa: E402


@contextmanager
def pointed(alias: str, dsn: str, **settings: Any) -> Iterator[None]:
    """Django's database `alias` is the one at `dsn`; at the end every connection to it is closed."""
    given = {"CONN_MAX_AGE": None} | database(dsn, **settings)
    before = connections.settings[alias]
    connections.settings[alias] = connections.configure_settings({"default": {}, alias: given})[alias]
    _forget(alias)
    try:
        yield
    finally:
        clients.close()
        connections[alias].close()
        connections[alias].close_pool()  # type: ignore[attr-defined]  # the stubs lack it
        connections.settings[alias] = before
        _forget(alias)


def _forget(alias: str) -> None:
    if any(one.alias == alias for one in connections.all(initialized_only=True)):  # made by this thread
        del connections[alias]


@pytest.fixture(scope="session")
def django_template(pg_server: Server) -> Iterator[str]:
    """The name of a database to clone, with all that `manage.py migrate` makes, pgqueue's schema included."""
    name = pg_server.create()
    with pointed("default", pg_server.dsn(name)):
        call_command("migrate", run_syncdb=True, verbosity=0)
    yield name
    pg_server.drop(name)


@pytest.fixture(scope="session")
def lender(pg_server: Server, django_template: str) -> Iterator[Lender]:
    """As everywhere it lends databases with pgqueue's schema; here with Django's tables too."""
    with closing(Lender(pg_server, django_template)) as lender:
        yield lender


@pytest.fixture
def other_dsn(pg_server: Server, lender: Lender) -> Iterator[str]:
    """Such a database once more; to be asked for before `point`, whose connections it outlives."""
    with lender.lent() as name:
        yield pg_server.dsn(name)


@pytest.fixture
def point() -> Iterator[Callable[..., None]]:
    """`point("other", dsn, OPTIONS={"pool": True})`: a database of Django's, for this test."""
    with ExitStack() as stack:

        def make(alias: str, dsn: str, **settings: Any) -> None:
            stack.enter_context(pointed(alias, dsn, **settings))

        yield make


@pytest.fixture
def django_db(dsn: str, point: Callable[..., None]) -> None:
    """Django's default database is the test's own."""
    point("default", dsn)


@pytest.fixture
def browser(django_db: None) -> Browser:
    return Browser()


@pytest.fixture
def no_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """No handlers and jobs but the test's own."""
    monkeypatch.setattr(handlers, "_registered", {})
    clients.close()
    monkeypatch.setattr(clients._clients, "_first", {})


@pytest.fixture
def tasks_configured(dsn: str, point: Callable[..., None]) -> Iterator[None]:
    """django.tasks on the test's database, with pgqueue's backend."""
    point("default", dsn, CONN_MAX_AGE=0)  # a task's own connection goes with it
    with configured():
        yield
    errands.clear()


@pytest.fixture
def project(tmp_path: Path, dsn: str) -> Iterator[Project]:
    """A project whose worker is a process of its own."""
    made = Project(tmp_path, dsn)
    yield made
    made.client.close()
