"""The queues of a worker, each with a plain handler or with jobs."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

from .._calls.take import Taken
from .._values import arguments
from ..jobs.clients import AnyClient
from ..jobs.options import BatchHandler
from ..jobs.registry import Registry
from ..jobs.retry import Retry
from ..jobs.signature import is_async
from . import dispatch
from .handlers import Handler, bind, bind_async
from .homes import AnyHomes
from .means import Means, is_isolated, path
from .serving import Finish, Policy, Serving


@dataclass(frozen=True, slots=True)
class Served:
    """The queues of a worker.

    Attributes:
        handlers: the plain handlers, by queue.
        batches: the batch handlers, by queue.
        keep: seconds for which their results are kept, by queue.
        queues: of jobs: each queue that a job names as its own, that has a registry, or that was asked for.
        jobs: all jobs of the client. A task of any of them may be in any of the queues of jobs.
        registries: more jobs, by queue, and by name.
    """

    handlers: Mapping[str, Handler]
    batches: Mapping[str, BatchHandler]
    keep: Mapping[str, float]
    queues: Collection[str]
    jobs: Registry
    registries: Mapping[str, dispatch.Jobs]

    @classmethod
    def of(
        cls,
        client: AnyClient,
        given: Mapping[str, Handler] | None = None,
        queues: Collection[str] | None = None,
        exclude: Collection[str] = (),
    ) -> Served:
        """The handlers and jobs that a client has registered, or the given handlers; of the chosen queues, without the
        excluded ones.

        Raises:
            ValueError: there is nothing to serve, a chosen queue has no handler, an excluded one is not there, or a
                queue has a plain handler and jobs.
        """
        handlers = client.handlers if given is None else given
        batches = client.batch_handlers if given is None else {}
        jobs = client.jobs if given is None else Registry()
        registries = client.registries if given is None else {}
        of_jobs = {**registries, **jobs.by_queue()}
        found = [*handlers, *batches, *of_jobs]
        for queue in found:
            arguments.queue_name(queue)
            if found.count(queue) > 1:
                kinds = {"a handler": handlers, "a batch handler": batches, "jobs": of_jobs}
                both = " and ".join(kind for kind, queues in kinds.items() if queue in queues)
                raise ValueError(f"queue {queue!r} has {both}: a queue has one of these")
        if not found:
            raise ValueError("a worker needs a handler or a job: register one with @client.job() or @client.handler()")
        chosen = _chosen(found, bool(of_jobs), queues, exclude)
        return cls(
            {queue: handlers[queue] for queue in chosen if queue in handlers},
            {queue: batches[queue] for queue in chosen if queue in batches},
            {queue: keep for queue, keep in (client.keep_results if given is None else {}).items() if queue in chosen},
            [queue for queue in chosen if queue not in handlers and queue not in batches],
            jobs,
            {queue: registry for queue, registry in registries.items() if queue in chosen},
        )

    @property
    def names(self) -> list[str]:
        """The names of all queues."""
        return [*self.handlers, *self.batches, *self.queues]

    def blocking(self, homes: AnyHomes, retry: Retry, finish: Finish, means: Means) -> dict[str, Serving[bool]]:
        """The queues whose tasks run in threads."""
        served: dict[str, Serving[bool]] = {
            queue: Serving(bind(homes, function, self._finish(queue, finish)), self.policy(queue, retry))
            for queue, function in self.handlers.items()
            if not is_async(function)
        }
        if queues := [queue for queue in self.queues if not self._all_async(queue)]:
            served |= dict.fromkeys(queues, dispatch.serve(homes, self.jobs.names, retry, finish, means))
        for queue, registry in self.registries.items():
            jobs: dispatch.Jobs = ChainMap(self.jobs.names, registry)  # type: ignore[arg-type]  # which is only read
            served[queue] = dispatch.serve(homes, jobs, retry, finish, means)
        return served

    def awaiting(
        self, homes: AnyHomes, aio: AnyHomes, retry: Retry, finish: Finish, means: Means
    ) -> dict[str, Serving[Awaitable[bool]]]:
        """The queues whose tasks run in coroutines of one loop, to which the connections of `aio` belong."""
        served: dict[str, Serving[Awaitable[bool]]] = {
            queue: Serving(
                means.softly(bind_async(aio, function, self._finish(queue, finish))), self.policy(queue, retry)
            )
            for queue, function in self.handlers.items()
            if is_async(function)
        }
        if queues := [queue for queue in self.queues if self._all_async(queue)]:
            served |= dict.fromkeys(queues, dispatch.serve_async(homes, aio, self.jobs.names, retry, finish, means))
        return served

    def modules(self) -> list[str]:
        """The modules of the jobs that run in processes of their own. Raises ValueError: one cannot be imported."""
        isolated = (job for job in self.jobs.values() if is_isolated(job))
        return sorted({path(job).partition(":")[0] for job in isolated}) if self.queues else []

    def max_attempts(self, retry: Retry) -> int | None:
        """The lowest limit of attempts of a handler or a job; `retry` is that of all without their own. None: none."""
        known = [getattr(one, "retry", None) or retry for one in self.registries.values()]  # one may list no jobs yet
        own = [*known, *(job.settings.retry or retry for job in self.jobs.values())] if self.queues else []
        plain = [retry] if self.handlers or self.batches else []
        return min((one.most_takes for one in [*own, *plain] if one.most_takes is not None), default=None)

    def policy(self, queue: str, retry: Retry) -> Callable[[Taken], Policy]:
        """Of the tasks of a plain or batch handler."""
        policy = Policy(retry, self.keep.get(queue))
        return lambda row: policy

    def _finish(self, queue: str, finish: Finish) -> Callable[[Taken, str], None] | None:
        return partial(_keep, finish, self.keep[queue]) if queue in self.keep else None

    def _all_async(self, queue: str) -> bool:
        """Whether the jobs of this queue run in a loop; of a queue that is no job's own, all jobs."""
        jobs = self.jobs.by_queue().get(queue) or self.jobs.values()
        return queue not in self.registries and all(job.is_async and not is_isolated(job) for job in jobs)


def _keep(finish: Finish, keep: float, row: Taken, result: str) -> None:
    finish(row, result, keep)


def _chosen(
    found: Collection[str], any_jobs: bool, queues: Collection[str] | None, exclude: Collection[str]
) -> list[str]:
    if isinstance(queues, str) or isinstance(exclude, str):
        raise ValueError(f"queues and exclude are lists of names, not {queues!r} and {exclude!r}")
    asked = list(found) if queues is None else arguments.queue_names(list(queues))
    if not any_jobs and (missing := [queue for queue in asked if queue not in found]):
        raise ValueError(f"there is no handler for queue {missing[0]!r}, only for {', '.join(found)}")
    if missing := [queue for queue in exclude if queue not in found]:
        raise ValueError(f"queue {missing[0]!r} cannot be excluded: there are {', '.join(found)}")
    chosen = [queue for queue in asked if queue not in exclude]
    if not chosen:
        raise ValueError("no queue is left to serve: all are excluded")
    return chosen
