"""The names on a watch list."""

from __future__ import annotations

from .._values.arguments import queue_name
from ..errors import NotIgnored

DEFAULT = "default"


class Watched:
    """What a watch list is in both shells."""

    def __init__(self, queues: tuple[str, ...]) -> None:
        self._queues = dict.fromkeys(map(queue_name, queues or (DEFAULT,)))

    @property
    def queues(self) -> list[str]:
        """The names of the watched queues, in the order in which they were added."""
        return list(self._queues)

    def watch(self, queue: str) -> int:
        """Take from this queue too, from the next take on. Returns how many are watched now. As beanstalkd's watch."""
        self._queues[queue_name(queue)] = None
        return len(self._queues)

    def ignore(self, queue: str) -> int:
        """Take from it no more. Returns how many are watched now. As beanstalkd's ignore.

        Raises:
            NotIgnored: it is the only one.
        """
        if list(self._queues) == [queue]:
            raise NotIgnored(f"{queue!r} is the last queue of this watch list: watch another one before it is ignored")
        self._queues.pop(queue, None)
        return len(self._queues)
