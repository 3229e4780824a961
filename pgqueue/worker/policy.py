"""The policy of a worker: the Retry of plain handlers, and of jobs without one of their own."""

from __future__ import annotations

from .._values import arguments
from .._values.arguments import Seconds
from ..jobs.retry import Retry


def policy(max_attempts: int = 20, retry_delay: Seconds = 1.0, max_retry_delay: Seconds = 3600.0) -> Retry:
    """As given to a worker. Raises ValueError."""
    return Retry(
        attempts=arguments.count("max_attempts", max_attempts),
        delay=arguments.required_seconds("retry_delay", retry_delay),
        max_delay=arguments.required_seconds("max_retry_delay", max_retry_delay),
    )
