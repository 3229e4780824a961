"""The names on a watch list."""

from __future__ import annotations

from .._values.arguments import queue_name
from ..errors import NotIgnored

DEFAULT = "default"


class Watched:
    """The names on a watch list, shared by both shells."""

    def __init__(self, queues: tuple[str, ...]) -> None:
        self._queues = dict.fromkeys(map(queue_name, queues or (DEFAULT,)))

    @property
    def queues(self) -> list[str]:
        """The names of the watched queues, in the order in which they were added."""
        return list(self._queues)

    def watch(self, queue: str) -> int:
        """Add a queue; the next take includes it. Returns the number of watched queues. As beanstalkd's watch."""
        self._queues[queue_name(queue)] = None
        return len(self._queues)

    def ignore(self, queue: str) -> int:
        """Remove a queue; the next take leaves it out. Returns the number of watched queues. As beanstalkd's ignore.

        Raises:
            NotIgnored: it is the only watched queue.
        """
        if list(self._queues) == [queue]:
            raise NotIgnored(f"{queue!r} is the last queue of the watch list: watch another one first")
        self._queues.pop(queue, None)
        return len(self._queues)
