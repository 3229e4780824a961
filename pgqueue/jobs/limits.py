"""The limits that a job's code declares: how many of its tasks run at once, and how many begin in a time.

A worker declares them before its first claim (worker/limiting.py), and the database counts (4_rules/limits/meters.sql).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .._calls.limits import Terms
from .._values import arguments
from .._values.arguments import Seconds
from .signature import Signature, place

LIMIT = ("concurrency", "rate", "limit_by")  # the options of Client.job that are limits


@dataclass(frozen=True, slots=True)
class Rate:
    """How many tasks of a job begin in a time; each attempt counts.

    Attributes:
        limit: the number in each period on average, from 1 to 1,000,000; in any one at most `burst` more.
        per: the period: seconds, or a timedelta.
        burst: how many may begin at once after a pause. None: a tenth of the limit, and at least 1.

    Raises:
        ValueError: one of them is out of range or of another type.
    """

    limit: int
    per: Seconds = 1
    burst: int | None = None

    def __post_init__(self) -> None:
        arguments.count("limit", self.limit)
        Terms(rate=self.limit, per=self.per, burst=self.burst)


def limit_of(signature: Signature, function: Callable[..., Any], concurrency: Any, rate: Any, limit_by: Any) -> Terms:
    """The limit of a job, as it was given to Client.job; empty: no limit. Raises ValueError, which names the place."""
    try:
        if rate is not None and not isinstance(rate, Rate):
            raise ValueError(f"rate must be a Rate, for example Rate(100, per=60), not {rate!r}")
        if limit_by is not None and limit_by not in list(signature.parameters):  # a list has no hash
            known = ", ".join(signature.parameters) or "it has none"
            raise ValueError(f"limit_by must be the name of a parameter ({known}), not {limit_by!r}")
        found = Terms(concurrency=concurrency, argument=limit_by)
        if rate is not None:
            found = replace(found, rate=rate.limit, per=rate.per, burst=rate.burst)
        if found.empty and limit_by is not None:
            raise ValueError("limit_by goes with a concurrency or a rate")
        if not found.empty:
            arguments.label("job's name", signature.job)
    except ValueError as error:
        raise ValueError(f"job {signature.job} ({place(function)}): {error}") from None
    return found
