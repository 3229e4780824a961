"""The OPTIONS of a backend of django.tasks."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from ..._values import arguments
from ...worker.policy import Policy


@dataclass(frozen=True, kw_only=True)
class Options:
    """The OPTIONS of a backend, checked. Times are given in seconds or as timedeltas, and kept in seconds.

    Attributes:
        database: the alias of the queues' database.
        keep_results: the time for which a result is kept after the task's end.
        max_attempts: after this number of failed attempts a task has failed. 1: it is not tried again.
        retry_delay: a failed task is tried again after a random delay of up to retry_delay * 2 ** (attempts - 1).
        max_retry_delay: the longest such delay.
        policy: the last three as a Policy.
    """

    database: str = "default"
    keep_results: float = 86400.0
    max_attempts: int = 1
    retry_delay: float = 1.0
    max_retry_delay: float = 3600.0
    policy: Policy = field(init=False)

    def __post_init__(self) -> None:
        keep = arguments.required_seconds("keep_results", self.keep_results, positive=True)
        object.__setattr__(self, "keep_results", keep)
        object.__setattr__(self, "policy", Policy.of(self.max_attempts, self.retry_delay, self.max_retry_delay))

    @classmethod
    def of(cls, given: dict[str, Any]) -> Options:
        """Raises ValueError."""
        if not isinstance(given, dict):
            raise ValueError(f"they must be a dict, not {given!r}")
        names = [option.name for option in fields(cls) if option.init]
        if unknown := [name for name in given if name not in names]:
            raise ValueError(f"there is no option {unknown[0]!r}: there are {', '.join(names)}")
        return cls(**given)
