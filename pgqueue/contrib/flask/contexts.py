"""App contexts around handlers and jobs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flask import Flask

from ...jobs.signature import is_async


class InContext:
    """A middleware: an app context around the run of a job, sync or async."""

    def __init__(self, app: Flask) -> None:
        self._app = app

    @contextmanager
    def run(self, run: object = None) -> Iterator[None]:
        with self._app.app_context():
            yield


def in_context(app: Flask, function: Callable[..., Any]) -> Callable[..., Any]:
    """A handler in an app context. Its parameters stay: a worker checks whether one is `task`."""
    context = InContext(app)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with context.run():
            return function(*args, **kwargs)

    @functools.wraps(function)
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        with context.run():
            return await function(*args, **kwargs)

    return call_async if is_async(function) else call
