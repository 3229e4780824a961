"""The database's clock. The deadlines of takes are its times, and this machine's clock may differ from it."""

from __future__ import annotations

from datetime import datetime, timedelta
from time import monotonic

from .. import AsyncClient
from .._calls.call import Call, query, scalar

FRESH = 60.0  # seconds for which an answer counts

_NOW: Call[datetime] = query("SELECT pg_catalog.clock_timestamp()", (), scalar)


class Clock:
    """Asks the database for its time once in FRESH seconds, and adds the time since then."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._told: tuple[datetime, float] | None = None

    async def left(self, moment: datetime) -> float:
        """Seconds until a moment of the database's clock."""
        return (moment - await self._now()).total_seconds()

    async def _now(self) -> datetime:
        if self._told is None or monotonic() - self._told[1] > FRESH:
            asked = monotonic()
            now = await self._client.shell.run(_NOW)
            self._told = now, (asked + monotonic()) / 2
        now, at = self._told
        return now + timedelta(seconds=monotonic() - at)
