"""Limits of tasks from Python, on both shells: setting, listing, declaring and dropping them; waiting takes."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import psycopg
import pytest
from click.testing import CliRunner
from eventually import Stopwatch, soon_enough
from statements import rows

import pgqueue
from pgqueue.cli import main
from pgqueue.types import Limit


def send(**args):
    return {"job": "send", "args": args}


async def test_a_limit_is_set_listed_and_dropped(client, queue):
    await queue.put_many([send(to=n % 2) for n in range(4)])
    await client.limits.set("q", "send", concurrency=1, argument="to")
    await client.limits.set("q", rate=50, per=timedelta(minutes=1))
    assert len(await queue.take_many(10, timeout=0)) == 2
    assert await client.limits.list() == [
        Limit("q", None, None, 50, 60.0, 5, None, False, 0, 0, None),
        Limit("q", "send", 1, None, None, None, "to", False, 2, 2, None),
    ]
    assert await client.limits.list("other") == []
    assert await client.limits.drop("q", "send") is True
    assert await client.limits.drop("q", "send") is False
    assert [limit.job for limit in await client.limits.list("q")] == [None]


async def test_a_task_that_waits_is_shown_and_counted(client, queue):
    await queue.put(1)
    await client.limits.set("q", concurrency=1)
    (task,) = await queue.take_many(5, timeout=0)
    late = await queue.put(2)
    assert late.state == "waiting"
    assert await queue.take(timeout=0) is None
    assert (await queue.stats())["blocked"] == 1
    await task.ack()
    assert (await queue.take(timeout=0)).id == late.id


async def test_a_waiting_take_gets_a_freed_slot_at_once(client, queue):
    await queue.put_many([1, 2])
    await client.limits.set("q", concurrency=1)
    first = await queue.take(timeout=0)

    async def attempt():
        nonlocal first
        await queue.put(0)
        waits = asyncio.ensure_future(queue.take(timeout=60))
        await asyncio.sleep(0.3)  # it sleeps by now; if not, the test is only easier
        watch = Stopwatch()
        await first.ack()
        first = await waits
        return watch()

    await soon_enough(attempt, 0.5)


async def test_a_waiting_take_wakes_when_the_next_token_comes(client, queue):
    await queue.put_many([1, 2, 3, 4])
    await client.limits.set("q", rate=2, burst=1)
    assert await queue.take(timeout=0) is not None

    async def attempt():
        watch = Stopwatch()
        assert await queue.take(timeout=60) is not None
        return watch()

    await soon_enough(attempt, 0.9)  # half a second, and no tick is needed


async def test_a_program_declares_the_limit_of_its_job(client):
    assert await client.limits.declare("q", "send", concurrency=2) == "set"
    assert await client.limits.declare("q", "send", concurrency=2) == "same"
    assert await client.limits.declare("q", "send", rate=7, per=2) == "set"
    (limit,) = await client.limits.list("q")
    assert (limit.concurrency, limit.rate, limit.per, limit.declared) == (None, 7, 2.0, True)
    assert await client.limits.declare("q", "send") == "dropped"
    await client.limits.set("q", "send", concurrency=1)
    assert await client.limits.declare("q", "send", concurrency=2) == "kept"


@pytest.mark.parametrize(
    "terms",
    [
        {},
        {"concurrency": 0},
        {"concurrency": -1},
        {"concurrency": 1.5},
        {"concurrency": True},
        {"concurrency": 100_001},
        {"rate": 0},
        {"rate": 5, "per": 0},
        {"rate": 5, "per": -1},
        {"rate": 5, "per": float("nan")},
        {"rate": 5, "per": "minute"},
        {"rate": 5, "burst": 0},
        {"burst": 5, "concurrency": 1},
        {"concurrency": 1, "argument": ""},
        {"concurrency": 1, "argument": "x" * 256},
        {"concurrency": 1, "argument": 7},
    ],
)
async def test_a_limit_that_makes_no_sense_is_an_error(client, queue, terms):
    await queue.put(1)
    with pytest.raises(ValueError, match=r"limit|concurrency|rate|per|burst|argument"):
        await client.limits.set("q", **terms)
    assert await client.limits.list() == []


async def test_a_limit_of_an_unknown_queue_is_an_error(client):
    with pytest.raises(pgqueue.NoQueue):
        await client.limits.set("none", concurrency=1)
    with pytest.raises(pgqueue.NoQueue):
        await client.limits.drop("none")


async def test_a_lane_and_a_limit_in_one_task_are_an_error_that_names_both(client, queue):
    await queue.put(1)
    await client.limits.set("q", "send", concurrency=1)
    with pytest.raises(ValueError, match=r'lane "a".*job "send" has a limit in queue "q"'):
        await queue.put(send(), lane="a")


def test_the_command_line_sets_lists_and_drops_limits(dsn: str, db: psycopg.Connection) -> None:
    def run(*words: str):
        return CliRunner().invoke(main, ["--dsn", dsn, "limit", *words])

    rows(db, "SELECT pgqueue.queue_id('mail')")
    assert run("set", "mail", "-c", "5", "--rate", "100", "--per", "60", "--job", "send", "--by", "to").exit_code == 0
    line = run("list").output.splitlines()[1]
    assert line.split() == ["mail", "send", "5", "100", "in", "60", "s", "to", "0", "0", "-", "hand"]
    assert json.loads(run("list", "-q", "mail", "--json").output)["burst"] == 10
    assert "give --concurrency, --rate" in run("set", "mail").output
    assert run("set", "mail", "-c", "0").exit_code == 2
    assert "no queue" in run("set", "none", "-c", "1").output
    assert run("drop", "mail", "--job", "send").exit_code == 0
    assert "no limit of the job 'send'" in run("drop", "mail", "--job", "send").output
