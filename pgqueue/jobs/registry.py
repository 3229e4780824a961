"""The jobs of a client, by name."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .._values import arguments
from .job import Job
from .options import Settings
from .signature import place

LONGEST = 200  # characters of a name


class Registry(Mapping[str, Job[..., Any]]):
    """The jobs of a client: `client.jobs["shop.send"]`. Read only; client.job() adds to it.

    Attributes:
        defaults: the policies of jobs that leave them open; client.job_defaults() sets them.
    """

    def __init__(self) -> None:
        self.defaults = Settings()
        self._jobs: dict[str, Job[..., Any]] = {}
        self._known: dict[str, Job[..., Any]] = {}  # by name and by alias

    def __getitem__(self, name: str) -> Job[..., Any]:
        return self._jobs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._jobs)

    def __len__(self) -> int:
        return len(self._jobs)

    def __repr__(self) -> str:
        return f"<Registry of {', '.join(self._jobs) or 'no jobs'}>"

    def find(self, name: str) -> Job[..., Any] | None:
        """The job of this name, or with this alias."""
        return self._known.get(name)

    @property
    def names(self) -> Mapping[str, Job[..., Any]]:
        """The jobs by all of their names, aliases included."""
        return self._known

    def by_queue(self) -> dict[str, list[Job[..., Any]]]:
        """The jobs of each queue."""
        queues: dict[str, list[Job[..., Any]]] = {}
        for job in self._jobs.values():
            queues.setdefault(job.queue, []).append(job)
        return queues

    def add(self, job: Job[..., Any]) -> None:
        """Raises ValueError: another function has the name, or the name is an alias."""
        for name in (job.name, *job.aliases):
            _check_name(name)
            other = self._known.get(name)
            if other is not None and place(other.function) != place(job.function):
                raise ValueError(
                    f"two jobs are named {name!r}: {place(other.function)} and {place(job.function)}; give one of them"
                    " another name with client.job(name=...)"
                )
        self._jobs[job.name] = job
        self._known.update(dict.fromkeys((job.name, *job.aliases), job))


def default_name(function: Callable[..., Any]) -> str:
    """`module.qualname`. A program that is run as `python shop.py` has the name of its file, as when it is imported."""
    module = getattr(function, "__module__", None) or "__main__"
    if module == "__main__":
        main = sys.modules.get("__main__")
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        if spec is not None:
            module = spec.name.removesuffix(".__main__")
        elif file:
            module = Path(file).stem
    qualname = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{module}.{qualname}".replace(".<locals>", "")


def caller_names(depth: int) -> dict[str, Any]:
    """The local names of the frame `depth` calls above, for annotations of functions within functions."""
    frame = inspect.currentframe()
    for _ in range(depth + 1):
        frame = frame.f_back if frame else None
    return dict(frame.f_locals) if frame and frame.f_locals is not frame.f_globals else {}


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not 1 <= len(name) <= LONGEST or not name.isprintable():
        raise ValueError(f"a job's name has 1 to {LONGEST} printable characters, not {name!r}")
    arguments.text(name, "a job's name")
