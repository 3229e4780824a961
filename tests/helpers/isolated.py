"""Handlers of the tests of child processes: those that behave, and those that end their process in every way."""

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
from pathlib import Path
from typing import Any

from pgqueue import SoftTimeLimit

log = logging.getLogger("isolated")
held: list[Any] = []


class Odd(ValueError):
    """Its constructor wants more than its message."""

    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(code)
        self.reason = reason


class Secretive(Exception):
    """Its arguments cannot be read."""

    @property
    def args(self) -> tuple[Any, ...]:  # type: ignore[override]
        raise RuntimeError("no arguments")


def answer(data: Any) -> Any:
    return data


def pid(data: Any) -> int:
    return os.getpid()


def grow(data: Any) -> int:
    held.append(bytearray(os.urandom(1024)) * (data << 10))
    return os.getpid()


def hang(data: Any) -> None:
    Path(data).write_text(str(os.getpid()))
    time.sleep(60)


async def hang_async(data: Any) -> None:
    Path(data).write_text(str(os.getpid()))
    await asyncio.sleep(60)


def hang_in_c(data: Any) -> None:
    """A call of C that keeps the interpreter's lock: no signal handler and no thread of Python runs."""
    Path(data).write_text(str(os.getpid()))
    ctypes.PyDLL(None).sleep(60)


def hang_with_a_program(data: Any) -> None:
    program = subprocess.Popen(["sleep", "60"], close_fds=False)
    Path(data).write_text(f"{os.getpid()} {program.pid}")
    program.wait()


def hang_in_a_fork(data: Any) -> None:
    """The fork holds a copy of the child's socket."""
    other = os.fork()
    if other == 0:
        time.sleep(60)
        os._exit(0)
    Path(data).write_text(f"{os.getpid()} {other}")
    time.sleep(60)


def softly(data: Any) -> str:
    try:
        time.sleep(60)
    except SoftTimeLimit as error:
        return str(error)
    return "not interrupted"


async def softly_async(data: Any) -> str:
    try:
        await asyncio.sleep(60)
    except SoftTimeLimit as error:
        await asyncio.sleep(0.01)
        return str(error)
    return "not interrupted"


def die(data: str) -> None:
    if data == "segfault":
        ctypes.string_at(0)
    if data == "exit":
        os._exit(3)
    if data == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if data == "abort":
        os.abort()


def fail(data: str) -> None:
    if data == "plain":
        raise ValueError("no such order", 7)
    if data == "odd":
        raise Odd(3, reason="worn out")
    if data == "os":
        raise FileNotFoundError(2, "gone", "/nowhere")
    if data == "leave":
        sys.exit("bye")
    if data == "secretive":
        raise Secretive("x")
    if data == "unknown":
        raise type("Local", (Exception,), {})("of here")
    raise KeyError(data)


def not_json(data: Any) -> object:
    return object()


def tell(data: str) -> None:
    log.warning("working on %s", data, extra={"order": 7})
    try:
        fail("plain")
    except ValueError:
        log.exception("it failed")


def verbs(data: Any, task: Any) -> Any:
    task.progress({"done": 1})
    task.touch(30)
    return [task.id, task.queue, task.attempts, task.finish("by itself").state]


def no_verb(data: Any, task: Any) -> None:
    task.follow()


def ask_softly(data: Any, task: Any) -> str:
    try:
        task.touch(1)
    except SoftTimeLimit:
        return str(task.finish(1).state)
    return "not interrupted"


def fork_and_return(data: Any) -> str:
    os.fork()
    return "returned"


def leave_a_thread(data: str, task: Any) -> None:
    """A thread that asks for its task once the next order has begun."""

    def ask() -> None:
        while not Path(data).exists():
            time.sleep(0.005)
        try:
            task.ack()
        except Exception as error:
            Path(data).write_text(str(error))

    threading.Thread(target=ask).start()


def meet_the_thread(data: str) -> str:
    Path(data).touch()
    while not (said := Path(data).read_text()):
        time.sleep(0.005)
    return said


async def block_its_loop(data: str) -> str:
    """Until there is a second file."""
    Path(data).touch()
    while not Path(data + ".go").exists():
        time.sleep(0.01)
    return "blocked"


async def time_out(data: Any) -> str:
    try:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)
    except Exception as error:
        return type(error).__name__
    return "never"
