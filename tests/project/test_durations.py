"""One meaning of `timeout` and of every other duration, in all that is public."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

import pgqueue
import pgqueue.types
from pgqueue.contrib.django.options import Options
from pgqueue.contrib.flask import PgQueue
from pgqueue.jobs.retry import Retry
from pgqueue.monitors.alerts import Monitor
from pgqueue.monitors.graphite import GraphiteReporter
from pgqueue.monitors.prometheus import PgqueueCollector
from pgqueue.worker import Worker
from pgqueue.worker.policy import policy

KINDS = [
    *(kind for module in (pgqueue, pgqueue.types) for kind in vars(module).values() if isinstance(kind, type)),
    *(PgQueue, Monitor, GraphiteReporter, PgqueueCollector, Worker),
]
MADE_BY_CALLS = [(pgqueue.Lock, "__init__"), (pgqueue.AsyncLock, "__init__")]  # of client.lock(), which checks
DURATIONS = {
    "connect_timeout", "idle_timeout", "session_grace", "poll", "delay", "every", "more", "keep", "keep_result", "ttl",
    "seconds", "grace", "ttr", "retry_delay", "max_retry_delay", "interval", "age", "half_life", "timeout",
    "untaken", "late_schedule", "snapshot",
}  # fmt: skip


def parameters() -> Iterator[tuple[str, inspect.Parameter, str]]:
    """Each parameter of each public method, and the docstring that explains it."""
    for kind in KINDS:
        for name, method in inspect.getmembers(kind):
            if (
                not inspect.isfunction(method)
                or (name.startswith("_") and name != "__init__")
                or (kind, name) in MADE_BY_CALLS
            ):
                continue
            for parameter in inspect.signature(method).parameters.values():
                doc = (kind if name == "__init__" else method).__doc__ or ""
                yield f"{kind.__name__}.{name}", parameter, " ".join(doc.split())


@pytest.mark.parametrize("name", sorted(DURATIONS))
def test_a_duration_may_be_a_timedelta(name: str) -> None:
    returned = {kind.__name__ for kind in KINDS if hasattr(kind, "__dataclass_fields__")}
    found = [
        (of, str(parameter.annotation))
        for of, parameter, _ in parameters()
        if parameter.name == name and not (of.endswith("__init__") and of.partition(".")[0] in returned)
    ]
    assert all("Seconds" in annotation for _, annotation in found), found


def test_a_timeout_is_none_without_limit_and_zero_without_a_wait() -> None:
    checked = set()
    for of, parameter, doc in parameters():
        if parameter.name != "timeout":
            continue
        if of == "PgqueueCollector.__init__":  # a scrape has to end, and a read takes time
            assert (parameter.default, "None waits without limit" in doc) == (5.0, True)
            continue
        checked.add(of)
        assert parameter.annotation == "Seconds | None", of
        assert parameter.default in (None, 0), of
        explained = "None waits without limit" in doc and (
            "0 does not wait" in doc or "0, the default, does not wait" in doc
        )
        other = any(words in doc for words in ("0 tries", "otherwise as take", "Otherwise as", "see ", "as it takes"))
        assert explained or other, f"{of}: {doc}"
    assert checked > {"Queue.take", "Queue.put", "Queue.pop", "Client.pop", "Client.wait", "AsyncQueue.take"}


async def test_a_timedelta_everywhere(client: Any, queue: Any) -> None:
    short = timedelta(milliseconds=10)
    assert await queue.take(short) is None
    assert await queue.pop(1, short) == []
    assert await queue.messages.claim(timeout=short) is None
    full = await client.create_queue("full", capacity=1)
    await full.put(1)
    assert await full.put(2, timeout=short) is None
    for waiting in (
        client.wait("c", short),
        client.statuses.wait("k", "v", short),
        client.results.get((await queue.put(1)).id, short),
    ):
        with pytest.raises(TimeoutError):
            await waiting


def test_a_worker_takes_timedeltas() -> None:
    assert policy(3, timedelta(seconds=2), timedelta(minutes=1)) == Retry(attempts=3, delay=2.0, max_delay=60.0)
    client = pgqueue.Client("postgresql://127.0.0.1:1/nowhere")
    worker = Worker(client, {"q": print}, retry_delay=timedelta(seconds=2), max_retry_delay=timedelta(hours=1))
    assert worker._terms.policy == Retry(attempts=20, delay=2.0, max_delay=3600.0)


def test_so_do_the_options_of_django_tasks() -> None:
    options = Options.of({"keep_results": timedelta(hours=1), "retry_delay": timedelta(seconds=3)})
    assert (options.keep_results, options.retry.delay) == (3600.0, 3.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda client, wrong: PgqueueCollector(client, timeout=wrong),
        lambda client, wrong: Monitor(client, interval=wrong),
        lambda client, wrong: Monitor(client, half_life=wrong),
        lambda client, wrong: GraphiteReporter(client, "127.0.0.1", protocol="udp", interval=wrong),
        lambda client, wrong: Worker(client, {"q": print}, retry_delay=wrong),
    ],
    ids=["collector", "interval", "half_life", "graphite", "retry_delay"],
)
@pytest.mark.parametrize("wrong", [-1, timedelta(seconds=-1), float("nan"), "1", True])
def test_a_duration_that_is_not_valid_is_a_value_error(make: Callable[..., Any], wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        make(pgqueue.Client("postgresql://127.0.0.1:1/nowhere"), wrong)


def test_monitors_take_timedeltas(blocking: Callable[..., pgqueue.Client]) -> None:
    client = blocking()
    second = timedelta(seconds=1)
    with (
        Monitor(
            client, interval=second, age=second, untaken={"q": second}, snapshot=second, half_life=timedelta(days=1)
        ),
        GraphiteReporter(client, "127.0.0.1", protocol="udp", interval=second),
    ):
        for timeout in (None, timedelta(seconds=5)):
            metrics = list(PgqueueCollector(client, timeout=timeout).collect())
            assert next(sample.value for sample in metrics[0].samples) == 1
