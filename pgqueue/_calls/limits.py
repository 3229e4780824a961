"""Calls of 4_rules/limits/setting.sql: limits of how many tasks run at once, and of how many begin in a time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from .._values import arguments
from .._values.arguments import Seconds
from .._values.record import Record
from .call import Call, call, nothing, query, scalar

Declared = Literal["set", "dropped", "same", "kept"]
MAX_CONCURRENCY = 100_000  # as in sql/4_rules/limits/setting.sql, _check_terms
MAX_RATE = 1_000_000
MAX_SERVER = 1023  # the highest number of a server
Scope = Literal["server", "home"]


@dataclass(frozen=True, slots=True)
class Limit(Record):
    """A limit of tasks, and its present use; see Limits.list().

    Attributes:
        queue: the name of the queue.
        job: the job that it limits; None for all tasks of the queue whose job has no limit of its own.
        concurrency: how many of its tasks are taken at once, at most; None for any number.
        rate: how many of its tasks begin in each `per` seconds, at most; None for any number.
        per: the period of the rate, in seconds; None without a rate.
        burst: how many may begin at once after a pause; None without a rate.
        argument: the limit counts for each value of this argument by itself; None: for all its tasks together.
        declared: whether a program declared it at its start; otherwise it was set by hand.
        running: how many of its tasks have a slot: they are taken, or were given back a moment ago.
        waiting: how many of its tasks wait for a slot, or for a token of the rate.
        next_at: when the next token is due, if a task waits for it; else None.
        home: the number of the server that alone gets new tasks of it; None: each server gets some, and counts its own.
    """

    queue: str
    job: str | None
    concurrency: int | None
    rate: int | None
    per: float | None
    burst: int | None
    argument: str | None
    declared: bool
    running: int
    waiting: int
    next_at: datetime | None
    home: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms of a limit. Checked when made; Limits.set() explains them."""

    concurrency: int | None = None
    rate: int | None = None
    per: Seconds = 1
    burst: int | None = None
    argument: str | None = None

    def __post_init__(self) -> None:
        arguments.integer("concurrency", self.concurrency, 1, MAX_CONCURRENCY)
        arguments.integer("rate", self.rate, 1, MAX_RATE)
        arguments.integer("burst", self.burst, 1, MAX_RATE)
        arguments.required_seconds("per", self.per, positive=True)
        arguments.label("argument", self.argument)
        if self.burst is not None and self.rate is None:
            raise ValueError(f"a burst goes with a rate: burst is {self.burst}")

    @property
    def empty(self) -> bool:
        """Whether they limit nothing."""
        return self.concurrency is None and self.rate is None

    @property
    def seconds(self) -> float:
        """The period of the rate."""
        return arguments.required_seconds("per", self.per, positive=True)

    def given(self) -> dict[str, Any]:
        """The arguments of a call."""
        return {
            "concurrency": self.concurrency,
            "rate": self.rate,
            "per": self.seconds,
            "burst": self.burst,
            "argument": self.argument,
        }


def set_limit(queue: str, job: str | None, terms: Terms, home: int | None = None) -> Call[None]:
    arguments.integer("home", home, 0, MAX_SERVER)
    if terms.empty:
        raise ValueError("a limit needs a concurrency, a rate, or both: drop() removes one")
    return call("set_limit", None, nothing, long=True, home=home, **_of(queue, job), **terms.given())


def drop_limit(queue: str, job: str | None) -> Call[bool]:
    return call("drop_limit", None, scalar, long=True, **_of(queue, job))


def declare_limit(queue: str, job: str, terms: Terms) -> Call[Declared]:
    """The limit of a job as its code has it; with empty terms: none. A worker sends it before its first claim."""
    return call("declare_limit", None, scalar, long=True, **_of(queue, job), **terms.given())


def list_limits(queue: str | None) -> Call[list[Limit]]:
    """By queue and job."""
    named = None if queue is None else arguments.queue_name(queue)
    return query(
        "SELECT queue, job, concurrency, rate, EXTRACT(epoch FROM per)::float, burst, argument, declared, running,"
        " waiting, next_at, home FROM pgqueue.limits"
        " WHERE %s::pg_catalog.text IS NULL OR queue OPERATOR(pg_catalog.=) %s::pg_catalog.text"
        " ORDER BY queue, job NULLS FIRST",
        (named, named),
        lambda rows: [Limit(*row) for row in rows],
    )


def _of(queue: str, job: str | None) -> dict[str, Any]:
    return {"queue": arguments.queue_name(queue), "job": arguments.label("job", job)}
