"""The Flask extension: its settings, puts in Flask-SQLAlchemy's session, handlers in an app context, and commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from contextlib import contextmanager
from datetime import date
from typing import Any

import pytest
import sqlalchemy
from click.testing import CliRunner
from eventually import eventually
from flask import Flask, current_app, has_app_context, jsonify
from flask.cli import FlaskGroup
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.pool import NullPool
from statements import column

from pgqueue import AsyncTask, BadArguments, Retry, TaskFailed, migrate
from pgqueue.contrib.flask import PgQueue, SettingError
from pgqueue.contrib.sqlalchemy import url

pytestmark = pytest.mark.once

TASKS = "SELECT data FROM pgqueue.tasks ORDER BY id"


class Shop:
    """An extension with a db, and the applications that a test makes with it."""

    def __init__(self) -> None:
        self.db = SQLAlchemy(engine_options={"poolclass": NullPool})
        self.queues = PgQueue(db=self.db)
        self.mail = self.queues.queue("mail")  # before there is any application
        self.apps: list[Flask] = []

    def app(self, dsn, driver="psycopg", **settings):
        app = Flask("shop")
        app.config.update(SQLALCHEMY_DATABASE_URI=url(dsn, driver=driver), PGQUEUE_POLL=None, **settings)
        self.db.init_app(app)
        self.queues.init_app(app)
        self.apps.append(app)
        return app

    @contextmanager
    def working(self, app):
        """A worker of the application's handlers, in a thread."""
        with app.app_context():
            worker = self.queues.worker(concurrency=2, retry_delay=0)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            yield
        finally:
            worker.stop()
            thread.join()

    def close(self):
        for app in self.apps:
            app.extensions["pgqueue"].client.close()


@pytest.fixture
def shop(dsn):  # which is left by its connections when it goes back
    shop = Shop()
    yield shop
    shop.close()


@pytest.fixture
def app(shop, dsn):
    return shop.app(dsn)


@pytest.fixture
def context(app):
    with app.app_context():
        yield


# --- puts in the session's transaction


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_put_joins_the_session(shop, dsn, db, driver):
    """As its very first statement, and in savepoints."""
    with shop.app(dsn, driver).app_context():
        session = shop.db.session
        shop.mail.put("gone")
        session.rollback()
        shop.mail.put("first")
        with session.begin_nested():
            shop.mail.put("second")
        savepoint = session.begin_nested()
        shop.mail.put("gone")
        savepoint.rollback()
        assert column(db, TASKS) == []
        session.commit()
        shop.mail.put("gone")
    assert column(db, TASKS) == ["first", "second"]  # the end of the context rolls back


def test_every_put_joins_and_nothing_else_does(shop, context, db):
    shop.mail.put_many([1, 2])
    shop.mail.put_unique(3)
    shop.mail.urgent(4)
    assert column(db, TASKS) == []
    shop.db.session.commit()
    assert column(db, TASKS) == [1, 2, 3, 4]
    task = shop.mail.take(5)
    task.ack()
    shop.db.session.rollback()
    assert (task.data, column(db, TASKS)) == (4, [1, 2, 3])


def test_the_clients_queue_and_another_connection_do_not_join(shop, context, db):
    shop.queues.client.queue("mail").put("at once")
    assert column(db, TASKS) == ["at once"]
    with shop.db.engine.connect() as conn:
        shop.mail.put("with that one", conn=conn)
        shop.db.session.rollback()
        conn.commit()
    assert column(db, TASKS) == ["at once", "with that one"]


def test_a_request_that_fails_has_put_nothing(shop, app, db):
    @app.post("/<word>")
    def put(word):
        shop.mail.put(word)
        if word == "bad":
            raise LookupError(word)
        shop.db.session.commit()
        return word

    browser = app.test_client()
    assert [browser.post("/bad").status_code, browser.post("/good").status_code] == [500, 200]
    assert column(db, TASKS) == ["good"]


def test_without_a_db_a_put_counts_at_once(dsn, db):
    app = Flask("plain")
    app.config["PGQUEUE_DSN"] = dsn
    queues = PgQueue(app)
    with app.app_context(), queues.client:
        queues.queue("mail").put("x")
        assert column(db, TASKS) == ["x"]


# --- applications


@pytest.mark.slow
def test_one_extension_serves_several_applications(shop, dsn, empty_dsn, db):
    migrate.up(empty_dsn)
    one, other = shop.app(dsn), shop.app(empty_dsn, PGQUEUE_DSN=empty_dsn)
    for app in (one, other, one):
        with app.app_context():
            shop.mail.put(shop.db.engine.url.database)
            shop.db.session.commit()
    assert column(db, TASKS) == [one.config["SQLALCHEMY_DATABASE_URI"].database] * 2
    with other.app_context():
        assert shop.mail.stats()["ready"] == 1


