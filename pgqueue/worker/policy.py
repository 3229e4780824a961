"""The retries of a failed task: again after a growing, random delay, or buried."""

from __future__ import annotations

import random
from dataclasses import dataclass

from .._values import arguments


@dataclass(frozen=True, slots=True)
class Policy:
    """Attributes: max_attempts; retry_delay and max_retry_delay, both in seconds."""

    max_attempts: int = 20
    retry_delay: float = 1.0
    max_retry_delay: float = 3600.0

    def __post_init__(self) -> None:
        arguments.count("max_attempts", self.max_attempts)
        arguments.seconds("retry_delay", self.retry_delay)
        arguments.seconds("max_retry_delay", self.max_retry_delay)

    def exhausted(self, attempts: int) -> bool:
        """Whether a task with this number of failed attempts is not tried again."""
        return attempts >= self.max_attempts

    def delay(self, attempts: int) -> float:
        """Seconds until the next attempt: full jitter, which spreads the retries of tasks that failed together."""
        longest = self.retry_delay * 2.0 ** min(attempts - 1, 60)
        return random.uniform(0, min(longest, self.max_retry_delay))
