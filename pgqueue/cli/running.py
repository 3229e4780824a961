"""A command that is run for a task: its input, and the effect of its end on the task."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import click

from .. import Task
from ..jobs.retry import Retry
from .plainly import Fault
from .printing import compact


class Stopped(SystemExit):
    """A signal stopped the command; the exit code is a shell's for that signal."""


def run(command: Sequence[str], task: Task, policy: Retry) -> bool:
    """Run the command with the task's data on its standard input. Returns whether it succeeded.

    If it succeeds, the task is acked; if not, the task is tried again later, or buried after the last attempt.

    Raises:
        Stopped: SIGTERM or SIGINT arrived, and was passed to the command; a task that it did not finish is released.
        Fault: the command cannot be run; the task is released.
        TakeLost: the command ended after the take.
    """
    with _stoppable():
        try:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, env=_environment(task))
        except OSError as error:
            task.release()
            raise Fault(f"{command[0]} cannot be run: {error.strerror}") from None
        try:
            process.communicate(compact(task.data).encode() + b"\n")
        except Stopped:
            _end(process)
            _settle_stopped(task, process.returncode)
            raise
    if process.returncode == 0:
        task.ack()
        return True
    _fail(task, f"{command[0]} {_describe(process.returncode)}", policy)
    return False


def _environment(task: Task) -> dict[str, str]:
    named = {"TASK_ID": task.id, "TASK_QUEUE": task.queue, "TASK_ATTEMPTS": task.attempts}
    return {**os.environ, **{f"PGQUEUE_{name}": str(value) for name, value in named.items()}}


@contextmanager
def _stoppable() -> Iterator[None]:
    """Within this block SIGTERM and SIGINT raise Stopped."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(128 + number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let the command end by itself; kill it at a second signal."""
    process.terminate()
    try:
        process.wait()
    except Stopped:
        process.kill()
        process.wait()


def _settle_stopped(task: Task, returncode: int) -> None:
    """Settle a task after its command was stopped: this is not a failed attempt."""
    if returncode == 0:
        task.ack()
    else:
        task.release()


def _fail(task: Task, reason: str, policy: Retry) -> None:
    attempts = task.attempts + 1
    delay = policy.after(attempts)
    if delay is None:
        state = task.bury(error=reason).state
        click.echo(f"task {task.id}: {reason}; after {attempts} attempts it is {state}", err=True)
        return
    state = task.release(delay, error=reason, hold_lane=True).state
    again = f"again in {delay:.1f} s" if state == "delayed" else state
    click.echo(f"task {task.id}: {reason}; it is {again}", err=True)


def _describe(returncode: int) -> str:
    if returncode > 0:
        return f"ended with exit code {returncode}"
    return f"was killed by signal {-returncode}"
