"""Calls of 2_base/queue_stats.sql: the numbers of tasks and of calls."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import LiteralString, TypedDict

from .call import Call, Rows, query, written

VERBS = ("put", "take", "ack", "release", "bury", "kick", "delete", "touch", "delay", "ttr", "ttl", "maxlen")


class Stats(TypedDict):
    """A row of the view pgqueue.stats; see Queue.stats()."""

    total: int
    ready: int
    delayed: int
    taken: int
    buried: int
    blocked: int
    done: int
    kept: int
    oldest_ready_age: float | None
    calls: dict[str, int]


AS_JSON: LiteralString = (
    "SELECT (SELECT pg_catalog.to_json(s)::pg_catalog.text FROM (SELECT total, ready, delayed, taken, buried,"
    " blocked, done, kept, extract(epoch FROM oldest_ready_age)::float AS oldest_ready_age, calls) s)"
)


def stats(queue: str) -> Call[Stats]:
    def read(rows: Rows) -> Stats:
        if not rows:
            return summed([])
        found: Stats = json.loads(rows[0][0])
        return found

    return query(f"{AS_JSON} FROM {written('queue_stats', 'name')}", (queue,), read)


def count_versions(queues: Iterable[str | None]) -> Call[dict[str | None, str]]:
    """For each of these queues, None for all together, a text that is another one once a count has changed."""
    return query(
        "SELECT asked.queue, pgqueue.count_version(queue => asked.queue)"
        " FROM (SELECT DISTINCT pg_catalog.unnest(%s::pg_catalog.text[]) AS queue) asked",
        (list(queues),),
        dict,
    )


def waiting_long(queues: Sequence[str], seconds: float) -> Call[list[tuple[str, float]]]:
    """Those of these queues that are not paused and have tasks ready for longer than that, and for how many seconds."""
    return query(
        "SELECT q.name, extract(epoch FROM s.oldest_ready_age)::float FROM pgqueue.queues q,"
        " LATERAL pgqueue.queue_stats(name => q.name) s"
        " WHERE q.name OPERATOR(pg_catalog.=) ANY (%s::pg_catalog.text[]) AND q.paused_until IS NULL"
        " AND s.oldest_ready_age OPERATOR(pg_catalog.>) pg_catalog.make_interval(secs => %s::float) ORDER BY 2 DESC",
        (list(queues), seconds),
        lambda rows: [(name, age) for name, age in rows],
    )


def every_stats() -> Call[dict[str, Stats]]:
    """The stats of every queue, by its name."""
    return query(AS_JSON + ", queue FROM pgqueue.stats", (), lambda rows: {name: json.loads(s) for s, name in rows})


def summed(found: Iterable[Stats]) -> Stats:
    """The sum of the stats of several queues; of none, all zero."""
    every = list(found)
    ages = [one["oldest_ready_age"] for one in every if one["oldest_ready_age"] is not None]
    return Stats(
        total=sum(one["total"] for one in every),
        ready=sum(one["ready"] for one in every),
        delayed=sum(one["delayed"] for one in every),
        taken=sum(one["taken"] for one in every),
        buried=sum(one["buried"] for one in every),
        blocked=sum(one["blocked"] for one in every),
        done=sum(one["done"] for one in every),
        kept=sum(one["kept"] for one in every),
        oldest_ready_age=max(ages, default=None),
        calls={verb: sum(one["calls"][verb] for one in every) for verb in VERBS},
    )
