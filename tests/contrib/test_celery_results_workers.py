"""Workers of Celery, prefork, as processes of their own: results, chords whose members end at once, kills and restarts.

Their broker is a Redis of the test's own, so that these tests are about the result backend alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import brokers
import psycopg
import pytest
import redis
from celery import chord, group, states
from celery.exceptions import ChordError
from eventually import PATIENCE, Stopwatch, eventually
from kombu.exceptions import EncodeError
from processes import PROGRAMS, programs
from psycopg.conninfo import conninfo_to_dict
from statements import value

from pgqueue import migrate
from pgqueue.embedded import EmbeddedServer, reaper

pytestmark = [pytest.mark.slow, pytest.mark.once]


class Shop:
    """The application in this process, as a client, and two workers with one child each."""

    def __init__(self, app: ModuleType, broker: str, folder: Path) -> None:
        self.tasks, self.app, self.store = app, app.app, redis.Redis.from_url(broker)
        self._workers = [started(folder / f"worker{n}.log", f"w{n}@test") for n in range(2)]
        eventually(lambda: len(self.app.control.ping(timeout=1) or ()) == 2, 2 * PATIENCE)

    def stop(self) -> None:
        for worker in self._workers:
            worker.terminate()
        for worker in self._workers:
            worker.wait(60)


def started(log: Path, name: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "celery", "-A", "celery_shop", "worker", "-c", "1", "-n", name]
    with log.open("wb") as output:
        return subprocess.Popen(command, cwd=PROGRAMS, stdout=output, stderr=subprocess.STDOUT)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with brokers.redis(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
def shop(dsn: str, broker: str, tmp_path: Path) -> Iterator[Shop]:
    with opened(dsn, broker, tmp_path) as shop:
        yield shop


@contextmanager
def opened(dsn: str, broker: str, folder: Path) -> Iterator[Shop]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOP_BROKER", broker)
        patch.setenv("SHOP_BACKEND", url(dsn))
        patch.syspath_prepend(str(PROGRAMS))
        sys.modules.pop("celery_shop", None)
        redis.Redis.from_url(broker).flushall()
        import celery_shop

        shop = Shop(celery_shop, broker, folder)
        try:
            yield shop
        finally:
            shop.stop()
            shop.app.close()
            brokers.close_clients()
            sys.modules.pop("celery_shop", None)


def url(dsn: str) -> str:
    known = conninfo_to_dict(dsn)
    given = {name: text for name, text in known.items() if name not in ("user", "password", "dbname")}
    query = "&".join(f"{name}={text}" for name, text in {**given, "max_data_size": 100_000, "poll": 3600}.items())
    return f"pgqueue://{known['user']}:{known.get('password') or 'none'}@/{known['dbname']}?{query}"


def test_results_of_all_kinds(shop: Shop, db: psycopg.Connection) -> None:
    tasks = shop.tasks
    assert tasks.add.delay(2, 3).get(timeout=PATIENCE) == 5
    result = tasks.broken.delay("no such page")
    with pytest.raises(ValueError, match="no such page"):
        result.get(timeout=PATIENCE)
    assert "celery_shop.py" in result.traceback
    assert (result.name, result.args) == ("celery_shop.broken", ["no such page"])

    running, seen = tasks.progressing.delay(), list[Any]()

    def on_message(meta: dict[str, Any]) -> None:
        seen.append((meta["status"], meta["result"]))
        shop.store.set("go on", 1)

    assert running.get(timeout=PATIENCE, on_message=on_message) == "done"
    assert seen[0] == ("PROGRESS", {"percent": 50})

    assert tasks.ignored.delay(1).get(timeout=PATIENCE) is None
    assert eventually(lambda: tasks.ignored.delay(-1) and value(db, FAILED) > 0)
    assert group(tasks.add.s(n, n) for n in range(50))().get(timeout=PATIENCE) == [2 * n for n in range(50)]


CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
FAILED = (
    "SELECT count(*) FROM pgqueue.statuses WHERE value->>'state' = 'FAILURE' AND value->>'text' LIKE '%%KeyError%%'"
)


def test_a_result_that_is_too_large_fails_its_task_and_no_other(shop: Shop) -> None:
    fits, over = shop.tasks.large.delay(90_000), shop.tasks.large.delay(200_000)
    with pytest.raises(EncodeError, match=r"too large.* the limit is 100000"):
        over.get(timeout=PATIENCE)
    assert over.state == states.FAILURE
    assert fits.get(timeout=PATIENCE) == "x" * 90_000
    with pytest.raises(EncodeError, match="too large"):
        chord([shop.tasks.large.s(200_000), shop.tasks.add.s(1, 1)])(shop.tasks.body.s("large")).get(timeout=PATIENCE)


@pytest.mark.parametrize("size", [1, 2, 100, 1000])
def test_a_chord_of_so_many_runs_its_body_once(shop: Shop, db: psycopg.Connection, size: int) -> None:
    name = uuid.uuid4().hex
    result = chord([shop.tasks.add.s(n, 0) for n in range(size)])(shop.tasks.body.s(name))
    assert result.get(timeout=4 * PATIENCE) == size * (size - 1) // 2
    assert shop.store.lrange(f"bodies of {name}", 0, -1) == [str(size).encode()]
    left = "SELECT count(*) FROM pgqueue.statuses WHERE key LIKE 'celery-taskset-meta-%%' AND key NOT LIKE '%%.claim'"
    eventually(lambda: value(db, left) == 0)


@pytest.mark.timeout(400)
def test_two_members_that_end_at_once_in_two_processes_200_times(shop: Shop) -> None:
    for n in range(200):
        name = f"race {n}"
        result = chord([shop.tasks.meet.s(name, 2, i) for i in (1, 2)])(shop.tasks.body.s(name))
        assert result.get(timeout=PATIENCE) == 3
    counts = [shop.store.llen(f"bodies of race {n}") for n in range(200)]
    assert counts == [1] * 200


def test_members_that_end_at_once_and_fail_call_the_errback_once(shop: Shop) -> None:
    for n in range(40):
        name = f"failure {n}"
        members = [shop.tasks.meet.s(name, 2, i, fails=i <= 1 + n % 2) for i in (1, 2)]  # one of the two, or both
        result = chord(members)(shop.tasks.body.s(name).on_error(shop.tasks.failed.s()))
        with pytest.raises(ChordError, match=r"raised ValueError\([12]\)"):
            shop.app.AsyncResult(result.id).get(timeout=PATIENCE)
        eventually(lambda n=n: shop.store.llen("errors") > n)
        assert shop.store.llen("errors") == n + 1
        assert shop.store.llen(f"bodies of {name}") == 0


def test_a_killed_client_leaves_nothing_and_disturbs_no_other(shop: Shop, db: psycopg.Connection) -> None:
    id, sessions = (
        uuid.uuid4().hex,
        CONNECTIONS,
    )
    got = list[Any]()
    mine = threading.Thread(target=lambda: got.append(shop.app.AsyncResult(id).get(timeout=PATIENCE)))
    mine.start()
    core = shop.app.backend.client.shell.core
    eventually(lambda: core.running_listener is not None)
    eventually(lambda: any(line.listening for line in core.running_listener.switchboard._lines.values()))
    before = value(db, sessions)
    with programs() as start:
        other = start("celery_shop", id)
        assert other.hear() == "waiting"
        eventually(lambda: value(db, sessions) >= before + 2)  # its listener, and the connection of its look
        other.kill()
        eventually(lambda: value(db, sessions) <= before)
    shop.tasks.add.apply_async((2, 3), task_id=id)
    mine.join(PATIENCE)
    assert got == [5]


@pytest.mark.parametrize("mode", [signal.SIGINT, signal.SIGQUIT])
def test_a_get_outlives_a_restart_of_the_server(
    broker: str, tmp_path: Path, own_bindir: Path | None, mode: signal.Signals
) -> None:
    root = Path(tempfile.mkdtemp(prefix="pgqueue-celery-"))
    root.chmod(0o711)  # for the account that the server runs as
    server = EmbeddedServer(root, durable=True, ephemeral=True, bindir=own_bindir).start()
    try:
        migrate.up(server.dsn())
        with opened(server.dsn(), broker, tmp_path) as shop:
            got, waiting = list[Any](), shop.tasks.progressing.delay()
            result = shop.app.AsyncResult

            def get() -> None:
                got.append(result(waiting.id).get(timeout=2 * PATIENCE))

            threads = [threading.Thread(target=get) for _ in range(20)]
            for thread in threads:
                thread.start()
            eventually(lambda: shop.app.backend.client.shell.core.running_listener is not None)
            postmaster = reaper.find(root)
            os.kill(postmaster.pid, mode)
            eventually(lambda: not reaper.is_postgres(postmaster.pid))
            server.start()
            watch = Stopwatch()
            shop.store.set("go on", 1)
            for thread in threads:
                thread.join()
            assert got == ["done"] * 20
            assert watch() < PATIENCE
            assert shop.tasks.add.delay(1, 2).get(timeout=PATIENCE) == 3
    finally:
        server.stop()
