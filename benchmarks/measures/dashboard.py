"""The dashboard on a large database: the time of each page, the cost of open browsers, and the way of an event.

A million tasks in a thousand queues, in every state, and two hundred workers. A page is asked without a server between,
and shares no answer, so its time is that of its statements and its template: about the CPU time that the server and
the dashboard use for it, one after the other, where no other process wants a CPU. Browsers are readers of the events
that ask for the page again at each of them, as the script of the page does, while tasks are put.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg

import pgqueue
from pgqueue.dashboard import dashboard
from pgqueue.dashboard.pages import MENU
from pgqueue.dashboard.reading import Reader

from ..bench import Bench, connect
from ..cpu import BackendTime
from ..findings import Findings, Row, milliseconds, within

QUEUES, WORKERS, BROWSERS = 1000, 200, 50
MEDIAN, WORST = 0.100, 0.300  # seconds of a page
BOUNDS = f"<= {milliseconds(MEDIAN)}, worst <= {milliseconds(WORST)}"
SHARE = 2.0  # % of a core for all browsers
EVENT = 1.0  # seconds from a put to the page that shows it
EVENTS = 10

#: By 20 tasks: one is delayed, one buried with one of five errors, one kept as done, one in a lane, one with a key.
FILL = """
INSERT INTO pgqueue.task (queue_id, priority, state, run_at, done_at, buried_at, attempts, lane, key, error, data)
SELECT q.id, 0, (CASE g %% 20 WHEN 1 THEN 'D' WHEN 2 THEN 'B' WHEN 3 THEN 'F' ELSE 'R' END)::"char",
       CASE g %% 20 WHEN 1 THEN now() + interval '1 h' + g * interval '1 s' END,
       CASE g %% 20 WHEN 3 THEN now() - g * interval '1 ms' END,
       CASE g %% 20 WHEN 2 THEN now() - g * interval '1 ms' END, (g %% 20 = 2)::int,
       CASE g %% 20 WHEN 4 THEN 'lane' || g END, CASE g %% 20 WHEN 5 THEN 'key' || g END,
       CASE g %% 20 WHEN 2 THEN 'ValueError: no ' || g / 20 %% 5 END,
       jsonb_build_object('job', 'job' || g %% 7, 'args', jsonb_build_object('to', 'user' || g || '@example.org'))
  FROM generate_series(1, %s) g JOIN pgqueue.queue q ON q.name = 'q' || g %% %s
