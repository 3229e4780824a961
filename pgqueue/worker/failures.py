"""The outcome of a failed attempt: one record, decided where the handler was called, which the settler sends."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from .._calls.attempts import Report
from .._calls.results import Failed
from .._calls.take import Taken
from ..errors import TimeLimitExceeded
from ..jobs.retry import Bury, Retry, RetryLater, Unrunnable
from .describing import describe, formatted, unwrapped

State = Literal["failed", "timeout", "cancelled"]
OWN = (Unrunnable, TimeLimitExceeded)  # made by the worker: the message is enough, and a traceback adds nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failed attempt of a task.

    Attributes:
        task: the row of the take.
        error: the error in one line; kept with the task.
        traceback: of the exception, if there was one.
        began: when the handler was called, in seconds since 1970 by this machine's clock.
        delay: seconds until the next attempt; None: the task is buried.
        counts: whether it counts as a failed attempt; if not, it is only recorded.
        state: how the attempt ended.
        hold_lane: whether the task's lane waits for it during the delay.
        keep: seconds for which to keep that the task failed for good, for its result(); None: it is not kept.
        exception: for the log, and for those that report errors elsewhere.
        job: the name of the job; None for a plain handler.
        begun: the same moment as `began`, by the monotonic clock.
        ran: how long the handler ran, in seconds.
    """

    task: Taken
    error: str
    began: float
    delay: float | None
    traceback: str | None = None
    counts: bool = True
    state: State = "failed"
    hold_lane: bool = True
    keep: float | None = None
    exception: BaseException | None = None
    job: str | None = None
    begun: float = 0.0
    ran: float = 0.0


def failure(
    task: Taken,
    error: BaseException | str,
    retry: Retry,
    began: float,
    *,
    state: State = "failed",
    keep: float | None = None,
    job: str | None = None,
) -> Failure:
    """The failed attempt of a task, with the policy's decision. Never raises.

    Args:
        error: the handler's exception, or why it was ended; a text is from a batch handler, and of no class.
        retry: the policy. A Bury or RetryLater decides itself.
        began: the monotonic time at which the handler was called.
    """
    if isinstance(error, BaseException):
        error = unwrapped(error)
    said = str(error) if isinstance(error, (str, *OWN)) else describe(error)
    exception = None if isinstance(error, (str, *OWN)) else error
    counts, hold_lane = True, retry.hold_lane
    failed = task.attempts + 1
    try:
        if isinstance(error, RetryLater):
            said, counts = str(error), error.counts
            hold_lane = retry.hold_lane if error.hold_lane is None else error.hold_lane
            delay = None if counts and retry.exhausted(failed) else error.after
        elif isinstance(error, Bury):
            said, delay = str(error), None
        else:
            delay = retry.after(failed, None if isinstance(error, str) else error)
    except BaseException as other:  # of any kind: the policy's function is the user's
        said, delay = f"{said}; and its retry policy failed: {describe(other)}", None
    return Failure(
        task=task,
        error=said,
        traceback=None if exception is None else formatted(exception),
        began=time.time() - (time.monotonic() - began),
        delay=delay,
        counts=counts,
        state=state,
        hold_lane=hold_lane,
        keep=keep,
        exception=exception,
        job=job,
        begun=began,
        ran=time.monotonic() - began,
    )


def recorded(failed: Failure) -> Failed:
    """A failed attempt as the database records it. A task that was cancelled is given back: the release ends it."""
    return Failed(
        id=failed.task.id,
        token=failed.task.token,
        error=failed.error,
        keep=failed.keep if failed.counts else None,
        delay=0.0 if failed.state == "cancelled" else failed.delay,
        hold_lane=failed.hold_lane,
        report=Report(failed.traceback, failed.began, None, failed.state, failed.counts),
    )
