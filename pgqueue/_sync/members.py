# Generated from pgqueue/_async/members.py by tools/blocking.py: edit that file, not this one.

"""The servers of a cluster: how a call asks one of them, the first that answers, or all.

A server that cannot be reached rests, and calls that may go elsewhere skip it; see _engine/cluster/servers.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from .._calls.server import Whereabouts, whereabouts
from .._engine.blocking import Answer, Conn, in_thread
from .._engine.cluster.placing import choose
from .._engine.cluster.servers import ABSENT, BITS, UNREACHABLE, Place, Server, Servers
from .._engine.outages import connected, failing_soon, moving_on
from .._records.task import TaskLike, named
from .._values.logs import log
from ..errors import Error, LimitElsewhere, TaskElsewhere
from .client import Client
from .cluster_take import take_from_all
from .task import Task

T = TypeVar("T")


class Members(Servers[Client]):
    """The servers of a cluster, each with its client."""

    def ask(self, server: Server[Client], verb: Callable[[Client], Answer[T]]) -> T:
        """Call one server. The first call that reaches it asks before which server it is."""
        with server.asked():
            if server.unchecked:
                in_thread(connected, server.check)
            if server.whereabouts is None:
                self.reached(server, server.client.shell.run(whereabouts()))
            return verb(server.client)

    def ask_first(self, first: Server[Client], verb: Callable[[Client], Answer[T]]) -> T:
        """Call the first server that can be reached, from one on. A call that may have been done is not repeated.

        The last server that is left is waited for, as by a call to one server: it may be restarting.
        """
        failures: list[Exception] = []
        for server, _ in self.to_ask(first, puts=True):
            try:
                with contextlib.nullcontext() if self.is_last(server, puts=True) else moving_on():
                    return self.ask(server, verb)
            except ABSENT as error:
                failures.append(error)
        raise self.unreachable(failures)

    def ask_only(self, server: Server[Client], verb: Callable[[Client], Answer[T]], waits: bool) -> T:
        """Call the one server that may have tasks. The call fails soon if the server refuses connections.

        In a cluster of one it waits for the server, as a client does. So does a put that waits for room.
        """
        with contextlib.nullcontext() if waits or len(self.all) == 1 else failing_soon():
            return self.ask(server, verb)

    def put(
        self,
        tasks: Iterable[tuple[str, Any]],
        verb: Callable[[Client], Answer[T]],
        place: Place | None,
        options: Mapping[str, Any] = MappingProxyType({}),
        joined: Sequence[Server[Client]] = (),
        *,
        waits: bool = False,
    ) -> T:
        """Put tasks where their options say, or on the server that keeps a limit of theirs. A refused put is repeated.

        Args:
            tasks: the queue and the data of each.
            joined: the servers of the tasks that they wait for, and of their batch. Then they go to no other.
            waits: for room, and so also for the only server that may have them, if that refuses connections.

        Raises:
            LimitElsewhere: another server keeps a limit of theirs than they may be on.
        """
        first, moves = choose(self, place, options, joined)
        number = None if joined else self.kept.server(tasks)
        if number is not None and (kept := self._numbered(number)) is not None:
            first, moves = kept, False
        try:
            return self.ask_first(first, verb) if moves else self.ask_only(first, verb, waits)
        except LimitElsewhere as refusal:
            self.kept.learn(refusal)
            if joined or (kept := self._numbered(refusal.server)) is None:
                raise
        return self.ask_only(kept, verb, waits)

    def _numbered(self, number: int) -> Server[Client] | None:
        """The server of this number; None if the cluster has none."""
        try:
            return self.having(number << BITS)
        except TaskElsewhere:
            return None

    def number_of_home(self) -> int:
        """The number of the home server. Raises ValueError if another server has it too: they are not numbered."""
        home = (self.ask(self.home, _whereabouts)).number
        found = self.ask_all(_whereabouts)
        if sum(at is not None and at.number == home for at in found) > 1:
            raise ValueError("the servers have no numbers to tell the home server by: give them with set_server()")
        return home

    def ask_all(self, verb: Callable[[Client], Answer[T]]) -> list[T | None]:
        """Call every server, in order. None for one that cannot be reached. Raises ServerError if none can."""
        answers: list[T | None] = []
        failures: list[Exception] = []
        for server in self.all:
            try:
                answers.append(self.ask(server, verb))
            except UNREACHABLE as error:
                log.warning("%s is left out: %s", self.name(server), error)
                answers.append(None)
                failures.append(error)
        if len(failures) == len(self.all):
            raise self.unreachable(failures)
        return answers

    def tell_all(self, verb: Callable[[Client], Answer[T]]) -> list[T]:
        """Call every server, in order, also behind one that failed. Raises the first error, with the server's name."""
        answers: list[T] = []
        failed: Error | None = None
        for server in self.all:
            try:
                answers.append(self.ask(server, verb))
            except Error as error:
                error.add_note(f"This is the answer of {self.name(server)}; each of the other servers was called too.")
                failed = failed or error
        if failed is not None:
            raise failed
        return answers

    def having(self, given: Any) -> Server[Client]:
        """The server of a task or a batch, or of an id, whose upper bits are the number of its server.

        Raises:
            TaskElsewhere: no server of the cluster has this number.
            ValueError: more than one may have it.
            ServerError: no server that was reached has it, and one was not reached.
            TaskIdRequired: it is no task, batch or id.
        """
        if (server := self.of_client(given)) is not None:
            return server
        id = named(getattr(given, "id", given))[0]
        if not isinstance(given, int | str) and id >> BITS == 0:
            raise ValueError("this task or batch is from none of these servers")
        failure = None
        for server in self.all:
            if server.whereabouts is None and not server.resting():
                try:
                    self.ask(server, _nothing)
                except UNREACHABLE as error:
                    failure = error
        return self.numbered(id, failure)

    def split(self, tasks: Iterable[TaskLike]) -> dict[Server[Client], list[TaskLike]]:
        """Tasks by their servers."""
        parts: dict[Server[Client], list[TaskLike]] = {}
        for task in tasks:
            parts.setdefault(self.having(task), []).append(task)
        return parts

    def ask_parts(self, tasks: Iterable[TaskLike], verb: Callable[[Client, list[TaskLike]], Answer[T]]) -> list[T]:
        """Call the server of each task, with all its tasks. All are called, and then the first error is raised."""
        answers: list[T] = []
        failed: Error | None = None
        for server, part in (self.split(tasks)).items():
            try:
                answers.append(self._ask_part(server, part, verb))
            except Error as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return answers

    def _ask_part(
        self,
        server: Server[Client],
        part: list[TaskLike],
        verb: Callable[[Client, list[TaskLike]], Answer[T]],
    ) -> T:
        return self.ask(server, lambda client: verb(client, part))

    def of_connection(self, conn: Conn) -> Server[Client]:
        """The server that a connection of the caller's leads to. Raises ValueError if that is none of the cluster's."""
        found = self.home.client.shell.run(whereabouts(), conn)
        for server in self.all:
            if server.whereabouts == found:
                return server
        for server in self.all:  # one that no call has reached yet, or that was restarted or promoted since
            with contextlib.suppress(*UNREACHABLE):
                self.reached(server, self.ask(server, _whereabouts))
            if server.whereabouts == found:
                return server
        raise ValueError("the connection leads to none of the servers of this cluster that can be reached")

    def take(self, queues: Sequence[str], n: int, timeout: float | None) -> list[Task]:
        """Take from all servers."""
        return take_from_all(self, queues, n, timeout)


def _whereabouts(client: Client) -> Whereabouts:
    return client.shell.run(whereabouts())


def _nothing(client: Client) -> Any:
    """A call that asks only which server it is."""