"""


def measure(bench: Bench) -> Findings:
    n = bench.size(1_000_000, 50_000)
    queues, workers = bench.size(QUEUES, 100), bench.size(WORKERS, 20)
    findings = Findings()
    with bench.server.database() as dsn, connect(dsn) as conn, _filled(dsn, conn, n, queues, workers):
        times = asyncio.run(_pages(dsn, conn, _addresses(conn), bench.size(15, 5)))
        findings.rows.append(Row("dashboard", f"{n:,} tasks", f"{queues:,} queues, {workers} workers"))
        for name, (each, used) in times.items():
            median, worst = statistics.median(each), max(each)
            met = median <= MEDIAN and worst <= WORST
            beside = f"worst {milliseconds(worst)}, CPU {milliseconds(used)}"
            findings.rows.append(Row(name, milliseconds(median), beside, None, BOUNDS, met))
        share, changed = asyncio.run(_browsers(dsn, conn, bench.size(30, 8)))
        findings.rows.append(
            Row(f"{BROWSERS} open browsers, of a core", f"{share:.2f} %", "-", None, f"<= {SHARE} %", share <= SHARE)
        )
        findings.rows.append(within("from a put to the page: median", statistics.median(changed), EVENT))
        findings.rows.append(Row("from a put to the page: worst", milliseconds(max(changed))))
    return findings


@contextmanager
def _filled(dsn: str, conn: psycopg.Connection[Any], n: int, queues: int, workers: int) -> Iterator[None]:
    with ExitStack() as stack:
        conn.execute("SELECT pgqueue.queue_id('q' || i) FROM generate_series(0, %s) i", (queues - 1,))
        conn.execute("UPDATE pgqueue.queue SET lanes = true, keep_done = '1 day'")
        conn.execute(FILL, (n, queues))
        conn.execute("VACUUM ANALYZE pgqueue.task, pgqueue.queue")
        conn.execute("SELECT pgqueue._fold_deltas()")
        for number in range(workers):
            worker = stack.enter_context(connect(dsn))
            served = [f"q{(number * 5 + one) % queues}" for one in range(10)]
            worker.execute("SELECT pgqueue.open_session(label => %s)", (f"host{number % 20}:{number}:worker",))
            worker.execute("SELECT pgqueue.register_worker(1, %s, '{job1,job2}', 8)", (served,))
            worker.execute("SELECT count(*) FROM pgqueue.take_many(%s, 5)", (served,))
        for number in range(50):
            conn.execute(
                "SELECT pgqueue.set_schedule(%s, %s, '1', every => '1 h')", (f"schedule{number}", f"q{number}")
            )
        conn.execute("SELECT pgqueue.tick()")
        conn.execute("VACUUM ANALYZE")
        yield


def _addresses(conn: psycopg.Connection[Any]) -> list[str]:
    found = conn.execute("SELECT id FROM pgqueue.task WHERE state = 'B' LIMIT 1").fetchone()
    assert found is not None
    states = [f"tasks?queue=q2&state={state}" for state in ("ready", "delayed", "taken", "blocked", "buried", "done")]
    return [*(page.path for page in MENU), "?q=q9", "queue?name=q2", "queue?name=q7", f"task?id={found[0]}", *states]


async def _pages(
    dsn: str, conn: psycopg.Connection[Any], addresses: list[str], times: int
) -> dict[str, tuple[list[float], float]]:
    """Seconds of each page, and the CPU time of one; the first time of each, which fills caches, does not count."""
    found: dict[str, tuple[list[float], float]] = {}
    shared, Reader.shared = Reader.shared, 0.0
    try:
        async with pgqueue.AsyncClient(dsn) as client:
            app = dashboard(client, may_act=lambda request: True)
            for address in addresses:
                await _get(app, address)
                server, own = BackendTime(conn, "pgqueue%"), time.process_time()
                each = [await _seconds(_get, app, address) for _ in range(times)]
                used = server.seconds() + time.process_time() - own
                found[f"page {address or 'overview'}"] = each, used / times
    finally:
        Reader.shared = shared
    return found


async def _seconds(step: Callable[..., Awaitable[Any]], *given: Any) -> float:
    began = time.perf_counter()
    await step(*given)
    return time.perf_counter() - began


async def _browsers(dsn: str, conn: psycopg.Connection[Any], seconds: int) -> tuple[float, list[float]]:
    """What open browsers use of a core while tasks are put, and the seconds from a put to the page that shows it."""
    async with pgqueue.AsyncClient(dsn) as client:
        app = dashboard(client)
        shown = asyncio.Condition()
        pages = {"newest": ""}
        browsers = [asyncio.create_task(_browse(app, shown, pages)) for _ in range(BROWSERS)]
        await asyncio.sleep(3)  # each connection has sent its first statements
        used, began = BackendTime(conn, "pgqueue%"), time.perf_counter()
        while time.perf_counter() - began < seconds:
            await asyncio.to_thread(conn.execute, "SELECT pgqueue.put('q1', '1')")
            await asyncio.sleep(0.1)
        share = 100 * used.seconds() / (time.perf_counter() - began)
        for browser in browsers[1:]:
            browser.cancel()
        changed = []
        for number in range(EVENTS):
            await asyncio.sleep(6 if seconds > 10 else 2)
            name = f"new{number}"
            at = time.perf_counter()
            await asyncio.to_thread(conn.execute, "SELECT pgqueue.put(%s, '1')", (f"a{name}",))
            async with shown:
                await shown.wait_for(lambda name=name: f"a{name}<" in pages["newest"])  # type: ignore[misc]
            changed.append(time.perf_counter() - at)
        browsers[0].cancel()
        await asyncio.gather(*browsers, return_exceptions=True)
        return share, changed


async def _browse(app: Any, shown: asyncio.Condition, pages: dict[str, str]) -> None:
    """A browser on the overview: it reads the page at each event."""
    events: asyncio.Queue[bytes] = asyncio.Queue()
    listening = asyncio.create_task(_get(app, "events", events))
    try:
        while True:
            if b"event: changed" in await events.get():
                page = await _get(app, "")
                async with shown:
                    pages["newest"] = page
                    shown.notify_all()
    finally:
        listening.cancel()


async def _get(app: Any, address: str, parts: asyncio.Queue[bytes] | None = None) -> str:
    """The answer to a GET; each part of it goes into `parts`."""
    path, _, query = address.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": f"/{path}",
        "raw_path": f"/{path}".encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    body = bytearray()
    status = 0
    asked = False

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if asked:
            await asyncio.Event().wait()  # the browser stays
        asked = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        elif parts is None:
            body.extend(message.get("body", b""))
        else:
            parts.put_nowait(message.get("body", b""))

    await app(scope, receive, send)
    if status != 200:
        raise RuntimeError(f"{address} gave {status}")
    return body.decode()
