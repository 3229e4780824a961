"""No password is in an error, a log, a repr, a traceback or the list of processes, whichever way a DSN comes in."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import product
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from checkout import CHECKOUT
from commands import environment, invoke, run
from sampling import sampled

import pgqueue
from pgqueue import cli, migrate
from pgqueue._values.conninfo import plain
from pgqueue.cli import alerts, graphite
from pgqueue.monitors.alertmanager import Alertmanager
from pgqueue.monitors.alerts import Alert
from pgqueue.monitors.mail import Mail
from pgqueue.monitors.targets import Senders, Target
from pgqueue.monitors.webhook import Slack, Webhook

pytestmark = pytest.mark.once

SECRET = "OpenSesame"

MALFORMED = [
    f"postgresql://ada:a@{SECRET}@db.example/shop",
    f"postgresql://ada:{SECRET}@a@db.example/shop",
    f"postgresql://ada:a/{SECRET}@db.example/shop",
    f"postgresql://ada:12/{SECRET}@db.example/shop",
    f"postgresql://ada:a?b@{SECRET}@db.example/shop",
    f"postgresql://ada:{SECRET}%zz@db.example/shop",
    f"postgresql://ada:{SECRET}/shop",
    f"postgresql://[ada:{SECRET}/shop",
    f"postgresql//ada:{SECRET}@db.example/shop",
    f"mysql://ada:{SECRET}@db.example/shop",
    f"host=db.example password=a {SECRET}",
    f"host=db.example password='{SECRET}",
    f"host=db.example pass={SECRET} x",
    f"host=db.example port={SECRET}",
    SECRET,
]
UNREACHABLE = [
    f"postgresql://ada:{SECRET}@127.0.0.1:1/shop",
    f"postgresql://ada:a?{SECRET}@127.0.0.1:1/shop",
    f"postgresql+psycopg://ada:{SECRET}%40%2F@127.0.0.1:1/shop",
    f"host=127.0.0.1 port=1 user=ada password='{SECRET} \\' x' dbname=shop",
]
BRIEF = 0.1  # seconds for which a call waits for an absent server
every_dsn = pytest.mark.parametrize("dsn", [*MALFORMED, *UNREACHABLE])

#: The arguments of each command that uses a database.
ARGUMENTS = {
    "ack": "1 --claim 1",
    "alerts": "",
    "alter": "q ttr=1",
    "audit": "",
    "batch": "",
    "beanstalkd": "--listen 127.0.0.1:0",
    "bind": "q e",
    "bindings": "",
    "bury": "1",
    "cancel": "1",
    "cancel-all": "q -s ready --yes",
    "changes": "q --timeout 0",
    "cluster": "status",
    "create-exchange": "e",
    "create-queue": "q",
    "deaths": "1",
    "dashboard": "--port 0",
    "delete": "1 --yes",
    "delete-all": "q -s ready --yes",
    "delete-exchange": "e --yes",
    "delete-queue": "q --yes",
    "demo": "",
    "drain": "q",
    "elect": "n -- true",
    "exchanges": "",
    "fail": "1 --claim 1",
    "finish": "1 --claim 1",
    "follow": "1 --timeout 0",
    "forward": "1 q --claim 1",
    "grant": "pg_monitor -q q",
    "graphite": "127.0.0.1:1",
    "group": "members g",
    "health": "",
    "history": "",
    "job": "put app:client tidy",
    "jobs": "",
    "kick": "q",
    "kick-all": "q",
    "kick-task": "1",
    "limit": "list",
    "list": "q",
    "lock": "n --timeout 0 -- true",
    "metrics": f"--once --timeout {BRIEF}",
    "migrate": "up",
    "nodes": "get /a",
    "outcome": "1",
    "pause": "q 1",
    "peek": "1",
    "peek-next": "q",
    "pop": "q",
    "post": "c x",
    "privileges": "",
    "progress": "1 1 --claim 1",
    "publish": "e k 1",
    "put": "q 1",
    "put-again": "1",
    "put-again-all": "q --yes",
    "queues": "",
    "release": "1 --claim 1",
    "release-all": "q --yes",
    "rename-queue": "q r",
    "requeue": "1 --claim 1",
    "restrict": "q",
    "result": "1 --timeout 0",
    "results": "1 --claim 1",
    "resume": "q",
    "revoke": "pg_monitor -q q",
    "schedule": "list",
    "stats": "",
    "status": "get k",
    "subscribe": "c --timeout 0",
    "take": "q --timeout 0",
    "task-stats": "1",
    "top": "",
    "touch": "1 --claim 1",
    "truncate": "q --yes",
    "unbind": "q e",
    "wait": "c --timeout 0",
    "worker": "app:client --check",
    "workers": "",
}


def told(error: BaseException | None) -> Iterator[str]:
    """All that an error says, with what it came from, also where a traceback leaves that out."""
    while error is not None:
        yield from traceback.format_exception(error)
        yield repr(error)
        yield str(error.args)
        if error.__cause__ is not None:
            yield from told(error.__cause__)
        error = error.__context__


def the_error(function: Callable[[], Any]) -> str:
    """What is told of the error that a call raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  # of any kind
        function()
    return "\n".join(told(caught.value))


