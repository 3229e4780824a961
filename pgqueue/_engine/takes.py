"""The take that waits: the loop that needs both the database and the clock. Written once, for both shells.

The take, step by step (T1 to T4 are the steps of sql/2_base/wake.sql):

    claim; if it returns no task, repeat until the timeout is over:
        enter the hub as a waiter, and wait until LISTEN and the WAITER lock are committed     T1 T2 T3
        look once more: is a task ready, and when will one be due?                             T4
        sleep until signalled, due, or out of time; leave; claim
    of several queues, before it returns none: claim from each by itself that has a task due

The timeout limits the waiting only. The take awaits the answer to a claim that it has sent and returns its task,
however late. A claim that was cut off (a cancelled coroutine, Ctrl-C, a lost connection) may have been committed: the
take undoes it by its token.

A claim that the server refused, since another backend held a lock of pgqueue's for a second, is repeated until the
timeout is over, and then raises LockBlocked. It names the holder; a take that returned None would hide it.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Sequence

from .._calls import put as putting
from .._calls import take as calls
from .._calls.call import Call
from .._calls.take import Taken
from .._values.logs import log
from ..errors import CallTimeout, ClosedError, ConnectionLost, DeadlineSoon, LockBlocked, ServerError, SessionDead
from .core import Core
from .cursor import ClaimCursor, Position
from .door import without_session
from .listener import Listener
from .outages import Pauses
from .steps import Flow, Run, Signal, Wait
from .waiters import Waiter

SOON = 1.0  # seconds, as in beanstalkd
BY_QUEUE = 0.25  # seconds after which no further claim from one of several queues begins; each may wait as long
LOCKED_PAUSE = (0.005, 0.25)  # before looking again at a task that an open transaction has locked, seconds


def take(
    core: Core,
    listener: Listener,
    make_signal: Callable[[], Signal],
    queues: Sequence[str],
    n: int,
    timeout: float | None,
    stopped: Callable[[], bool] = lambda: False,
    *,
    deadline_soon: bool = False,
    timed: bool = False,
    looked: bool = False,
) -> Take:
    """Take up to n tasks, as soon as one is ready: a take, which its caller runs.

    The list is empty after `timeout` seconds, when the client closes, or once `stopped()` is true and the signal of the
    current wait is set. With `deadline_soon` the wait raises DeadlineSoon when a take of this session is about to end.
    With `timed` the rows tell for how long their tasks were ready, which costs a claim of one task a little more.
    `looked`: the caller has just found no task, so this take begins with the sleep, and its last look finds a task that
    was put since.
    """
    kind = _TakeInTime if deadline_soon else _TimedTake if timed else Take
    found = kind(core, listener, make_signal, tuple(queues), n, timeout, stopped)
    found.looked = looked
    return found


class Take:
    """One take, from its call to its return. A duty of the frame that drives it (duties.py)."""

    relaxed = True  # a claim that a crash of the server forgets is only made again
    timed = False
    looked = False
    singly = False  # claim one task after a sleep, which costs less; the caller asks for others with `looked`
    final = True  # an empty answer says that no task was due; else the caller asks again soon

    def __init__(
        self,
        core: Core,
        listener: Listener,
        make_signal: Callable[[], Signal],
        queues: tuple[str, ...],
        n: int,
        timeout: float | None,
        stopped: Callable[[], bool],
    ) -> None:
        self._core = core
        self._listener = listener
        self._hub = listener.hub
        self._make_signal = make_signal
        self._queues = queues
        self._cursors = [core.cursors.setdefault(queue, ClaimCursor()) for queue in queues]
        self._n = self.asked = n  # `asked`: for how many tasks the last claim asked
        self._began = time.monotonic()
        self._deadline = float("inf") if timeout is None else self._began + timeout
        self._stopped = stopped
        self._token = secrets.randbits(63)
        self._used_session: int | None = None
        self._locked_pause = LOCKED_PAUSE[0]
        self._away: Pauses | None = None  # after the first error: a take usually meets none
        self._ids_known: dict[str, int] = {}
        self._said = False  # that a lock is in the way
        self._signalled = False  # at any time in this take: then this take signals the next waiter
        self._called: set[int] = set()  # the queues that called this take, and for which it has not answered
        self._served = False  # by a call, which announces one task and no more
        self._waiter: Waiter | None = None
        self._inner: Take | None = None  # of one of the queues

    def run(self) -> Flow[list[Taken]]:
        try:
            tasks = [] if self.looked else (yield from self._claim())
            while not tasks and not self._over():
                with contextlib.suppress(ConnectionLost, ServerError):  # then the claim waits for the server
                    tasks = yield from self._sleep()
                if not tasks:
                    self.asked = 1 if self.singly else self._n
                    tasks = yield from self._claim()
            if not tasks and self.final and len(self._queues) > 1:
                tasks = yield from self._claim_by_queue()
            if self._signalled or (len(tasks) == self.asked and not self._served) or self._have_deadlines(tasks):
                self._pass_on()  # one notification may announce more tasks than this take got; others may be locked
            self._answer_calls()
        except BaseException as error:
            self.fulfil()
            if isinstance(error, ClosedError) and self._listener.stopping:
                return []  # the client was closed amid a statement: as amid a sleep
            raise
        return tasks

    def fulfil(self) -> None:
        """Undo a take whose caller gets no tasks, after any of its steps. May be called again."""
        if self._inner is not None:
            self._inner.fulfil()
        self._leave()
        self._undo()
        self._pass_on()  # this take may have used up a signal without looking
        self._answer_calls()

    def _answer_calls(self) -> None:
        if self._called and self._hub.pass_on(self._called):
            self._listener.poke()

    # --- sleeping

    def _sleep(self) -> Flow[list[Taken]]:
        """Sleep until a task may be ready. Returns the tasks that arrived before the sleep began."""
        self._waiter = waiter = Waiter((yield from self._ids()), self._make_signal, self._began, self._queues)
        try:
            if self._hub.enter(waiter):
                self._listener.poke()
            yield Wait(waiter.armed, self._left())
            tasks, pause = yield from self._last_look()
            if not tasks:
                yield Wait(waiter.woken, pause)
            return tasks
        finally:
            self._leave()

    def _leave(self) -> None:
        """End the sleep, if there is one."""
        if (waiter := self._waiter) is not None:
            if self._hub.leave(waiter):
                self._listener.poke()
            self._was_woken(waiter)
            self._waiter = None

    def _was_woken(self, waiter: Waiter) -> None:
        """Note the signal or call that woke it, if any. The tasks of its last look may be older than the call."""
        if waiter.called_for is not None:
            self._called.add(waiter.called_for)
            self._served = True
        elif waiter.woken.is_set():
            self._signalled = True

    def _last_look(self) -> Flow[tuple[list[Taken], float | None]]:
        """Look once the waiter is armed; a later put signals it. Returns tasks, and for how many seconds to sleep.

        It is a look at the head, also while claims start at the cursor: the task that is ready may be in front of it.
        """
        due: dict[str, float | None] = yield Run(calls.next_due(self._queues, list(self._ids_known.values())))
        self._called -= {self._ids_known[queue] for queue, seconds in due.items() if seconds != 0}  # nothing is left
        if len(due) < len(self._ids_known):
            self._forget({queue for queue in self._ids_known if queue not in due})
            return [], 0.0
        if 0 not in due.values():
            for queue, seconds in due.items():
                if seconds is not None and self._hub.set_due(self._ids_known[queue], seconds):
                    self._listener.poke()
            return [], self._left(self._core.settings.poll)
        self.asked = self._n
        tasks = yield from self._claim_at_head()
        # Nothing, although a task is ready: an open transaction has it locked, and its rollback would signal nothing.
        pause, self._locked_pause = self._locked_pause, min(self._locked_pause * 2, LOCKED_PAUSE[1])
        return tasks, self._left(pause)

    def _forget(self, deleted: set[str]) -> None:
        """Forget the ids of queues that were deleted: a queue that was created again has another id."""
        self._core.queue_ids = {
            queue: id
            for queue, id in dict(self._core.queue_ids).items()
            if queue not in deleted or self._ids_known.get(queue) != id
        }

    def _ids(self) -> Flow[tuple[int, ...]]:
        """The queues' ids. They are read again under a new session: if the server crashed, or a standby took over,
        queues that a take had created with synchronous_commit off may be gone."""
        if self._core.queue_ids_session != self._listener.last_session:
            self._core.queue_ids, self._core.queue_ids_session = {}, self._listener.last_session
        known = self._core.queue_ids
        if not all(queue in known for queue in self._queues):
            known.update((yield Run(putting.queue_ids(self._queues))))
        before, self._ids_known = self._ids_known, {queue: known[queue] for queue in self._queues}
        # A waiter on the deleted queue's id would sleep on: only this take knows that the id has changed.
        self._hub.signal(id for queue, id in before.items() if id != self._ids_known[queue])
        return tuple(self._ids_known.values())

    # --- claiming

    def _claim(self) -> Flow[list[Taken]]:
        starts = [cursor.start() for cursor in self._cursors]
        tasks = yield from self._attempt(starts)
        if not tasks and any(starts) and self._over():
            tasks = yield from self._claim_at_head()
        return tasks

    def _claim_at_head(self) -> Flow[list[Taken]]:
        return (yield from self._attempt([None] * len(self._cursors)))

    def _claim_by_queue(self) -> Flow[list[Taken]]:
        """Claim from the first queue by itself that has a task due, then from the next, until one of them serves.

        A claim of one queue waits for a transaction that is just making due tasks ready (sql/4_rules/due.sql). A claim
        of several queues does not, since a queue that a transaction has locked for long would hold up the others.
        """
        if self._ended():
            return []
        end = time.monotonic() + BY_QUEUE
        due: dict[str, float | None] = {}
        with contextlib.suppress(ConnectionLost, ServerError):  # the claim of all queues was answered
            due = yield Run(calls.next_due(self._queues))
        for queue in self._queues:
            if due.get(queue) == 0 and time.monotonic() < end:
                parts = (self._core, self._listener, self._make_signal, (queue,), self._n, 0.0, self._stopped)
                self._inner = type(self)(*parts)
                if tasks := (yield from self._inner.run()):
                    return tasks
        return []

    def _attempt(self, starts: list[Position | None]) -> Flow[list[Taken]]:
        while (session := (yield from self._session())) is not None:
            began = time.monotonic()
            try:
                tasks: list[Taken] = yield Run(self._call(session, starts), self.relaxed, self._within())
            except SessionDead as error:
                reason: Exception = error  # the listener has not noticed yet, or is reconnecting
                self._listener.refused(session)
            except ConnectionLost as error:
                reason = error
                self._lost(error)
            except ServerError as error:
                reason = error
            except LockBlocked as error:
                self._used_session = None  # the server has answered: there is nothing to undo
                if time.monotonic() >= self._deadline:
                    raise
                self._say(error)
                continue
            else:
                self._learn(starts, time.monotonic() - began, tasks)
                if self._called:
                    self._called -= {self._ids_known.get(task.queue, 0) for task in tasks}
                if not tasks:
                    self._used_session = None  # the server has answered: there is nothing to undo
                return tasks
            if time.monotonic() > self._give_up():
                if isinstance(reason, CallTimeout):
                    raise reason
                raise ServerError(f"nothing can be taken: {reason}") from reason
            self._away = self._away or Pauses()
            yield Wait(self._make_signal(), self._away.failed())
        return []

    def _call(self, session: int, starts: list[Position | None]) -> Call[list[Taken]]:
        self._used_session = session
        if self.asked == 1 and len(self._queues) == 1 and not self.timed:
            return calls.take(self._queues[0], session, self._token, starts[0])
        return calls.take_many(self._queues, self.asked, session, self._token, starts)

    def _learn(self, starts: list[Position | None], took: float, tasks: list[Taken]) -> None:
        for queue, cursor, start in zip(self._queues, self._cursors, starts, strict=True):
            last = next((task for task in reversed(tasks) if task.queue == queue), None)
            cursor.claimed(start, took, (last.priority, last.id) if last else None, len(tasks))

    def _have_deadlines(self, tasks: list[Taken]) -> bool:
        """Then the next waiter has to look, since it sleeps until the next deadline that it knows of."""
        return any(task.deadline is not None for task in tasks)

    def _session(self) -> Flow[int | None]:
        """The session for the take; None when the client closes, or the take is stopped."""
        while not self._listener.stopping and not self._stopped():
            if (session := self._listener.session) is not None:
                return session
            left = self._give_up() - time.monotonic()
            if left <= 0:
                raise without_session("nothing can be taken", self._listener.failure)
            signal = self._make_signal()
            self._listener.when_session(signal)
            yield Wait(signal, None if left == float("inf") else left)
        return None

    def _say(self, error: LockBlocked) -> None:
        """The server has waited for a second. A take that goes on without a limit tells why it gets nothing."""
        if not self._said:
            self._said = True
            log.warning("a take from %s goes on waiting: %s", ", ".join(map(repr, self._queues)), error)

    def _lost(self, error: ConnectionLost) -> None:
        """The claim may have been committed: undo it, and claim under another token."""
        self._undo()
        self._token = secrets.randbits(63)

    def _undo(self) -> None:
        if self._used_session is not None:
            self._listener.undo(self._token)
            self._used_session = None

    def _pass_on(self) -> None:
        """Signal the next waiter of each queue, also of a deleted queue's id: its waiters have to look again."""
        now = self._core.queue_ids
        self._hub.signal({ids[queue] for ids in (now, self._ids_known) for queue in self._queues if queue in ids})

    # --- time

    def _over(self) -> bool:
        return self._ended() or time.monotonic() >= self._deadline

    def _ended(self) -> bool:
        return self._stopped() or self._listener.stopping

    def _left(self, at_most: float | None = None) -> float | None:
        left = min(self._deadline - time.monotonic(), float("inf") if at_most is None else at_most)
        return None if left == float("inf") else max(0.0, left)

    def _give_up(self) -> float:
        """Until when to wait for a server that restarts. A take that does not wait for tasks waits for this too."""
        return max(self._deadline, self._began + self._core.settings.patience)

    def _within(self) -> float:
        """For how long the next claim may run: call_timeout is for the whole take, beyond the time that it may wait."""
        end = max(self._deadline, self._began) + self._core.settings.call_timeout
        return max(end - time.monotonic(), 0.05)


class _TimedTake(Take):
    timed = True
    final = False


class _TakeInTime(Take):
    """A take that raises DeadlineSoon once another take of this client's session has only a second left.

    The deadlines are read before each sleep: takes and touches of other threads count from the next wake-up on.
    """

    _alarm = float("inf")  # the moment at which one second is left

    def _sleep(self) -> Flow[list[Taken]]:
        left: float | None = None
        if (session := self._listener.session) is not None:
            left = yield Run(calls.session_deadline(session))
        if left is not None and left <= SOON:
            raise DeadlineSoon(f"settle or touch a task that this client has taken: its time ends in {left:.2f} s")
        self._alarm = float("inf") if left is None else time.monotonic() + left - SOON
        return (yield from super()._sleep())

    def _left(self, at_most: float | None = None) -> float | None:
        alarm = self._alarm - time.monotonic()
        return super()._left(alarm if at_most is None else min(at_most, alarm))
