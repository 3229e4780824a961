"""Flask's development server under its reloader: each process is a client of its own, and none stays behind."""

from __future__ import annotations

import pytest
from eventually import eventually
from sites import free_port, serving
from statements import column

pytestmark = pytest.mark.once

APP = """
import os
from flask import Flask
from pgqueue.contrib.flask import PgQueue

app = Flask(__name__)
queues = PgQueue(app)

@app.get("/")
def serve():
    queues.queue("q").put("x")
    queues.queue("q").take(10).ack()
    return f"version 1 by {os.getpid()}"
"""
PIDS = "SELECT split_part(label, ':', 2)::int FROM pgqueue.sessions"


@pytest.mark.slow
def test_flasks_reloader(dsn, db, tmp_path):
    file = tmp_path / "shop.py"
    file.write_text(APP)
    port = free_port()
    command = ["flask", "--app", "shop", "run", "--debug", "--port", str(port)]
    # Its cache of bytecode tells versions apart by their size, and by their time in seconds.
    settings = {"PGQUEUE_DSN": dsn, "PYTHONDONTWRITEBYTECODE": "1"}
    with serving(command, port, settings=settings, cwd=tmp_path) as site:

        def served(version):
            try:
                answer = site.get("/").split()
            except OSError:
                return None  # between two processes
            return answer[1] == version and int(answer[3])

        first = eventually(lambda: served("1"))
        assert column(db, PIDS) == [first]
        file.write_text(APP.replace("version 1", "version 2"))
        second = eventually(lambda: served("2"))
        assert second != first
        assert column(db, PIDS) == [second]
