"""Jobs of the tests of isolation="process", in a module that a child process imports."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import BaseModel, model_serializer

import pgqueue
from pgqueue import AsyncTask, Bury, Retry, SoftTimeLimit, Task

client = pgqueue.Client()
log = logging.getLogger("crunch")


@client.job(queue="crunch", isolation="process", keep_result=60, retry=Retry(attempts=1))
def add(a: int, b: int = 1) -> int:
    return a + b


@client.job(queue="crunch", isolation="process", keep_result=60)
def pid() -> int:
    return os.getpid()


@client.job(queue="crunch", isolation="process", keep_result=60)
async def later(what: str) -> str:
    await asyncio.sleep(0.01)
    return what


@client.job(queue="crunch", isolation="process", retry=Retry(attempts=1))
def die(how: str) -> None:
    if how == "segfault":
        ctypes.string_at(0)
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGKILL)


@client.job(queue="crunch", isolation="process", retry=Retry(attempts=3, delay=0, on=(OSError,)))
def fail(how: str) -> None:
    log.warning("failing")
    if how == "bury":
        raise Bury("never again")
    raise {"os": OSError(5, "broken"), "value": ValueError("wrong")}[how]


@client.job(queue="crunch", isolation="process", timeout=0.5, retry=Retry(attempts=1))
def hang(path: str, in_c: bool = False) -> None:
    with Path(path).open("a") as file:
        file.write(f"{time.time()} {os.getpid()}\n")
    if in_c:
        ctypes.PyDLL(None).sleep(60)
    time.sleep(60)


@client.job(queue="crunch", isolation="process", retry=Retry(attempts=1))
def stay(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    time.sleep(60)


@client.job(queue="crunch", isolation="process", soft_timeout=0.5, timeout=30, keep_result=60)
def soft() -> str:
    try:
        time.sleep(60)
    except SoftTimeLimit:
        return "in time"
    return "never"


@client.job(queue="crunch", isolation="process", keep_result=60)
def with_task(task: Any) -> list[Any]:
    task.progress(0.5)
    return [task.id, task.queue, task.attempts]


@client.job(queue="crunch", isolation="process", keep_result=60)
def with_database(day: str) -> int:
    date.fromisoformat(day)
    return client.queue("from the child").put({"day": day}).id


@client.job(queue="crunch")
def plain() -> None:
    """A neighbour of the same queue, in a thread."""


@client.job(queue="crunch", isolation="process", keep_result=60, retry=Retry(attempts=3, delay=0))
def charge(task: Task, path: str) -> list[Any]:
    def done() -> tuple[int, str]:
        with Path(path).open("a") as file:
            file.write("charged\n")
        return 7, "é"

    receipt = task.step("charge", done)
    if task.attempts == 0:
        os._exit(3)
    return [receipt, task.step("ship", lambda: None)]


@client.job(queue="crunch", isolation="process", keep_result=60, retry=Retry(attempts=3, delay=0))
async def charge_async(task: AsyncTask, path: str) -> list[Any]:
    async def done() -> tuple[int, str]:
        await asyncio.sleep(0.01)
        with Path(path).open("a") as file:
            file.write("charged\n")
        return 7, "é"

    await task.progress("charging")
    receipt = await task.step("charge", done)
    if task.attempts == 0:
        os._exit(3)
    return [receipt, await task.step("ship", lambda: None)]


@client.job(queue="crunch", isolation="process", keep_result=60, retry=Retry(attempts=3, delay=0))
def lose_link(task: Task) -> int:
    """End the thread that reads what the worker says. It waits in C, so the next answer wakes it."""
    if task.attempts == 0:
        (link,) = [thread for thread in threading.enumerate() if thread.name == "pgqueue-link"]
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(link.ident or 0), ctypes.py_object(GeneratorExit))
        task.progress(0.5)
        time.sleep(60)
    return task.attempts


@client.job(queue="crunch", isolation="process", keep_result=60)
def gather(task: Task) -> list[Any]:
    return [[one.id, one.state, one.queue, one.result, one.error] for one in task.results()]


@client.job(queue="crunch", isolation="process", keep_result=60)
async def gather_async(task: AsyncTask) -> list[Any]:
    return [[one.id, one.state, one.queue, one.result, one.error] for one in await task.results()]


@client.job(queue="crunch", isolation="process", keep_result=60)
def bad_steps(task: Task) -> list[str]:
    async def later() -> None: ...

    said = []
    for name, function, conn in (
        ("", int, None),
        ("x", object, None),
        ("x", lambda: {1: 2}, None),
        ("x", later, None),
        ("x", lambda: 1 // 0, None),
        ("x", int, client),
    ):
        try:
            task.step(name, function, conn=conn)  # type: ignore[arg-type]
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    assert task.step("x", int) == 0
    return said


@client.job(queue="crunch", isolation="process", keep_result=60)
def watch(task: Task, path: str) -> list[Any]:
    before = bool(task.cancelled)
    Path(path).write_text(str(os.getpid()))
    found = task.cancelled.wait(30)
    return [before, found, bool(task.cancelled), task.cancelled.reason]


@client.job(queue="crunch", isolation="process", keep_result=60)
async def watch_async(task: AsyncTask, path: str) -> list[Any]:
    before = bool(task.cancelled)
    Path(path).write_text(str(os.getpid()))
    found = await task.cancelled.wait(30)
    return [before, found, bool(task.cancelled), task.cancelled.reason]


@client.job(queue="crunch", isolation="process", timeout=2, retry=Retry(attempts=1))
def watch_and_hang(task: Task, path: str) -> None:
    task.cancelled.wait(0)
    Path(path).write_text(str(os.getpid()))
    time.sleep(60)


@client.job(queue="crunch", isolation="process", keep_result=60)
def look_once(task: Task) -> bool:
    return bool(task.cancelled)


def _hidden() -> None: ...


TENANT: ContextVar[str] = ContextVar("tenant", default="none")


@client.job(queue="crunch", isolation="process", keep_result=60)
def see_and_set() -> str:
    seen = TENANT.get()
    TENANT.set("left behind")
    return seen


@client.job(queue="crunch", isolation="process", keep_result=60)
async def see_and_set_async() -> str:
    return see_and_set()


@client.job(queue="crunch", isolation="process")
def fall(how: str) -> None:
    """Has the policy and the time limit of job_defaults()."""
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


class Unwritten(BaseModel):
    """Its own code writes it, and fails."""

    @model_serializer
    def write(self) -> str:
        raise AttributeError("half made")


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


UNKEPT: dict[str, Callable[[], Any]] = {
    "object": object,
    "NaN": lambda: float("nan"),
    "set": lambda: {1, 2},
    "big": lambda: "x" * 2_000_000,
    "function": lambda: nested,
    "surrogate": lambda: {"\udcff": 1},
    "NUL": lambda: {"a\0b": 1},
    "deep": lambda: nested(100_000),
    "integer": lambda: 10**5000,
    "key": lambda: {1: 2},
    "model": Unwritten,
}


@client.job(queue="crunch", isolation="process", keep_result=60)
def give_kept(kind: str, path: str):  # type: ignore[no-untyped-def]  # the result's codec has no annotation to go by
    return give(kind, path)


@client.job(queue="crunch", isolation="process")
def give_and_drop(kind: str, path: str) -> Unwritten:
    return give(kind, path)


def give(kind: str, path: str) -> Any:
    with Path(path).open("a") as file:
        file.write(f"{kind}\n")
    return UNKEPT[kind]()


@client.job(queue="crunch", isolation="process", keep_result=60)
def give_bytes():  # type: ignore[no-untyped-def]  # pydantic would write bytes that are annotated
    return {"body": [b"\xff"], "title": "a\0b"}


@client.job(queue="crunch", isolation="process", timeout=5, retry=Retry(attempts=1))
def hang_with_programs(path: str) -> None:
    """One in the group of the process, one with a session of its own, and one that this one has started."""
    sleep = "import subprocess, sys; print(subprocess.Popen(['sleep', '60'], start_new_session=True).pid, flush=True);"
    more = subprocess.Popen(
        [sys.executable, "-c", sleep + "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    plain = subprocess.Popen(["sleep", "60"])
    assert more.stdout is not None
    Path(path).write_text(f"{more.pid} {int(more.stdout.readline())} {plain.pid}")
    time.sleep(60)


@client.job(queue="crunch", isolation="process", retry=Retry(attempts=1))
async def fail_deep() -> None:
    await asyncio.gather(fail_inside())


async def fail_inside() -> None:
    raise ValueError("deep inside")
