"""What a call returns is true: each field of a returned task is what peek shows right after, or it is absent."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from sampling import sampled

from pgqueue import TaskNotFound

ABSENT = ("priority", "error", "run_at", "buried_at", "holder", "lane", "key")  # None: the call does not tell
STEPS = 60


def put_options(pick: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, values in {
        "priority": (0, 5, -3),
        "delay": (30, 60.5),
        "run_at": (datetime(2050, 1, 1, 12, 30, tzinfo=timezone(timedelta(hours=2))),),
        "ttr": (20,),
        "ttl": (900,),
        "lane": ("a", "b"),
        "key": ("x", "y"),
    }.items():
        if pick.random() < 0.3:
            options[name] = pick.choice(values)
    if "run_at" in options:
        options.pop("delay", None)
    if "key" in options:
        options["if_exists"] = pick.choice(["ignore", "replace"])
    return options


async def put(queue: Any, pick: random.Random) -> Any:
    try:
        return await queue.put({"n": pick.randrange(100)}, **put_options(pick))
    except Exception as error:
        if type(error).__name__ != "KeyTaken":
            raise
        return None


async def settle(task: Any, pick: random.Random) -> Any:
    """The task after a verb of its holder, or of any client."""
    error = pick.choice([None, "ValueError: no"])
    verb = pick.choice(["release", "bury", "touch", "fail", "ack", "later", "requeue"])
    if verb == "release":
        return await task.release(priority=pick.choice([None, 7]), error=error)
    if verb == "later":
        return await task.release(delay=40, error=error, hold_lane=pick.random() < 0.5)
    if verb == "bury":
        return await task.bury(priority=pick.choice([None, 9]), error=error)
    if verb == "touch":
        return await task.touch(50)
    if verb == "fail":
        return await task.fail(error or "it failed")
    return await (task.requeue() if verb == "requeue" else task.ack())


async def step(queue: Any, pick: random.Random) -> Any:
    what = pick.random()
    if what < 0.4:
        return await put(queue, pick)
    if what < 0.5:
        await queue.kick(2)
        return None
    if what < 0.6 and (page := await queue.tasks("buried", limit=1)).tasks:
        return await (await queue.peek(page.tasks[0].id)).bury(error="again")  # without a take
    task = await queue.take(0)
    return task if task is None or pick.random() < 0.2 else await settle(task, pick)


async def check(queue: Any, told: Any) -> None:
    try:
        seen = await queue.peek(told)
    except TaskNotFound:
        assert told.state in ("done", "cancelled")
        return
    for name in ("id", "queue", "state", "data", "attempts", "deadline"):
        assert getattr(told, name) == getattr(seen, name), (name, told, seen)
    if told.state == "delayed" and told.run_at is None:
        assert told.existed or seen.run_at.year < 2050  # a delay
    for name in ABSENT:
        assert getattr(told, name) in (None, getattr(seen, name)), (name, told, seen)


@pytest.mark.parametrize("seed", sampled(range(12), keep=1))
@pytest.mark.parametrize("options", [{}, {"priority": 4}, {"keep_done": 60, "ttr": 70}, {"delay": 10, "ttl": 800}])
async def test_what_a_call_returns_is_what_peek_shows(client: Any, seed: int, options: dict[str, Any]) -> None:
    pick = random.Random(seed)
    queue = await client.create_queue("q", **options)
    for _ in range(STEPS):
        told = await step(queue, pick)
        if told is not None:
            await check(queue, told)
