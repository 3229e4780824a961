"""Sentry: an event for each failure, with its exception and frames; traces; check-ins. Through its own transport."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import psycopg
import pytest
import sentry_sdk
from eventually import eventually
from running import running
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

import pgqueue
from pgqueue import Worker
from pgqueue.contrib.sentry import Sentry, monitored

pytestmark = pytest.mark.once

Blocking = Callable[..., pgqueue.Client]


class Kept(Transport):
    """Keeps what is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.items: list[tuple[str, dict[str, Any]]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.items.extend((item.type, item.payload.json) for item in envelope.items if item.payload.json is not None)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [payload for type, payload in list(self.items) if type == kind]


@pytest.fixture
def kept() -> Iterator[Kept]:
    kept = Kept()
    sentry_sdk.init(
        "https://key@sentry.invalid/1", transport=kept, traces_sample_rate=1.0, default_integrations=False,
        auto_enabling_integrations=False,
    )  # fmt: skip
    yield kept
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(None)


def working(client: Any, **options: Any) -> AbstractContextManager[Worker]:
    return running(Worker(client, **options))


def drain(client: pgqueue.Client, queue: str = "q") -> None:
    with working(client):
        eventually(lambda: (s := client.queue(queue).stats())["total"] == s["buried"])


def culprit(number: int) -> None:
    raise LookupError(f"no {number}")


def test_a_failure_is_one_event_with_its_frames(blocking: Blocking, kept: Kept) -> None:
    client = blocking()
    client.middleware.append(Sentry())

    @client.job(queue="q", name="shop.send", retry=pgqueue.Retry(attempts=3, delay=0))
    def send(number: int) -> None:
        culprit(number)

    task = send.put(7)
    drain(client)
    (event,) = kept.of("event")
    *_, error = event["exception"]["values"]
    assert (error["type"], error["value"]) == ("LookupError", "no 7")
    assert error["mechanism"] == {"type": "pgqueue", "handled": False}
    assert [frame["function"] for frame in error["stacktrace"]["frames"]][-2:] == ["send", "culprit"]
    assert error["stacktrace"]["frames"][-1]["vars"] == {"number": "7"}
    assert event["tags"] == {
        "pgqueue.job": "shop.send",
        "pgqueue.queue": "q",
        "pgqueue.task": str(task.id),
        "pgqueue.attempt": "3",
    }
    assert event["transaction"] == "shop.send"


def test_every_attempt_can_be_an_event(blocking: Blocking, kept: Kept) -> None:
    client = blocking()
    client.middleware.append(Sentry(events="every"))

    @client.job(queue="q", retry=pgqueue.Retry(attempts=3, delay=0))
    async def send() -> None:
        raise LookupError

    send.put()
    drain(client)
    assert [event["tags"]["pgqueue.attempt"] for event in kept.of("event")] == ["1", "2", "3"]


def test_what_does_not_count_as_failed_makes_no_event(blocking: Blocking, kept: Kept) -> None:
    client = blocking()
    client.middleware.append(Sentry(events="every"))

    @client.job(queue="q")
    def send(task: pgqueue.Task) -> None:
        raise pgqueue.RetryLater(3600, counts=False)

    task = send.put()
    with working(client):
        eventually(lambda: task.outcome().state == "delayed")
    assert kept.of("event") == []


def test_a_retry_that_helps_makes_no_event(blocking: Blocking, kept: Kept) -> None:
    client = blocking()
    client.middleware.append(Sentry())

    @client.job(queue="q", retry=pgqueue.Retry(attempts=3, delay=0))
    def send(task: pgqueue.Task) -> None:
        if task.attempts < 2:
            raise LookupError

    send.put()
    drain(client)
    assert kept.of("event") == []


@pytest.mark.parametrize(
    ("error", "events"),
    [(pgqueue.Bury("give up"), 1), (ValueError(), 1), (KeyError(), 0), (SystemExit(3), 0)],
    ids=["bury", "never", "retried", "exit"],
)
def test_the_jobs_policy_says_what_is_the_last_attempt(
    blocking: Blocking, kept: Kept, error: BaseException, events: int
) -> None:
    client = blocking()
    client.middleware.append(Sentry())

    @client.job(queue="q", retry=pgqueue.Retry(attempts=9, delay=3600, never=ValueError))
    def send() -> None:
        raise error

    send.put()
    with working(client):
        eventually(lambda: (s := client.queue("q").stats())["buried"] + s["delayed"] == 1)
    assert len(kept.of("event")) == events


def test_what_a_handler_notes_stays_with_its_run(blocking: Blocking, kept: Kept) -> None:
    client = blocking()
    client.middleware.append(Sentry())

    @client.job(queue="q", retry=pgqueue.Retry(attempts=1))
    def send(n: int) -> None:
        sentry_sdk.set_tag(f"own.{n}", "x")
        sentry_sdk.add_breadcrumb(message=f"crumb {n}")
        raise LookupError

    send.put_many([(n,) for n in range(3)])
    with working(client, concurrency=1):
        eventually(lambda: client.queue("q").stats()["buried"] == 3)
    for n, event in enumerate(kept.of("event")):
        assert [name for name in event["tags"] if name.startswith("own")] == [f"own.{n}"]
        assert [crumb["message"] for crumb in event["breadcrumbs"]["values"]] == [f"crumb {n}"]


def test_put_and_run_are_of_one_trace(blocking: Blocking, kept: Kept) -> None:
    client = blocking()
    client.middleware.append(Sentry())

    @client.job(queue="q", name="shop.send")
    def send() -> None: ...

    with sentry_sdk.start_transaction(name="POST /orders") as request:
        send.put()
    drain(client)
    by_name = {found["transaction"]: found for found in kept.of("transaction")}
    run = by_name["shop.send"]["contexts"]["trace"]
    (span,) = by_name["POST /orders"]["spans"]
    assert (span["op"], span["description"]) == ("queue.publish", "q")
    assert run["trace_id"] == request.trace_id
    assert (run["op"], run["origin"]) == ("queue.process", "auto.queue.pgqueue")
    assert run["data"]["messaging.destination.name"] == "q"


def test_a_monitored_job_checks_in(blocking: Blocking, kept: Kept) -> None:
    client = blocking()
    client.middleware.append(Sentry(monitors={"shop.report": "nightly-report"}, traces=False))

    @client.job(queue="q", name="shop.report", retry=pgqueue.Retry(attempts=1))
    def report(fails: bool) -> None:
        if fails:
            raise LookupError

    report.put(False)
    drain(client)
    report.put(True)
    drain(client)
    found = kept.of("check_in")
    assert [one["status"] for one in found] == ["in_progress", "ok", "in_progress", "error"]
    assert {one["monitor_slug"] for one in found} == {"nightly-report"}
    assert found[0]["check_in_id"] == found[1]["check_in_id"] != found[2]["check_in_id"]
    assert found[1]["duration"] >= 0


def test_each_occurrence_of_a_schedule_is_a_check_in(blocking: Blocking, kept: Kept, db: psycopg.Connection) -> None:
    client = blocking()
    client.middleware.append(Sentry(traces=False, monitor_config={"max_runtime": 9}))

    @client.cron("0 9 * * mon-fri", tz="Europe/Berlin", name="report")
    @client.job(queue="q", retry=pgqueue.Retry(attempts=2, delay=0))
    def report(task: pgqueue.Task) -> None:
        if task.attempts == 0:
            raise LookupError

    @client.cron(every=7200, name="clean")
    @client.job(queue="q", retry=pgqueue.Retry(attempts=2, delay=0))
    async def clean() -> None:
        raise LookupError

    client.schedules.sync()
    db.execute("UPDATE pgqueue.schedule SET next_at = NULL, counts_from = now() - interval '8 days'")  # both are due
    with working(client):
        eventually(lambda: len(kept.of("check_in")) >= 6)
    times: dict[str, dict[str, Any]] = {
        "report": {"schedule": {"type": "crontab", "value": "0 9 * * mon-fri"}, "timezone": "Europe/Berlin"},
        "clean": {"schedule": {"type": "interval", "value": 2, "unit": "hour"}},
    }
    for name, last in (("report", "ok"), ("clean", "error")):
        found = [one for one in kept.of("check_in") if one["monitor_slug"] == name]
        assert [one["status"] for one in found] == ["in_progress", "in_progress", last]
        assert len({one["check_in_id"] for one in found}) == 1
        assert all(one["monitor_config"] == times[name] | {"max_runtime": 9} for one in found)
        assert found[-1]["duration"] >= 0


def test_a_schedule_can_be_without_check_ins(blocking: Blocking, kept: Kept) -> None:
    client = blocking()
    client.middleware.append(Sentry(schedules=False))

    @client.cron(every=60, name="clean")
    @client.job(queue="q")
    def clean() -> None: ...

    client.schedules.sync()
    client.schedules.run_now("clean")
    drain(client)
    assert kept.of("check_in") == []


@pytest.mark.parametrize(
    ("cron", "every", "value", "unit"),
    [
        ("30 0 9 * * *", None, "0 9 * * *", None),
        ("*/5 * * * * *", None, None, None),
        ("@midnight", None, "@daily", None),
        (None, "90", None, None),
        (None, "5400", 90, "minute"),
        (None, "172800", 2, "day"),
    ],
)
def test_the_times_of_a_monitor(cron: str | None, every: str | None, value: object, unit: str | None) -> None:
    given = {"schedule_cron": cron, "schedule_tz": cron and "UTC", "schedule_every": every}
    found = monitored({name: text for name, text in given.items() if text is not None})
    assert (found and found["schedule"]["value"]) == value
    assert (found and found["schedule"].get("unit")) == unit


def test_other_values_of_events_are_refused() -> None:
    with pytest.raises(ValueError, match="events is 'last' or 'every', not 'none'"):
        Sentry(events="none")  # type: ignore[arg-type]


FORGED = [" ", "x", "nan", "inf", "-60", "0", "1e400"]


@pytest.mark.parametrize(
    "headers", [{"schedule_cron": ""}, {"schedule_cron": " "}, *({"schedule_every": e} for e in FORGED)]
)
def test_forged_times_make_no_check_in(headers: dict[str, str]) -> None:
    assert monitored(headers) is None


def test_a_task_checks_in_for_named_schedules_alone(blocking: Blocking, kept: Kept, db: psycopg.Connection) -> None:
    client = blocking()
    client.middleware.append(Sentry(schedules={"mine"}))

    @client.job(queue="q")
    def work() -> None:
        pass

    for headers in (
        '{"schedule": "theirs", "schedule_every": "60"}',
        '{"schedule": "mine", "schedule_every": "60"}',
        "5",
    ):
        db.execute("SELECT pgqueue.put('q', %s)", [f'{{"job": "{work.name}", "headers": {headers}}}'])
    drain(client)
    assert {check_in["monitor_slug"] for check_in in kept.of("check_in")} == {"mine"}
    assert client.queue("q").stats()["buried"] == 0
