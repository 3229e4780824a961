"""The results from the workers, and the check of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import Error
from .death import Death
from .files import digest


@dataclass(slots=True)
class Outcome:
    """The results of one run.

    Attributes:
        run: its id. Results of other runs do not count.
        digests: the number of lines and the SHA-256, by path.
        doers: the pids of the workers that gave a result, by path: several, if a task was redelivered after its result.
        death: the worker that was killed.
        seconds: from the put of the tasks until the last of them was done.
    """

    run: str
    digests: dict[str, tuple[int, str]] = field(default_factory=dict)
    doers: dict[str, set[int]] = field(default_factory=dict)
    death: Death | None = None
    seconds: float = 0.0

    def add(self, result: Any) -> None:
        """Note a result. Raises Error: the worker could not read the file."""
        if result["run"] != self.run:
            return
        if "error" in result:
            raise Error(f"a worker could not read a file: {result['error']}")
        self.digests[result["path"]] = (result["lines"], result["sha256"])
        self.doers.setdefault(result["path"], set()).add(result["worker"])

    @property
    def lines(self) -> int:
        return sum(count for count, _ in self.digests.values())

    def redelivered(self) -> int:
        """How many of the killed worker's tasks other workers have done."""
        if self.death is None:
            return 0
        return sum(1 for path in self.death.held.values() if self.doers.get(path, set()) - {self.death.pid})

    def faults(self, files: Sequence[str]) -> list[str]:
        """The faults of the results; an empty list if all is well."""
        found = []
        if missing := len(set(files) - self.digests.keys()):
            found.append(f"{missing} files have no result")
        if wrong := sum(1 for path, one in self.digests.items() if one != digest(path)):
            found.append(f"{wrong} digests differ from the direct computation")
        if self.death and (lost := len(self.death.held) - self.redelivered()):
            found.append(f"{lost} tasks of the killed worker were not done by another worker")
        return found
