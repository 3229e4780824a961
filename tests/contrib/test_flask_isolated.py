"""Jobs with isolation="process" in a Flask application, whose worker is a process of its own."""

from __future__ import annotations

import signal
import textwrap
from contextlib import contextmanager

import click
import pytest
from eventually import eventually
from flask import Flask
from flask.cli import ScriptInfo
from sites import started
from statements import column

import pgqueue
from pgqueue.contrib.flask import PgQueue
from pgqueue.contrib.flask.isolated import import_path

pytestmark = pytest.mark.once

APP = """
    import ctypes
    import os
    from typing import Any

    from flask import Flask, current_app, g
    from flask_sqlalchemy import SQLAlchemy

    from pgqueue import Retry
    from pgqueue.contrib.flask import PgQueue
    from pgqueue.contrib.sqlalchemy import url

    db = SQLAlchemy()
    queues = PgQueue(db=db)
    hooks = []
    once = {"isolation": "process", "keep_result": 60, "retry": Retry(attempts=1)}


    def model():
        yield f"model of {os.getpid()}"


    @queues.job("heavy", name="look", **once)
    def look() -> list[Any]:
        seen, g.seen = g.get("seen"), True
        name = db.session.scalar(db.text("SELECT current_database()"))
        return [current_app.config["SHOP"], os.getpid(), seen, name, hooks[0]()]


    @queues.job("heavy", name="look-async", **once)
    async def look_async() -> list[Any]:
        return [current_app.config["SHOP"], os.getpid()]


    @queues.job("heavy", name="hand-on", **once)
    def hand_on() -> None:
        note.put()
        db.session.commit()
        note.put()


    @queues.job("light", name="note", keep_result=60)
    def note() -> list[Any]:
        return [current_app.config["SHOP"], os.getpid()]


    @queues.job("heavy", name="die", **once)
    def die() -> None:
        ctypes.string_at(0)


    @queues.job("heavy", name="hang", timeout=0.5, **once)
    def hang() -> None:
        ctypes.PyDLL(None).sleep(60)


    def create_app(name="default"):
        app = Flask(__name__)
        app.config.update(SQLALCHEMY_DATABASE_URI=url(), SHOP=name)
        db.init_app(app)
        queues.init_app(app)
        with app.app_context():
            hooks.append(queues.client.on_start(model))
        return app
"""

queues = PgQueue()


@queues.job("heavy", isolation="process")
def heavy() -> None: ...


@pytest.fixture
def client(dsn):
    with pgqueue.Client(dsn) as client:
        yield client


@pytest.fixture
def working(dsn, tmp_path):
    (tmp_path / "shop.py").write_text(textwrap.dedent(APP))

    @contextmanager
    def working(*options):
        command = ["flask", *options, "pgqueue", "worker", "-c", "2", "--retry-delay", "0"]
        with (
            (tmp_path / "log").open("a") as log,
            started(*command, settings={"PGQUEUE_DSN": dsn}, cwd=tmp_path, output=log) as worker,
        ):
            yield worker

    return working


def put(client, name, queue="heavy"):
    return client.queue(queue).put({"job": name, "args": {}})


def result(client, name, queue="heavy"):
    return client.results.get(put(client, name, queue), timeout=60)


def buried(db, task):
    """The error of a task, once it is buried."""
    find = "SELECT error FROM pgqueue.tasks WHERE state = 'buried' AND id = %s"
    return eventually(lambda: column(db, find, task.id), within=60)[0]


@pytest.mark.slow
def test_a_job_runs_in_a_child_with_the_application_that_the_factory_makes(client, working, db):
    with working("--app", "shop:create_app('big')") as worker:
        (name,) = column(db, "SELECT current_database()")
        shop, pid, *rest = result(client, "look")
        assert (shop, rest) == ("big", [None, name, f"model of {pid}"])
        assert result(client, "look") == [shop, pid, None, name, f"model of {pid}"]  # in another app context
        assert result(client, "look-async") == ["big", pid]
        assert result(client, "note", "light") == ["big", worker.pid]
        assert pid != worker.pid
        assert result(client, "hand-on") is None
        counts = "SELECT count(*) FROM pgqueue.results WHERE queue = 'light'"
        eventually(lambda: column(db, counts) == [2], within=60)  # and not the one that was not committed
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
    assert column(db, "SELECT count(*) FROM pgqueue.tasks") == [0]


@pytest.mark.slow
def test_crashes_and_time_limits_end_the_child_alone(client, working, db):
    with working("--app", "shop:create_app"):
        assert "SIGSEGV" in buried(db, put(client, "die"))
        assert buried(db, put(client, "hang")) == "it ran for longer than its time limit of 0.5 s"
        assert result(client, "look")[0] == "default"


@pytest.mark.slow
def test_an_application_that_flask_finds_by_its_file(client, working, tmp_path):
    (tmp_path / "app.py").write_text("import shop\n\napp = shop.create_app('found')\n")
    with working():
        assert result(client, "look")[0] == "found"


def test_without_a_path_of_the_application_isolated_jobs_are_refused(dsn):
    app = Flask("shop")
    app.config["PGQUEUE_DSN"] = dsn
    queues.init_app(app)
    with app.app_context():
        says = r"heavy has isolation='process', and a child process cannot find the application: .*worker\(app="
        with pytest.raises(ValueError, match=says):
            queues.worker()
        assert "in a process" in queues.worker(app="shop:create_app").banner()
        queues.client.close()


def make_app():
    return Flask("made")


def test_the_path_of_a_script_with_a_group_of_its_own():
    def path(script):
        return import_path(click.Context(click.Command("worker"), obj=script))

    assert path(ScriptInfo(create_app=make_app)) == f"{__name__}:make_app"
    assert path(ScriptInfo(create_app=lambda: Flask("made"))) is None
    assert path(ScriptInfo(app_import_path="shop:app")) == "shop:app"
    assert path("not of flask") is None
