"""The OPTIONS of a backend of django.tasks."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

from ..._values import arguments
from ...jobs.options import Isolation
from ...jobs.retry import Retry
from ...worker.policy import policy

TAKES = 20  # after this number of takes a task whose workers die is not run again


@dataclass(frozen=True, kw_only=True)
class Options:
    """The OPTIONS of a backend, checked. Times are given in seconds or as timedeltas, and kept in seconds.

    Attributes:
        database: the alias of the queues' database.
        keep_results: the time for which a result is kept after the task's end.
        max_attempts: after this number of failed attempts a task has failed. 1: it is not tried again.
        retry_delay: a failed task is tried again after a random delay of up to retry_delay * 2 ** (attempts - 1).
        max_retry_delay: the longest such delay.
        timeout: the time limit of an attempt. None: the worker's.
        soft_timeout: the time after which SoftTimeLimit is raised in a task. None: the worker's.
        isolation: "process" runs each task in a child process of the worker, "thread" in the worker.
        retry: the attempts and their delays as a Retry.
    """

    database: str = "default"
    keep_results: float = 86400.0
    max_attempts: int = 1
    retry_delay: float = 1.0
    max_retry_delay: float = 3600.0
    timeout: float | None = None
    soft_timeout: float | None = None
    isolation: Isolation = "thread"
    retry: Retry = field(init=False)

    def __post_init__(self) -> None:
        keep = arguments.required_seconds("keep_results", self.keep_results, positive=True)
        object.__setattr__(self, "keep_results", keep)
        for name in ("timeout", "soft_timeout"):
            object.__setattr__(self, name, arguments.seconds(name, getattr(self, name), positive=True))
        if self.isolation not in ("thread", "process"):
            raise ValueError(f"isolation is 'thread' or 'process', not {self.isolation!r}")
        retry = policy(self.max_attempts, self.retry_delay, self.max_retry_delay)
        object.__setattr__(self, "retry", replace(retry, takes=max(TAKES, self.max_attempts)))

    @classmethod
    def of(cls, given: dict[str, Any]) -> Options:
        """Raises ValueError."""
        if not isinstance(given, dict):
            raise ValueError(f"they must be a dict, not {given!r}")
        names = [option.name for option in fields(cls) if option.init]
        if unknown := [name for name in given if name not in names]:
            raise ValueError(f"there is no option {unknown[0]!r}: there are {', '.join(names)}")
        return cls(**given)
