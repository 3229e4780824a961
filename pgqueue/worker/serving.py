"""The tasks of one queue in a worker: how one is run, and the policy for its failed attempts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from .._calls.take import Taken
from ..jobs.retry import Retry, Unrunnable
from .failures import Failure, State, failure

T = TypeVar("T")
Finish = Callable[[Taken, str, float], None]  # with the result, as JSON, and the seconds for which to keep it

POISON = "not tried again: it came back too often (its takers died, or it was failed elsewhere)"


@dataclass(frozen=True, slots=True)
class Policy:
    """The policy for the failed attempts of a task. `keep`: seconds for the outcome; None: it is not kept."""

    retry: Retry
    keep: float | None = None
    job: str | None = None


@dataclass(frozen=True, slots=True)
class Serving(Generic[T]):
    """A queue that is served: by a plain handler (handlers.py) or by jobs (dispatch.py).

    Attributes:
        run: calls the handler on a row. Returns (or its awaitable does) whether the task is settled, or will be:
            else the worker acks it. Of a batch handler: see BoundBatch.
        policy: of a row; only asked about tasks that have failed. Does not raise.
    """

    run: Callable[..., T]
    policy: Callable[[Taken], Policy]

    def refusal(self, task: Taken) -> Unrunnable | None:
        """Why a task that was taken again is not run again; None: it is."""
        return Unrunnable(POISON) if self.policy(task).retry.poisoned(task.attempts) else None

    def failure(self, task: Taken, error: BaseException | str, began: float, *, state: State = "failed") -> Failure:
        """The failed attempt; `began` is the monotonic time at which the handler was called. Never raises."""
        policy = self.policy(task)
        return failure(task, error, policy.retry, began, state=state, keep=policy.keep, job=policy.job)
