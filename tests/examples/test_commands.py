"""The example applications, as their docstrings and docker-compose.yml run them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest
from checkout import CHECKOUT
from commands import environment, started
from eventually import eventually

import pgqueue

pytestmark = pytest.mark.once


@pytest.mark.slow
def test_the_example_application(dsn, tmp_path, blocking):
    output = tmp_path / "output"
    with (
        output.open("w") as file,
        started("worker", "examples.app:client", settings={"PGQUEUE_DSN": dsn}, cwd=CHECKOUT, stdout=file) as worker,
    ):
        command = [sys.executable, "-m", "examples.app"]
        subprocess.run(command, cwd=CHECKOUT, env=environment(PGQUEUE_DSN=dsn), check=True, timeout=60)
        eventually(lambda: output.read_text().count("\n") == 3)
        assert sorted(output.read_text().splitlines()) == [
            "Rose: 10 words; rose 4, is 3, a 3",
            "mail to ada@example.org: Hello (task 2, attempt 1)",
            "mail to bob@example.org: Hello (task 3, attempt 1)",
        ]
        wrong = blocking().queue("mail").put({"to": "nobody", "subject": "Hello"})
        found = eventually(lambda: (task := wrong.peek()).attempts and task)
        assert found.error.startswith("ValueError: 'nobody' is not an address (app.py:")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0


@pytest.mark.slow
def test_the_push_reaches_every_user_once(dsn, tmp_path):
    output = tmp_path / "output"
    settings = {"PGQUEUE_DSN": dsn}
    with (
        output.open("a") as file,
        started("worker", "examples.push:client", settings=settings, cwd=CHECKOUT, stdout=file) as one,
        started("worker", "examples.push:client", settings=settings, cwd=CHECKOUT, stdout=file) as other,
    ):
        command = [sys.executable, "-m", "examples.push", "12345"]
        done = subprocess.run(
            command, cwd=CHECKOUT, env=environment(**settings), check=True, timeout=60, capture_output=True, text=True
        )
        for worker in (one, other):
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(30) == 0
    assert done.stdout == "12345 users are reached\n"
    pushed = [line.split() for line in output.read_text().splitlines()]
    reached = sorted(user for line in pushed for user in range(int(line[3]), int(line[5]) + 1))
    assert reached == list(range(1, 12346))


def test_the_containers_run_the_example(monkeypatch):
    monkeypatch.syspath_prepend(str(CHECKOUT))
    from examples import app

    assert 'CMD ["pgqueue", "worker", "examples.app:client",' in (CHECKOUT / "Dockerfile").read_text()
    assert isinstance(app.client, pgqueue.Client)
    assert set(app.client.handlers) == {"words", "mail"}


def test_the_index_has_every_example_with_its_commands():
    """The commands are those of the docstrings, which the tests of each example run."""
    folder = CHECKOUT / "examples"
    rows = [
        line.split("|")[1:5] for line in (folder / "README.md").read_text("utf-8").splitlines() if line[:3] == "| ["
    ]
    listed = [link for row in rows for link in re.findall(r"\]\((\w+(?:\.\w+)?)[/)]", row[0])]
    assert sorted(listed) == sorted(
        p.name for p in folder.iterdir() if p.suffix in (".py", ".rb") or list(p.glob("*.py"))
    )
    for name, (_, _, _, commands) in zip([row[0] for row in rows], rows, strict=True):
        path = folder / re.findall(r"\]\(([^)]+)\)", name)[0]
        for command in re.findall(r"`([^`]+)`", commands):
            assert command.removesuffix(" &").removesuffix(" 100000") in path.read_text("utf-8")
