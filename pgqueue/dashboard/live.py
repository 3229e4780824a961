"""Live pages: server-sent events that tell browsers to read their page again.

One look at the database serves all browsers of a process: while any is there, `Pulse` asks four times a second for the
version of the counts that they show, a text that differs once a count has changed. Browsers whose text differs get an
event, all at the same moment, so that they share the answers that their pages read (reading.py). Pages show ages too,
so each gets an event after EVERY seconds, once half of BURST is there.

The cost of these readings has a bound, however many browsers are open: one part in SPACING of the time. It is kept as
an account, in seconds of the database's time: time adds to it, looks and rounds of pages draw from it, and a round
begins while it is not empty. A statement draws the least time that it lately took (reading.py): on a busy machine it
also waits for a CPU, and when that was counted, a change was shown ten seconds late beside fifteen busy processes.
Readings without a change wait until half of BURST is there, so a change after a quiet time finds something. If the
pages only waited SPACING times as long as the last round took, a change after a reading without one would be shown
seconds late where the pages are dear. The debt has a bound too: a database that hangs is asked by each browser that
waits for its page, and an hour of that must not silence the pages for days.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from .._calls.stats import count_versions
from .._values.logs import log
from .._values.printable import server_sent_event
from .reading import Reader

LOOK = 0.25  # seconds between two looks
WARMING = 5.0  # seconds after the server was away, in which looks and pages cost nothing: its caches are empty
PROMPTLY = 3.0  # seconds for a look; then the browsers read their pages, which have the error
LEAST = 1.0  # seconds between two events of a browser, at least
EVERY = 5.0  # seconds after which a page is read again in any case
SPACING = 75  # looks and pages take one part of this many of the time
BURST = 0.3  # seconds of the database's time that the account holds at most
HEARTBEAT = 10.0  # seconds of silence after which a comment shows whether the browser is still there
MOST = 1000  # browsers of a process
READ_AGAIN = server_sent_event("", "changed")


@dataclass(eq=False, slots=True)
class Watch:
    """A browser's page, which shows the counts of a queue; None: of all."""

    queue: str | None
    version: str | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Pulse:
    """Tells browsers when to read their page again."""

    def __init__(self, read: Reader) -> None:
        self._read = read
        self._watches: set[Watch] = set()
        self._beating: asyncio.Task[None] | None = None
        self._warm = 0.0  # from when on looks and pages cost

    @property
    def is_full(self) -> bool:
        return len(self._watches) >= MOST

    async def events(self, queue: str | None) -> AsyncIterator[str]:
        """The events of one browser, until it closes."""
        watch = Watch(queue)
        self._watches.add(watch)
        try:
            yield ": listening\n\n"
            while True:
                self._go_on()
                try:
                    await asyncio.wait_for(watch.changed.wait(), HEARTBEAT)
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                watch.changed.clear()
                yield READ_AGAIN
        finally:
            self._watches.discard(watch)

    def _go_on(self) -> None:
        """Begin to look, if no look is under way: at the first browser, and if an error ended the last one."""
        if self._beating is None or self._beating.done():
            self._beating = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        """Look while a browser is there, and let the rounds of events draw from the account."""
        last = before = time.monotonic()
        spent, account = self._read.spent, BURST
        while self._watches:
            await asyncio.sleep(LOOK)
            now = time.monotonic()
            earned = (now - before) / SPACING - (0.0 if now < self._warm else self._read.spent - spent)
            account = max(-BURST, min(BURST, account + earned))
            before, spent = now, self._read.spent
            if now - last < LEAST or account <= 0:
                continue
            changed = await self._changed()
            if now - last >= EVERY and account >= BURST / 2:
                changed = set(self._watches)
            if changed:
                last = now
                for watch in changed:
                    watch.changed.set()

    async def _changed(self) -> set[Watch]:
        """The watches whose counts have changed. All, if the database does not answer: their pages say so."""
        watches, was_lost = list(self._watches), self._read.is_lost
        try:
            versions = await self._read.ask(count_versions([watch.queue for watch in watches]), PROMPTLY)
        except Exception as error:
            log.warning("the dashboard cannot look for changes: %s", error)
            return set(watches)
        if was_lost:
            self._warm = time.monotonic() + WARMING
        changed = set()
        for watch in watches:
            version = versions.get(watch.queue) or ""  # of a queue that is gone, or hidden
            if watch.version is not None and watch.version != version:
                changed.add(watch)
            watch.version = version
        return changed
