"""The retries of a task whose handler raised: it is tried again after a while, or buried.

A `Retry` is the policy of a job. A handler that knows better raises `RetryLater` or `Bury`; both work in plain
handlers too. The worker asks `Retry.after` once for each failed attempt.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, cast

from .._values import arguments
from .._values.arguments import Seconds

Errors: TypeAlias = type[BaseException] | tuple[type[BaseException], ...]


class Bury(Exception):
    """Raised by a handler: bury the task now, even if it has attempts left.

    Args:
        reason: kept with the task as its error.
    """

    def __init__(self, reason: str = "its handler gave it up") -> None:
        super().__init__(reason)


class Unrunnable(Bury):
    """Internal: the worker cannot call the job of a task. No handler raised it, so its traceback says nothing."""


class Newer(Unrunnable):
    """Internal: a worker with other code may be able to. Workers let the task wait for that: worker/newer.py."""


class RetryLater(Exception):
    """Raised by a handler: try the task again after this time, in place of its policy's delay.

    Args:
        after: seconds, or a timedelta.
        reason: kept with the task as the error of the attempt.
        counts: whether this was a failed attempt. If so, the task is buried when it was the last one. False: it may be
            tried any number of times, for example until a file exists.
        hold_lane: whether the task's lane waits for it during that time. None: as the policy says.

    Raises:
        ValueError: the time is not valid.
    """

    def __init__(
        self,
        after: Seconds,
        reason: str = "its handler asked for another attempt",
        *,
        counts: bool = True,
        hold_lane: bool | None = None,
    ) -> None:
        super().__init__(reason)
        self.after = arguments.required_seconds("after", after)
        self.counts = arguments.flag("counts", counts)
        self.hold_lane = hold_lane if hold_lane is None else arguments.flag("hold_lane", hold_lane)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """When a task that failed is tried again, and when it is buried.

    Attributes:
        attempts: after this number of failed attempts the task is buried. None: never.
        takes: at this number of attempts, failed ones and those lost with a worker together, a task that comes back is
            buried without a run: it may itself have killed the workers. None: as many as `attempts`.
        delay: seconds, or a timedelta, after the first failed attempt.
        factor: each further delay is this much longer; 1 is a fixed delay.
        max_delay: the longest delay, in seconds or as a timedelta.
        jitter: whether the delay is a random part of that time, which spreads tasks that failed together.
        on: the exceptions that are tried again; any other buries the task. (), the default: all. TimeLimitExceeded and
            ProcessDied are exceptions as well.
        never: the exceptions that bury the task, also where `on` has a base class of them.
        choose: a function of the number of failed attempts and the exception, called for exceptions that `on` and
            `never` let through. It returns the delay (seconds, or a timedelta), or None to bury the task. `delay`,
            `factor`, `max_delay` and `jitter` do not apply then.
        hold_lane: whether the lane of the task waits for it during the delay; else the next task of the lane goes on.

    Raises:
        ValueError: one of them is out of range or of another type.
    """

    attempts: int | None = 20
    takes: int | None = None
    delay: Seconds = 1.0
    factor: float = 2.0
    max_delay: Seconds = 3600.0
    jitter: bool = True
    on: Errors = ()
    never: Errors = ()
    choose: Callable[[int, BaseException], Seconds | None] | None = None
    hold_lane: bool = True

    def __post_init__(self) -> None:
        arguments.integer("attempts", self.attempts, 1)
        arguments.integer("takes", self.takes, 1)
        for name in ("delay", "max_delay"):
            object.__setattr__(self, name, arguments.required_seconds(name, getattr(self, name)))
        factor = self.factor
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor < math.inf:
            raise ValueError(f"factor must be a number from 1, not {factor!r}")
        for name in ("jitter", "hold_lane"):
            arguments.flag(name, getattr(self, name))
        for name in ("on", "never"):
            object.__setattr__(self, name, _errors(name, getattr(self, name)))
        if self.choose is not None and not callable(self.choose):
            raise ValueError(f"choose must be a function of (attempts, exception), not {self.choose!r}")

    def exhausted(self, attempts: int) -> bool:
        """Whether a task with this number of failed attempts is not tried again."""
        return self.attempts is not None and attempts >= self.attempts

    def poisoned(self, attempts: int) -> bool:
        """Whether a task with this number of attempts, failed ones and lost ones, is not run again."""
        most = self.most_takes
        return most is not None and attempts >= most

    @property
    def most_takes(self) -> int | None:
        """The number of attempts, failed ones and lost ones, after which a task is not run again; None: no limit."""
        return self.attempts if self.takes is None else self.takes

    def after(self, attempts: int, error: BaseException | None = None) -> float | None:
        """Seconds until the next attempt after this number of failed ones, the last of them by `error`; None: bury the
        task.

        Raises any exception of `choose`, and ValueError for a wrong value that it returns.
        """
        if self.exhausted(attempts):
            return None
        if error is not None and not self._covers(error):
            return None
        if self.choose is not None and error is not None:
            return arguments.seconds("the delay that choose() returned", self.choose(attempts, error))
        return self._delay(attempts)

    def _covers(self, error: BaseException) -> bool:
        if self.never and isinstance(error, self.never):
            return False
        return not self.on or isinstance(error, self.on)

    def _delay(self, attempts: int) -> float:
        delay, longest = cast(float, self.delay), cast(float, self.max_delay)
        try:
            longest = min(longest, delay * float(self.factor) ** (attempts - 1))
        except OverflowError:
            longest = min(longest, delay and math.inf)
        return random.uniform(0, longest) if self.jitter else longest


def _errors(name: str, given: object) -> tuple[type[BaseException], ...]:
    found = given if isinstance(given, tuple) else (given,)
    for one in found:
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise ValueError(f"{name} must be an exception class or a tuple of them, not {one!r}")
    return found
