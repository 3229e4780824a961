# Generated from pgqueue/_async/cluster_take.py by tools/blocking.py: edit that file, not this one.

"""Taking tasks from all servers of a cluster at once."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TypeVar, cast

from .._calls.take import Taken
from .._engine.blocking import Signal, begin, drive, end, in_thread
from .._engine.cluster.servers import Servers
from .._engine.cluster.takes import At, Found, Start, TakeFromAll
from .._engine.outages import connected, moving_on
from .._engine.shell import UNREADABLE
from .._engine.steps import Wait
from .._records.task import from_taken
from .client import Client
from .shell import Shell
from .task import Task

C = TypeVar("C", bound=Client)


def take_from_all(servers: Servers[C], queues: Sequence[str], n: int, seconds: float | None) -> list[Task]:
    """Up to n tasks of several queues, as soon as a server has one; see TakeFromAll. Empty once a client is closed."""
    cores = [server.client.shell.core for server in servers.all]
    taking = TakeFromAll(servers, Signal, queues, n, seconds, lambda: any(core.closed for core in cores))
    for core in cores:
        begin(core.duties, taking)
    try:
        tasks = _made(drive(taking.run(), perform))
    except BaseException as error:
        if not isinstance(error, UNREADABLE):  # those are buried
            taking.fulfil()
        for core in cores:
            end(core.duties, taking)
        raise
    for core in cores[1:]:
        end(core.duties, taking)
    end(cores[0].duties, taking)  # outside of the loop: nothing may be executed between the last end() and the return
    return tasks


def perform(step: Start[C] | At[C] | Wait) -> object:
    """Perform a step of a take from all servers."""
    if isinstance(step, Wait):
        return cast(Signal, step.signal).wait(step.seconds)
    # The flow waits for its server, and in the meantime the take goes on with the others.
    with moving_on() if step.moves else contextlib.nullcontext():
        if isinstance(step, At):
            return step.server.client.shell.perform(step.run)
        if step.server.unchecked:
            in_thread(connected, step.server.check)
        return in_thread(step.server.client.shell.core.listener, 0)


def _made(found: Found[C]) -> list[Task]:
    """The tasks of the rows. Raises ValueError: none of the rows can be read; these are buried."""
    tasks: list[Task] = []
    unreadable: Exception | None = None
    for server, rows in found:
        try:
            tasks += _bound(server.client.shell, rows)
        except UNREADABLE as error:
            unreadable = error
    if unreadable is not None and not tasks:
        raise unreadable
    return tasks


def _bound(shell: Shell, rows: list[Taken]) -> list[Task]:
    return shell.made(rows, lambda row: from_taken(Task, row, shell))
