"""Django's tasks framework in the tests: settings for it, and a worker in a thread."""

from __future__ import annotations

import threading
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import errands
from django.test.utils import override_settings
from eventually import eventually

from pgqueue import Worker
from pgqueue.contrib.django import clients

InvalidTask = (
    getattr(errands.framework.exceptions, "InvalidTask", None) or errands.framework.exceptions.InvalidTaskError
)
InvalidTaskBackend = errands.framework.TaskBackendHandler.exception_class
TaskResultDoesNotExist = errands.framework.exceptions.TaskResultDoesNotExist
TaskResultMismatch = errands.framework.exceptions.TaskResultMismatch
Status = errands.framework.TaskResultStatus


def backend(*queues: str, **options: Any) -> dict[str, Any]:
    """What TASKS has for one backend."""
    return {"BACKEND": "pgqueue.contrib.django.PgqueueBackend", "QUEUES": list(queues), "OPTIONS": options}


def configured(*queues: str, **options: Any) -> Any:
    """One backend, with these queues and options."""
    return override_settings(TASKS={"default": backend(*(queues or ("default",)), **options)})


@contextmanager
def working(using: str = "default", **options: Any) -> Iterator[Worker]:
    """A worker for a database's backends. At the end it has finished what it began."""
    from pgqueue.contrib.django.backend import register

    client = clients.client(using)
    register(client, using)
    worker = Worker(client, **options)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join()


def reaches(result: Any, status: Any) -> Any:
    """The result, once it has the status."""

    def there() -> bool:
        result.refresh()
        return bool(result.status == status)

    eventually(there)
    return result


def done(result: Any) -> Any:
    return reaches(result, Status.SUCCESSFUL)


def failed(result: Any) -> Any:
    return reaches(result, Status.FAILED)


def passes(case: type[unittest.TestCase]) -> None:
    """Run a TestCase's tests as Django's runner does. Its own assertions are what is tested."""
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    problems = "\n".join(text for _, text in result.failures + result.errors)
    assert not problems, problems
    assert result.testsRun


@contextmanager
def receiving(*signals: Any) -> Iterator[list[tuple[Any, ...]]]:
    """What these signals send, as (signal, sender, id, status)."""
    told: list[tuple[Any, ...]] = []

    def receiver(sender: Any, task_result: Any, signal: Any, **kwargs: Any) -> None:
        told.append((signal, sender, task_result.id, task_result.status))

    with connected(receiver, *signals):
        yield told


@contextmanager
def connected(receiver: Any, *signals: Any) -> Iterator[None]:
    for one in signals:
        one.connect(receiver)
    try:
        yield
    finally:
        for one in signals:
            one.disconnect(receiver)
