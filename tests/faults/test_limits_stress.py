"""Limits over several worker processes, which are killed: never too many at once, and never too few for long.

Small by default; as in the statement that the limits have to prove: `--limited-tasks=20000 --limited-kills=20` and
`--rate-seconds=30`.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from eventually import eventually, in_time
from processes import Program
from statements import rows, value
from steady import steady

import pgqueue

WORKERS = 4
LIMIT = 5
RUNS = "SELECT extract(epoch FROM began)::float8, extract(epoch FROM ended)::float8 FROM run"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_workers_never_run_six_and_soon_run_five(
    dsn: str,
    db: psycopg.Connection,
    size: dict[str, int],
    start: Callable[..., Program],
    record_property: Callable[[str, object], None],
) -> None:
    """By the database's clock. A killed run lasts until the process is known to be dead."""
    db.execute("CREATE TABLE run (pid int, task_id bigint, began timestamptz, ended timestamptz)")
    names = iter("abc")

    def attempt() -> float:
        db.execute("TRUNCATE run")
        _kill_workers(dsn, db, next(names), size, start)
        assert value(db, "SELECT count(DISTINCT task_id) FROM run") == size["limited_tasks"]
        most, longest = _at_once(rows(db, RUNS))
        record_property("most at once", most)
        record_property("longest time with fewer", longest)
        print(f"at most {most} at once; fewer than {LIMIT} for at most {longest:.3f} s")
        assert most == LIMIT
        return longest

    in_time(attempt, within=1)


def _kill_workers(
    dsn: str, db: psycopg.Connection, name: str, size: dict[str, int], start: Callable[..., Program]
) -> None:
    ready = threading.Semaphore(0)

    def worker() -> Program:
        program = start("limited_worker", dsn, name, 4, 0.02, heard=lambda line: ready.release())
        assert ready.acquire(timeout=30)
        return program

    with pgqueue.Client(dsn) as client:
        queue = client.queue(name)
        queue.put_many([None] * size["limited_tasks"])
        client.limits.set(name, concurrency=LIMIT)
        chance = random.Random(size["limited_kills"])
        workers = [worker() for _ in range(WORKERS)]
        for kill in range(1, size["limited_kills"] + 1):
            left = size["limited_tasks"] * (1 - kill / (size["limited_kills"] + 1))
            eventually(lambda left=left: queue.stats()["total"] <= left, within=300)
            victim = workers.pop(chance.randrange(WORKERS))
            victim.kill()
            db.execute("UPDATE run SET ended = clock_timestamp() WHERE ended IS NULL AND pid = %s", [victim.pid])
            workers.append(worker())
        eventually(lambda: queue.stats()["total"] == 0, within=300)
        for program in workers:
            program.kill()


def _at_once(runs: list[tuple[float, float]]) -> tuple[int, float]:
    """How many ran at once, at most; and the longest time with fewer, from the first full moment to the last."""
    events = sorted([(began, 1) for began, _ in runs] + [(ended, -1) for _, ended in runs])
    now = most = 0
    below: float | None = None
    longest = 0.0
    for moment, change in events:
        now += change
        most = max(most, now)
        if now >= LIMIT and below is not None:
            longest, below = max(longest, moment - below), None
        elif now == LIMIT - 1 and change < 0:
            below = moment
    return most, longest


ADMITTED = """
    CREATE TABLE admitted (task_id bigint, moment timestamptz);
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO public.admitted VALUES (NEW.id, clock_timestamp());
        RETURN NULL;
    END $$;
    CREATE TRIGGER note AFTER UPDATE ON pgqueue.task FOR EACH ROW WHEN (OLD.state = 'W' AND NEW.state = 'R')
        EXECUTE FUNCTION note();
"""


@pytest.mark.slow
def test_a_rate_is_kept_over_several_workers(
    dsn: str,
    db: psycopg.Connection,
    size: dict[str, int],
    start: Callable[..., Program],
    record_property: Callable[[str, object], None],
) -> None:
    """100 in a second: within one percent over the whole time, and in no second more than 110.

    A bucket holds the tokens of a tenth of a second: those of a time in which the server stands still are lost.

    What counts is the moment at which the database lets a task begin; the handler begins some milliseconds later. A
    bucket is full at the beginning, so the first second, of which only a part may be left, is not among the others.
    """
    db.execute(ADMITTED)
    db.execute("CREATE TABLE run (pid int, task_id bigint, began timestamptz, ended timestamptz)")
    seconds = size["rate_seconds"]
    with pgqueue.Client(dsn) as client:
        queue = client.queue("q")
        queue.put_many([None] * 100 * (seconds + 10))
        client.limits.set("q", rate=100)
        heard: list[Any] = []
        with steady(dsn) as watch:
            for _ in range(WORKERS):
                start("limited_worker", dsn, "q", 4, 0, heard=heard.append)
            eventually(lambda: len(heard) == WORKERS)
            query = "SELECT floor(extract(epoch FROM moment))::int8, count(*) FROM admitted GROUP BY 1"
            eventually(lambda: max(dict(rows(db, query)), default=0) > min(dict(rows(db, query)), default=0) + seconds)
        counts = dict(rows(db, query))
    first = min(counts)
    in_second = [counts.get(first + n, 0) for n in range(seconds + 1)]
    in_time, fullest = sum(in_second[1:]), max(in_second)
    lost = watch.lost(first + 1, first + 1 + seconds)
    record_property("begun", in_time)
    record_property("fullest second", fullest)
    print(f"{in_time} begun in {seconds} s, {fullest} in the fullest second")
    assert 100 * (seconds - lost) - max(seconds, 10) <= in_time <= 100 * seconds + max(seconds, 10)
    assert fullest <= 110
