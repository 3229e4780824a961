"""Alerts: how a monitor tells of what is alarming. test_thresholds.py has what that is."""

from __future__ import annotations

import contextlib
import json
import queue
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from commands import failed, invoke, started
from eventually import eventually
from outages import away

import pgqueue
from pgqueue._calls import health as calls
from pgqueue._calls.call import Call
from pgqueue.monitors import alerts, reading, webhook
from pgqueue.monitors.alerts import Alert, Monitor

pytestmark = pytest.mark.once

LENGTHS: dict[str, Any] = {"interval": 0.02, "health": False}  # of this database nothing else is told


class Hook(HTTPServer):
    """A web server that answers with the next of the statuses that it was given, and at last with 200."""

    def __init__(self) -> None:
        self.statuses: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.posted: queue.SimpleQueue[tuple[str, str, Any]] = queue.SimpleQueue()
        super().__init__(("127.0.0.1", 0), _Answer)
        self.url = f"http://127.0.0.1:{self.server_port}/secret?key=1"


class _Answer(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            status = self.server.statuses.get_nowait()
        except queue.Empty:
            status = 200
        self.send_response(status)
        if status == 302:
            self.send_header("Location", self.server.url)
        self.end_headers()
        self.server.posted.put((self.path, self.headers["Content-Type"], body))

    def do_GET(self) -> None:
        self.server.posted.put((self.path, "GET", None))

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(webhook, "PAUSES", (0.01, 0.01))
    with Hook() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Waits until monitors have looked so often from now on."""
    begun: list[None] = []

    def stats_of(*arguments: Any) -> Any:
        begun.append(None)
        return reading.stats_of(*arguments)

    def wait(n: int) -> None:
        goal = len(begun) + n + 1  # the last to begin has not ended
        eventually(lambda: len(begun) >= goal)

    monkeypatch.setattr(alerts, "stats_of", stats_of)
    return wait


def test_a_monitor_calls_back_logs_and_posts(blocking, hook, caplog, looks):
    client = blocking()
    mail = client.queue("mail")
    mail.put(0)
    called: queue.SimpleQueue[Alert] = queue.SimpleQueue()
    with Monitor(client, callback=called.put, webhook=hook.url, **LENGTHS, factors=[5]):
        looks(1)
        mail.put_many(range(60))
        alert = called.get(timeout=30)
        path, kind, body = hook.posted.get(timeout=30)
        looks(5)
    assert (alert.kind, alert.name, alert.value, alert.threshold) == ("length", "mail", 61, 50)
    assert (path, kind) == ("/secret?key=1", "application/json")
    assert body == {
        "kind": "length",
        "name": "mail",
        "value": 61,
        "threshold": 50.0,
        "factor": 5,
        "average": 10.0,
        "at": alert.at,
        "text": alert.text,
    }
    assert [r.getMessage() for r in caplog.records if r.name == "pgqueue.alerts"] == [alert.text]
    assert called.empty()  # once
    assert hook.posted.empty()


def test_the_age_of_the_oldest_ready_task(blocking, db, looks):
    client = blocking()
    called: queue.SimpleQueue[Alert] = queue.SimpleQueue()
    client.queue("mail").put(1)
    client.queue("other").put(1)
    with Monitor(client, "mail", callback=called.put, **LENGTHS, age=3600):
        looks(2)
        assert called.empty()
        db.execute("UPDATE pgqueue.task SET created_at = now() - interval '2 h'")
        alert = called.get(timeout=30)
        assert (alert.kind, alert.name) == ("age", "mail")
        assert 7200 <= alert.value < 7300
        looks(2)
    assert called.empty()


def test_a_check_of_the_database(blocking, looks, monkeypatch):
    bad = Call("SELECT 'made up', 'bad', 7.5::float8, 'GiB', 'why'", (), calls.health().read)
    called: queue.SimpleQueue[Alert] = queue.SimpleQueue()
    with Monitor(blocking(), callback=called.put, interval=0.02):
        looks(2)  # the view as it is can be read
        monkeypatch.setattr(calls, "health", lambda: bad)
        eventually(lambda: called.get(timeout=30).text == "the check made up is bad: 7.5 GiB, why")
        looks(2)
    assert called.empty()


def test_a_callback_that_fails_does_not_keep_the_others_from_it(blocking, hook, caplog, looks):
    client = blocking()

    def fail(alert: Alert) -> None:
        raise RuntimeError("not today")

    with Monitor(client, ["a", "b"], callback=fail, webhook=hook.url, **LENGTHS, factors=[5]):
        looks(1)
        for name in ("a", "b"):
            client.queue(name).put_many(range(50))
            assert hook.posted.get(timeout=30)[2]["name"] == name
    assert "the callback of an alert failed" in caplog.text
    assert "not today" in caplog.text


def test_a_monitor_may_be_closed_by_its_callback(blocking, looks):
    client = blocking()
    closed = threading.Event()

    def close(alert: Alert) -> None:
        monitor.close()
        closed.set()

    monitor = Monitor(client, callback=close, **LENGTHS)
    looks(1)
    client.queue("q").put_many(range(200))
    assert closed.wait(30)
    monitor.close()


def test_the_elected_one_tells_and_the_others_know(blocking, looks):
    first, second = blocking(), blocking()
    told: queue.SimpleQueue[tuple[str, float | None]] = queue.SimpleQueue()

    def tell(name: str) -> Callable[[Alert], None]:
        return lambda alert: told.put((name, alert.factor))

    options = LENGTHS | {"elect": "alerts", "factors": [5, 10]}
    with contextlib.ExitStack() as stack:
        leader = stack.enter_context(Monitor(first, callback=tell("first"), **options))
        eventually(lambda: leader._rounds.leading)
        other = stack.enter_context(Monitor(second, callback=tell("second"), **options))
        looks(3)
        first.queue("q").put_many(range(50))
        assert told.get(timeout=30) == ("first", 5)
        looks(5)  # the other has seen it too, and said nothing
        leader.close()
        eventually(lambda: other._rounds.leading)
        first.queue("q").put_many(range(50))
        assert told.get(timeout=30) == ("second", 10)
    assert told.empty()


# --- the webhook


@pytest.mark.parametrize("statuses", [[500], [500, 302], [404, 503]])
def test_a_webhook_is_tried_three_times(hook, caplog, statuses):
    for status in statuses:
        hook.statuses.put(status)
    assert webhook.Webhook(hook.url).post({"a": 1}, lambda seconds: False)
    assert [hook.posted.get(timeout=30)[2] for _ in range(len(statuses) + 1)] == [{"a": 1}] * (len(statuses) + 1)
    assert hook.posted.empty()
    assert caplog.text == ""


def test_a_webhook_that_refuses_is_given_up_and_logged_without_its_secrets(hook, caplog):
    for status in (500, 302, 418, 200):
        hook.statuses.put(status)
    pauses: list[float] = []
    assert not webhook.Webhook(hook.url).post({"text": "too long"}, lambda seconds: bool(pauses.append(seconds)))
    assert pauses == [0.01, 0.01]
    assert [hook.posted.get(timeout=30)[1] for _ in range(3)] == ["application/json"] * 3
    assert hook.posted.empty()  # the redirect was not followed
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(f"the webhook at http://127.0.0.1:{hook.server_port} did not accept ")
    assert "too long" in message
    assert "418" in message
    assert "secret" not in message


def test_a_webhook_is_given_up_when_the_monitor_is_closed(hook):
    hook.statuses.put(500)
    assert not webhook.Webhook(hook.url).post({}, lambda seconds: True)
    hook.posted.get(timeout=30)
    assert hook.posted.empty()


@pytest.mark.parametrize("behaviour", ["refuses", "is silent", "hangs up", "talks nonsense"])
def test_a_webhook_that_is_no_web_server(monkeypatch, caplog, behaviour):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(webhook, "TIMEOUT", 0.05)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if behaviour != "refuses":
            server.listen()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"

        def answer() -> None:
            conn, _ = server.accept()
            with conn:
                conn.recv(65536)
                conn.sendall(b"nonsense\r\n" if behaviour == "talks nonsense" else b"")

        thread = threading.Thread(target=answer)
        if behaviour in ("hangs up", "talks nonsense"):
            thread.start()
        assert not webhook.Webhook(url).post({}, lambda seconds: True)
        if thread.ident:
            thread.join()
    assert f"the webhook at {url} did not accept {{}}: " in caplog.text


# --- what goes wrong


def test_a_database_that_is_away_is_no_reason_to_end(blocking, pg_server, dsn, looks, caplog):
    client = blocking(connect_timeout=0.2)
    called: queue.SimpleQueue[Alert] = queue.SimpleQueue()
    client.queue("q").put(1)
    with Monitor(client, callback=called.put, **LENGTHS), away(pg_server, dsn):
        eventually(lambda: "cannot read the queues" in caplog.text)
    with Monitor(client, callback=called.put, **LENGTHS, factors=[5]):
        looks(1)
        client.queue("q").put_many(range(50))
        assert called.get(timeout=30).name == "q"


def test_what_nobody_expected_is_logged_and_does_not_end_it(blocking, monkeypatch, caplog):
    def fail(*arguments: Any) -> Any:
        raise ZeroDivisionError("not expected")

    monkeypatch.setattr(alerts, "stats_of", fail)
    with Monitor(blocking(), **LENGTHS):
        eventually(lambda: caplog.text.count("ZeroDivisionError: not expected") > 1)
    assert "pgqueue-alerts goes on after an error" in caplog.text


WRONG = [
    ({"queues": []}, "at least one queue name is needed"),
    ({"callback": "print"}, "callback must be a function or None, not 'print'"),
    ({"webhook": "ftp://example.org"}, "a webhook is a URL of http or https, not 'ftp://example.org'"),
    ({"webhook": "file:///etc/passwd"}, "a webhook is a URL of http or https"),
    ({"webhook": "https://"}, "a webhook is a URL of http or https"),
    ({"webhook": "https://a:b/"}, "a webhook is a URL of http or https"),
    ({"webhook": "http://example.org/\nX-Evil: 1"}, "a webhook is a URL of http or https"),
    ({"webhook": "http://example.org/ä"}, "a webhook is a URL of http or https"),
    ({"webhook": 5}, "a webhook is a URL of http or https, not 5"),
    ({"factors": [2]}, "each factor must be over 2, not 2: the average would follow it"),
    ({"factors": ["5"]}, "factors must be a number from 0, not '5'"),
    ({"factors": [float("nan")]}, "factors must be a number from 0, not nan"),
    ({"age": 0}, "age must be over 0"),
    ({"half_life": -1}, "half_life must be over 0"),
    ({"minimum_average": 0}, "minimum_average must be over 0, not 0"),
    ({"interval": 0}, "interval must be over 0"),
    ({"client": None}, "it needs a pgqueue.Client, not this NoneType"),
]


@pytest.mark.parametrize(("options", "said"), WRONG, ids=str)
def test_what_cannot_be_is_refused_at_the_start(options, said):
    nowhere = pgqueue.Client("postgresql://nowhere.invalid")  # nothing is asked of the database
    with pytest.raises(ValueError, match=re.escape(said)):
        Monitor(**{"client": nowhere} | options)


# --- the command


def test_the_command_tells_until_it_is_told_to_stop(dsn, blocking, hook):
    mail = blocking().queue("mail")
    mail.put(1)
    arguments = [
        "--webhook",
        hook.url,
        "--factor",
        "5",
        "--age",
        "0.001",
        "--interval",
        "0.05",
        "--queue",
        "mail",
        "--no-health",
    ]
    with started("--dsn", dsn, "alerts", *arguments, stderr=subprocess.PIPE, text=True) as process:
        assert hook.posted.get(timeout=30)[2]["kind"] == "age"  # so the first look is over
        mail.put_many(range(100))
        assert hook.posted.get(timeout=30)[2]["kind"] == "length"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        lines = process.stderr.read().splitlines()
    assert [re.sub(r".* WARNING |[0-9]+.*", "", line) for line in lines] == [
        "queue 'mail' has a task that is ready for ",
        "queue 'mail' has ",
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--webhook", "ftp://x"], 2, "a webhook is a URL of http or https, not 'ftp://x'"),
        (["--factor", "1"], 2, "each factor must be over 2"),
        (["--factor", "many"], 2, "'many' is not a valid float"),
        (["--age", "0"], 2, "must be over 0"),
        (["--minimum-average", "nan"], 2, "minimum_average must be a number"),
    ],
    ids=str,
)
def test_a_wrong_command_line_is_one_line(shared, arguments, code, said):
    assert said in failed(invoke("--dsn", shared, "alerts", *arguments), code)
