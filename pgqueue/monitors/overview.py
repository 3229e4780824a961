"""The overview of a database's queues, as the dashboard and `pgqueue top` show it: the faults, in words with the
remedy, and the numbers of the queues: their tasks by state, their oldest ready task, and their rates."""

from __future__ import annotations

from typing import Any

from .._calls.health import health
from .._calls.rows import Row, rows
from . import reasons
from .reasons import Read
from .words import CHECKS, Words

PAGE = 50  # queues on a page
STATES = ("ready", "taken", "delayed", "blocked", "buried", "kept")
STATS = (
    "s.queue",
    "s.total",
    "s.ready",
    "s.delayed",
    "s.taken",
    "s.buried",
    "s.blocked",
    "s.kept",
    "s.done",
    "extract(epoch FROM s.oldest_ready_age)::float AS oldest",
)
FULL = "coalesce(s.total OPERATOR(pg_catalog.>=) q.capacity, false) AS full"
NAMED = (
    "FROM pgqueue.queue_stats(names => ARRAY (SELECT name FROM pgqueue.queues"
    " WHERE pg_catalog.strpos(name, %s::pg_catalog.text) OPERATOR(pg_catalog.>) 0"
    " AND name OPERATOR(pg_catalog.>) %s::pg_catalog.text ORDER BY name LIMIT %s::int)) s"
    " JOIN pgqueue.queues q ON q.name OPERATOR(pg_catalog.=) s.queue ORDER BY s.queue"
)
RATES = (
    "queue",
    "puts",
    "done",
    "buries",
    "growth",
    "extract(epoch FROM drained_in)::float AS drained_in",
)
RATES_OF = "FROM pgqueue.queue_rates(names => %s::pg_catalog.text[])"
STILL = 5  # stuck queues that are explained, and as many that wait for a time
PATIENCE = 5.0  # seconds that a ready task may wait before its queue counts as stuck
SHARED = 4.0  # times as long as other answers are shared: health and why look at much
#: The reasons of why(), the one first that holds a queue up most.
ORDER = (
    "paused",
    "died",
    "exclusive",
    "locked",
    "no right",
    "no taker",
    "waiting",
    "blocked",
    "failing",
    "full",
    "busy",
    "buried",
    "draining",
    "delayed",
    "scheduled",
    "restricted",
)
SCHEDULED = (
    "FROM pgqueue.schedules WHERE queue OPERATOR(pg_catalog.=) ANY (%s::pg_catalog.text[])"
    " GROUP BY queue ORDER BY pg_catalog.bool_or(paused) DESC, pg_catalog.min(next_at) LIMIT %s::int"
)
MISSING = (
    "FROM pgqueue.takes k JOIN pgqueue.sessions s ON s.id OPERATOR(pg_catalog.=) k.session"
    " WHERE s.state OPERATOR(pg_catalog.=) 'missing' LIMIT 50"
)
SNAPSHOT = ("kind", "name", "pid")
#: Which snapshot a check is about.
OLDEST = {
    "oldest_snapshot": "FROM pgqueue.snapshots WHERE holds_back AND age IS NOT NULL ORDER BY age DESC LIMIT 1",
    "oldest_snapshot_xids": "FROM pgqueue.snapshots WHERE holds_back AND xid_age IS NOT NULL"
    " ORDER BY xid_age DESC LIMIT 1",
}


async def overview(read: Read, part: str, after: str = "") -> dict[str, Any]:
    """The findings, the queues that are stuck or wait for a time with the reasons, and a page of queues."""
    queues, more = await page_of_queues(read, part, after)
    found = await findings(read)
    lost = await _lost(read) if any(one["check"].name == "missing" for one in found) else set[str]()
    stands = [row["queue"] for row in queues if _stands(row) or row["queue"] in lost]
    still = await _explained(read, stands[:STILL])
    later = await _explained(read, [row["queue"] for row in queues if _has_later(row)][:STILL])
    failing = [one for one in later if one["reasons"] and one["reasons"][0]["reason"] == "failing"]
    later = [one for one in later if one not in failing]
    idle = [row["queue"] for row in queues if not row["total"]]
    if idle and len(later) < STILL:
        scheduled = await read(rows(("queue",), SCHEDULED, idle, STILL - len(later)), SHARED)
        later += await _explained(read, [row["queue"] for row in scheduled])
    return {
        "findings": found,
        "still": failing + still,
        "later": later,
        "queues": queues,
        "states": STATES,
        "totals": {name: sum(row[name] or 0 for row in queues) for name in (*STATES, "puts", "done_rate")},
        "more": more,
    }


