"""`pgqueue job` and the queues of `pgqueue worker`: of an application in a folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from commands import Commands, failed, invoke, started
from eventually import eventually
from psycopg.types.json import Jsonb

pytestmark = pytest.mark.once

NOWHERE = "postgresql://127.0.0.1:1/nowhere"
APP = """
from datetime import datetime
import pgqueue

client = pgqueue.Client()
aio = pgqueue.AsyncClient()

@client.job("mail", aliases=["old"])
def send(to: str, at: datetime | None = None, n: int = 1):
    print("to", to, flush=True)

@client.job("reports")
async def report():
    print("report", flush=True)

@aio.job(name="later")
async def later(n: int): ...

raw = pgqueue.Client()
raw.handler("raw")(print)
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "shop_of_jobs.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("shop_of_jobs", None)


def test_the_jobs_are_listed_without_a_server(app: Path) -> None:
    done = invoke("job", "list", "shop_of_jobs:client", PGQUEUE_DSN=NOWHERE)
    assert [line.split()[:3] for line in done.stdout.splitlines()] == [
        ["JOB", "QUEUE", "KIND"],
        ["shop_of_jobs.report", "reports", "async"],
        ["shop_of_jobs.send", "mail", "sync"],
    ]
    assert done.stdout.rstrip().endswith("to: str, at: datetime.datetime | None = None, n: int = 1")


def test_the_jobs_are_listed_for_scripts(app: Path, command: Commands) -> None:
    found = command.json("job", "list", "shop_of_jobs:client", "--json")
    assert found[1] == {
        "job": "shop_of_jobs.send",
        "queue": "mail",
        "async": False,
        "parameters": {
            "to": {"type": "str", "optional": False},
            "at": {"type": "datetime.datetime | None", "optional": True},
            "n": {"type": "int", "optional": True},
        },
    }


def test_a_task_is_put_with_its_options(app: Path, command: Commands, db: psycopg.Connection) -> None:
    def lines(client: str, *arguments: str) -> list[str]:
        sys.modules.pop("shop_of_jobs", None)  # as in a process of its own: each command closes its client
        return command.lines("job", "put", f"shop_of_jobs:{client}", *arguments)

    assert lines("client", "shop_of_jobs.send", '{"to": "ada", "at": "2030-01-01T00:00:00Z"}') == ["1"]
    options = ("--priority", "3", "--delay", "60", "--key", "k", "--attempts", "2", "--queue", "other")
    (printed,) = lines("client", "old", '{"to": "bob"}', *options, "--json")
    assert json.loads(printed) == {"id": 2, "queue": "other", "state": "delayed", "existed": False}
    assert lines("client", "shop_of_jobs.report") == ["3"]
    assert lines("aio", "later", '{"n": 1}') == ["4"]
    rows = db.execute("SELECT queue, priority, key, data - 'sig' FROM pgqueue.tasks ORDER BY id").fetchall()
    at = {"to": "ada", "at": "2030-01-01T00:00:00Z"}
    assert rows == [
        ("mail", 0, None, {"job": "shop_of_jobs.send", "args": at}),
        ("other", 3, "k", {"job": "shop_of_jobs.send", "args": {"to": "bob"}, "attempts": 2}),
        ("reports", 0, None, {"job": "shop_of_jobs.report", "args": {}}),
        ("default", 0, None, {"job": "later", "args": {"n": 1}}),
    ]


@pytest.mark.parametrize(("client", "kind", "method"), [("client", "contextmanager", "put"),
                                                          ("aio", "asynccontextmanager", "aput")])  # fmt: skip
def test_a_put_has_its_middleware(
    app: Path, command: Commands, db: psycopg.Connection, client: str, kind: str, method: str
) -> None:
    awaits = "async " if method == "aput" else ""
    with (app / "shop_of_jobs.py").open("a") as file:
        file.write(f"""
import contextlib

class Tenant:
    @contextlib.{kind}
    {awaits}def {method}(self, order):
        order.headers["tenant"] = order.args[0]["who"]
        yield

{client}.middleware.append(Tenant())
{client}.job(name="greet")(lambda who: None)
""")
    command.lines("job", "put", f"shop_of_jobs:{client}", "greet", '{"who": "ada"}')
    assert db.execute("SELECT data -> 'headers' FROM pgqueue.tasks").fetchall() == [({"tenant": "ada"},)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nope"], "shop_of_jobs:client has no job 'nope'; its jobs: shop_of_jobs.report, shop_of_jobs.send"),
        (["old", "{"], "Invalid value for '[ARGUMENTS]': not JSON: "),
        (["old", "[]"], "job shop_of_jobs.send: args: Input should be an object, not []"),
        (["old"], "job shop_of_jobs.send: args: lacks 'to' (its parameters: to, at=, n=)"),
        (["old", '{"to": 1}'], "job shop_of_jobs.send: args.to: Input should be a valid string, not 1"),
        (["old", '{"to": "a", "at": "soon"}'], "job shop_of_jobs.send: args.at: Input should be a valid datetime"),
        (["old", '{"to": "a", "x": 1}'], "job shop_of_jobs.send: args: has unknown 'x'"),
    ],
)
def test_what_is_wrong_puts_nothing(
    app: Path, dsn: str, db: psycopg.Connection, arguments: list[str], said: str
) -> None:
    done = invoke("job", "put", "shop_of_jobs:client", *arguments, PGQUEUE_DSN=dsn)
    assert failed(done, 2).startswith(said)
    assert db.execute("SELECT FROM pgqueue.tasks").fetchone() is None


@pytest.mark.slow
def test_a_worker_serves_the_queues_that_it_is_told(app: Path, dsn: str, db: psycopg.Connection) -> None:
    for queue, name in (("mail", "send"), ("reports", "report"), ("mail", "send")):
        args: dict[str, Any] = {"to": "ada"} if name == "send" else {}
        data = Jsonb({"job": f"shop_of_jobs.{name}", "args": args})
        db.execute("SELECT pgqueue.put(%s, %s)", [queue, data])

    def left() -> list[str]:
        return [row[0] for row in db.execute("SELECT queue FROM pgqueue.tasks").fetchall()]

    with started("worker", "shop_of_jobs", "-q", "mail", "-q", "reports", "--exclude", "reports", cwd=app,
                 settings={"PGQUEUE_DSN": dsn}):  # fmt: skip
        eventually(lambda: left() == ["reports"])
    with started("worker", "shop_of_jobs", "--exclude", "mail", cwd=app, settings={"PGQUEUE_DSN": dsn}):
        eventually(lambda: left() == [])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["shop_of_jobs:client", "--exclude", "nope"], "queue 'nope' cannot be excluded: there are mail, reports"),
        (["shop_of_jobs:client", "--exclude", "mail", "--exclude", "reports"], "no queue is left to serve"),
        (["shop_of_jobs:raw", "-q", "nope"], "there is no handler for queue 'nope', only for raw"),
    ],
)
def test_queues_that_cannot_be_served(app: Path, dsn: str, arguments: list[str], said: str) -> None:
    assert failed(invoke("worker", *arguments, PGQUEUE_DSN=dsn), 2).startswith(said)
