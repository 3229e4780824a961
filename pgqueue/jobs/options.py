"""The options of a job, and the options of one put."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypedDict

from .._calls.put_options import PutArguments, PutOptions
from .._values import arguments
from .._values.arguments import Seconds
from .limits import LIMIT, Rate
from .middleware import checked
from .own import written
from .retry import Retry
from .words import unknown

Isolation = Literal["thread", "process"]
QUEUE = "default"  # of jobs that name none
UNSET: Any = None


class Policies(TypedDict, total=False):
    """The options of Client.job and job_defaults that are policies; Client.job explains them."""

    retry: Retry | None
    keep_result: Seconds | None
    timeout: Seconds | None
    soft_timeout: Seconds | None
    isolation: Isolation | None
    priority: int | None
    ttl: Seconds | None
    ttr: Seconds | None
    unique_data: bool | None
    unique_for: Seconds | None
    middleware: Sequence[Any]


class JobPolicies(Policies, total=False):
    """The options of Client.job that are no policies for all jobs."""

    concurrency: int | None
    rate: Rate | None
    limit_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The policies of a job; None: the client's default, and if that has none either, the queue's or the worker's.

    Times in seconds. Checked when made; raises ValueError.

    Attributes:
        given: the names of policies for which None means none, and not the client's default.
    """

    given: frozenset[str] = frozenset()

    queue: str | None = None
    retry: Retry | None = None
    keep_result: Seconds | None = None
    timeout: Seconds | None = None
    soft_timeout: Seconds | None = None
    isolation: Isolation | None = None
    priority: int | None = None
    ttl: Seconds | None = None
    ttr: Seconds | None = None
    unique_data: bool | None = None
    unique_for: Seconds | None = None
    middleware: Sequence[Any] = ()

    def __post_init__(self) -> None:
        if self.queue is not None:
            arguments.queue_name(self.queue)
        if self.retry is not None and not isinstance(self.retry, Retry):
            raise ValueError(f"retry must be a Retry, not {self.retry!r}")
        for name in ("timeout", "soft_timeout", "ttl", "ttr", "unique_for"):
            self._set(name, arguments.seconds(name, getattr(self, name), positive=True))
        self._set("keep_result", arguments.seconds("keep_result", self.keep_result))
        self._set("middleware", checked(self.middleware))
        arguments.integer("priority", self.priority)
        if self.unique_data is not None:
            arguments.flag("unique_data", self.unique_data)
        if self.isolation not in (None, "thread", "process"):
            raise ValueError(f"isolation is 'thread' or 'process', not {self.isolation!r}")

    @classmethod
    def of(cls, call: str, queue: str | None, policies: Policies) -> Settings:
        """From the keyword arguments of a call. Raises ValueError, and TypeError: there is no such policy."""
        if strange := sorted(policies.keys() - Policies.__annotations__.keys()):
            known = ("queue", *Policies.__annotations__) if call == DEFAULTS else JOB_OPTIONS
            raise TypeError(unknown(call, strange[0], known))
        return cls(queue=queue, given=frozenset(policies), **policies)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def over(self, defaults: Settings) -> Settings:
        """These, and the defaults for the others. Middleware of both: that of the defaults is outside."""
        said = {name: getattr(self, name) for name in (one.name for one in fields(self)) if name != "given"}
        given = {name: value for name, value in said.items() if value is not None or name in self.given}
        given["middleware"] = (*defaults.middleware, *self.middleware)
        return replace(defaults, **given)


class JobPutArguments(PutArguments, total=False):
    """The keyword arguments of Job.options; it explains them."""

    retry: Retry | None
    timeout: Seconds | None
    keep_result: Seconds | None
    queue: str | None
    conn: Any
    headers: Mapping[str, str] | None
    attempts: int | None


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one put of a job. Checked when made; raises ValueError.

    Attributes:
        put: those of Queue.put.
        queue: in place of the job's own.
        conn: the caller's connection.
        headers: strings that are stored with the task, for middleware.
        attempts: in place of the job's Retry.attempts.
        own: the task's own policies, as its data has them; empty: those of the job.
    """

    put: PutArguments = field(default_factory=PutArguments)
    queue: str | None = None
    conn: Any = None
    headers: Mapping[str, str] | None = None
    attempts: int | None = None
    own: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, given: JobPutArguments) -> Options:
        rest: dict[str, Any] = dict(given)
        if strange := sorted(rest.keys() - PUT_OPTIONS):
            raise ValueError(unknown("options()", strange[0], PUT_OPTIONS))
        policies = {name: rest.pop(name, None) for name in ("retry", "timeout", "keep_result")}
        own = {name: rest.pop(name) for name in ("queue", "conn", "headers", "attempts") if name in rest}
        return cls(PutArguments(**rest), own=written(**policies), **own)  # type: ignore[typeddict-item]  # checked

    def __post_init__(self) -> None:
        PutOptions.of(self.put)
        if self.queue is not None:
            arguments.queue_name(self.queue)
        arguments.integer("attempts", self.attempts, 1)
        for name, value in (self.headers or {}).items():
            if not (isinstance(name, str) and isinstance(value, str)):
                raise ValueError(f"headers are strings, not {name!r}: {value!r}")


@dataclass(frozen=True, slots=True)
class BatchHandler:
    """A function of a list of tasks, and how many tasks it gets at most."""

    function: Callable[..., Any]
    n: int


DEFAULTS = "job_defaults()"
JOB_OPTIONS = ("queue", "name", "aliases", *Policies.__annotations__, *LIMIT)
PUT_OPTIONS = dict.fromkeys([*(one.name for one in fields(PutOptions)), *JobPutArguments.__annotations__])  # in order
PLAIN = Options()
