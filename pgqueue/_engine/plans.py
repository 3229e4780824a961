"""The statements that the hub and the switchboard plan: LISTEN and UNLISTEN, and the locks and places of takers.

A plan is carried out to its end before the next one is asked for. A step that fails on a living connection is tried
again with growing pauses (retries.py), and the steps that are done are not repeated. The hub is told of a step up only
after it, so it never treats a queue as armed too early. Until then its waiters cannot rely on notifications, so each
failed attempt wakes them to look for themselves.

The line (sql/2_base/line.sql) decides only the order, so its statements are sent last, and the failure of one holds up
no other step: a place is tried again later, and so is a call that has to be passed on, also on the next connection. (If
it were left to the ticks, its task would wait for two of them each time a lock is in the way.)
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from psycopg import sql

from .._calls import results
from .._calls import wake as calls
from .hub import Hub
from .retries import Conn, Retry, do
from .switchboard import Switchboard
from .waiters import Plan


class Plans:
    """The plan under way. For the listener's thread."""

    def __init__(self, hub: Hub, switchboard: Switchboard, label: str) -> None:
        self._hub = hub
        self._switchboard = switchboard
        self._retry = Retry(f"LISTEN, or arming, for {label}")
        self._plan: Plan | None = None  # of the hub; its lists lose the steps that are done
        self._off: list[str] = []
        self._on: list[str] = []
        self._again = 0.0
        self._line = Retry(f"the line of waiting takers, for {label}")
        self.calls: set[int] = set()  # to pass on
        self._queues: set[int] = set()  # that are listened to
        self._hears_calls = False

    def reconcile(self, conn: Conn, session: int) -> float:
        """Send the statements that are planned. Returns the time of the next plan. Raises if the connection is lost."""
        if self._plan is None:
            self._plan = self._hub.plan()
            self.calls.update(self._plan.pass_on)
            self._off, self._on, ask_again = self._switchboard.plan()
            arms = self._plan.arm or self._plan.arm_again or self._plan.enter
            self._again = 0.0 if arms else min(self._plan.again, ask_again)
        if time.monotonic() < self._retry.at:
            return self._retry.at
        plan = self._plan
        if not self._retry.attempt(conn, lambda: self._carry_out(conn, session, plan)):
            self._hub.wake_all()
            return self._retry.at
        self._plan = None
        if self.calls or plan.enter:
            self._take_turns(conn, plan)
        return min(self._again, self._line.at) if self.calls else self._again

    def disconnected(self) -> None:
        """Every LISTEN and lock is gone, and the plan with them."""
        self._plan = None
        self._queues, self._hears_calls = set(), False

    def _carry_out(self, conn: Conn, session: int, plan: Plan) -> None:
        if plan.disarm:
            do(conn, calls.disarm(plan.disarm, plan.in_line, plan.leave))
            plan.disarm.clear()
        if plan.unlisten or plan.listen or self._off or self._on:
            queues = (self._queues - set(plan.unlisten)) | set(plan.listen)
            off = [*map(calls.channel, plan.unlisten), *self._off]
            on = [*map(calls.channel, plan.listen), *self._on]
            if bool(queues) is not self._hears_calls:  # not for good: each NOTIFY costs each connection that listens
                (on if queues else off).append(calls.call_channel(session))
            _listen(conn, off, on)
            self._queues, self._hears_calls = queues, bool(queues)
            self._hub.listening(plan.listen)
            self._switchboard.listening(self._on)
            for done in (plan.unlisten, plan.listen, self._off, self._on):
                done.clear()
        if plan.arm:
            armed = do(conn, calls.arm(plan.arm))
            self._hub.armed(armed.drained, armed.hearing)
            plan.arm.clear()
        if plan.arm_again:
            self._hub.drained(do(conn, calls.arm_again(plan.arm_again)))

    def _take_turns(self, conn: Conn, plan: Plan) -> None:
        answers: dict[int, calls.Entered] = {}

        def work() -> None:
            nonlocal answers
            if self.calls:
                do(conn, calls.pass_on(sorted(self.calls)))
                self.calls.clear()
            if plan.enter:
                answers = do(conn, calls.enter_line(plan.enter))
                if heard := [entry.queue_id for entry in plan.enter if entry.hears and _in_line(answers, entry)]:
                    do(conn, calls.stop_hearing(heard))  # if that fails, this process hears more than it has to

        self._line.attempt(conn, work)
        if plan.enter:
            self._hub.entered(plan.enter, answers)


def _in_line(answers: Mapping[int, calls.Entered], entry: calls.Entry) -> bool:
    answer = answers.get(entry.queue_id)
    return answer is not None and not answer.hears


def _listen(conn: Conn, off: list[str], on: list[str]) -> None:
    """Send all of them in one round trip. Identifiers are quoted: LISTEN Foo would listen to foo."""
    verbs = [("UNLISTEN {}", name) for name in off] + [("LISTEN {}", name) for name in on]
    steps = [sql.SQL(verb).format(sql.Identifier(name)) for verb, name in verbs]
    conn.execute(sql.SQL("; ").join([*steps, *results.gate(off, on)]))
