"""The statements that the hub and the switchboard plan: LISTEN and UNLISTEN, and the locks of queues with takers.

A plan is carried out to its end before the next one is asked for. A step that fails on a living connection is tried
again with growing pauses (retries.py), and the steps that are done are not repeated. The hub learns of a step up only
after it: it never takes a queue for armed that is not. Its waiters cannot rely on notifications meanwhile, so each
failed attempt wakes them to look for themselves.
"""

from __future__ import annotations

import time

from psycopg import sql

from .._calls import wake as calls
from .hub import Hub, Plan
from .retries import Conn, Retry, do
from .switchboard import Switchboard


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

    def reconcile(self, conn: Conn) -> float:
        """Send the statements that are planned. Returns the time of the next plan. Raises if the connection is lost."""
        if self._plan is None:
            self._plan = self._hub.plan()
            self._off, self._on, ask_again = self._switchboard.plan()
            arms = self._plan.arm or self._plan.arm_again
            self._again = 0.0 if arms else min(self._plan.again, ask_again)
        if time.monotonic() < self._retry.at:
            return self._retry.at
        plan = self._plan
        if not self._retry.attempt(conn, lambda: self._carry_out(conn, plan)):
            self._hub.wake_all()
            return self._retry.at
        self._plan = None
        return self._again

    def disconnected(self) -> None:
        """Every LISTEN and lock is gone, and the plan with them."""
        self._plan = None

    def _carry_out(self, conn: Conn, plan: Plan) -> None:
        if plan.disarm:
            do(conn, calls.disarm(plan.disarm))
            plan.disarm.clear()
        if plan.unlisten or plan.listen or self._off or self._on:
            off = [*map(calls.channel, plan.unlisten), *self._off]
            _listen(conn, off, [*map(calls.channel, plan.listen), *self._on])
            self._hub.listening(plan.listen)
            self._switchboard.listening(self._on)
            for done in (plan.unlisten, plan.listen, self._off, self._on):
                done.clear()
        if plan.arm:
            self._hub.armed(do(conn, calls.arm(plan.arm)))
            plan.arm.clear()
        if plan.arm_again:
            self._hub.drained(do(conn, calls.arm_again(plan.arm_again)))


def _listen(conn: Conn, off: list[str], on: list[str]) -> None:
    """Send all of them in one round trip. Identifiers are quoted: LISTEN Foo would listen to foo."""
    verbs = [("UNLISTEN {}", name) for name in off] + [("LISTEN {}", name) for name in on]
    conn.execute(sql.SQL("; ").join(sql.SQL(verb).format(sql.Identifier(name)) for verb, name in verbs))
