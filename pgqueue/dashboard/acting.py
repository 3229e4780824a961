"""The actions of the buttons: one function for each. It calls the library, and returns the outcome as a sentence.

An action that cannot be taken back, or that acts on many tasks, asks first: its page says on how many.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast, get_type_hints

from .._calls.find import SEARCH, Filter, FilterArguments, State
from .._calls.queue import AlterArguments
from .._calls.rows import rows
from .._values.arguments import Seconds
from .pages.tasks import STATES, chosen
from .pages.visit import Visit
from .reading import Asked
from .showing import number

COUNTED = 1000  # tasks that a confirmation counts; beyond it says "more than"


@dataclass(frozen=True, slots=True)
class Action:
    """A button.

    Attributes:
        label: its text.
        act: does it, with the arguments of the request; returns a sentence. Raises as the library's verb does.
        asks: the question of its confirmation; None: it acts at once.
        counts: whether it acts on the tasks of a filter, which the confirmation counts.
    """

    label: str
    act: Callable[[Visit], Awaitable[str]]
    asks: str | None = None
    counts: bool = False


async def pause(visit: Visit) -> str:
    name, minutes = visit.asked.queue(), visit.asked.count("minutes", 60, 525_600)
    await visit.client.queue(name).pause(60 * minutes)
    return f"{name} is paused for {minutes} min: puts go on, and nothing is taken."


async def resume(visit: Visit) -> str:
    name = visit.asked.queue()
    await visit.client.queue(name).pause(0)
    return f"{name} goes on."


async def drain(visit: Visit) -> str:
    name = visit.asked.queue()
    await visit.client.queue(name).drain()
    return f"{name} refuses puts from now on."


async def undrain(visit: Visit) -> str:
    name = visit.asked.queue()
    await visit.client.queue(name).drain(False)
    return f"{name} accepts puts again."


async def truncate(visit: Visit) -> str:
    name = visit.asked.queue()
    return f"{_of(await visit.client.queue(name).truncate(), name)} removed."


async def alter(visit: Visit) -> str:
    name, option = visit.asked.queue(), visit.asked.one_of("option", tuple(ALTERABLE), "")
    value = ALTERABLE[option](visit.asked)
    await visit.client.queue(name).alter(**cast(Any, {option: value}))
    return f"{option} of {name} is {'the default' if value is None else value} now."


async def kick_all(visit: Visit) -> str:
    queue, state, which = _tasks(visit)
    n = await visit.client.queue(queue).kick_all(state, **which)
    return f"{_of(n, queue)} ready again."


async def release_all(visit: Visit) -> str:
    queue, _, which = _tasks(visit)
    return f"{_of(await visit.client.queue(queue).release_all(**which), queue)} released."


async def cancel_all(visit: Visit) -> str:
    queue, state, which = _tasks(visit)
    n = await visit.client.queue(queue).cancel_all(state, **which)
    return f"{_of(n, queue)} cancelled."


async def delete_all(visit: Visit) -> str:
    queue, state, which = _tasks(visit)
    n = await visit.client.queue(queue).delete_all(state, **which)
    return f"{_of(n, queue)} removed."


def _of(n: int, queue: str) -> str:
    return f"1 task of {queue} is" if n == 1 else f"{number(n)} tasks of {queue} are"


async def kick(visit: Visit) -> str:
    id = visit.asked.id()
    if await visit.client.kick(id):
        return f"Task {id} is ready again."
    return f"Task {id} is neither buried nor delayed: nothing was changed."


async def cancel(visit: Visit) -> str:
    id = visit.asked.id()
    return f"Task {id} is {await visit.client.cancel(id, visit.asked.text('reason'))}."


async def delete(visit: Visit) -> str:
    id = visit.asked.id()
    await visit.client.delete(id)
    return f"Task {id} is removed."


async def set_aside(visit: Visit) -> str:
    id = visit.asked.id()
    task = await visit.client.peek(id)
    await task.bury(error=visit.asked.text("reason") or "set aside in the dashboard")
    return f"Task {id} is set aside: it is buried, until a retry."


async def put_again(visit: Visit) -> str:
    id = visit.asked.id()
    return f"Task {await visit.client.put_again(id)} is put, with the data of task {id}."


async def put_again_all(visit: Visit) -> str:
    queue, state, which = _tasks(visit)
    n = await visit.client.queue(queue).put_again_all(state, **which)
    return f"{_of(n, queue)} put again."


async def run_schedule(visit: Visit) -> str:
    name = visit.asked.text("name") or ""
    return f"{name} has put task {await visit.client.schedules.run_now(name)}."


async def pause_schedule(visit: Visit) -> str:
    name = visit.asked.text("name") or ""
    await visit.client.schedules.pause(name)
    return f"{name} is paused."


async def resume_schedule(visit: Visit) -> str:
    name = visit.asked.text("name") or ""
    await visit.client.schedules.resume(name)
    return f"{name} goes on; what came during the pause is not missed."


ACTIONS = {
    "pause": Action("Pause", pause),
    "resume": Action("Resume", resume),
    "drain": Action("Refuse puts", drain),
    "undrain": Action("Accept puts", undrain),
    "truncate": Action("Remove all tasks", truncate, "All tasks of this queue are removed for good, also taken ones."),
    "alter": Action("Set", alter),
    "kick_all": Action("Retry all", kick_all, "These tasks become ready, and their attempts count from 0.", True),
    "release_all": Action(
        "Release all", release_all, "Other workers get these tasks while their takers may still work on them.", True
    ),
    "cancel_all": Action(
        "Cancel all", cancel_all, "These tasks end as cancelled; the takers of taken ones are told.", True
    ),
    "delete_all": Action("Delete all", delete_all, "These tasks are removed for good.", True),
    "kick": Action("Retry", kick),
    "cancel": Action("Cancel", cancel, "The task ends as cancelled; its taker is told."),
    "set_aside": Action(
        "Set aside",
        set_aside,
        "The task is buried until a retry. If a worker has it, that worker may go on for a while.",
    ),
    "delete": Action("Delete", delete, "The task is removed for good."),
    "put_again": Action(
        "Put again", put_again, "A new task with the data of this one is put, and may begin at once. This one stays."
    ),
    "put_again_all": Action(
        "Put all again",
        put_again_all,
        "A new task with its data is put for each of these, and may begin at once. These stay as they are.",
        True,
    ),
    "run_schedule": Action("Run now", run_schedule),
    "pause_schedule": Action("Pause", pause_schedule),
    "resume_schedule": Action("Resume", resume_schedule),
}

MOST_INT = 2**31 - 1


def _integer(asked: Asked) -> int | None:
    given = asked.text("value", longest=20)
    if given is None:
        return None
    if not given.lstrip("-").isdecimal() or not given.isascii() or abs(int(given)) > MOST_INT:
        raise ValueError(f"a whole number is needed, not {given!r}")
    return int(given)


def _seconds(asked: Asked) -> float | None:
    return asked.seconds("value")


READERS: dict[object, Callable[[Asked], Any]] = {int | None: _integer, Seconds | None: _seconds}
#: The options that a page alters, each with the function that reads it; an empty value is the default.
ALTERABLE = {name: READERS[type] for name, type in get_type_hints(AlterArguments).items() if type in READERS}


async def count(visit: Visit) -> str:
    """On how many tasks an action would act, in words; counted for a second at most."""
    queue, state, which = _tasks(visit)
    columns = ("pg_catalog.cardinality(ids) AS n", "next IS NOT NULL AS more")
    found = await visit.client.shell.run(
        rows(columns, f"FROM {SEARCH}", queue, state, COUNTED + 1, *Filter.of(**which), None)
    )
    n, more = found[0]["n"], found[0]["more"]
    tasks = f"more than {number(COUNTED)} tasks" if n > COUNTED else "one task" if n == 1 else f"{number(n)} tasks"
    tasks += ", and perhaps others," if more and n <= COUNTED else ""
    parts = [f"{tasks} of {queue}, {state}"]
    parts += ["of no job"] if which["job"] == "" else [f"of job {which['job']}"] if which["job"] else []
    parts += ["without an error"] if which["error"] == "" else []
    parts += [f"with “{which['error']}” in the error"] if which["error"] else []
    parts += [f"put at least {visit.asked.text('older')} ago"] if which["older"] else []
    parts += [f"with the key “{which['key']}”"] if which["key"] else []
    parts += [f"of the lane “{which['lane']}”"] if which["lane"] else []
    parts += [f"whose data contains {visit.asked.text('contains', longest=10_000)}"] if which["contains"] else []
    return ", ".join(parts)


def _tasks(visit: Visit) -> tuple[str, State, FilterArguments]:
    return visit.asked.queue(), cast(State, visit.asked.one_of("state", STATES, "")), chosen(visit)
