"""The waiters of each queue, and the steps that the listener has to take for them. No I/O and no thread of its own.

Theory of operation
-------------------
A waiter is one sleep of one taker. The taker makes it before its last look, it is signalled at most once, and then it
is thrown away. So it is an event count without a counter: a signal after the waiter entered is never lost, and there is
no event to clear at the wrong moment. (Clearing a shared event *after* the last look is the classic lost wake-up.)

Each queue with a waiter has a channel here. Its states, and the steps between them:

    absent --enter--> wanted --LISTEN--> listening --arm--> armed --arm again--> drained
                                             ^                 |                    |
                                             '---- disarm -----+--------------------'  UNLISTEN after an idle time

- Takers only enter and leave. The listener thread performs all other steps, in the order that plan() returns.
- A waiter's `armed` is set once LISTEN and the WAITER lock are known to be committed: only then does its last look
  count (sql/2_base/wake.sql, T4). A channel that is armed but not yet drained is polled, with a growing pause: each
  attempt at the drain wakes a waiter, and so does its success.
- plan() marks a step down before the listener sends it. A taker that enters before it is sent then asks for the steps
  up again and does not rely on a LISTEN or a lock that is about to be dropped.
- A channel stays armed for LINGER after its last waiter left: a taker that handles a task in a millisecond and
  returns finds the channel armed. After that time producers no longer notify.

One notification may announce many tasks, and the hub signals one waiter for it. A taker that then takes as many tasks
as it asked for signals the next waiter; so does a taker that was signalled and ended before it looked.

A call is a notification for this process alone, and announces one task (sql/2_base/line.sql). The hub gives it to the
taker that has waited longest, which must answer it: the taker takes a task of the queue, or looks after the call and
finds none, or gives the call back to the hub (pass_on). The hub hands a call without a taker to the server, which calls
the next process. If the hub dropped it, a wake-up would be lost: no other process was notified.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping

from .._calls.wake import Entered, Entry
from .places import Place
from .waiters import DRAIN_PAUSE, Channel, Plan, Waiter

LINGER = 0.005


class Hub:
    """The channels of one listener. Every method is safe from any thread."""

    def __init__(self, idle_timeout: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._idle_timeout = idle_timeout
        self._clock = clock
        self._lock = threading.Lock()
        self._channels: dict[int, Channel] = {}
        self._changed = False  # since the last plan
        self._again = float("inf")
        self._closed = False
        self._calls: set[int] = set()  # queues with a call that no taker of this process answers

    # --- takers

    def enter(self, waiter: Waiter) -> bool:
        """Begin to wait. Returns True if the caller has to poke the listener."""
        with self._lock:
            for id in waiter.queues:
                self._channels.setdefault(id, Channel()).add(waiter)
            self._changed = True
            if self._closed:
                self._wake(waiter)
            armed = self._tell_if_armed(waiter)
            return not armed or self._is_out_of_line(waiter)

    def leave(self, waiter: Waiter) -> bool:
        """End the wait, signalled or not. Returns True if the caller has to poke the listener, which may disarm."""
        with self._lock:
            return self._remove(waiter)

    def signal(self, queues: Iterable[int]) -> None:
        """Wake one waiter of each queue: a task may be ready."""
        with self._lock:
            for id in queues:
                self._wake_first(id)

    def pass_on(self, queues: Iterable[int]) -> bool:
        """A taker that was called takes nothing from these queues. Returns True if the caller has to poke."""
        with self._lock:
            for id in queues:
                self._call(id)
            return bool(self._calls)

    def set_due(self, queue: int, seconds: float) -> bool:
        """Signal the queue in `seconds` seconds. Returns True if the listener sleeps longer and has to be poked."""
        with self._lock:
            channel = self._channels.get(queue)
            at = self._clock() + seconds
            if channel is None or at >= channel.due:
                return False
            channel.due = at
            self._changed = True
            return True

    def awaited(self) -> set[str]:
        """The names of the queues on which a taker sleeps."""
        with self._lock:
            return {name for channel in self._channels.values() for waiter in channel.waiters for name in waiter.names}

    # --- the listener

    def plan(self) -> Plan:
        """The next steps of every channel. A planned step down counts as done from now on."""
        with self._lock:
            now = self._clock()
            if not self._changed and now < self._again:
                return Plan(again=self._again)
            plan, self._changed = Plan(), False
            plan.pass_on, self._calls = sorted(self._calls), set()
            for id in list(self._channels):
                self._plan(id, self._channels[id], now, plan)
            self._again = now if self._changed else plan.again  # changed: a waiter that was due was woken
            plan.again = self._again
            return plan

    def listening(self, queues: Iterable[int]) -> None:
        with self._lock:
            self._changed = True
            for id in queues:
                self._channels[id].listening = True

    def armed(self, drained: dict[int, bool], hearing: Iterable[int] | None = None) -> None:
        """The WAITER lock is held. The listener will try again to drain the channels that are not drained.

        `hearing`: the queues of which this process hears every put; None: all of them.
        """
        with self._lock:
            for id in drained:
                self._channels[id].armed = True
                self._channels[id].place = Place.armed(hearing is None or id in hearing)
            self._drained(drained)
            for id in drained:
                for waiter in self._channels[id].waiters:
                    self._tell_if_armed(waiter)

    def drained(self, drained: dict[int, bool]) -> None:
        """The result of a drain. In both cases a waiter looks: a put that did not notify was committed before now."""
        with self._lock:
            self._drained(drained)
            for id in drained:
                self._wake_first(id)

    def heard(self, queue: int) -> None:
        """A put woke every process."""
        with self._lock:
            if channel := self._channels.get(queue):
                channel.place.woken_with_all()
                self._changed = True
        self.signal([queue])

    def called(self, queue: int) -> None:
        """A put, or a process that passes its call on, called this process. Any role can pretend to be one."""
        with self._lock:
            if channel := self._channels.get(queue):
                channel.place.called()
                self._call(queue)

    def come(self, queue: int) -> None:
        """Another process waits, and has entered the line of a queue of this one's bucket."""
        with self._lock:
            if channel := self._channels.get(queue):
                channel.place.come()
                self._changed = True

    def entered(self, planned: Iterable[Entry], answers: Mapping[int, Entered]) -> None:
        """The server's answers. A queue without an answer is tried again."""
        with self._lock:
            self._changed = True
            for entry in planned:
                self._entered(entry.queue_id, answers.get(entry.queue_id))

    def abandoned(self) -> set[int]:
        """The queues of which this process, which closes, may have been called for a task."""
        with self._lock:
            return self._calls.union(
                id for id, channel in self._channels.items() if id > 0 and channel.armed and not channel.place.hears
            )

    def disconnected(self) -> None:
        """The connection is lost, and with it every LISTEN and lock."""
        with self._lock:
            self._changed = True
            for channel in self._channels.values():
                channel.listening = channel.armed = channel.drained = False
                channel.place = Place()

    def wake_all(self) -> None:
        """Every waiter looks again: notifications that were sent while the listener was disconnected are gone."""
        with self._lock:
            for channel in self._channels.values():
                self._wake_waiters(channel)

    def close(self) -> None:
        """Wake every waiter, and from now on each one that enters."""
        with self._lock:
            self._closed = True
        self.wake_all()

    # --- inside the lock
    #
    # A loop that ends in an `if` stands here, and not in the section of the lock. From Python 3.12 on, its jump back
    # belongs to no `with` (https://github.com/python/cpython/issues/130279): Ctrl-C there would leave the lock held.

    def _plan(self, id: int, channel: Channel, now: float, plan: Plan) -> None:
        if channel.waiters:
            if not channel.listening:
                plan.listen.append(id)
            if not channel.armed:
                plan.arm.append(id)
            elif not channel.drained:
                self._at(channel.drain_at, now, plan, lambda: plan.arm_again.append(id))
            self._at(channel.due, now, plan, lambda: self._due(channel))
            if id > 0 and channel.armed and channel.waiters:
                moment = channel.place.moment(channel.waiters[0].since)
                self._at(moment, now, plan, lambda: self._enter(id, channel, now, plan))
        elif channel.armed:
            self._at(channel.idle_since + LINGER, now, plan, lambda: self._disarm(id, channel, plan))
        else:
            self._at(channel.idle_since + self._idle_timeout, now, plan, lambda: self._forget(id, channel, plan))

    @staticmethod
    def _at(moment: float, now: float, plan: Plan, step: Callable[[], None]) -> None:
        if moment <= now:
            step()
        else:
            plan.again = min(plan.again, moment)

    def _due(self, channel: Channel) -> None:
        channel.due = float("inf")
        self._wake(channel.waiters[0])

    def _disarm(self, id: int, channel: Channel, plan: Plan) -> None:
        channel.armed = channel.drained = False
        channel.due = float("inf")
        plan.disarm.append(id)
        if not channel.place.hears:
            plan.in_line.append(id)
        if channel.place.since is not None:
            plan.leave[id] = channel.place.since
        channel.place = Place()
        plan.again = min(plan.again, channel.idle_since + self._idle_timeout)

    def _enter(self, id: int, channel: Channel, now: float, plan: Plan) -> None:
        place = channel.place
        place.entering()
        plan.enter.append(Entry(id, max(0.0, now - channel.waiters[0].since), place.since, place.hears))

    def _is_out_of_line(self, waiter: Waiter) -> bool:
        """Whether the listener has to make a place for it, and would not wake up in time."""
        channels = [self._channels[id] for id in waiter.queues if id > 0 and id in self._channels]
        return any(channel.armed and channel.place.moment(waiter.since) < self._again for channel in channels)

    def _call(self, id: int) -> None:
        """Wake the taker that has waited longest; without one the call is passed on to another process."""
        self._changed = True
        channel = self._channels.get(id)
        if channel and channel.waiters:
            channel.waiters[0].called_for = id
            self._wake(channel.waiters[0])
        elif not self._closed:
            self._calls.add(id)

    def _forget(self, id: int, channel: Channel, plan: Plan) -> None:
        del self._channels[id]
        if channel.listening:
            plan.unlisten.append(id)

    def _entered(self, id: int, answer: Entered | None) -> None:
        place = self._channels[id].place
        if answer is None:
            place.refused(self._clock())
            return
        place.entered(answer.since, answer.hears, self._clock())
        if answer.hears:
            # Its last look is older than the end of the puts that only called. If this process heard before, a call of
            # its own connection, which does not see its own lock, may have gone to a process that died.
            self._wake_first(id)

    def _drained(self, drained: dict[int, bool]) -> None:
        self._changed = True
        for id, done in drained.items():
            channel = self._channels[id]
            channel.drained = done
            channel.pause = DRAIN_PAUSE[0] if done else min(channel.pause * 2, DRAIN_PAUSE[1])
            channel.drain_at = self._clock() + channel.pause

    def _tell_if_armed(self, waiter: Waiter) -> bool:
        ready = all(self._channels[id].armed for id in waiter.queues if id in self._channels)
        if ready:
            waiter.armed.set()
        return ready

    def _wake_first(self, id: int) -> None:
        channel = self._channels.get(id)
        if channel and channel.waiters:
            self._wake(channel.waiters[0])

    def _wake_waiters(self, channel: Channel) -> None:
        while channel.waiters:
            self._wake(channel.waiters[0])

    def _wake(self, waiter: Waiter) -> None:
        waiter.woken.set()  # first: Ctrl-C may interrupt the taker that wakes this one, and nothing else would wake it
        waiter.armed.set()
        self._remove(waiter)

    def _remove(self, waiter: Waiter) -> bool:
        """Remove the waiter from its channels. Returns True if it was the last one of a channel."""
        last = False
        for id in waiter.queues:
            channel = self._channels.get(id)
            if channel and waiter in channel.waiters:
                channel.waiters.remove(waiter)
                if not channel.waiters:
                    channel.idle_since = self._clock()
                    self._changed = last = True
        return last
