"""`manage.py pgqueue`."""

from __future__ import annotations

import io
import json
import sys

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import override_settings

from pgqueue.contrib.django import handlers, job, queue

pytestmark = pytest.mark.once


def pgqueue(*arguments):
    """What the command prints."""
    output = io.StringIO()
    call_command("pgqueue", *arguments, stdout=output)
    return output.getvalue().rstrip("\n")


def test_put(django_db):
    id = pgqueue("put", "mail", '{"to": "ada"}', "--delay", "60", "--priority", "-1")
    task = queue("mail").peek(id)
    assert (task.data, task.state, task.priority) == ({"to": "ada"}, "delayed", -1)


def test_put_lines(django_db, monkeypatch):
    lines = [json.dumps({"n": n}) for n in range(2500)]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines) + "\n\n"))
    assert pgqueue("put", "mail", "-", "--lane", "a") == "2500 tasks"
    assert [task.data["n"] for task in queue("mail").pop(1)] == [0]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join([*lines, "{", *lines])))
    with pytest.raises(CommandError, match=r"^line 2501 is not JSON: "):
        pgqueue("put", "other", "-")
    assert queue("other").stats()["total"] == 0


def test_stats(django_db):
    assert pgqueue("stats", "--json") == "[]"
    queue("mail").put_many([1, 2])
    queue("resize").put(1, delay=60)
    header, *lines = pgqueue("stats").splitlines()
    assert header.split()[:4] == ["queue", "ready", "delayed", "taken"]
    assert [line.split()[:4] for line in lines] == [["mail", "2", "0", "0"], ["resize", "0", "1", "0"]]
    mail, resize = json.loads(pgqueue("stats", "--json"))
    assert (mail["queue"], mail["ready"], mail["total"], resize["oldest_ready_age"]) == ("mail", 2, 2, None)


@pytest.mark.slow
def test_migrate(empty_dsn, point):
    point("default", empty_dsn)
    assert "up to date" in pgqueue("migrate")
    assert "not installed" in pgqueue("migrate", "--down")
    assert "up to date" in pgqueue("migrate")
    connection.close()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["put", "mail", "{"], "DATA is not JSON: "),
        (["put", "mail", "NaN"], "JSON has no nan"),
        (["put", "", "1"], "name"),
        (["put", "mail", "1", "--ttl", "-5"], "ttl must be"),
        (["put", "mail", "1", "--database", "nowhere"], "there is no database 'nowhere'"),
        (["stats", "--database", "lite"], "is SQLite"),
        (["migrate", "--database", "nowhere"], "there is no database 'nowhere'"),
        (["migrate", "--force"], "--force needs --down"),
        (["worker"], "no handler is registered"),
        (["worker", "--database", "lite"], "is SQLite"),
        (["sing"], "invalid choice: 'sing'"),
        ([], "required"),
    ],
)
def test_what_is_wrong_is_one_line(django_db, monkeypatch, arguments, says):
    monkeypatch.setattr(handlers, "_registered", {})
    with pytest.raises(CommandError, match=says) as caught:
        pgqueue(*arguments)
    assert "\n" not in str(caught.value)


def test_worker_options_are_checked(django_db, monkeypatch):
    monkeypatch.setattr(handlers, "_registered", {})
    handlers.handler("mail")(print)
    for option in ("--concurrency", "--max-attempts", "--retry-delay"):
        with pytest.raises(CommandError, match=option.removeprefix("--").replace("-", "_")):
            pgqueue("worker", f"{option}=-1")


def test_check_and_chosen_queues(django_db, no_handlers):
    handlers.handler("mail")(print)
    job("reports", name="report")(lambda: None)
    assert pgqueue("worker", "--check").startswith("would work on mail, reports (report); on ")
    assert pgqueue("worker", "--check", "-q", "mail", "--processes", "2").startswith("would work on mail; on ")
    assert "; 8 at once of each kind, 2 of mail, " in pgqueue("worker", "--check", "--share", "mail=2")
    assert pgqueue("worker", "--check", "--exclude", "mail").startswith("would work on reports (report); on ")
    for arguments, says in (
        (["--exclude", "mail", "--exclude", "reports"], "no queue is left to serve"),
        (["--share", "mail"], "argument --share: a share is QUEUE=N, as reports=2, not 'mail'"),
        (["--share", "mail=9"], "the share of queue 'mail' is 9, more than the concurrency of 8"),
        (["--share", "post=2"], "there is no share for queue 'post'"),
        (["--processes", "2", "--reload"], "--reload is for one process"),
        (["--processes", "0"], "argument --processes: 0 is below 1"),
    ):
        with pytest.raises(CommandError, match=says):
            pgqueue("worker", *arguments)


def test_a_server_that_is_not_there(monkeypatch):
    monkeypatch.setattr(handlers, "_registered", {})
    handlers.handler("mail")(print)
    for arguments in (["worker", "--check"], ["stats"]):
        with pytest.raises(CommandError, match="nonexistent") as caught:
            pgqueue(*arguments)
        assert "\n" not in str(caught.value)


def test_settings_that_cannot_be(django_db):
    with override_settings(PGQUEUE={"default": {"pool_size": 0}}), pytest.raises(CommandError, match="pool_size"):
        pgqueue("put", "mail", "1")
