"""A handler of tasks as a function with an app context around it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from flask import Flask

from ...worker.handlers import is_async


def in_context(app: Flask, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, sync or async, in an app context. Its parameters stay: a worker checks whether one is `task`."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with app.app_context():
            return function(*args, **kwargs)

    @functools.wraps(function)
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        with app.app_context():
            return await function(*args, **kwargs)

    return call_async if is_async(function) else call
