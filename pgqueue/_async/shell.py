"""The awaiting shell: how calls run and flows are driven. _engine/shell.py has the shared part."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from .._calls.audit import acted
from .._calls.call import Call
from .._calls.put import allow_flows, allow_lanes, queue_ids
from .._calls.take import Taken
from .._engine import session
from .._engine.awaiting import Conn, Connections, Signal, begin, check_conn, drive, end, in_thread, run_on
from .._engine.core import Core
from .._engine.listener import Listener
from .._engine.outages import Pauses
from .._engine.shell import UNREADABLE, ShellBase
from .._engine.steps import Flow, Run, Step
from .._engine.takes import Take
from .._engine.waits import TimeLeft
from ..errors import SessionDead
from .together import AsyncTogether

T = TypeVar("T")


class AsyncShell(ShellBase):
    """The part of a client that the classes of this package need."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self.connections = Connections(core)
        #: None: each put is a statement of its own.
        self.together = AsyncTogether(core.settings, self.connections) if core.settings.share_commits else None

    async def listener(self) -> Listener:
        """The client's listener; the first call starts it, which may also start a server."""
        listener = self.core.running_listener
        if listener is None:
            listener = await in_thread(self.core.listener)
        return listener

    async def run(
        self, call: Call[T], conn: Conn | None = None, *, relaxed: bool = False, within: float | None = None
    ) -> T:
        """Run a call on the caller's connection, or on a pool's.

        Args:
            relaxed: its commit need not be durable.
            within: seconds, if that is less than call_timeout; for a pool's connection.
        """
        call = acted(call)
        if conn is not None:
            return await run_on(conn, call)
        return await self.connections.run(call, relaxed=relaxed, within=within)

    async def drive(self, flow: Flow[T]) -> T:
        """Perform a flow."""
        return await drive(flow, self.perform)

    async def perform(self, step: Step) -> object:
        """Perform a step of a flow."""
        if isinstance(step, Run):
            return await self.connections.run(step.call, relaxed=step.relaxed, within=step.within)
        return await cast(Signal, step.signal).wait(step.seconds)

    async def claimed(self, take: Take, make: Callable[[Taken], T]) -> list[T]:
        """Run a take, and make the tasks of its rows; see made()."""
        duties = self.duties
        begin(duties, take)
        try:
            tasks = self.made(await self.drive(take.run()), make)
        except BaseException as error:
            if not isinstance(error, UNREADABLE):  # those are buried; Ctrl-C may interrupt between the two
                take.fulfil()
            end(duties, take)
            raise
        end(duties, take)
        return tasks

    async def for_session(self, make: Callable[[int], Call[T]], conn: Conn | None) -> T:
        """Run a call that names the session, which owns the queue, exchange or will that it makes.

        The call is made again under a new session if the server says that the session is dead.
        """
        listener, left = await self.listener(), TimeLeft(self.settings.patience)
        whole, pauses = TimeLeft(self.settings.call_timeout), Pauses()
        while True:
            own = await self.drive(session.session(listener, Signal, left))
            try:
                if conn is not None:
                    return await run_on(conn, make(own))
                return await self.connections.run(make(own), within=whole.seconds())
            except SessionDead as error:
                listener.refused(own)
                await self.drive(session.refused(error, Signal, left, pauses, conn is not None))

    async def prepare_put(self, queue: str, conn: Conn | None, *, in_lanes: bool = False, waits: bool = False) -> None:
        """Make the queue, its lanes and flows: made in the caller's transaction, they would block other clients.

        Raises TypeError before that if the put cannot run on `conn`.
        """
        if conn is None:
            conn = self.joined()
        else:
            check_conn(conn)
        if conn is not None and queue not in self.core.queue_ids:
            ids = await self.connections.run(queue_ids([queue]))
            self.core.queue_ids.update(ids)
        if in_lanes and queue not in self.core.queues_with_lanes:
            await self.connections.run(allow_lanes(queue))
            self.core.queues_with_lanes.add(queue)
        if waits and queue not in self.core.queues_with_flows:
            await self.connections.run(allow_flows(queue))
            self.core.queues_with_flows.add(queue)

    async def close(self) -> None:
        """End the core and the connections."""
        await in_thread(self.core.close)
        if self.together is not None:
            self.together.close()
        await self.connections.close()
