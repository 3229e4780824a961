"""`manage.py pgqueue worker --health`."""

from __future__ import annotations

import signal
import socket
import urllib.error
import urllib.request
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from eventually import eventually
from sites import free_port

from pgqueue.contrib.django import handlers, working
from pgqueue.worker.health import Report

pytestmark = pytest.mark.once


@pytest.mark.slow
def test_health_answers_probes(project):
    port = free_port()

    def status(path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            return None

    for more in ([], ["--processes", "2"]):
        with project.working("--health", str(port), *more) as worker:
            eventually(lambda: status("/ready") == 200, within=60)
            assert (status("/live"), status("/else")) == (200, 404)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(30) == 0
        assert status("/live") is None


@pytest.mark.parametrize("health", ["nowhere", ":80", "127.0.0.1:65536"])
def test_a_place_that_cannot_be_is_one_line(django_db, health):
    with pytest.raises(CommandError, match=r"^argument --health: .* is not HOST:PORT"):
        call_command("pgqueue", "worker", "--health", health)


def test_a_place_that_is_taken_is_one_line(django_db, no_handlers):
    handlers.handler("mail")(print)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        for more in ([], ["--processes", "1"]):
            with pytest.raises(CommandError, match=rf"^--health 127.0.0.1:{port}: Address already in use"):
                call_command("pgqueue", "worker", "--health", str(port), *more)


def test_one_of_several_workers_that_is_ill_is_the_answer():
    class Other:
        def __init__(self, *report):
            self.report = lambda: Report(*report)

    well: Any = Other(True, True)
    busy: Any = Other(True, False, "stops")
    dead: Any = Other(False, False, "its watch hangs")
    assert working.report([well, well]) == Report(True, True)
    assert working.report([well, busy, well]).why == "stops"
    assert working.report([busy, well, dead]).why == "its watch hangs"
