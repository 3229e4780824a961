"""Mail stands still: find out why, and mend it. For each cause the overview names it, and its remedy works.

Tests press the button of the page, or run the command that stands there, word for word.
"""

from __future__ import annotations

import asyncio
import html
import re
import shlex
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from commands import run, started
from eventually import eventually
from psycopg import sql
from roles import made
from running import running
from statements import value

import pgqueue
from pgqueue import Worker
from pgqueue.monitors.words import CHECKS, REASONS

pytestmark = [pytest.mark.once, pytest.mark.slow]

FORM = re.compile(r'<form method="post" action="([^"]+)">(.*?)<button[^>]*>([^<]*)</button></form>', re.DOTALL)
LATE = "UPDATE pgqueue.task SET created_at = created_at - interval '10 s'"  # it stands still after five of them
APP = """
import os, signal
import pgqueue

client = pgqueue.Client()

@client.handler("mail")
def send(data):
    if data == "poison":
        os.kill(os.getpid(), signal.SIGKILL)
    with open("sent", "a") as file:
        print(data, file=file)
"""


def said(page: str, words: Any) -> bool:
    return html.escape(words.said).replace("&#x27;", "&#39;") in page


def commands(page: str) -> list[str]:
    """What stands on the page as code."""
    return [html.unescape(found) for found in re.findall(r"<code>(.*?)</code>", page)]


def press(visitor: Any, page: str, label: str) -> None:
    """Press a button of the page; if it asks, say yes."""
    for action, inner, text in FORM.findall(page):
        if html.unescape(text) == label:
            fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', inner))
            answer = visitor.http.post(
                "/" + html.unescape(action),
                data={**fields, "confirmed": "yes"},
                headers={"Origin": "http://testserver"},
            )
            assert answer.status_code == 200, answer.text
            assert 'class="said"' in answer.text, answer.text
            return
    raise AssertionError(f"no button says {label!r}: {[html.unescape(text) for _, _, text in FORM.findall(page)]}")


def command(page: str, *begins: str) -> list[str]:
    """The words of the command that begins like this."""
    (found,) = {one for one in commands(page) if shlex.split(one)[: len(begins)] == [*begins]}
    return shlex.split(found)


@pytest.fixture
def sent() -> list[Any]:
    return []


@pytest.fixture
def worker(dsn: str, sent: list[Any]) -> Any:
    """Makes a worker of `mail`; leave the block to stop it."""

    @contextmanager
    def make(handler: Any = sent.append, dsn: str = dsn, **options: Any) -> Iterator[Worker]:
        with pgqueue.Client(dsn) as client:
            client.handler("mail")(handler)
            with running(Worker(client, schedules=False, **options)) as worker:
                yield worker

    return make


def test_paused(visitor, client, worker, sent):
    client.queue("mail").put("a letter")
    client.queue("mail").pause(3600)
    with worker():
        page = visitor.page()
        assert said(page, REASONS["paused"])
        press(visitor, page, "Resume")
        eventually(lambda: sent == ["a letter"])
    assert not said(visitor.page(), REASONS["paused"])


def test_no_worker(visitor, client, db, dsn, tmp_path: Path):
    client.queue("mail").put("a letter")
    db.execute(LATE)
    page = visitor.page()
    assert said(page, REASONS["no taker"])
    (tmp_path / "app.py").write_text(APP)
    words = command(page.partition('id="still"')[2], "pgqueue", "worker")
    with started(*words[1:], cwd=tmp_path, settings={"PGQUEUE_DSN": dsn}, stderr=subprocess.DEVNULL):
        eventually(lambda: (tmp_path / "sent").exists())
        eventually(lambda: client.queue("mail").stats()["total"] == 0)
    assert not said(visitor.page(), REASONS["no taker"])


def test_poison(visitor, client, db, dsn, tmp_path: Path):
    """A task kills each process that takes it."""
    poison = client.queue("mail").put("poison").id
    client.queue("mail").put("a letter")
    (tmp_path / "app.py").write_text(APP)
    with started(
        *("worker", "app:client", "--processes", "1", "--concurrency", "1"),
        cwd=tmp_path,
        settings={"PGQUEUE_DSN": dsn},
        stderr=subprocess.DEVNULL,
    ):
        eventually(lambda: value(db, "SELECT count(*) FROM pgqueue.task WHERE killed_after IS NOT NULL"))
        db.execute(LATE)
        eventually(lambda: said(visitor.page(), REASONS["died"]))
        press(visitor, visitor.page(), f"Set aside task {poison}")
        eventually(lambda: (tmp_path / "sent").exists())
        assert (tmp_path / "sent").read_text() == "a letter\n"
    assert not said(visitor.page(), REASONS["died"])
    assert [task.data for task in client.queue("mail").tasks("buried").tasks] == ["poison"]


@pytest.mark.parametrize("remedy", ["Cancel", "Set aside"])
def test_a_busy_lane(visitor, client, worker, sent, remedy):
    """One letter to Ada hangs, and those behind it wait."""
    hangs = threading.Event()

    async def send(data: Any) -> None:
        if data == "hangs":
            hangs.set()
            await asyncio.sleep(3600)
        sent.append(data)

    first = client.queue("mail").put("hangs", lane="ada")
    client.queue("mail").put("a letter", lane="ada")
    with worker(send, grace=0.1):
        assert hangs.wait(30)
        page = visitor.page()
        assert said(page, REASONS["blocked"])
        press(visitor, page, f"{remedy} task {first.id}")
        eventually(lambda: sent == ["a letter"])
    assert not said(visitor.page(), REASONS["blocked"])


