"""Alerts: how a monitor tells of what is alarming. test_thresholds.py has what that is."""

from __future__ import annotations

import contextlib
import inspect
import queue
import re
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from commands import failed, invoke, started
from eventually import PATIENCE, eventually
from hurrying import hurry
from outages import away
from running import running

import pgqueue
from pgqueue._calls import health as calls
from pgqueue._calls.call import Call
from pgqueue.cli import alerts as command
from pgqueue.monitors import alerts, reading
from pgqueue.monitors.alerts import Alert, Monitor
from pgqueue.worker import Worker

pytestmark = pytest.mark.once

#: Of this database nothing is told but the growth of queues.
OFF = dict.fromkeys(("length", "age", "failures", "untaken", "late_schedule", "snapshot"))
GROWTH: dict[str, Any] = {"interval": 0.02, "health": False, **OFF}


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Waits until the monitor of each of these clients, by default the only one, has looked so often from now on."""
    begun: list[pgqueue.Client] = []

    def stats_of(client: pgqueue.Client, *others: Any) -> Any:
        begun.append(client)
        return reading.stats_of(client, *others)

    def wait(n: int, *clients: pgqueue.Client) -> None:
        goal = Counter({client: begun.count(client) for client in clients or {*begun}})
        eventually(lambda: begun and all(begun.count(client) > goal[client] + n for client in clients or {*begun}))

    monkeypatch.setattr(alerts, "stats_of", stats_of)
    return wait


def test_a_monitor_calls_back_logs_and_posts(blocking, hook, caplog, looks):
    client = blocking()
    mail = client.queue("mail")
    mail.put(0)
    called: queue.SimpleQueue[Alert] = queue.SimpleQueue()
    with Monitor(client, callback=called.put, webhook=hook.url, **GROWTH, factors=[5]):
        looks(1)
        mail.put_many(range(60))
        alert = called.get(timeout=30)
        posted = hook.posted.get(timeout=30)
        looks(5)
    assert (alert.kind, alert.name, alert.value, alert.threshold) == ("growth", "mail", 61, 50)
    assert (posted.path, posted.kind) == ("/secret?key=1", "application/json")
    assert posted.json == {
        "state": "firing",
        "kind": "growth",
        "name": "mail",
        "queue": "mail",
        "value": 61,
        "threshold": 50.0,
        "factor": 5,
        "average": 10.0,
        "since": alert.at,
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
    with Monitor(client, "mail", callback=called.put, **GROWTH | {"age": 3600}):
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


def test_what_alerts_read_besides_the_stats(blocking, db, connect):
    client = blocking()
    for name in ("still", "runs", "other"):
        client.create_queue(name)
    client.queue("still").pause(3600)
    client.schedules.set("nightly", None, "runs", every=3600)
    client.schedules.set("weekly", None, "other", every=3600)
    db.execute("UPDATE pgqueue.schedule SET next_at = now() - interval '5 min' WHERE name IN ('nightly', 'weekly')")
    with connect() as other:
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT 1")
        found = client.shell.run(calls.conditions(None))
        assert found.paused == {"still"}
        assert sorted((name, queue) for name, queue, _ in found.late) == [("nightly", "runs"), ("weekly", "other")]
        assert all(300 <= late < 400 for _, _, late in found.late)
        assert found.snapshot is not None
        holder, age = found.snapshot
        assert str(other.info.backend_pid) in holder
        assert 0 <= age < 60
    assert [name for name, _, _ in client.shell.run(calls.conditions(["other"])).late] == ["weekly"]


def fail() -> None:
    raise RuntimeError("not today")


@pytest.mark.slow
def test_failed_runs_are_counted_once_whether_they_are_retried_or_not(blocking):
    client = blocking()
    once = client.job(name="once", queue="runs", retry=pgqueue.Retry(attempts=1))(fail)
    again = client.job(name="again", queue="runs", retry=pgqueue.Retry(attempts=2, delay=3600))(fail)
    for job in (once, once, again):
        job.put()
    with running(Worker(client, grace=0)):
        eventually(lambda: client.shell.run(calls.conditions(None)).failed == {"runs": 3})


def test_a_callback_that_fails_does_not_keep_the_others_from_it(blocking, hook, caplog, looks):
    client = blocking()

    def fail(alert: Alert) -> None:
        raise RuntimeError("not today")

    with Monitor(client, ["a", "b"], callback=fail, webhook=hook.url, **GROWTH, factors=[5]):
        looks(1)
        for name in ("a", "b"):
            client.queue(name).put_many(range(50))
            assert hook.posted.get(timeout=30).json["name"] == name
    assert "the callback of an alert failed" in caplog.text
    assert "not today" in caplog.text


def test_a_monitor_may_be_closed_by_its_callback(blocking, looks):
    client = blocking()
    closed = threading.Event()

    def close(alert: Alert) -> None:
        monitor.close()
        closed.set()

    monitor = Monitor(client, callback=close, **GROWTH)
    looks(1)
    client.queue("q").put_many(range(200))
    assert closed.wait(30)
    monitor.close()


def test_the_elected_one_tells_and_the_others_know(blocking, looks):
    first, second = blocking(), blocking()
    told: queue.SimpleQueue[tuple[str, float | None]] = queue.SimpleQueue()

    def tell(name: str) -> Callable[[Alert], None]:
        return lambda alert: told.put((name, alert.factor))

    options = GROWTH | {"elect": "alerts", "factors": [5, 10]}
    with contextlib.ExitStack() as stack:
        leader = stack.enter_context(Monitor(first, callback=tell("first"), **options))
        eventually(lambda: leader._rounds.leading)
        other = stack.enter_context(Monitor(second, callback=tell("second"), **options))
        looks(3, first, second)
        first.queue("q").put_many(range(50))
        assert told.get(timeout=30) == ("first", 5)
        looks(5, first, second)  # the other has seen it too, and said nothing
        leader.close()
        eventually(lambda: other._rounds.leading)
        first.queue("q").put_many(range(50))
        assert told.get(timeout=30) == ("second", 10)
    assert told.empty()


# --- what goes wrong


def test_a_database_that_is_away_is_no_reason_to_end(blocking, pg_server, dsn, looks, caplog):
    client = blocking()
    called: queue.SimpleQueue[Alert] = queue.SimpleQueue()
    client.queue("q").put(1)
    with Monitor(client, callback=called.put, **GROWTH), away(pg_server, dsn):
        hurry(client, connect_timeout=0.2)
        eventually(lambda: "cannot read the queues" in caplog.text)
    hurry(client, connect_timeout=PATIENCE)
    with Monitor(client, callback=called.put, **GROWTH, factors=[5]):
        looks(1)
        client.queue("q").put_many(range(50))
        assert called.get(timeout=30).name == "q"


def test_what_nobody_expected_is_logged_and_does_not_end_it(blocking, monkeypatch, caplog):
    def fail(*arguments: Any) -> Any:
        raise ZeroDivisionError("not expected")

    monkeypatch.setattr(alerts, "stats_of", fail)
    with Monitor(blocking(), **GROWTH):
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
    ({"webhook": ""}, "a webhook is a URL of http or https"),
    ({"slack": "hooks.slack.com"}, "Slack's webhook is a URL of http or https"),
    (
        {"alertmanager": ["http://a:9093", "b:9093"]},
        "alertmanager is a URL of http or https, not a text without https://",
    ),
    ({"labels": {"a-b": "c"}}, "the name of a label has letters, digits and _, not 'a-b'"),
    ({"labels": {"a": 1}}, "the value of the label a must be a text, not 1"),
    ({"labels": "env=test"}, "labels must be a mapping of names to texts, not 'env=test'"),
    ({"mail": "ada"}, "mail must be an address as ada@example.org, not 'ada'"),
    ({"mail": "a@b.org\nBcc: c@d.org"}, "mail must be an address as ada@example.org, not 'a@b.org\\nBcc: c@d.org'"),
    ({"mail": "a@b.org,c@d.org"}, "mail must be an address"),
    ({"mail": ["a@b.org"], "mail_from": "pgqueue"}, "mail_from must be an address as ada@example.org, not 'pgqueue'"),
    ({"mail": ["a@b.org"], "smtp": "http://mail"}, "smtp is a URL as smtp://user:password@host:587 or smtps://host"),
    ({"mail": ["a@b.org"], "smtp": "smtp://mail:0"}, "smtp is a URL"),
    ({"mail": ["a@b.org"], "smtp": "smtp://mail/box"}, "smtp is a URL"),
    ({"length": 0}, "length must be over 0, not 0"),
    ({"length": {"mail": -1}}, "length must be a number from 0, not -1"),
    ({"length": {"": 5}}, "a queue's name"),
    ({"failures": "many"}, "failures must be a number from 0, not 'many'"),
    ({"untaken": float("nan")}, "untaken must be over 0"),
    ({"late_schedule": {"q": 0}}, "late_schedule must be over 0"),
    ({"snapshot": 0}, "snapshot must be over 0"),
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


@pytest.mark.slow
def test_the_command_tells_until_it_is_told_to_stop(dsn, blocking, hook):
    mail = blocking().queue("mail")
    mail.put(1)
    arguments = ["--factor", "5", "--age", "1h", "--age", "mail=0.001", "--interval", "0.05", "--queue", "mail"]
    with started(
        "--dsn",
        dsn,
        "alerts",
        *arguments,
        "--no-health",
        settings={"PGQUEUE_WEBHOOK": hook.url},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert hook.posted.get(timeout=30).json["kind"] == "age"  # so the first look is over
        mail.put_many(range(100))
        assert hook.posted.get(timeout=30).json["kind"] == "growth"
        mail.truncate()
        ended = [hook.posted.get(timeout=30).json for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        lines = process.stderr.read().splitlines()
    assert {(alert["state"], alert["kind"]) for alert in ended} == {("resolved", "age"), ("resolved", "growth")}
    assert [re.sub(r".* WARNING |[0-9]+.*", "", line) for line in lines] == [
        "queue 'mail' has a task that is ready for ",
        "queue 'mail' has ",
        "resolved: queue 'mail' has no ready task",
        "resolved: queue 'mail' has ",
    ]


def test_the_options_of_the_command_are_arguments_of_a_monitor(shared, monkeypatch):
    made: list[dict[str, Any]] = []

    class Watch:
        def __init__(self, client: pgqueue.Client, queues: Any, **options: Any) -> None:
            made.append(options)
            Monitor(client, queues, **options).close()

        def __enter__(self) -> None: ...

        def __exit__(self, *error: object) -> None: ...

    monkeypatch.setattr(command, "Monitor", Watch)
    monkeypatch.setattr(command, "until_signal", lambda: None)
    arguments = (
        "--length 500 --length mail=1000 --length a=b=none --age 15m --age mail=none --failures none --untaken bulk=2h"
        " --late-schedule 5m --snapshot none --factor 4 --alertmanager http://a:9093 --alertmanager http://b:9093"
        " --label env=test --mail ada@example.org --mail bob@example.org --mail-from pgqueue@example.org"
    )
    assert invoke("--dsn", shared, "alerts", *arguments.split()).returncode == 0
    secrets = {"SLACK": "https://hooks.slack.com/secret", "SMTP": "smtp://ada:p@mail", "WEBHOOK": "https://x/secret"}
    assert (
        invoke("--dsn", shared, "alerts", **{f"PGQUEUE_{name}": url for name, url in secrets.items()}).returncode == 0
    )
    first, second = made
    assert first["length"] == {None: 500, "mail": 1000, "a=b": None}
    assert first["age"] == {None: 900, "mail": None}
    assert first["failures"] == {None: None}
    assert first["untaken"] == {"bulk": 7200}
    assert first["late_schedule"] == {None: 300}
    assert first["snapshot"] is None
    assert first["alertmanager"] == ("http://a:9093", "http://b:9093")
    assert first["labels"] == {"env": "test"}
    assert (first["mail"], first["mail_from"]) == (("ada@example.org", "bob@example.org"), "pgqueue@example.org")
    assert (first["slack"], first["smtp"], first["webhook"]) == (None, "smtp://localhost", None)
    assert {name.upper(): second[name] for name in ("slack", "smtp", "webhook")} == secrets
    defaults = {name: one.default for name, one in inspect.signature(Monitor).parameters.items()}
    for name in ("snapshot", "factors", "half_life", "minimum_average", "health", "interval", "elect", "mail_from"):
        assert second[name] == defaults[name], name
    assert not any(second[name] for name in ("length", "age", "failures", "untaken", "late_schedule"))


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--webhook", "ftp://x"], 2, "a webhook is a URL of http or https, not 'ftp://x'"),
        (["--factor", "1"], 2, "each factor must be over 2"),
        (["--factor", "many"], 2, "'many' is not a valid float"),
        (["--age", "0"], 2, "must be over 0"),
        (["--age", "mail=soon"], 2, "'soon' is no duration"),
        (["--length", "mail="], 2, "'' is not a number"),
        (["--length", "0"], 2, "length must be over 0"),
        (["--length", "=5"], 2, "a queue's name"),
        (["--label", "env"], 2, "'env' is not NAME=VALUE"),
        (["--label", "1=a"], 2, "the name of a label has letters, digits and _, not '1'"),
        (["--mail", "ada"], 2, "mail must be an address as ada@example.org, not 'ada'"),
        (["--mail", "ada@x.org", "--smtp", "mail:25"], 2, "smtp is a URL as smtp://"),
        (["--minimum-average", "nan"], 2, "minimum_average must be a number"),
    ],
    ids=str,
)
def test_a_wrong_command_line_is_one_line(shared, arguments, code, said):
    assert said in failed(invoke("--dsn", shared, "alerts", *arguments), code)
