"""A mixin for unittest."""

from __future__ import annotations

from typing import Any, ClassVar

from ..jobs.clients import AsyncClient, Client
from .memory import Tasks, without_database


class JobsMixin:
    """Before a TestCase among the bases: the tasks of `client` are kept in memory during each test, as `self.tasks`.

    Attributes:
        client: set by the test's class.
        inline: whether each task runs in its put.
        tasks: the tasks of the test.
    """

    client: ClassVar[Client | AsyncClient]
    inline: ClassVar[bool] = False
    tasks: Tasks

    def setUp(self: Any) -> None:
        super().setUp()  # type: ignore[misc]  # that of the TestCase
        self.tasks = self.enterContext(without_database(self.client, inline=self.inline))
