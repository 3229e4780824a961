"""A wait on all servers at once: one take for each server, in coroutines. The first take that finds a task wins.

The other takes are cancelled, and each undoes itself. If one of them has taken a task all the same, the caller gets
this task too, up to the number that it asked for; further tasks are released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from .flows import Race, Raced, give_back
from .servers import UNREACHABLE, Server

Tasks = list[Any]
Take = Callable[..., Awaitable[Tasks]]  # of _async/take.py

_ending: set[asyncio.Task[Tasks]] = set()  # references until they end: an event loop keeps only weak ones


async def race(race: Race, queues: Sequence[str], take: Take) -> Raced:
    running = {asyncio.create_task(_run_one(server, queues, race, take)) for server in race.servers}
    tasks: Tasks = []
    failures: list[Exception] = []
    try:
        while running and not tasks:
            arrived, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for one in arrived:
                tasks += _result(one, failures)
    except BaseException:
        give_back(tasks)
        raise
    finally:
        for one in running:
            _cancel(one)
    give_back(tasks[race.n :])
    return tasks[: race.n], failures if tasks else [_expected(failure) for failure in failures]


async def _run_one(server: Server[Any], queues: Sequence[str], race: Race, take: Take) -> Tasks:
    with server.asked():
        if server.unchecked:
            await asyncio.to_thread(server.check)
        return await take(server.client.shell, [*queues], race.n, race.seconds)


def _result(one: asyncio.Task[Tasks], failures: list[Exception]) -> Tasks:
    try:
        return one.result()
    except Exception as error:
        failures.append(error)
        return []


def _cancel(one: asyncio.Task[Tasks]) -> None:
    """Cancel a take, which then undoes itself. If it has ended in the meantime, its tasks are released."""
    _ending.add(one)
    one.cancel()
    one.add_done_callback(_cancelled)


def _cancelled(one: asyncio.Task[Tasks]) -> None:
    _ending.discard(one)
    if not one.cancelled() and one.exception() is None:
        give_back(one.result())


def _expected(failure: Exception) -> Exception:
    if not isinstance(failure, UNREACHABLE):
        raise failure
    return failure
