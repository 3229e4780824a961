"""Calls of 7_operations/workers.sql: the registration of workers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from .._values import data
from .call import Call, call, nothing, query


class WorkerInfo(NamedTuple):
    """A row of the view pgqueue.workers."""

    name: str
    state: str
    started_at: datetime
    queues: list[str]
    jobs: list[str]
    concurrency: int
    limits: dict[str, Any]
    version: str
    role: str


def register_worker(
    number: int, queues: Sequence[str], jobs: Sequence[str], concurrency: int, limits: Mapping[str, Any], version: str
) -> Call[None]:
    """On the connection of the worker's session."""
    return call(
        "register_worker",
        None,
        nothing,
        number=number,
        queues=list(queues),
        jobs=list(jobs),
        concurrency=concurrency,
        limits=json.dumps(limits),
        version=version,
    )


def unregister_worker(number: int) -> Call[None]:
    return call("unregister_worker", None, nothing, number=number)


def workers() -> Call[list[WorkerInfo]]:
    return query(
        "SELECT name, state, started_at, queues, jobs, concurrency, limits::pg_catalog.text, version, role"
        " FROM pgqueue.workers ORDER BY name, session, number",
        (),
        lambda rows: [_info(row) for row in rows],
    )


def _info(row: tuple[Any, ...]) -> WorkerInfo:
    name, state, started_at, queues, jobs, concurrency, limits, version, role = row
    return WorkerInfo(name, state, started_at, queues, jobs, concurrency, data.shown(limits), version, role)
