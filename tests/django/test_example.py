"""The shop of examples/django_shop: started by its ordinary commands, and driven over HTTP."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, suppress
from http.client import HTTPException
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.parse import urlencode

import psycopg
import pytest
from checkout import CHECKOUT
from commands import environment
from eventually import eventually
from statements import column, value

pytestmark = pytest.mark.once

EXAMPLE = CHECKOUT / "examples" / "django_shop"
PATIENCE = 60.0  # seconds for a process to do anything


class Shop:
    """A copy of the example, with processes that `manage.py` starts in it."""

    db: psycopg.Connection

    def __init__(self, folder: Path, dsn: str, stack: ExitStack) -> None:
        self.folder = folder
        self.dsn = dsn
        self._settings = environment(PGQUEUE_DSN=dsn, PYTHONUNBUFFERED="1", PYTHONWARNINGS="error")
        self._stack = stack
        self._manage = [sys.executable, "manage.py"]

    def manage(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._manage, *arguments],
            cwd=self.folder,
            env=self._settings | settings,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """A command under way, in a process group of its own: a reloader has children."""
        process = subprocess.Popen(
            [*self._manage, *arguments],
            cwd=self.folder,
            env=self._settings,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._stack.enter_context(process)
        self._stack.callback(self._kill, process.pid)
        return process

    @staticmethod
    def _kill(group: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)

    def serve(self) -> None:
        """At a free port, in place of the usual 8000."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.start("runserver", self.address)
        eventually(self.status, within=PATIENCE)

    def work(self, *options: str) -> subprocess.Popen[str]:
        worker = self.start("pgqueue", "worker", *options)
        assert worker.stdout is not None
        assert any(line.startswith("working on mail") for line in worker.stdout)  # reads up to this line
        return worker

    def order(self, **form: str) -> int:
        """The order's number. Raises HTTPError."""
        data = urlencode(form).encode()
        with urllib.request.urlopen(f"http://{self.address}/orders", data, timeout=PATIENCE) as answer:
            return json.load(answer)["order"]

    def status(self) -> dict[str, object] | None:
        """What the page says; None while it is not served."""
        try:
            with urllib.request.urlopen(f"http://{self.address}/", timeout=PATIENCE) as answer:
                return json.load(answer)
        except (OSError, HTTPException):
            return None

    def log_in(self, name: str, password: str) -> Callable[[str], str]:
        """A function that reads the admin's pages in this user's session."""
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        admin = f"http://{self.address}/admin/"

        def read(path: str) -> str:
            with browser.open(admin + path, timeout=PATIENCE) as answer:
                return answer.read().decode()

        (token,) = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', read("login/"))
        form = {"csrfmiddlewaretoken": token, "username": name, "password": password, "next": "/admin/"}
        with browser.open(admin + "login/", urlencode(form).encode(), timeout=PATIENCE) as answer:
            assert answer.url == admin  # not the form again
        return read

    def edit(self, file: str, old: str, new: str, seen: Callable[[], object]) -> None:
        """Change a file, and wait for what comes of it. A reloader overlooks what changes before its first look."""
        path = self.folder / "shop" / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        for seconds in range(2, 16, 2):
            with suppress(AssertionError):
                eventually(seen, within=seconds)
                return
            path.touch()
        assert seen()


def copied(folder: Path) -> Path:
    return shutil.copytree(EXAMPLE, folder / "django_shop", ignore=shutil.ignore_patterns("__pycache__"))


@pytest.fixture(scope="module")
def shop(pg_server, pg_template, tmp_path_factory):
    """The shop, migrated and served, with no worker."""
    folder = copied(tmp_path_factory.mktemp("example"))
    name = pg_server.create()
    with ExitStack() as stack:
        shop = Shop(folder, pg_server.dsn(name), stack)
        done = shop.manage("migrate")
        assert "Applying pgqueue.0001_initial... OK" in done.stdout, done.stderr
        shop.serve()
        shop.db = stack.enter_context(psycopg.connect(shop.dsn, autocommit=True))
        yield shop
    pg_server.drop(name)


def mailed(shop, order):
    return value(shop.db, "SELECT mailed_at IS NOT NULL FROM shop_order WHERE id = %s", order)


def packed(shop, order):
    return value(shop.db, "SELECT packed_at IS NOT NULL FROM shop_order WHERE id = %s", order)


@pytest.mark.slow
def test_a_request_that_fails_leaves_nothing(shop):
    before = shop.status()
    with pytest.raises(urllib.error.HTTPError, match="500"):
        shop.order(item="tea", card="declined")
    assert shop.status() == before
    order = shop.order(item="tea")
    assert column(shop.db, "SELECT data FROM pgqueue.tasks") == [{"order": order}]
    shop.db.execute("SELECT pgqueue.truncate_queue('mail')")


@pytest.mark.slow
def test_the_admin_shows_the_tasks(shop):
    made = shop.manage(
        "createsuperuser",
        "--noinput",
        "--username",
        "ada",
        "--email",
        "ada@example.org",
        DJANGO_SUPERUSER_PASSWORD="secret",
    )
    assert made.returncode == 0, made.stderr
    read = shop.log_in("ada", "secret")
    order = shop.order(item="tea")
    (mail,) = column(shop.db, "SELECT id FROM pgqueue.tasks WHERE queue = 'mail'")
    assert "mail" in read("pgqueue/queue/")
    assert f"/admin/pgqueue/task/{mail}/change/" in read("pgqueue/task/?queue=mail")
    assert "tea" in read("shop/order/")
    with shop.work() as worker:
        eventually(lambda: packed(shop, order), within=PATIENCE)
        worker.terminate()
        assert worker.wait(PATIENCE) == 0
    assert f"/admin/pgqueue/task/{mail}/change/" not in read("pgqueue/task/?queue=mail")
    assert mailed(shop, order)


