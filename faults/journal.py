"""Journals: what a process did, in lines that outlive a kill -9.

A line is one os.write() to a file opened for appending: the kernel has the whole line or none of it, whatever becomes
of the process. (A buffered file would lose its last lines with the process, and these are the ones that matter.) A line
is written before and after each step, so the ledger knows between which two moments the step took effect.

A line has a time, an event and fields, with tabs between them. The time is CLOCK_MONOTONIC in seconds: the same clock
in all processes of the machine, and one that a step of the wall clock does not change.

    putting QUEUE LANE LABEL        the call of put begins         put LABEL ID; unput LABEL ERROR
    taking                          the call of take begins        took LABEL ID TOKEN
    acking LABEL                    the call of ack begins         acked LABEL; refused, unsure LABEL ERROR
    handled LABEL, failed LABEL     the end of a handler whose worker acks, or retries
    locking NAME                    the request of a lock          locked NAME FENCE
    unlocking NAME                  the release begins             unlocked NAME; lost NAME instead: it is known as lost
    posting LABEL                   the call of post begins        posted LABEL; unposted LABEL ERROR
    listening                       subscribe() has returned       heard LABEL, gap REASON
    sent LABEL                      a client of Celery has sent a task    got LABEL: it has the result
    ready                           a worker of Celery takes tasks
    beat                            a control had its turn, and the disk has written
    error CLASS TEXT                a call failed; the program goes on

A label names a task or a payload: the process, its life, and a number. Ids do not: after a failover to a standby that
lagged behind, the server gives an id again.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

#: The events that complete a step: a process that writes one of them works.
STEPS = frozenset({"put", "acked", "handled", "locked", "posted", "heard", "got"})
TAIL = 4096  # bytes at the end of a journal in which to look for its last step


class Line(NamedTuple):
    """A line of a journal."""

    at: float
    event: str
    fields: tuple[str, ...]


class Journal:
    """A journal to write. Safe in every thread."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, event: str, *fields: object) -> None:
        words = [f"{time.monotonic():.6f}", event, *(_plain(field) for field in fields)]
        os.write(self._file, ("\t".join(words) + "\n").encode())


@dataclass
class Life:
    """A process from its start to its end, and its journal. `began` and `ended` are the crew's times."""

    name: str
    number: int
    began: float = 0.0
    ended: float = float("inf")
    killed: bool = False
    lines: list[Line] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.name}.{self.number}"

    def steps(self) -> list[float]:
        return [line.at for line in self.lines if line.event in STEPS]


def parse(text: str) -> list[Line]:
    """The lines of a journal. A last line without its end is left out."""
    lines = []
    for line in text.split("\n")[:-1]:
        at, event, *fields = line.split("\t")
        lines.append(Line(float(at), event, tuple(fields)))
    return lines


def last_step(path: Path) -> float:
    """The time of the last step in a journal that is being written; 0 if there is none near its end."""
    try:
        with path.open("rb") as file:
            start = max(0, os.fstat(file.fileno()).st_size - TAIL)
            file.seek(start)
            tail = file.read()
    except FileNotFoundError:
        return 0.0
    whole = tail.partition(b"\n")[2] if start else tail
    return max((line.at for line in parse(whole.decode()) if line.event in STEPS), default=0.0)


def _plain(field: object) -> str:
    return " ".join(str(field).split())