def test_a_limit_that_is_reached(visitor, client, worker, sent, dsn):
    """Two letters hang, and no more than two may run at once."""
    client.create_queue("mail")
    client.limits.set("mail", concurrency=2)
    hang = threading.Event()

    def send(data: Any) -> None:
        if data == "hangs":
            hang.wait(60)
        else:
            sent.append(data)

    client.queue("mail").put_many(["hangs", "hangs", "a letter"])
    with worker(send):
        eventually(lambda: client.queue("mail").stats()["taken"] == 2)
        page = visitor.page()
        assert said(page, REASONS["waiting"])
        words = command(page, "pgqueue", "limit", "set")
        assert words == ["pgqueue", "limit", "set", "mail", "--concurrency", "4"]
        assert run(*words[1:], PGQUEUE_DSN=dsn).returncode == 0
        eventually(lambda: sent == ["a letter"])
        assert not said(visitor.page(), REASONS["waiting"])
        hang.set()


def test_tasks_for_later(visitor, client, worker, sent):
    client.queue("mail").put("a letter", delay=86_400)
    with worker():
        page = visitor.page()
        assert said(page, REASONS["delayed"])
        press(visitor, page, "Run them now")
        eventually(lambda: sent == ["a letter"])
    assert not said(visitor.page(), REASONS["delayed"])


def test_a_schedule_in_the_future(visitor, client, worker, sent):
    client.create_queue("mail")
    client.schedules.set("newsletter", "0 9 1 1 *", "mail", "a letter")
    with worker():
        page = visitor.page()
        assert said(page, REASONS["scheduled"])
        press(visitor, page, "Run now")
        eventually(lambda: sent == ["a letter"])


def test_a_paused_schedule(visitor, client, worker, sent):
    client.create_queue("mail")
    client.schedules.set("newsletter", None, "mail", "a letter", every=1)
    client.schedules.pause("newsletter")
    page = visitor.page()
    assert "is paused" in page
    assert said(page, REASONS["scheduled"])


def test_a_held_snapshot(visitor, client, db, dsn):
    """A report stays in its transaction, while a million others go by."""
    client.queue("mail").put("a letter")
    report = psycopg.connect(dsn, application_name="report")
    report.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    report.execute("SELECT count(*) FROM pgqueue.queues")
    db.execute("SET synchronous_commit = off")
    db.execute("DO $$ BEGIN FOR n IN 1 .. 1000100 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")
    page = visitor.page()
    assert said(page, CHECKS["oldest_snapshot_xids"])
    assert "report" in page
    (statement,) = {one for one in commands(page) if one.startswith("SELECT pg_")}
    assert statement == f"SELECT pg_terminate_backend({report.info.backend_pid})"
    db.execute(sql.SQL(statement))
    eventually(lambda: not said(visitor.page(), CHECKS["oldest_snapshot_xids"]))
    report.close()


def test_a_role_without_the_right(visitor, client, db, dsn, tmp_path: Path):
    client.queue("mail").put("a letter")
    db.execute("SELECT pgqueue.restrict_queue('mail')")
    (tmp_path / "app.py").write_text(APP)
    with made(dsn, db) as roles:
        role = roles("take", "put")
        with started(
            *("worker", "app:client"),
            cwd=tmp_path,
            settings={"PGQUEUE_DSN": roles.dsn(role)},
            stderr=subprocess.DEVNULL,
        ):
            eventually(lambda: value(db, "SELECT count(*) FROM pgqueue.sessions"))
            db.execute(LATE)
            page = visitor.page()
            assert said(page, REASONS["no right"])
            words = command(page, "pgqueue", "grant", role)
            assert words == ["pgqueue", "grant", role, "take", "--queue", "mail"]
            assert run(*words[1:], PGQUEUE_DSN=dsn).returncode == 0
            eventually(lambda: (tmp_path / "sent").exists())
            assert not said(visitor.page(), REASONS["no right"])


@pytest.mark.parametrize(
    ("attempts", "reason", "label"), [(20, "failing", "Run them now"), (1, "buried", "Retry them")]
)
def test_a_failing_handler(visitor, client, worker, sent, attempts, reason, label):
    broken = True

    def send(data: Any) -> None:
        if broken:
            raise ConnectionRefusedError("smtp.example.org refused the connection")
        sent.append(data)

    client.queue("mail").put("a letter")
    state = "delayed" if reason == "failing" else "buried"
    with worker(send, max_attempts=attempts, retry_delay=3600):
        eventually(lambda: client.queue("mail").stats()[state] == 1)
        page = visitor.page()
        assert said(page, REASONS[reason])
        assert "smtp.example.org refused the connection" in page
        broken = False
        press(visitor, page, label)
        eventually(lambda: sent == ["a letter"])
    assert not said(visitor.page(), REASONS[reason])


def test_a_full_queue(visitor, client, worker, sent):
    client.create_queue("mail", capacity=3)
    for n in range(3):
        client.queue("mail").put(n)
    with pytest.raises(pgqueue.QueueFull):
        client.queue("mail").put("a letter", timeout=0)
    page = visitor.page()
    assert said(page, REASONS["full"])
    press(visitor, page, "Allow 6 tasks")
    client.queue("mail").put("a letter", timeout=0)
    assert not said(visitor.page(), REASONS["full"])
    with worker():
        eventually(lambda: sent == [0, 1, 2, "a letter"])
