"""How a child process of a worker becomes a process of a framework: the setup that integrations give to a worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class ChildSetup:
    """A function that a child process calls first, before it imports the modules of jobs.

    The function returns the middleware that surrounds each run in the child, inside of the job's own middleware, which
    runs in the worker. If the function raises, the task fails with that error, and the next task gets a new process.

    Attributes:
        path: the function, as `module:name`.
        given: its arguments by name, as JSON values.
    """

    path: str
    given: dict[str, Any] = field(default_factory=dict)


def no_setup() -> None:
    """Of a client without a framework."""


#: Where a child process finds a job that is no name of a module, during one of its runs: the path of a function as
#: `module:name`, and its arguments by name, as JSON values. The function returns the job for this run.
Finder: TypeAlias = Callable[[], tuple[str, dict[str, Any]]]