@pytest.mark.slow
def test_a_worker_that_is_killed(shop):
    """In the middle of a task, where the test holds it by a lock on the order."""
    order = shop.order(item="milk")
    with psycopg.connect(shop.dsn) as lock:
        lock.execute("SELECT FROM shop_order WHERE id = %s FOR UPDATE", [order])
        first = shop.work()
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
        eventually(lambda: value(shop.db, waits, "%shop_order%FOR UPDATE%"), within=PATIENCE)
        assert not mailed(shop, order)
        first.kill()
        second = shop.work()
        eventually(lambda: column(shop.db, "SELECT attempts FROM pgqueue.tasks") == [1], within=PATIENCE)
    eventually(lambda: packed(shop, order), within=PATIENCE)
    second.send_signal(signal.SIGTERM)
    assert second.wait(PATIENCE) == 0
    assert second.stdout.read() == f"mail for order {order}: thank you for the milk\norder {order} is packed\n"
    assert shop.status()["to be mailed"] == 0


@pytest.mark.slow
def test_several_processes(shop):
    checked = shop.manage("pgqueue", "worker", "--check", "--processes", "2", "--queue", "mail")
    assert (checked.returncode, checked.stdout.startswith("would work on mail")) == (0, True), checked.stderr
    with shop.start("pgqueue", "worker", "--processes", "2", "-c", "1") as supervisor:
        workers = "SELECT pid FROM pgqueue.workers WHERE state = 'connected'"
        eventually(lambda: len(column(shop.db, workers)) == 2, within=PATIENCE)
        first, second = column(shop.db, workers)
        os.kill(first, signal.SIGKILL)
        eventually(lambda: len({*column(shop.db, workers)} - {first}) == 2, within=PATIENCE)
        order = shop.order(item="water")
        eventually(lambda: mailed(shop, order), within=PATIENCE)
        os.kill(second, signal.SIGHUP)  # the supervisor starts the next one
        eventually(lambda: len({*column(shop.db, workers)} - {first, second}) == 2, within=PATIENCE)
        supervisor.terminate()
        assert supervisor.wait(PATIENCE) == 0
    eventually(lambda: column(shop.db, workers) == [], within=PATIENCE)


@pytest.mark.slow
def test_its_own_tests_pass(shop):
    done = shop.manage("test", "--noinput")
    assert done.returncode == 0, done.stderr
    assert "Ran 4 tests" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="the README orders by curl, which is not installed")
def test_the_commands_of_its_readme(pg_server, tmp_path):
    """All of them in order, with another port, and a password that is not asked for."""
    commands = [
        line
        for block in re.findall(r"^```sh\n(.*?)^```", (EXAMPLE / "README.md").read_text(), re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]
    name = pg_server.create()
    with ExitStack() as stack:
        shop = Shop(copied(tmp_path), pg_server.dsn(name), stack)
        answers = []
        for command in commands:
            words = shlex.split(command)
            match words:
                case ["python3", *_] | [".", _] | ["cd", "examples/django_shop"]:
                    pass  # the venv of these tests, and the shop's folder
                case ["python", "manage.py", "runserver"]:
                    shop.serve()
                case ["python", "manage.py", "pgqueue", "worker"]:
                    shop.work()
                case ["python", "manage.py", "createsuperuser", *options]:
                    assert shop.manage("createsuperuser", "--noinput", *options).returncode == 0
                case ["python", "manage.py", verb]:
                    done = shop.manage(verb)
                    assert done.returncode == 0, done.stderr
                case ["curl", *_]:
                    here = [word.replace("127.0.0.1:8000", shop.address) for word in words]
                    done = subprocess.run(here, capture_output=True, text=True, check=True, timeout=PATIENCE)
                    answers.append(done.stdout)
                case _:
                    pytest.fail(f"this test does not know {command!r}")
        assert answers[0] == '{"order": 1}'
        assert answers[1] == "500\n"
        assert json.loads(answers[2])["orders"][0]["item"] == "tea"
        with psycopg.connect(shop.dsn, autocommit=True) as db:
            eventually(lambda: value(db, "SELECT packed_at IS NOT NULL FROM shop_order"), within=PATIENCE)
    pg_server.drop(name)


@pytest.mark.slow
def test_settings_that_cannot_be(shop):
    """They are told in clear lines, without a traceback."""
    (shop.folder / "wrong.py").write_text("from shop.settings import *\nPGQUEUE = {'default': {'pool_size': 0}}\n")
    done = shop.manage("pgqueue", "worker", DJANGO_SETTINGS_MODULE="wrong")
    assert done.returncode == 1
    assert "(pgqueue.E004) PGQUEUE['default']: pool_size must be a whole number" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_code_that_changes_is_loaded_anew(shop):
    """By runserver, and by a worker that is asked to. The last test, for it changes the shop."""
    shop.work("--reload")

    def served_by_the_new_code():
        return (page := shop.status()) and page["shop"] == "Coffee and less"

    def handled_by_the_new_code():  # ordered by SQL: the server may be starting once more
        order = value(shop.db, "INSERT INTO shop_order (item) VALUES ('tea') RETURNING id")
        shop.db.execute("SELECT pgqueue.put('mail', jsonb_build_object('order', %s::int8))", [order])
        eventually(lambda: mailed(shop, order), within=PATIENCE)
        return value(shop.db, "SELECT item FROM shop_order WHERE id = %s", order) == "new"

    shop.edit("views.py", "Tea and more", "Coffee and less", served_by_the_new_code)
    shop.edit("tasks.py", "order.save()", "order.item = 'new'; order.save()", handled_by_the_new_code)
