"""One connection: its commands in their order, its tubes, and the jobs that it has reserved."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic

import psycopg

from .. import AsyncTask
from .._values.logs import log
from ..errors import (
    BadData,
    DataTooBig,
    Error,
    QueueDraining,
    QueueFull,
    TakeLost,
    TaskBusy,
    TaskNotFound,
)
from . import protocol
from .bodies import body_of
from .clock import Clock
from .figures import Figures, Peer
from .jobs import Jobs
from .protocol import Command
from .stats import Reports
from .wire import Gone, Wire

MARGIN = 1.0  # seconds before a deadline in which a reserve does not wait
WATCHED = 1000  # tubes of a connection
QUIET = 1.0  # seconds after a line of the log without another one about an error

#: The answer for an error. For any other: INTERNAL_ERROR.
_TOLD: tuple[tuple[tuple[type[Exception], ...], bytes], ...] = (
    ((TakeLost, TaskBusy), protocol.NOT_FOUND),
    ((QueueDraining,), protocol.DRAINING),
    ((QueueFull,), protocol.OUT_OF_MEMORY),
    ((DataTooBig, BadData), protocol.JOB_TOO_BIG),
)


class Log:
    """The log of errors: at most a line in QUIET seconds, since an outage fails the commands of all connections."""

    def __init__(self) -> None:
        self._next = 0.0

    def failed(self, command: Command, error: Exception) -> None:
        if monotonic() >= self._next:
            self._next = monotonic() + QUIET
            log.warning("beanstalkd's %s failed: %s", command.name, " ".join(str(error).split()))


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that all connections of a server use."""

    jobs: Jobs
    reports: Reports
    figures: Figures
    clock: Clock
    log: Log
    turns: asyncio.Semaphore


