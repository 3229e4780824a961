"""A plugin of pytest for Django's tests/tasks, which has pgqueue's backend in the place of Django's own two.

The dummy backend keeps enqueued tasks in a list, and so does its stand-in. The immediate backend runs a task at its
enqueue; its stand-in does so by run_tasks(). The tests are SimpleTestCases, which then may use the database.
"""

from __future__ import annotations

import os
import time
from typing import Any

import django
import pytest
from django.conf import settings

from pgqueue.contrib.django import PgqueueBackend, database, testing

os.environ["TZ"] = "UTC"  # settings.configure() sets no time zone for the process
time.tzset()
settings.configure(
    INSTALLED_APPS=["pgqueue.contrib.django"],
    DATABASES={"default": database(os.environ["SUITE_URL"])},
    SECRET_KEY="of these tests",
    TIME_ZONE="UTC",
    USE_TZ=False,  # as in the settings of Django's tests
)
django.setup()

from django.db import connection  # noqa: E402
from django.tasks.backends import dummy, immediate  # noqa: E402
from django.test import SimpleTestCase  # noqa: E402


class Dummy(PgqueueBackend):
    def __init__(self, alias: str, params: Any) -> None:
        super().__init__(alias, params)
        self.results: list[Any] = []

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        self.results.append(super().enqueue(task, args, kwargs))
        return self.get_result(self.results[-1].id)

    def clear(self) -> None:
        self.results.clear()
        testing.clear()


class Immediate(PgqueueBackend):
    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        result = super().enqueue(task, args, kwargs)
        testing.run_tasks(task.queue_name)
        result.refresh()
        return result


dummy.DummyBackend = Dummy
immediate.ImmediateBackend = Immediate
SimpleTestCase.databases = {"default"}


@pytest.fixture(scope="session", autouse=True)
def test_database() -> Any:
    name = connection.settings_dict["NAME"]
    connection.creation.create_test_db(verbosity=0, autoclobber=True)
    yield
    connection.creation.destroy_test_db(name, verbosity=0)