async def _lost(read: Read) -> set[str]:
    """The queues whose tasks are with a process that is gone: one of them may have killed it."""
    return {row["queue"] for row in await read(rows(("DISTINCT k.queue",), MISSING), SHARED)}


async def findings(read: Read) -> list[dict[str, Any]]:
    """The checks of health that are not well, bad ones first, each with its words."""
    checks = [check for check in await read(health(), SHARED) if check.status != "ok"]
    checks.sort(key=lambda check: check.status != "bad")
    return [
        {
            "check": check,
            "words": CHECKS.get(check.name, Words(check.name, "")),
            "names": {"snapshot": ended(await read(rows(SNAPSHOT, OLDEST[check.name]), SHARED))}
            if check.name in OLDEST
            else {},
        }
        for check in checks
    ]


def ended(found: list[Row]) -> str:
    """The statement that ends the holder of the oldest snapshot."""
    if not found:
        return "it has ended"
    kind, name, pid = found[0].values()
    text = "'" + str(name).replace("'", "''") + "'"
    if kind == "prepared transaction":
        return f"ROLLBACK PREPARED {text}"
    return f"SELECT pg_drop_replication_slot({text})" if pid is None else f"SELECT pg_terminate_backend({pid})"


async def _explained(read: Read, queues: list[str]) -> list[dict[str, Any]]:
    return [{"queue": queue, "reasons": main(await reasons.of_queue(read, queue, SHARED))} for queue in queues]


def main(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The reason that holds a queue up most; and that it is full, which holds up its producers."""
    ranked = sorted(found, key=_rank)
    return [one for n, one in enumerate(ranked) if n == 0 or one["reason"] == "full"]


def _rank(one: dict[str, Any]) -> int:
    """The place of a reason in ORDER. Tasks in a flow wait by intent, as delayed ones do."""
    reason = "delayed" if reasons.waits_for_tasks(one) else one["reason"]
    return ORDER.index(reason) if reason in ORDER else len(ORDER)


def _stands(row: Row) -> bool:
    """Whether tasks wait in a queue, failed, or cannot be put; and none was done in the last minute."""
    waits = (row["oldest"] or 0) > PATIENCE or row["blocked"] > 0 or (row["paused_until"] is not None and row["ready"])
    return bool(waits or row["buried"] or row["full"]) and not row["done_rate"]


def _has_later(row: Row) -> bool:
    """Whether all tasks of a queue are for later, by intent or after a failed attempt."""
    return 0 < row["delayed"] == row["total"] and not _stands(row)


async def page_of_queues(read: Read, part: str, after: str) -> tuple[list[Row], str | None]:
    """The queues with `part` in their names, behind the name `after`, and the name to go on with."""
    columns = (*STATS, "q.paused_until", "q.draining", FULL)
    found = await read(rows(columns, NAMED, part, after, PAGE + 1))
    names = [row["queue"] for row in found[:PAGE]]
    rates = {row["queue"]: row for row in await read(rows(RATES, RATES_OF, names), SHARED)}
    shown = [{**row, **_rate(rates.get(row["queue"]))} for row in found[:PAGE]]
    return shown, shown[-1]["queue"] if len(found) > PAGE else None


def _rate(row: Row | None) -> dict[str, Any]:
    names = ("puts", "done", "buries", "growth", "drained_in")
    found = row or {}
    return {"done_rate" if name == "done" else name: found.get(name) for name in names}