async def awaited(dsn: str) -> None:
    async with pgqueue.AsyncClient(dsn, connect_timeout=BRIEF) as client:
        await client.queue("q").put(1)


def work(dsn: str) -> None:
    """It waits for an absent server, and logs why, until it is stopped."""
    client = pgqueue.Client(dsn)
    client.handler("q")(print)
    worker = pgqueue.Worker(client)
    worker.stop()
    worker.run()
    raise RuntimeError("stopped")


def on_a_cluster(dsn: str) -> None:
    with pgqueue.Cluster([dsn, dsn], connect_timeout=BRIEF) as cluster:
        cluster.queue("q").put(1)


def listen(dsn: str, good: str) -> None:
    with pgqueue.Client(good, listen_dsn=dsn) as client:
        client.queue("q").take(0.01)


def alchemy(dsn: str) -> None:
    from pgqueue.contrib.sqlalchemy import url

    raise RuntimeError(repr(url(dsn)))


@every_dsn
def test_entry_points(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for enter in (
        lambda: pgqueue.Client(dsn, connect_timeout=BRIEF).queue("q").put(1),
        lambda: asyncio.run(awaited(dsn)),
        lambda: work(dsn),
        lambda: on_a_cluster(dsn),
        lambda: migrate.up(dsn),
        lambda: migrate.down(dsn),
        lambda: migrate.status(dsn),
        lambda: alchemy(dsn),
    ):
        assert SECRET not in the_error(enter)
    assert SECRET not in caplog.text
    assert ("cannot reach its server" in caplog.text) == (dsn in UNREACHABLE)
    assert SECRET not in repr(pgqueue.Client(dsn).shell.settings) + repr(pgqueue.Client(dsn)) + repr(
        pgqueue.Client(dsn).shell
    )


@pytest.mark.parametrize("bad", MALFORMED)
def test_listen_dsn(bad: str, dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    assert SECRET not in the_error(lambda: listen(bad, dsn))
    assert SECRET not in caplog.text


def test_every_command_is_tried() -> None:
    assert set(ARGUMENTS) == set(cli.COMMANDS) - {"completion", "server"}


APP = """
import pgqueue
client = pgqueue.Client()
client.handler("q")(print)
client.job(name="tidy")(lambda: None)
"""


@pytest.mark.parametrize(
    ("way", "dsn"), sampled([*product(["option", "PGQUEUE_DSN", "DATABASE_URL"], [*MALFORMED, *UNREACHABLE])], keep=4)
)
def test_commands(
    way: str, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    for command in (alerts, graphite):  # they wait for an absent server
        monkeypatch.setattr(command, "Client", partial(pgqueue.Client, connect_timeout=BRIEF))
    for name, arguments in ARGUMENTS.items():
        sys.modules.pop("app", None)
        given = ["-v", *(["--dsn", dsn] if way == "option" else []), name, *arguments.split()]
        done = invoke(*given, **({} if way == "option" else {way: dsn}))
        assert done.returncode == 1, name
        assert SECRET not in done.stdout + done.stderr, name
    assert SECRET not in caplog.text


@pytest.mark.slow
def test_a_process_with_its_own_log() -> None:
    for dsn in (MALFORMED[0], UNREACHABLE[0]):
        done = run("-v", "--dsn", dsn, "stats")
        assert done.returncode == 1
        assert SECRET not in done.stdout + done.stderr


@every_dsn
def test_flask(dsn: str) -> None:
    flask = pytest.importorskip("flask")
    from pgqueue.contrib.flask import PgQueue

    def made(**config: str) -> None:
        app = flask.Flask("shop")
        app.config.update(config, PGQUEUE_CONNECT_TIMEOUT=BRIEF)
        queues = PgQueue(app, db=object())
        with app.app_context():
            queues.client.queue("q").put(1)

    for setting in ("PGQUEUE_DSN", "SQLALCHEMY_DATABASE_URI"):
        assert SECRET not in the_error(lambda setting=setting: made(**{setting: dsn}))  # type: ignore[misc]


@pytest.mark.slow
@every_dsn
def test_alembic(dsn: str) -> None:
    command = [sys.executable, "-m", "alembic", "upgrade", "head"]
    done = subprocess.run(
        command, cwd=CHECKOUT, env=environment(PGQUEUE_DSN=dsn), capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert SECRET not in done.stdout + done.stderr


@pytest.mark.parametrize("dsn", MALFORMED)
def test_a_malformed_dsn_says_what_to_write(dsn: str) -> None:
    with pytest.raises(pgqueue.ServerError, match=r"not a DSN .* %40") as refused:
        plain(dsn)
    assert refused.value.__context__ is None


@pytest.mark.parametrize(
    "dsn",
    [
        "",
        "postgresql://",
        "postgres:///shop?host=/run/postgresql&port=5433",
        "postgresql://ada@db.example/shop",
        "postgresql://ada:p%40ss%2F%3A@[::1]:5433/shop?sslmode=require",
        "postgresql://ada:p:ss#w@one:1,two:2/shop?options=-c%20x%3Da@b",
        "host=one,two port=1,2 password='p@ss/w?rd' dbname=a@b",
        "password=a+b://c host=db.example",
        "service=shop",
    ],
)
def test_what_libpq_understands_as_it_was_meant(dsn: str) -> None:
    assert plain(dsn) == dsn


# --- the URLs of targets of alerts


class Hook(BaseHTTPRequestHandler):
    heard: list[str | None]

    def do_POST(self) -> None:
        self.heard.append(self.headers["Authorization"])
        self.send_response(204)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


def test_the_credentials_of_a_webhook_are_sent() -> None:
    Hook.heard = []
    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        thread = Thread(target=server.handle_request)
        thread.start()
        Webhook(f"http://ada:p%40ss@127.0.0.1:{server.server_port}/hook").send([an_alert()])
        thread.join()
    assert Hook.heard == ["Basic YWRhOnBAc3M="]


@pytest.mark.parametrize("place", ["127.0.0.1:1", "127.0.0.1", "nohost.invalid"])
def test_a_webhook_that_fails(place: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"http://ada:{SECRET}@{place}/{SECRET}?{SECRET}"
    for target in (Webhook(url), Slack(url), Alertmanager(url, 10.0, {})):
        caplog.clear()
        monkeypatch.setattr(target._post, "_opener", Refusing())
        alerted(target)
        assert "alerts do not reach" in caplog.text
        assert SECRET not in caplog.text + repr(target)


def test_a_mail_server_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    target = Mail("ada@example.org", f"smtp://ada:{SECRET}@127.0.0.1:1", None)
    alerted(target)
    assert "alerts do not reach the SMTP server 127.0.0.1:1" in caplog.text
    assert SECRET not in caplog.text + repr(target)


@pytest.mark.parametrize("url", [f"smtp://ada:{SECRET}@mail:x", f"http://ada:{SECRET}@mail", f"smtp://{SECRET} x"])
def test_a_mail_server_that_is_refused(url: str) -> None:
    assert SECRET not in the_error(lambda: Mail("ada@example.org", url, None))


def an_alert() -> Alert:
    return Alert(kind="length", name="q", value=1, since=0, at=0, text="long")


def alerted(target: Target) -> None:
    """Have a target get an alert."""
    senders = Senders([target])
    senders.tell([an_alert()], [an_alert()])
    senders.close()


class Refusing:
    """Instead of the network: fails as http.client does, naming the host that it was given."""

    def open(self, request: Any, timeout: float) -> None:
        raise OSError(f"no route to {request.host!r}")


@pytest.mark.parametrize(
    "url",
    [
        f"ftp://ada:{SECRET}@example.org/",
        f"https://ada:{SECRET} x@example.org/",
        f"https://ada:a/{SECRET}@example.org:x/",
        f"https//{SECRET}",
        f"https://example.org/{SECRET}\n",
    ],
)
def test_a_webhook_that_is_refused(url: str) -> None:
    assert SECRET not in the_error(lambda: Webhook(url))
