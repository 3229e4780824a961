"""Limits that jobs declare: what a worker does with them at its start, and what a put must carry for them."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from eventually import eventually
from statements import rows

import pgqueue
from pgqueue import Rate

pytestmark = pytest.mark.once


def limits(db: psycopg.Connection) -> list[tuple[Any, ...]]:
    return rows(
        db,
        "SELECT queue, job, concurrency, rate, extract(epoch FROM per)::int, burst, argument FROM pgqueue.limits"
        " ORDER BY queue, job",
    )


@pytest.mark.slow
def test_a_worker_declares_the_limits_of_its_jobs_before_its_first_claim(client, work, db):
    lock, at_work, most = threading.Lock(), 0, 0

    @client.job("mail", name="send", concurrency=2, rate=Rate(1000, per=timedelta(minutes=1), burst=50))
    def send(n: int) -> None:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        time.sleep(0.02)
        with lock:
            at_work -= 1

    client.job("mail", name="free")(lambda: None)
    send.put_many([(n,) for n in range(20)])
    work(concurrency=4), work(concurrency=4)
    eventually(lambda: rows(db, "SELECT count(*) FROM pgqueue.tasks") == [(0,)])
    assert most == 2
    assert limits(db) == [("mail", "send", 2, 1000, 60, 50, None)]


def test_it_declares_each_name_of_a_job_in_its_queue_and_in_queues_that_are_no_jobs_own(client, work, db):
    client.job("mail", name="send", aliases=["post"], concurrency=2)(lambda: None)
    client.job("other", name="free")(lambda: None)
    work(queues=["mail", "other", "urgent"])
    named = [("mail", "post"), ("mail", "send"), ("urgent", "post"), ("urgent", "send")]
    eventually(lambda: [one[:2] for one in limits(db)] == named)


def test_a_limit_that_is_gone_from_the_code_is_dropped_and_one_set_by_hand_stays(client, work, db, caplog):
    client.limits.declare("mail", "send", concurrency=1)
    client.limits.set("mail", "slow", concurrency=1)
    client.job("mail", name="send")(lambda: None)
    client.job("mail", name="slow", concurrency=5)(lambda: None)
    done = client.job("mail", name="done", keep_result=60)(lambda: 1).put()
    work()
    assert done.result(30) == 1
    assert limits(db) == [("mail", "slow", 1, None, None, None, None)]
    assert "the limit of job slow in queue mail was set by hand, and stays" in caplog.text


def test_a_reload_declares_the_new_limits(client, work, db):
    @client.job("mail", name="send", concurrency=1)
    def send() -> None: ...

    worker = work()
    eventually(lambda: limits(db) and limits(db)[0][2] == 1)
    client.job("mail", name="send", concurrency=3)(send.function)
    worker.reload()
    eventually(lambda: limits(db)[0][2] == 3)
    assert "send, 3 at once" in worker.banner()


def test_a_limit_counts_for_each_value_of_an_argument(client, work, db):
    running: list[str] = []
    go = threading.Event()

    @client.job("mail", name="send", concurrency=1, limit_by="customer")
    def send(text: str, customer: str = "ada") -> None:
        running.append(customer)
        go.wait(30)

    for _ in range(2):
        send.put("x")
        send.put("x", customer="ada")
        send.put("x", "bob")
        send.options().put_json({"text": "x"})
    assert rows(db, "SELECT data -> 'args' ->> 'customer', count(*) FROM pgqueue.tasks GROUP BY 1 ORDER BY 1") == [
        ("ada", 6),
        ("bob", 2),
    ]
    work()
    eventually(lambda: len(running) == 2)
    assert rows(db, "SELECT running, waiting FROM pgqueue.limits") == [(2, 6)]
    assert sorted(running) == ["ada", "bob"]
    go.set()
    eventually(lambda: len(running) == 8)


WRONG = [
    ({"concurrency": 0}, "concurrency must be a whole number from 1 to 100000, not 0"),
    ({"concurrency": -1}, "not -1"),
    ({"concurrency": True}, "not True"),
    ({"concurrency": 1.5}, "not 1.5"),
    ({"rate": 100}, r"rate must be a Rate, for example Rate\(100, per=60\), not 100"),
    ({"rate": "100/m"}, "not '100/m'"),
    ({"rate": (100, 60)}, "rate must be a Rate"),
    ({"concurrency": 1, "limit_by": "customer"}, r"limit_by must be the name of a parameter \(to\), not 'customer'"),
    ({"concurrency": 1, "limit_by": ["to"]}, "limit_by must be the name"),
    ({"limit_by": "to"}, "limit_by goes with a concurrency or a rate"),
    ({"concurrency": 1, "name": "ü" * 200}, "1 to 255 bytes"),
]


@pytest.mark.parametrize(("wrong", "said"), WRONG, ids=lambda one: str(one)[:40])
def test_a_limit_that_makes_no_sense_is_an_error_with_its_place(wrong, said):
    with pytest.raises(ValueError, match=rf"job .* \(.*test_limits\.py:\d+\): .*{said}"):

        @pgqueue.Client().job("mail", **wrong)
        def send(to: str) -> None: ...


@pytest.mark.parametrize(
    "wrong", [(0,), (-1,), (True,), (None,), ("100/m",), (5, 0), (5, "minute"), (5, 1, 0), (1_000_001,)], ids=repr
)
def test_a_rate_that_makes_no_sense_is_an_error(wrong):
    with pytest.raises(ValueError, match=r"limit|rate|per|burst"):
        Rate(*wrong)


def test_limits_are_no_defaults():
    with pytest.raises(TypeError, match="concurrency"):
        pgqueue.Client().job_defaults(concurrency=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("limit", [{"concurrency": 2}, {"rate": Rate(5)}, {"concurrency": 1, "limit_by": "n"}])
def test_a_lane_for_a_job_with_a_limit_is_refused_before_a_worker_declares_it(client, limit):
    @client.job("mail", name="send", **limit)
    def send(n: int) -> None: ...

    with pytest.raises(ValueError, match="job send has a limit, and a task in a lane cannot have one"):
        send.options(lane="a")
    assert send.options(lane=None, key="a").prepare(1).options.lane is None
