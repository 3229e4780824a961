"""A Django project on Celery, in tests/helpers/celery_site, moves to pgqueue by two settings: broker and results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import brokers
import psycopg
import pytest
from celery import Celery
from eventually import PATIENCE, eventually
from statements import column, value

pytestmark = [pytest.mark.slow, pytest.mark.once]
HELPERS = Path(__file__).parents[1] / "helpers"
ORDERS = ["/order/tea", "/order/milk?fail=1", "/order/bread"]


@pytest.fixture(params=["pgqueue", "redis"])
def url(request: pytest.FixtureRequest, dsn: str, tmp_path: Path) -> Iterator[str]:
    if request.param == "pgqueue":
        yield brokers.celery_url(dsn)
    else:
        with brokers.redis(tmp_path) as url:
            yield url


@pytest.fixture
def surroundings(url: str, dsn: str, db: psycopg.Connection) -> dict[str, str]:
    db.execute("CREATE TABLE ordered (item text)")
    db.execute("CREATE TABLE shipped (item text)")
    return {**os.environ, "CELERY_URL": url, "PGQUEUE_DSN": dsn, "PYTHONPATH": str(HELPERS)}


@pytest.fixture
def worker(surroundings: dict[str, str], tmp_path: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "celery", "-A", "celery_site", "worker", "-c", "1"]
    with (tmp_path / "worker.log").open("wb") as log:
        process = subprocess.Popen(command, env=surroundings, stdout=log, stderr=log, start_new_session=True)
    yield
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_a_request_that_is_rolled_back(
    url: str, surroundings: dict[str, str], worker: None, db: psycopg.Connection
) -> None:
    """On pgqueue it leaves no task; with Redis its task runs, though there is no such order."""
    command = [sys.executable, "-m", "celery_site", *ORDERS]
    done = subprocess.run(command, env=surroundings, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (tea, first), (milk, _), (bread, last) = json.loads(done.stdout)
    assert (tea, milk, bread) == (200, 500, 200)
    with Celery(broker=url, backend=url, set_as_current=False) as app:
        assert app.AsyncResult(first).get(timeout=2 * PATIENCE) == "tea is shipped"
        assert app.AsyncResult(last).get(timeout=PATIENCE) == "bread is shipped"
    brokers.close_clients()
    shipped = ["bread", "tea"] if url.startswith("pgqueue") else ["bread", "milk", "tea"]
    assert column(db, "SELECT item FROM ordered ORDER BY item") == ["bread", "tea"]
    assert column(db, "SELECT item FROM shipped ORDER BY item") == shipped
    if url.startswith("pgqueue"):
        eventually(lambda: value(db, "SELECT count(*) FROM pgqueue.tasks") == 0)
