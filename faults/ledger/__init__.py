"""The ledger: what the journals and the tables prove.

Theory of operation
-------------------
Every process journals the begin and the end of each call (journal.py). What the call did in the database took effect at
some moment between the two lines. So from journals alone the ledger can say that one thing was certainly before
another: if the end of the first call is before the begin of the second. Each rule below uses certain orders only, so
that a violation is one, however the machine schedules the processes.

**A run** is one process's hold on a task: `taking` < claim < `took`, and then `acking` < commit < `acked`, or a
refusal, or the death of the process. Runs that a `pgqueue worker` makes have no `taking`, since the worker takes ahead
of its handlers; its life's begin stands for it.

1. Nothing acknowledged is lost. A task whose `put` returned has a run whose ack began and may have taken effect (it was
   acknowledged, or its answer never came), or is still in its table. (tasks.py)
2. Nothing acknowledged runs again. If A's ack returned, no other run of the task is acked, and no run begins to take
   after A's `took`: its claim would be after A's claim and in spite of A's ack. Only a run that began to take before
   A's `took` is legal: it lost the task before A got it, and learns so at its own ack. (tasks.py)
3. No two holders at once. A's run ends with its `acking`, its handler's end, its refusal or its process's death. B's
   `took` within A's run is a second holder. It is legal only if A's session may have been lost: in a window of a fault
   that may lose sessions. An ack that is refused outside of such a window is a violation as well: the take of a living
   process was given away. (tasks.py)
4. Lanes in order. If put(a) returned before put(b) began, in one lane, then a is done before b is claimed: an ack of a
   (or its handler's end) that may have taken effect began before each `took` of b, and no run of a begins to take after
   a `took` of b. (lanes.py)
5. Locks and leaderships. A hold is `locked` to `unlocking`, to its loss, or to the process's death. A lock whose
   release succeeded was held from its grant to its release: no other hold begins in between. A hold that ended by a
   loss may overlap with the next, in a window of a fault that breaks connections; outside of one a loss is a violation.
   Fences rise from each hold to each that was requested, or granted, after it. (locks.py)
6. Subscriptions. Of two payloads that a subscriber heard one after the other, it missed none in between whose post
   returned, or it was told of a gap in between. Payloads come in the order of their posts. (channels.py)
7. At the end nothing is stuck: the queues are empty, no take and no session is left, and the counters are what the
   tables say. (ends.py)
8. Everyone is back: after a fault each process completes a step within a bound. (recovery.py)

**Windows.** A fault is a window of time, until everyone is back and a little longer, with the excuses that PostgreSQL's
own rules give: `takes`, `locks` (a broken connection loses them), `commits` (the promotion of an asynchronous standby
loses the last ones), `delays` (a delay that began while the server's clock was ahead ends by that clock). A window of a
fault that excuses nothing, a locked table for example, excuses nothing: a lock that is lost in it is a violation. What
was excused is counted, and reported beside the violations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..journal import Life
from . import channels, ends, lanes, locks, recovery, tasks
from .ends import LATER, Tables
from .tasks import Deeds
from .windows import AFTER, Violation, Window, Windows

__all__ = ["AFTER", "LATER", "Proof", "Tables", "Violation", "Window", "prove"]


class Proof:
    """What the ledger found.

    Attributes:
        violations: what must not have happened, by time.
        windows: the faults; each has its `back` now.
        deeds: the puts and the runs.
        excused: how often each excuse was used.
        lives: the processes, with their journals.
    """

    def __init__(self, windows: Windows, deeds: Deeds, violations: Iterable[Violation], lives: Sequence[Life]) -> None:
        self.deeds = deeds
        self.windows = windows.all
        self.violations = sorted(violations, key=lambda violation: violation.at)
        self.excused = windows.used
        self.lives = lives


def prove(lives: Iterable[Life], windows: Iterable[Window], tables: Tables, bound: float = float("inf")) -> Proof:
    """Check all rules. `bound`: seconds after the end of a fault within which everyone has to be back."""
    lives, known = list(lives), Windows(list(windows))
    deeds = tasks.read(lives)
    found = [
        *recovery.check(lives, known, bound),  # first: a window excuses until everyone is back
        *tasks.check(deeds, known, tables.left),
        *lanes.check(deeds, known),
        *locks.check(lives, known),
        *channels.check(lives, known),
        *ends.check(lives, known, tables),
    ]
    return Proof(known, deeds, found, lives)
