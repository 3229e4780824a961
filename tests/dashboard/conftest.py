"""A dashboard of the test's database, asked over HTTP without a server."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlencode

import httpx2 as httpx
import psycopg
import pytest
from starlette.testclient import TestClient

import pgqueue
from pgqueue.dashboard import dashboard
from pgqueue.dashboard.guarding import COOKIE
from pgqueue.dashboard.reading import Reader

HERE = "http://testserver"
Open = Callable[..., "Visitor"]


class Visitor:
    """A browser, as far as HTTP goes: it keeps cookies, and sends forms with their token and its origin."""

    def __init__(self, http: TestClient) -> None:
        self.http = http

    def get(self, path: str = "", **arguments: Any) -> httpx.Response:
        return self.http.get(f"/{path}" + (f"?{urlencode(arguments)}" if arguments else ""))

    def page(self, path: str = "", **arguments: Any) -> str:
        """The text of a page that is there."""
        found = self.get(path, **arguments)
        assert found.status_code == 200, found.text
        return found.text

    def act(
        self, do: str, confirmed: bool = True, headers: dict[str, str] | None = None, **given: Any
    ) -> httpx.Response:
        """Press a button; the page behind it."""
        if COOKIE not in self.http.cookies:
            self.get("limits")
        form = {"token": self.http.cookies.get(COOKIE, "")} | ({"confirmed": "yes"} if confirmed else {})
        return self.http.post(
            f"/act?{urlencode({'do': do, **given})}",
            data=form,
            headers={"Origin": HERE} if headers is None else headers,
        )

    def acted(self, do: str, **given: Any) -> str:
        """The sentence that an action leaves."""
        found = self.act(do, **given)
        assert found.status_code == 200, found.text
        assert 'class="said"' in found.text, found.text
        return found.text.partition('class="said">')[2].partition("</p>")[0]


@pytest.fixture(autouse=True)
def ask_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Browsers share no answers, since tests change what was read a moment ago."""
    monkeypatch.setattr(Reader, "shared", 0.0)


@pytest.fixture
def open_dashboard(dsn: str) -> Iterator[Open]:
    """Makes dashboards of the test's database; by default each viewer may act."""
    with ExitStack() as stack:

        def make(dsn: str = dsn, **options: Any) -> Visitor:
            client = pgqueue.AsyncClient(dsn, connect_timeout=options.pop("connect_timeout", 10.0))
            app = dashboard(client, **{"may_act": lambda request: True, **options})
            http = stack.enter_context(TestClient(app, base_url=HERE))
            assert http.portal is not None
            stack.callback(http.portal.call, client.close)
            return Visitor(http)

        yield make


@pytest.fixture
def visitor(open_dashboard: Open) -> Visitor:
    return open_dashboard()


@pytest.fixture
def client(dsn: str) -> Iterator[pgqueue.Client]:
    """The application beside the dashboard."""
    with pgqueue.Client(dsn) as client:
        yield client


@pytest.fixture
def watcher_dsn(dsn: str, db: psycopg.Connection) -> Iterator[str]:
    """The database for a role that may monitor its queues, and nothing else."""
    role = f"watcher_{uuid.uuid4().hex[:12]}"
    db.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'watcher'")
    db.execute(f"SELECT pgqueue.grant_monitor('{role}')")
    yield psycopg.conninfo.make_conninfo(dsn, user=role, password="watcher")
    db.execute(f"DROP OWNED BY {role}")
    db.execute(f"DROP ROLE {role}")