class Connection:
    """Serves one client."""

    def __init__(self, parts: Parts, wire: Wire) -> None:
        self._jobs, self._reports, self._figures = parts.jobs, parts.reports, parts.figures
        self._clock, self._log, self._turns = parts.clock, parts.log, parts.turns
        self._wire = wire
        self._peer = Peer()
        self._held: dict[int, AsyncTask] = {}  # the jobs that it has reserved
        self._ended = False

    async def serve(self) -> None:
        """Answer the client's commands until it is gone; then give back the jobs that it has reserved."""
        self._figures.peers.add(self._peer)
        self._figures.accepted += 1
        try:
            while not self._ended:
                await self._serve_line(await self._wire.line())
        except Gone:
            pass
        except Exception:  # a fault of this server: it ends this connection alone, which still gives back its jobs
            log.exception("a connection to the beanstalkd server ended")
        finally:
            self._figures.peers.discard(self._peer)
            self._figures.leave(self._peer.used, *self._peer.watched)
        await self._give_back()

    async def _serve_line(self, line: bytes | None) -> None:
        if line is None:
            await self._wire.send(protocol.BAD_FORMAT)
            return
        if protocol.is_http(line):  # a request of a browser, from a web page: its body may have commands
            self._ended = True
            return
        try:
            command = protocol.command(line)
        except protocol.Refused as refused:
            await self._wire.send(refused.answer)
            return
        self._figures.commands[command.name] += 1
        answer = await self._answer(command)
        if not self._ended:
            await self._wire.send(answer)

    async def _answer(self, command: Command) -> bytes:
        verb = _VERBS[command.name]
        try:
            if command.name in _WAITING:
                return await verb(self, command)
            async with self._turns:
                return await verb(self, command)
        except (Error, ValueError, psycopg.Error) as error:
            for kinds, answer in _TOLD:
                if isinstance(error, kinds):
                    return answer
            self._log.failed(command, error)
            return protocol.INTERNAL_ERROR

    async def _give_back(self) -> None:
        """Release the reserved jobs. If the database does not answer, the client does so once it answers."""
        held, self._held = list(self._held.values()), {}
        try:
            async with self._turns:
                await self._jobs.give_back(held)
        except (Error, psycopg.Error) as error:
            self._log.failed(Command("quit"), error)

    # --- producers

    async def _put(self, command: Command) -> bytes:
        priority, delay, ttr, size = command.numbers
        if size > self._figures.max_job_size:
            await self._wire.skip(size)
            return protocol.JOB_TOO_BIG
        self._peer.producer = True
        body = await self._wire.body(size)
        if body is None:
            return protocol.EXPECTED_CRLF
        if self._figures.draining:
            return protocol.DRAINING
        async with self._turns:
            id = await self._jobs.put(self._peer.used, body, priority, delay, ttr)
        return protocol.line("INSERTED", id)

    async def _use(self, command: Command) -> bytes:
        self._figures.leave(self._peer.used)
        self._peer.used = command.tube
        return await self._list_tube_used(command)

    # --- consumers

    async def _watch(self, command: Command) -> bytes:
        if command.tube not in self._peer.watched:
            if len(self._peer.watched) >= WATCHED:
                return protocol.OUT_OF_MEMORY
            self._peer.watched.append(command.tube)
        return protocol.line("WATCHING", len(self._peer.watched))

    async def _ignore(self, command: Command) -> bytes:
        watched = self._peer.watched
        if command.tube in watched:
            if len(watched) == 1:
                return protocol.NOT_IGNORED
            self._figures.leave(command.tube)
            last = watched.pop()
            if last != command.tube:
                watched[watched.index(command.tube)] = last  # in its place, as beanstalkd lists them
        return protocol.line("WATCHING", len(watched))

    async def _reserve(self, command: Command) -> bytes:
        self._peer.worker = True
        timeout = command.numbers[0] if command.numbers else None
        margin = await self._until_margin()
        soon = margin is not None and (timeout is None or margin <= timeout)
        task = await self._wait_for_job(margin if soon else timeout)
        if task is not None:
            return self._reserved(task)
        return protocol.DEADLINE_SOON if soon and not self._wire.reader.ended else protocol.TIMED_OUT

    async def _until_margin(self) -> float | None:
        """Seconds until a reserved job has to be settled within MARGIN; None without such a job."""
        left = {id: await self._clock.left(task.deadline) for id, task in self._held.items() if task.deadline}
        for id in [id for id, seconds in left.items() if seconds <= 0]:
            del self._held[id], left[id]  # it is not reserved any more
        return max(0.0, min(left.values()) - MARGIN) if left else None

    async def _wait_for_job(self, timeout: float | None) -> AsyncTask | None:
        """A job of the watched tubes; None if there was none in time, or the client has closed its sending half."""
        if timeout != 0 and not self._wire.reader.ended:
            reserving = asyncio.ensure_future(self._jobs.reserve(self._peer.watched, timeout))
            self._peer.waiting = True
            self._wire.reader.call_at_end(reserving.cancel)
            try:
                return await reserving
            except asyncio.CancelledError:
                if not self._wire.reader.ended:
                    reserving.cancel()  # the server ends
                    raise
            finally:
                self._peer.waiting = False
                self._wire.reader.call_at_end(None)
        async with self._turns:
            return await self._jobs.reserve(self._peer.watched, 0)

    async def _reserve_job(self, command: Command) -> bytes:
        task = await self._jobs.reserve_job(command.numbers[0])
        self._peer.worker = True
        return self._reserved(task)

    def _reserved(self, task: AsyncTask) -> bytes:
        self._held[task.id] = task
        return protocol.job("RESERVED", task.id, body_of(task.data))

    def _settling(self, id: int) -> AsyncTask:
        """A job of this connection, which is settled now. With any outcome it is not reserved any more."""
        task = self._held.pop(id, None)
        if task is None:
            raise TaskNotFound(f"job {id} is not reserved by this connection", id)
        return task

    async def _delete(self, command: Command) -> bytes:
        (id,) = command.numbers
        if (task := self._held.pop(id, None)) is not None:
            try:
                await self._jobs.ack(task)
                return protocol.DELETED
            except TakeLost:
                pass  # its time has ended: it may be ready
        await self._jobs.delete(id)
        return protocol.DELETED

    async def _release(self, command: Command) -> bytes:
        id, priority, delay = command.numbers
        await self._jobs.release(self._settling(id), priority, delay)
        return protocol.RELEASED

    async def _bury(self, command: Command) -> bytes:
        id, priority = command.numbers
        await self._jobs.bury(self._settling(id), priority)
        return protocol.BURIED

    async def _touch(self, command: Command) -> bytes:
        task = self._settling(command.numbers[0])
        self._held[task.id] = await task.touch()
        return protocol.TOUCHED

    # --- others

    async def _peek(self, command: Command) -> bytes:
        return self._found(await self._jobs.peek(command.numbers[0]))

    async def _peek_next(self, command: Command) -> bytes:
        return self._found(await self._jobs.first(self._peer.used, command.name.removeprefix("peek-")))

    def _found(self, task: AsyncTask | None) -> bytes:
        return protocol.NOT_FOUND if task is None else protocol.job("FOUND", task.id, body_of(task.data))

    async def _kick(self, command: Command) -> bytes:
        return protocol.line("KICKED", await self._jobs.kick(self._peer.used, command.numbers[0]))

    async def _kick_job(self, command: Command) -> bytes:
        return protocol.KICKED if await self._jobs.kick_job(command.numbers[0]) else protocol.NOT_FOUND

    async def _pause_tube(self, command: Command) -> bytes:
        (seconds,) = command.numbers
        if await self._reports.tube_stats(command.tube) is None:
            return protocol.NOT_FOUND
        await self._jobs.pause(command.tube, seconds)
        self._figures.paused(command.tube, seconds)
        return protocol.PAUSED

    async def _stats(self, command: Command) -> bytes:
        return await self._reports.server()

    async def _stats_job(self, command: Command) -> bytes:
        return await self._reports.job(command.numbers[0])

    async def _stats_tube(self, command: Command) -> bytes:
        return await self._reports.tube(command.tube)

    async def _list_tubes(self, command: Command) -> bytes:
        return await self._reports.tubes()

    async def _list_tube_used(self, command: Command) -> bytes:
        return protocol.line("USING", self._peer.used)

    async def _list_tubes_watched(self, command: Command) -> bytes:
        return protocol.listing(self._peer.watched)

    async def _quit(self, command: Command) -> bytes:
        self._ended = True
        return b""


#: The commands that wait for the client's bytes or for a job, and not in turn.
_WAITING = ("put", "reserve", "reserve-with-timeout")
_VERBS: dict[str, Callable[[Connection, Command], Awaitable[bytes]]] = {
    "put": Connection._put,
    "use": Connection._use,
    "reserve": Connection._reserve,
    "reserve-with-timeout": Connection._reserve,
    "reserve-job": Connection._reserve_job,
    "delete": Connection._delete,
    "release": Connection._release,
    "bury": Connection._bury,
    "touch": Connection._touch,
    "watch": Connection._watch,
    "ignore": Connection._ignore,
    "peek": Connection._peek,
    "peek-ready": Connection._peek_next,
    "peek-delayed": Connection._peek_next,
    "peek-buried": Connection._peek_next,
    "kick": Connection._kick,
    "kick-job": Connection._kick_job,
    "stats": Connection._stats,
    "stats-job": Connection._stats_job,
    "stats-tube": Connection._stats_tube,
    "list-tubes": Connection._list_tubes,
    "list-tube-used": Connection._list_tube_used,
    "list-tubes-watched": Connection._list_tubes_watched,
    "pause-tube": Connection._pause_tube,
    "quit": Connection._quit,
}
