"""The overview: the faults, in words with the remedy, and the queues."""

from __future__ import annotations

from typing import Any

from ...monitors.overview import overview
from ...monitors.words import ALL_WELL, GRADES, HEADINGS
from . import histories
from .visit import Page, Visit


async def read(visit: Visit) -> dict[str, Any]:
    part, after = visit.asked.text("q") or "", visit.asked.text("after") or ""
    found = await overview(visit.read, part, after)
    words = {"grades": GRADES, "all_well": ALL_WELL, "headings": HEADINGS}
    sparks = await histories.sparks(visit, [row["queue"] for row in found["queues"]])
    return {**found, **words, "sparks": sparks, "part": part, "after": after}


PAGE = Page("", "Overview", "overview.html", read)
