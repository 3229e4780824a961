"""What a fault is, and what it works with."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..crew import Crew
from ..ledger import Violation
from ..netns import Namespace
from ..pgbouncer import PgBouncer
from ..proxy import Proxy
from ..servers import Server


class Interrupted(Exception):
    """The rig is to end."""


@dataclass
class Scene:
    """What a fault may use; the parts that the setting has.

    Attributes:
        seconds: how long the fault is to last, if it has a length.
        turn: how often this fault was done before.
        done: how often each process was hit, for faults that choose one.
        seen: violations that a fault itself saw.
    """

    server: Server
    crew: Crew
    random: random.Random
    stopping: threading.Event
    proxy: Proxy | None = None
    pooler: PgBouncer | None = None
    namespace: Namespace | None = None
    seconds: float = 0.0
    turn: int = 0
    done: Counter[str] = field(default_factory=Counter)
    seen: list[Violation] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        if self.stopping.wait(seconds):
            raise Interrupted


def calm(scene: Scene) -> None:
    """No fault at all. How soon everyone completes a step then is what the others are compared with."""


@dataclass(frozen=True)
class Fault:
    """A kind of fault.

    Attributes:
        setting: the kind of arena that it needs.
        act: does it once; returns the names of the processes that it hit, None for all.
        excuses: what it may cost by PostgreSQL's own rules; see the ledger.
        seconds: how long it lasts by default.
        waits: whether everyone has to be back before the next one.
        prepare: what to do before each time, outside of its window.
    """

    name: str
    setting: str
    act: Callable[[Scene], Iterable[str] | None]
    excuses: frozenset[str] = frozenset()
    seconds: float = 0.0
    waits: bool = True
    prepare: Callable[[Scene], None] = calm
