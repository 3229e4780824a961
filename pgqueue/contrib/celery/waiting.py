"""How AsyncResult.get() and ResultSet.join() wait: for NOTIFY, over the one listener connection of the process.

Celery's own backends poll, or have one thread in turn read for all. Here each waiting thread follows the statuses of
its own tasks (client.statuses.follow), and the listener wakes a thread only when one of these was set.

A follow looks before its LISTEN and behind it. For `delay().get()` the first look is left out: there is seldom a result
that early. The look behind the LISTEN finds it if there is one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeGuard

from celery import states
from celery.exceptions import TimeoutError as CeleryTimeoutError

from ..._engine.waits import finite
from ..._sync.statuses import followed

Meta = dict[str, Any]


class Waiting:
    """The part of the backend that waits. The backend has `client`, `get_key_for_task` and `meta_of`."""

    client: Any
    get_key_for_task: Any
    meta_of: Callable[[Any], Meta]
    _ensure_not_eager: Callable[[], None]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sent = threading.local()  # `id`: of the task that this thread has sent last

    def on_task_call(self, producer: Any, task_id: str) -> None:
        """Celery is about to send a task."""
        self._sent.id = task_id

    @property
    def is_async(self) -> bool:
        """True: the callbacks of then() run as soon as a result that was waited for is ready."""
        return True

    def add_pending_result(self, result: Any, weak: bool = False) -> Any:
        """Register nothing: a thread that waits follows the tasks itself."""
        return result

    def remove_pending_result(self, result: Any) -> Any:
        return result

    def wait_for_pending(
        self,
        result: Any,
        timeout: float | None = None,
        interval: float = 0.5,
        no_ack: bool = True,
        on_message: Callable[[Meta], Any] | None = None,
        on_interval: Callable[[], Any] | None = None,
        callback: Callable[[str, Any], Any] | None = None,
        propagate: bool = True,
    ) -> Any:
        self._ensure_not_eager()
        parents = _parents_of(result) if _checks_parents(on_interval) else []
        for task_id, meta in self._each([result.id, *parents], timeout, interval, on_interval, on_message):
            if task_id == result.id:
                result._maybe_set_cache(meta)
            if meta["status"] in states.PROPAGATE_STATES and _checks_parents(on_interval):
                on_interval()  # raises the error of a parent, which precedes that of the task itself
            if task_id == result.id:
                break
        return result.maybe_throw(callback=callback, propagate=propagate)

    def wait_for(
        self,
        task_id: str,
        timeout: float | None = None,
        interval: float = 0.5,
        no_ack: bool = True,
        on_interval: Callable[[], Any] | None = None,
    ) -> Meta:
        self._ensure_not_eager()
        _, meta = next(self._each([task_id], timeout, interval, on_interval, None))
        return meta

    def iter_native(
        self,
        result: Any,
        timeout: float | None = None,
        interval: float = 0.5,
        no_ack: bool = True,
        on_message: Callable[[Meta], Any] | None = None,
        on_interval: Callable[[], Any] | None = None,
    ) -> Iterator[tuple[str, Any]]:
        self._ensure_not_eager()
        waiting: dict[str, list[Any]] = {}
        for node in result.results:
            if not hasattr(node, "_cache"):
                yield node.id, node.children  # a set in the set, whose members wait for themselves
            elif node._cache:
                yield node.id, node._cache
            else:
                waiting.setdefault(node.id, []).append(node)
        for task_id, meta in self._each(waiting, timeout, interval, on_interval, on_message):
            for node in waiting[task_id]:
                node._maybe_set_cache(dict(meta))
                yield task_id, node._cache

    def get_many(
        self,
        task_ids: Iterable[str],
        timeout: float | None = None,
        interval: float = 0.5,
        no_ack: bool = True,
        on_message: Callable[[Meta], Any] | None = None,
        on_interval: Callable[[], Any] | None = None,
        max_iterations: int | None = None,
        READY_STATES: frozenset[str] = states.READY_STATES,
    ) -> Iterator[tuple[str, Meta]]:
        limit = timeout if not max_iterations else min(timeout or float("inf"), max_iterations * (interval or 0.5))
        try:
            yield from self._each(list(task_ids), limit, interval, on_interval, on_message, READY_STATES)
        except CeleryTimeoutError:
            if limit == timeout:
                raise

    def _each(
        self,
        ids: Iterable[str],
        timeout: float | None,
        interval: float | None,
        on_interval: Callable[[], Any] | None,
        on_message: Callable[[Meta], Any] | None,
        wanted: frozenset[str] = states.READY_STATES,
    ) -> Iterator[tuple[str, Meta]]:
        """Each of the tasks with its meta data, as soon as its state is a wanted one. Raises celery's TimeoutError."""
        missing = {self.get_key_for_task(id): id for id in ids}
        unset = list(missing.values()) == [getattr(self._sent, "id", None)]
        end = float("inf") if timeout is None else time.monotonic() + timeout
        until = _until(wanted, self.meta_of, on_message)
        while missing:
            left = max(0.0, end - time.monotonic())
            if _is_wanted(on_interval):
                left = min(left, interval or 0.5)
            try:
                for key, status in followed(self.client.shell, missing, until, finite(left), unset=unset):
                    yield missing.pop(key), self.meta_of(status)
            except TimeoutError:
                if on_interval is not None:
                    on_interval()
                if time.monotonic() >= end:
                    raise CeleryTimeoutError(f"the operation timed out: {len(missing)} results are missing") from None


def _until(
    wanted: frozenset[str], meta_of: Callable[[Any], Meta], on_message: Callable[[Meta], Any] | None
) -> Callable[[Any], bool]:
    """Whether a status is that of a task in a wanted state. `on_message` gets the meta data of each status once."""
    told: list[Any] = []

    def holds(status: Any) -> bool:
        if on_message is not None and status not in told:
            told.append(status)
            on_message(meta_of(status))
        return status["state"] in wanted

    return holds


def _parents_of(result: Any) -> list[str]:
    """The tasks before a task in its chain: one that was revoked leaves those behind it without a result.

    The header of a chord is not among them: its body ends as well, with a ChordError, once all members have ended.
    """
    return [node.id for node in result._parents() if hasattr(node, "_cache")]


def _checks_parents(on_interval: Any) -> TypeGuard[Callable[[], Any]]:
    """Whether AsyncResult.get() wants to know of failed parents: its promise then has a function of its own."""
    return getattr(on_interval, "fun", None) is not None


def _is_wanted(on_interval: Any) -> bool:
    """Whether a function is to be called at intervals.

    AsyncResult.get() always passes a promise. Its caller's function, if there is one, is attached to that promise.
    """
    return on_interval is not None and any(getattr(on_interval, "listeners", [on_interval]))
