"""What two queues should do, in plain Python: the model that test_model.py holds against the database.

`q` has whatever options an example draws for it, and `dead` gets what dies in it, where it has a dead letter. Time does
not pass here: `late` says that a task's delay or the deadline of its take is over, `expired` that its time to live is;
nobody has acted on it yet. A claim at the head acts on what is late, and a tick on all of it.

A task in a lane is `ready` here whether something blocks it or not: which of the two is a question of who else is in
the lane, so it is computed. The database may call a task blocked for longer, until the next claim, but never ready when
it is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

FAILED = ("rejected", "delivery_limit")
PART = 4  # a session may hold this part of the suspects that died together
VERBS = ("put", "take", "ack", "release", "bury", "kick", "delete", "touch", "delay", "ttr", "ttl", "maxlen")
Meeting = Literal["put", "full", "ignored", "replaced", "error", "taken"]


@dataclass(frozen=True)
class Options:
    """Of the queue `q`; all of them are None or False in a queue without options."""

    capacity: int | None = None
    max_takes: int | None = None
    dead_letter: bool = False
    keep_done: bool = False
    lanes: bool = False  # whether puts name lanes


@dataclass(frozen=True)
class Put:
    """What a put asks for; times are there or not."""

    priority: int = 0
    delay: bool = False
    ttr: bool = False
    ttl: bool = False
    lane: str | None = None
    key: str | None = None
    if_exists: str = "ignore"
    way: str = "put"  # in WAYS of machine.py


@dataclass
class Modelled:
    """A task as it should be."""

    id: int
    queue: str
    priority: int
    data: int
    ttr: bool
    ttl: bool
    lane: str | None
    key: str | None
    state: str = "ready"
    attempts: int = 0
    session: int | None = None
    token: int | None = None
    late: bool = False
    expired: bool = False
    holds_lane: bool = False  # while it is delayed
    marked: bool = False  # a session died that held it
    suspect: int = 0  # how many suspects a session may hold while it holds this one; 0: it is none
    deaths: list[tuple[str, str, int]] = field(default_factory=list)  # queue, reason, how often; the last one first
    releases: int = 0
    timeouts: int = 0
    buries: int = 0
    kicks: int = 0

    @property
    def place(self) -> tuple[int, int]:
        return self.priority, self.id

    @property
    def tallies(self) -> tuple[int, int, int, int]:
        return self.releases, self.timeouts, self.buries, self.kicks

    @property
    def in_line(self) -> bool:
        """Whether it stands in its lane, and nobody has it."""
        return self.lane is not None and (self.state == "ready" or (self.state == "taken" and self.late))

    @property
    def stands(self) -> bool:
        """Whether tasks of its lane that come after it have to wait for it, though it is not taken."""
        return self.in_line or (self.state == "delayed" and self.holds_lane)

    @property
    def ends(self) -> bool:
        """Whether its take, if it is taken, has a deadline."""
        return self.ttr or self.ttl

    def give_back(self, state: str = "ready", *, failed: bool = False, holds_lane: bool = False) -> None:
        self.state, self.session, self.token, self.late = state, None, None, False
        self.holds_lane = holds_lane and self.lane is not None
        self.attempts += failed


@dataclass
class Claim:
    """Takes under one token, which live and end together. A task of it may have been settled since."""

    id: int
    queue: str
    over: bool = False


class Model:
    """Each method does what the SQL function of its name does, and returns what that should answer."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.tasks: dict[int, Modelled] = {}
        self.calls: Counter[tuple[str, str]] = Counter()
        self.claims: dict[int, Claim] = {}
        self.lanes = False  # whether a put into `q` that was no error has named a lane
        self.tried: dict[int, set[int]] = {}  # by session, the suspects that it took and may still hold

    # --- looking

    def where(self, test: Callable[[Modelled], bool]) -> list[Modelled]:
        return sorted(filter(test, self.tasks.values()), key=lambda task: task.place)

    def in_state(self, queue: str, *states: str) -> list[Modelled]:
        return self.where(lambda task: task.queue == queue and task.state in states)

    def seen(self, task: Modelled) -> str:
        """Its state in the views, which do not wait for anybody to act on what is late."""
        state = "ready" if task.late else task.state
        return "blocked" if task.in_line and self.is_behind(task) else state

    def stats(self, queue: str) -> dict[str, int]:
        """How many tasks are in which state. What has expired is in none; what waits is ready, in a lane or not."""
        counted = [t for t in self.tasks.values() if t.queue == queue and not (t.expired and t.state != "delayed")]
        seen = Counter(self.seen(task) for task in counted)
        return {
            "waiting": seen["ready"] + seen["blocked"],
            **{state: seen[state] for state in ("delayed", "taken", "buried")},
            "kept": seen["done"],
            "total": len(counted) - seen["done"],
            "done": self.calls[queue, "ack"] + self.calls[queue, "delete"],
            **{verb: self.calls[queue, verb] for verb in VERBS},
        }

    def is_behind(self, task: Modelled) -> bool:
        """Whether another task of its lane is taken, or has to go first."""
        return any(
            (other.state == "taken" and not other.late)
            or (other.stands and other.place < task.place and not other.expired)
            for other in self.tasks.values()
            if other is not task and (other.queue, other.lane) == (task.queue, task.lane)
        )

    def claimable(self, queue: str, n: int, *, suspects: bool = True) -> list[Modelled]:
        """What a claim finds, once it has acted on what is late."""
        ready = [task for task in self.in_state(queue, "ready") if not task.expired and self.seen(task) == "ready"]
        return [task for task in ready if suspects or not task.suspect][:n]

    def refusal(self, id: int, token: int) -> str | None:
        """The problem that a settling with this token is answered with; None if it counts."""
        task = self.tasks.get(id)
        if task is None:
            return "not found"
        if self.seen(task) != "taken":
            return "not taken"
        return None if task.token == token else "taken by another"

    def touch(self, id: int, token: int) -> str | None:
        """The problem, as with refusal. Messages of a claim live together: it can be renewed, but they not touched."""
        problem = self.refusal(id, token) or ("taken by another" if self.tasks[id].session == 0 else None)
        if problem is None:
            self.calls[self.tasks[id].queue, "touch"] += 1
        return problem

    # --- putting

    def meet(self, put: Put) -> tuple[Meeting, Modelled | None]:
        """What a put into `q` comes to. A task may have its key: one that has expired ends. And `q` may be full."""
        other = self.with_key(put.key)
        if other and other.expired:
            self.expire(other)
            other = None
        met: Meeting
        if other is None:
            met = "full" if self.is_full() else "put"
        elif put.if_exists == "replace":
            met = "taken" if self.seen(other) == "taken" else "replaced"
        else:
            met = "error" if put.if_exists == "error" else "ignored"
        self.lanes |= put.lane is not None and met not in ("error", "taken")
        return met, other

    def with_key(self, key: str | None) -> Modelled | None:
        found = (task for task in self.tasks.values() if (task.queue, task.key) == ("q", key) and task.state != "done")
        return next(found, None) if key else None

    def is_full(self) -> bool:
        held = [task for task in self.tasks.values() if task.queue == "q" and task.state != "done"]
        return self.options.capacity is not None and len(held) >= self.options.capacity

    def add(self, id: int, put: Put, data: int) -> Modelled:
        task = Modelled(id, "q", put.priority, data, put.ttr, put.ttl, put.lane, put.key)
        task.state = "delayed" if put.delay else "ready"
        self.tasks[id] = task
        self.calls["q", "put"] += 1
        return task

    def replace(self, task: Modelled, put: Put, data: int) -> None:
        task.give_back("delayed" if put.delay else "ready")
        task.priority, task.data, task.ttr, task.ttl = put.priority, data, put.ttr, put.ttl
        task.lane, task.attempts, task.expired, task.suspect, task.marked = put.lane, 0, False, 0, False
        self.calls["q", "put"] += 1

    # --- taking and settling

    def take(self, queue: str, n: int, session: int | None = None) -> list[Modelled]:
        """The tasks; the caller notes their new holder. Without a session, suspects are as other tasks."""
        self.act_on_late(queue)
        taken = self.claimable(queue, n)
        if session is not None:
            taken = self.without_refused(taken, session) or self.claimable(queue, n, suspects=False)
        for task in taken:
            self.begin_take(task, session)
        return taken

    def take_of_both(self, n: int, session: int) -> list[Modelled]:
        """Of both queues, while none has lanes: first of the one with the task that comes first."""
        self.act_on_late("q")
        self.act_on_late("dead")
        ready = self.where(lambda task: task.state == "ready" and not task.expired)
        taken: list[Modelled] = []
        for queue in dict.fromkeys(task.queue for task in ready):
            taken += self.take(queue, n - len(taken), session)
        return taken

    def take_id(self, task: Modelled, session: int) -> str | None:
        """The problem, if there is one. Any task that is not taken, in any state; nothing is late or has expired."""
        if task.state in ("done", "taken"):
            return "not found" if task.state == "done" else "taken by another"
        taken = self.in_state(task.queue, "taken")
        if task.lane is not None and any(other.lane == task.lane for other in taken):
            return "busy"
        self.begin_take(task, session)
        return None

    def begin_take(self, task: Modelled, session: int | None) -> None:
        self.calls[task.queue, "take"] += 1
        task.state, task.session = "taken", session

    def without_refused(self, found: list[Modelled], session: int) -> list[Modelled]:
        """What a session may take of these: suspects only up to the lowest limit among those that it holds."""
        tried = self.tried.get(session, set())
        held = self.where(lambda task: task.id in tried and task.session == session and task.suspect > 0)
        taken = []
        for task in found:
            if not task.suspect:
                taken.append(task)
            elif len(held) < min(other.suspect for other in [*held, task]):
                taken.append(task)
                held.append(task)
                self.tried[session] = {other.id for other in held}
        return taken

    def end(self, task: Modelled) -> None:
        """An ack, however it came."""
        self.calls[task.queue, "ack"] += 1
        if task.queue == "q" and self.options.keep_done:
            task.give_back("done")
            task.expired = task.ttl = False
        else:
            del self.tasks[task.id]

    def release(self, task: Modelled, *, delayed: bool = False, failed: bool = False, holds_lane: bool = False) -> str:
        self.calls[task.queue, "release"] += 1
        task.releases += 1
        task.suspect, task.marked = 0, False
        task.give_back("delayed" if delayed else "ready", failed=failed, holds_lane=holds_lane)
        if failed and self.is_spent(task):
            return self.die(task, "delivery_limit")
        return self.seen(task)  # another task of its lane may go first by now

    def requeue(self, task: Modelled, new_id: int) -> None:
        self.release(task)
        self.tasks[new_id] = self.tasks.pop(task.id)
        task.id = new_id

    def release_untouched(self, task: Modelled) -> None:
        """What release_many and release_claim do: nothing is written into the task: no tally, and a suspect stays."""
        self.calls[task.queue, "release"] += 1
        task.give_back()

    def bury(self, task: Modelled, *, failed: bool = False) -> str:
        self.calls[task.queue, "bury"] += 1
        task.buries += 1
        task.suspect, task.marked = 0, False
        task.give_back("buried", failed=failed)
        if task.queue == "q" and self.options.dead_letter:
            return self.die(task, "rejected")
        return "buried"

    def kick(self, queue: str, n: int) -> int:
        kicked = self.in_state(queue, "buried")[:n]
        for task in kicked:
            task.give_back()
            task.kicks += 1
            task.attempts, task.suspect, task.marked = 0, 0, False
        self.calls[queue, "kick"] += len(kicked)
        return len(kicked)

    def kick_task(self, task: Modelled) -> None:
        if task.state == "buried":
            task.attempts = 0
        task.give_back()
        task.kicks += 1
        task.suspect, task.marked = 0, False
        self.calls[task.queue, "kick"] += 1

    def remove(self, task: Modelled) -> None:
        """Without a verb of its own: truncate_queue counts no calls."""
        del self.tasks[task.id]

    def delete(self, task: Modelled) -> None:
        self.calls[task.queue, "delete"] += 1
        del self.tasks[task.id]

    def lose(self, tasks: list[Modelled]) -> None:
        """Their taker died: counted as a release, as in Tarantool's queue. A task that was tried alone is charged."""
        charged = [task for task in tasks if len(tasks) == 1 or task.suspect == 1]
        suspects = sum(task.suspect > 0 for task in tasks)
        marked = sum(task.marked for task in tasks) - suspects
        for task in tasks:
            self.calls[task.queue, "release"] += 1
            task.releases += 1
            task.give_back(failed=task in charged)
            if task.suspect:
                task.suspect = min(task.suspect, max(1, suspects // PART))
            elif task.marked:
                task.suspect = max(1, marked // PART)
            task.marked |= task.queue == "q" and self.options.max_takes is not None
        for task in charged:
            if self.is_spent(task):
                self.die(task, "delivery_limit")

    # --- claims

    def claim(self, queue: str, n: int) -> list[Modelled]:
        """The tasks; who calls it adds the claim, if there are any."""
        tasks = self.take(queue, n)
        if tasks:
            self.claims = {id: claim for id, claim in self.claims.items() if not claim.over}
        return tasks

    def held_by(self, claim: Claim) -> list[Modelled]:
        return self.where(lambda task: task.token == claim.id)

    def renew(self, claim: Claim) -> bool:
        if not self.is_live(claim):
            return False
        held = self.held_by(claim)
        self.calls[claim.queue, "touch"] += len(held)
        return True

    def is_live(self, claim: Claim) -> bool:
        return claim.id in self.claims and not claim.over

    def release_claim(self, claim: Claim) -> int:
        """How many it gave back: none of them has failed."""
        if self.claims.pop(claim.id, None) is None:
            return 0
        held = self.held_by(claim)
        for task in held:
            self.release_untouched(task)
        return len(held)

    def delete_message(self, queue: str, task: Modelled, claim: Claim | None) -> str | None:
        """The problem, if there is one: then nothing is changed."""
        if task.queue != queue or task.state == "done":
            return None
        if claim is None:
            if self.seen(task) == "taken":
                return "claimed"
            self.delete(task)
            return None
        refusal = self.refusal(task.id, claim.id)
        if refusal == "taken by another":
            return "claimed by another" if self.is_live(claim) and claim.queue == queue else "no claim"
        if refusal:
            return "not claimed"
        self.end(task)
        return None

    # --- time

    def act_on_late(self, queue: str, *, paused: bool = False) -> None:
        """As a claim at the head does: what has expired is in no take's way, except in lanes."""
        here = [task for task in self.tasks.values() if task.queue == queue]
        in_the_way = self.lanes and queue == "q" and not paused
        if any(task.late or (task.expired and in_the_way) for task in here):
            self.promote(queue)

    def promote(self, queue: str) -> int:
        """Act on what is late, then on what has expired; how many tasks became ready."""
        late = self.where(lambda task: task.queue == queue and task.late)
        for task in late:
            back = task.state == "taken"
            self.calls[queue, "ttr" if back else "delay"] += 1
            task.timeouts += back
            task.give_back(failed=back)
            if back and self.is_spent(task):
                self.die(task, "delivery_limit")
        for task in self.where(lambda task: task.queue == queue and task.expired and task.state in ("ready", "buried")):
            self.expire(task)
        return len(late)

    def expire(self, task: Modelled) -> None:
        self.calls[task.queue, "ttl"] += 1
        self.calls[task.queue, "delete"] += 1  # as in Tarantool's queue
        self.die(task, "expired")

    def is_spent(self, task: Modelled) -> bool:
        limit = self.options.max_takes
        return task.queue == "q" and limit is not None and task.attempts >= limit

    def die(self, task: Modelled, reason: str) -> str:
        """Where it goes: to `dead`, or into its grave, or it is dropped."""
        if task.queue == "q" and self.options.dead_letter:
            died = sum(how_often for queue, why, how_often in task.deaths if (queue, why) == ("q", reason))
            others = [death for death in task.deaths if death[:2] != ("q", reason)]
            task.deaths = [("q", reason, died + 1), *others]
            task.give_back()
            task.queue, task.attempts, task.lane, task.key = "dead", 0, None, None
            task.suspect, task.marked = 0, False
            task.ttl = task.expired = False
            return "dead"
        if reason in FAILED:
            task.give_back("buried")
            return "buried"
        del self.tasks[task.id]
        return "dropped"