def test_outside_of_a_context_there_is_no_application(shop, app):
    with pytest.raises(RuntimeError, match="application context"):
        shop.mail.put("x")


def test_an_application_has_one_extension(shop, app):
    with pytest.raises(RuntimeError, match="has a PgQueue already"):
        PgQueue(app)
    with app.app_context(), pytest.raises(RuntimeError, match=r"'shop' does not have this PgQueue: call init_app"):
        PgQueue().queue("mail").put("x")


# --- settings


def made(dsn="", with_db=True, **settings):
    app = Flask("shop")
    app.config.update(settings)
    PgQueue(app, SQLAlchemy() if with_db else None)
    return app.extensions["pgqueue"].client.shell.core.settings


def test_the_settings_are_the_options_of_the_client():
    found = made(PGQUEUE_DSN="host=db", PGQUEUE_POOL_SIZE=3, PGQUEUE_POLL=None, PGQUEUE_LISTEN_DSN="host=direct")
    assert (found.dsn, found.pool_size, found.poll, found.listen_dsn) == ("host=db", 3, None, "host=direct")


@pytest.mark.parametrize("make", [str, sqlalchemy.make_url])
def test_without_a_dsn_it_is_flask_sqlalchemys(make):
    uri = make("postgresql+psycopg2://ada:p%40ss@db:5433/shop?sslmode=require")
    assert made(SQLALCHEMY_DATABASE_URI=uri).dsn == "postgresql://ada:p%40ss@db:5433/shop?sslmode=require"
    assert made(SQLALCHEMY_DATABASE_URI=uri, PGQUEUE_DSN="host=db").dsn == "host=db"
    assert made(SQLALCHEMY_DATABASE_URI=uri, with_db=False).dsn is None
    assert made().dsn is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"PGQUEUE_POOLSIZE": 3}, "PGQUEUE_POOLSIZE is not a setting of pgqueue; the settings are PGQUEUE_DSN,"),
        ({"PGQUEUE_POOL_SIZE": "3"}, "PGQUEUE_... is not valid: pool_size must be a whole number"),
        ({"PGQUEUE_SESSION_GRACE": -1}, "session_grace must be"),
        ({"PGQUEUE_DSN": "postgresql//db"}, "PGQUEUE_DSN: this is not a DSN"),
        ({"PGQUEUE_LISTEN_DSN": 7}, "PGQUEUE_LISTEN_DSN must be a string, not int"),
        ({"SQLALCHEMY_DATABASE_URI": "sqlite://"}, "SQLALCHEMY_DATABASE_URI is of sqlite, not PostgreSQL"),
        (
            {"SQLALCHEMY_DATABASE_URI": "postgresql+asyncpg:///db?prepared_statement_cache_size=0"},
            "SQLALCHEMY_DATABASE_URI is only for SQLAlchemy .*: set PGQUEUE_DSN",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_bad_setting_is_a_value_error_and_one_line_of_flask(settings, message):
    with pytest.raises(SettingError, match=message) as refused:
        made(**settings)
    assert isinstance(refused.value, ValueError)
    done = CliRunner().invoke(FlaskGroup(create_app=lambda: made(**settings)), ["pgqueue", "stats"])
    assert (done.exit_code, done.output) == (1, f"Error: {refused.value}\n")


# --- handlers


def test_a_handler_runs_in_a_context_of_its_own(shop, app, db):
    """Sync and async; the session is removed at the end of each task, whatever comes of it."""
    seen, ended = [], []
    app.teardown_appcontext(lambda error: ended.append(error))

    @shop.queues.handler("mail")
    def send(data):
        seen.append((current_app.name, data, shop.db.session()))
        shop.mail.put("gone", conn=shop.db.session)
        if data == "bad":
            raise LookupError(data)

    @shop.queues.handler("async")
    async def send_async(data, task):
        seen.append((current_app.name, task.data, shop.db.session()))

    with app.app_context():
        shop.queues.client.queue("mail").put_many(["good", "bad"])
        shop.queues.client.queue("async").put("awaited")
    ended.clear()
    with shop.working(app):
        eventually(lambda: len({data for _, data, _ in seen}) == 3 and len(ended) >= 3)
    assert not has_app_context()
    assert {(name, data) for name, data, _ in seen} == {("shop", "good"), ("shop", "bad"), ("shop", "awaited")}
    assert len({session for *_, session in seen}) == len(seen)
    assert "LookupError" in {type(error).__name__ for error in ended}
    assert column(db, TASKS) == ["bad"]


def test_a_handler_acks_in_its_transaction_and_keeps_results(shop, app, db):
    @shop.queues.handler("mail")
    def send(data, task):
        shop.queues.queue("next").put(data)
        task.ack(conn=shop.db.session)
        shop.db.session.commit()

    @shop.queues.handler("sum", keep_result=60)
    def add(data):
        return sum(data)

    with app.app_context():
        client = shop.queues.client
        client.queue("mail").put("x")
        task = client.queue("sum").put([1, 2])
        with shop.working(app):
            assert client.results.get(task, timeout=10) == 3
            eventually(lambda: column(db, "SELECT queue FROM pgqueue.tasks") == ["next"])


def test_a_handler_stays_a_function_and_a_bad_one_is_refused(shop):
    @shop.queues.handler("mail")
    def send(data):
        return data

    assert send(7) == 7
    for wrong in ({"queue": ""}, {"queue": "q", "keep_result": 0}):
        with pytest.raises(ValueError, match=r"queue|keep_result"):
            shop.queues.handler(**wrong)


# --- jobs


def test_a_put_of_a_job_joins_the_session(shop, app, context, db):
    @shop.queues.job("mail")
    def send(to: str): ...

    send.put("gone")
    shop.db.session.rollback()
    send.options(priority=3).put(to="ada")
    send.put_many([("bob",)])
    assert column(db, TASKS) == []
    shop.db.session.commit()
    send.options(conn=None).put("not committed")
    assert [data["args"] for data in column(db, TASKS)] == [{"to": "ada"}, {"to": "bob"}]
    with pytest.raises(BadArguments, match="to"):
        send.put(7)


async def test_a_put_that_is_awaited_counts_at_once(shop, app, db):
    @shop.queues.job()
    async def send(to: str): ...

    with app.app_context():
        await send.aput("ada")
        await shop.queues.client.aio.close()
    assert [data["args"] for data in column(db, TASKS)] == [{"to": "ada"}]


def test_a_job_runs_in_a_context_of_its_own(shop, app, db):
    """Sync and async; inside of the context is the middleware, and the session is removed at the end of each run."""
    seen, around, ended = [], [], []
    app.teardown_appcontext(lambda error: ended.append(error))

    class Middleware:
        @contextmanager
        def run(self, run):
            around.append((run.job, current_app.name))
            yield

    shop.queues.middleware.append(Middleware())
    shop.queues.job_defaults(keep_result=60)

    @shop.queues.job("mail", name="send", retry=Retry(attempts=2, delay=0))
    def send(data: str) -> str:
        seen.append((current_app.name, data, shop.db.session()))
        follow.put(data)
        if data == "bad":
            raise LookupError(data)
        shop.db.session.commit()
        return data

    @shop.queues.job("mail", name="follow")
    async def follow(data: str, task: AsyncTask):
        seen.append((current_app.name, f"after {data}", shop.db.session()))

    assert send.function is not None
    with app.app_context():
        client = shop.queues.client
        good, bad = client.queue("mail").put_many([{"job": "send", "args": {"data": one}} for one in ("good", "bad")])
        with shop.working(app):
            assert client.results.get(good, timeout=10) == "good"
            with pytest.raises(TaskFailed, match="LookupError"):
                client.results.get(bad, timeout=10)
            eventually(lambda: "after good" in {data for _, data, _ in seen})
    assert not has_app_context()
    assert {data for name, data, _ in seen if name == "shop"} == {"good", "bad", "after good"}
    assert len({session for *_, session in seen}) == len(seen)
    assert set(around) == {("send", "shop"), ("follow", "shop")}
    assert "LookupError" in {type(error).__name__ for error in ended}


def test_a_job_stays_a_function_and_a_bad_one_is_refused(shop):
    @shop.queues.job("mail")
    def send(data):
        return data

    assert send(7) == 7
    assert list(shop.queues.jobs.values()) == [send]
    assert shop.queues.job("mail", name="limited", concurrency=2)(lambda: None).limit.concurrency == 2
    for policies in ({"queue": ""}, {"keep_result": -1}, {"isolation": "fork"}):
        with pytest.raises(ValueError, match=r"queue|keep_result|isolation"):
            shop.queues.job(**policies)
    with pytest.raises(ValueError, match="isolation"):
        shop.queues.job_defaults(isolation="fork")


# --- commands


SUPERVISED = """
    import os, pathlib
    from flask import Flask, current_app
    from pgqueue.contrib.flask import PgQueue

    queues = PgQueue()
    app = Flask("supervised")
    app.config["PGQUEUE_DSN"] = os.environ["PGQUEUE_DSN"]
    queues.init_app(app)

    @queues.job("q")
    def note(name: str):
        with pathlib.Path(name).open("a") as file:
            file.write(f"{os.getpid()} {current_app.name}\\n")

    queues.job("slow", name="slow")(note.function)
"""


@pytest.mark.slow
def test_a_worker_of_several_processes(shop, dsn, app, tmp_path):
    (tmp_path / "app.py").write_text(textwrap.dedent(SUPERVISED))
    flask = [sys.executable, "-m", "flask", "--app", "app", "pgqueue", "worker"]
    started = {"cwd": tmp_path, "env": {**os.environ, "PGQUEUE_DSN": dsn}, "stderr": subprocess.STDOUT, "text": True}
    checked = subprocess.run([*flask, "--check", "--exclude", "slow"], stdout=subprocess.PIPE, timeout=60, **started)
    assert checked.stdout.startswith("would work on q (app.note); on ")
    command = [*flask, "--processes", "2", "--queue", "q", "-c", "1"]
    with app.app_context(), subprocess.Popen(command, stdout=subprocess.PIPE, **started) as supervisor:
        try:
            client = shop.queues.client
            data = {"job": "app.note", "args": {"name": str(tmp_path / "noted")}}
            slow = client.queue("slow").put({**data, "job": "slow"})

            def both():
                client.queue("q").put(data)
                noted = (tmp_path / "noted").read_text().split() if (tmp_path / "noted").exists() else []
                return len(set(noted) - {"supervised"}) == 2 and "supervised" in noted

            eventually(both, within=60)
            assert client.queue("slow").peek(slow.id).state == "ready"
        finally:
            supervisor.terminate()
        said = supervisor.stdout.read()
        assert (supervisor.wait(30), "starting 2 worker processes, each with 1 handlers at once\n" in said) == (
            0,
            True,
        ), said


def test_the_commands_use_the_applications_database(shop, app, db):
    run = app.test_cli_runner().invoke
    assert run(args=["pgqueue", "put", "mail", '{"n": 1}']).exit_code == 0
    assert column(db, TASKS) == [{"n": 1}]
    assert "mail" in run(args=["pgqueue", "stats"]).output
    assert run(args=["pgqueue", "migrate", "status"]).exit_code == 0
    assert "--concurrency" in run(args=["pgqueue", "worker", "--help"]).output
    done = run(args=["pgqueue", "worker"])
    assert (done.exit_code, done.output.startswith("Error: a worker needs a handler or a job:")) == (2, True)
    for absent in ("server", "demo", "nonsense"):
        assert run(args=["pgqueue", absent]).exit_code == 2


def test_jsonify_of_a_task_and_a_claim(shop, dsn):
    """As as_dict(): without the token, and times as ISO 8601 text. Other values are Flask's own matter."""
    app = shop.app(dsn)
    with app.test_request_context():
        queue = shop.queues.client.queue("plain")
        queue.put_many([{"n": 1}, {"n": 2}], ttr=60)
        task, claim = queue.take(0), queue.messages.claim()
        assert json.loads(jsonify(task).data) == task.as_dict()
        assert json.loads(jsonify(tasks=[task], of=claim).data) == {"tasks": [task.as_dict()], "of": claim.as_dict()}
        assert json.loads(jsonify(date(2030, 1, 2)).data) == "Wed, 02 Jan 2030 00:00:00 GMT"


# --- what a client has beside jobs


def test_an_extension_has_batches_schedules_and_hooks(shop, dsn, db):
    seen: list[Any] = []

    @shop.queues.batch_handler("rows", n=10)
    def load(tasks):
        seen.append((current_app.name, [task.data for task in tasks], engine()))

    @shop.queues.on_start
    def engine():
        yield "an engine"
        seen.append("ended")

    @shop.queues.cron(every=3600, name="hourly")
    @shop.queues.handler("plain")
    def plain(data): ...

    @shop.queues.cron("0 9 * * *", name="daily", args={"n": 1})
    @shop.queues.job("jobs")
    def count(n: int): ...

    app = shop.app(dsn)
    with app.app_context():
        client = shop.queues.client
        client.queue("rows").put(1)
        with shop.working(app):
            eventually(lambda: client.queue("rows").stats()["total"] == 0)
            found = {one.name: one.queue for one in client.schedules.list()}
    assert found == {"hourly": "plain", "daily": "jobs"}
    assert seen == [("shop", [1], "an engine"), "ended"]


def test_a_schedule_that_is_not_valid_is_an_error_where_it_is_written(shop):
    with pytest.raises(ValueError, match="minute '61'"):
        shop.queues.cron("61 * * * *")


def test_the_commands_have_a_log(app, monkeypatch):
    levels = []
    monkeypatch.setattr("logging.basicConfig", lambda **given: levels.append(given["level"]))
    for options in ([], ["-v"]):
        assert app.test_cli_runner().invoke(args=["pgqueue", *options, "stats"]).exit_code == 0
    assert levels == ["INFO"]
