"""The retries of a failed task: again after a growing, random delay, or buried."""

from __future__ import annotations

import random
from dataclasses import dataclass

from .._values import arguments
from .._values.arguments import Seconds


@dataclass(frozen=True, slots=True)
class Policy:
    """Attributes: max_attempts; retry_delay and max_retry_delay, both in seconds."""

    max_attempts: int
    retry_delay: float
    max_retry_delay: float

    @classmethod
    def of(cls, max_attempts: int = 20, retry_delay: Seconds = 1.0, max_retry_delay: Seconds = 3600.0) -> Policy:
        """As given to a worker. Raises ValueError."""
        return cls(
            arguments.count("max_attempts", max_attempts),
            arguments.required_seconds("retry_delay", retry_delay),
            arguments.required_seconds("max_retry_delay", max_retry_delay),
        )

    def exhausted(self, attempts: int) -> bool:
        """Whether a task with this number of failed attempts is not tried again."""
        return attempts >= self.max_attempts

    def delay(self, attempts: int) -> float:
        """Seconds until the next attempt: full jitter, which spreads the retries of tasks that failed together."""
        longest = self.retry_delay * 2.0 ** min(attempts - 1, 60)
        return random.uniform(0, min(longest, self.max_retry_delay))
