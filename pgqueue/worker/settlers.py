"""The settlers of a worker over several servers, one for each, with the interface of one.

A settler waits for its server while that is away, and the others go on. No more tasks are taken from a server whose
settler has fallen behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from .._calls.take import Taken
from .failures import Failure
from .homes import Homes
from .settler import Done, Settler
from .tallies import Tallies

if TYPE_CHECKING:
    from .._sync.shell import Shell


class Settlers:
    """Each call goes to the settler of the task's server. `done`: runners append to it."""

    def __init__(self, homes: Homes[Shell]) -> None:
        self._homes = homes
        self._all = [Settler(shell) for shell in homes.all]
        self.done = _Done(self)

    def ended_threads(self) -> list[str]:
        return [name for settler in self._all for name in settler.ended_threads()]

    def of(self, id: int) -> Settler:
        return self._all[self._homes.index(id)]

    def tell(self) -> None:
        """Each append and each fail() has told its settler."""

    def tallies_of(self, task: Taken) -> Tallies:
        return self.of(task.id).tallies

    def finish(self, task: Taken, result: str, keep: float) -> None:
        settler = self.of(task.id)
        settler.finish(task, result, keep)
        settler.tell()

    def fail(self, failed: Failure) -> None:
        settler = self.of(failed.task.id)
        settler.fail(failed)
        settler.tell()

    def open_queues(self, queues: Sequence[str]) -> Sequence[str]:
        """The queues of which a server may give more tasks."""
        found = {queue for settler in self._all for queue in settler.open_queues(queues)}
        return [queue for queue in queues if queue in found]

    def open_servers(self, queues: Sequence[str]) -> list[int]:
        """The indices of the servers that may give more tasks of all these queues."""
        return [index for index, one in enumerate(self._all) if len(one.open_queues(queues)) == len(queues)]

    def give_back(self, tasks: list[Taken]) -> None:
        for index, part in self._homes.by_server(tasks, attrgetter("id")).items():
            self._all[index].give_back(part)

    def put_off(self, task: Taken, delay: float) -> None:
        self.of(task.id).put_off(task, delay)

    def stop(self, until: float = float("inf")) -> None:
        for settler in self._all:
            settler.stop(until)

    def close(self) -> None:
        for settler in self._all:
            settler.close()


class _Done:
    def __init__(self, settlers: Settlers) -> None:
        self._settlers = settlers

    def append(self, done: Done) -> None:
        settler = self._settlers.of(done[0])
        settler.done.append(done)
        settler.tell()
