"""Claims of messages on both shells, as Zaqar's; what the SQL promises is in sql/test_claims.py."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from processes import programs
from roles import made
from shells import unwrapped
from statements import rows, value
from waiters import waiting

import pgqueue
from pgqueue.types import MessageLimits

pytestmark = pytest.mark.once


def ids(messages: Any) -> list[int]:
    return [message.id for message in messages]


async def filled(queue: Any, n: int, **options: Any) -> list[int]:
    return [int(id) for id in await queue.put_many(range(n), **options)]


def age(db: psycopg.Connection, claim: Any, by: str = "1 day") -> None:
    """Let so much time pass for a claim and what it holds."""
    for table, end in [("claim", "expires_at"), ("take", "deadline")]:
        db.execute(f"UPDATE pgqueue.{table} SET {end} = {end} - %s::interval WHERE token = %s", [by, claim.id])


def lives(db: psycopg.Connection, id: int) -> float:
    """For how many seconds the message lives from now on."""
    return float(value(db, "SELECT extract(epoch FROM expires_at - now()) FROM pgqueue.tasks WHERE id = %s", id))


# --- claiming, renewing and deleting


async def test_the_oldest_first_and_then_the_next(queue):
    put = await filled(queue, 5)
    assert ids((await queue.messages.claim(limit=2)).messages) == put[:2]
    assert ids((await queue.messages.claim(limit=2)).messages) == put[2:4]


async def test_a_claim_of_an_empty_queue_is_none(queue, db):
    assert await queue.messages.claim() is None
    assert rows(db, "SELECT * FROM pgqueue.claim") == []


async def test_a_claim_takes_nothing_from_another(queue):
    put = await filled(queue, 10)
    a, b = await queue.messages.claim(5), await queue.messages.claim(5)
    await a.release()
    c = await queue.messages.claim(10)
    assert ids(c.messages) == put[:5]
    assert ids((await b.get()).messages) == put[5:]


async def test_messages_live_longer_than_the_claim_by_its_grace(queue, db):
    short, long = await queue.put("short", ttl=60), await queue.put("long", ttl=1000)
    before = value(db, "SELECT expires_at FROM pgqueue.tasks WHERE id = %s", long.id)
    await queue.messages.claim(ttl=100, grace=60)
    assert 150 <= lives(db, short.id) <= 160
    assert value(db, "SELECT expires_at FROM pgqueue.tasks WHERE id = %s", long.id) == before


@pytest.mark.parametrize("end", ["expired", "deleted", "never"])
async def test_renewing_a_claim(queue, db, end):
    (id,) = await filled(queue, 1, ttl=70)
    claim = await queue.messages.claim(ttl=100, grace=80)
    db.execute("UPDATE pgqueue.claim SET renewed_at = renewed_at - interval '30 s'")
    assert 30 <= (await claim.get()).age < 40
    await claim.renew(ttl=400)
    renewed = await claim.get()
    assert (renewed.ttl, renewed.grace, ids(renewed.messages)) == (400, 80, [id])
    assert 0 <= renewed.age < 10
    assert 470 < lives(db, id) <= 480
    left = renewed.messages[0].deadline - datetime.now(UTC)
    assert timedelta(seconds=390) < left <= timedelta(seconds=400)
    if end == "expired":
        age(db, claim)
    elif end == "deleted":
        await claim.release()
    gone = claim.id + 1 if end == "never" else claim
    for verb in (queue.messages.get, queue.messages.renew):
        with pytest.raises(pgqueue.errors.ClaimDoesNotExist, match=r"there is no claim .* of queue 'q'") as raised:
            await verb(gone)
        assert raised.value.claim_id == getattr(gone, "id", gone)


async def test_deleting_a_claim_twice(queue):
    (id,) = await filled(queue, 1)
    claim = await queue.messages.claim()
    for _ in range(2):
        await claim.release()
    await queue.messages.release(str(claim.id))
    assert (await queue.peek(id)).state == "ready"


async def test_an_expired_claim_needs_no_maintenance(queue, db):
    put = await filled(queue, 2)
    age(db, await queue.messages.claim())
    assert ids((await queue.messages.claim()).messages) == put


async def test_deleting_messages(queue, db):
    mine, others, free = await filled(queue, 3)
    one, two = await queue.messages.claim(1), await queue.messages.claim(1)
    with pytest.raises(pgqueue.errors.MessageIsClaimed, match=f"message {mine} .* name its claim") as raised:
        await queue.messages.delete(mine)
    assert raised.value.task_id == mine
    with pytest.raises(pgqueue.errors.MessageNotClaimed, match=f"message {free} .* not by claim {one.id}"):
        await queue.messages.delete(free, one)
    # The original's source mixes up the two arguments of this error.
    with pytest.raises(pgqueue.errors.MessageNotClaimedBy, match=f"message {others} .* by claim {one.id}$") as refused:
        await queue.messages.delete(others, one)
    assert (refused.value.task_id, refused.value.claim_id) == (others, one.id)
    age(db, one)
    with pytest.raises(pgqueue.errors.ClaimDoesNotExist, match=str(one.id)):
        await queue.messages.delete(others, one.id)
    assert (await queue.messages.stats()).total == 3
    await queue.messages.delete(others, two)
    for id in (others, 12345):
        await queue.messages.delete(id, two)
        await queue.messages.delete(id)
    assert (await queue.messages.stats()).total == 2


async def test_the_number_of_claimed_messages(queue):
    await filled(queue, 4)
    claim = await queue.messages.claim(3)
    for left in (2, 1, 0):
        await queue.messages.delete(claim.messages[left], claim)
        stats = await queue.messages.stats()
        assert (stats.free, stats.claimed, stats.total) == (1, left, left + 1)
    assert (await claim.get()).messages == []


async def test_limits_of_a_claim(queue):
    await filled(queue, 21)
    for limit in (0, -1, 21, None, 1.0, True):
        for verb in (
            queue.messages.claim,
            lambda n: queue.messages.list(limit=n),
            lambda n: queue.messages.delete_many(pop=n),
        ):
            with pytest.raises(ValueError, match=r"whole number|needs either"):
                await verb(limit)
    for given in ({}, {"ids": [1], "pop": 1}):
        with pytest.raises(ValueError, match="either ids or a number to pop"):
            await queue.messages.delete_many(**given)
    for ttl, grace in [(59, 60), (60, 59), (43201, 60), (60, 43201), (None, 60), (60, float("nan"))]:
        with pytest.raises(ValueError, match="seconds"):
            await queue.messages.claim(1, ttl, grace)
    assert (await queue.messages.stats()).claimed == 0
    assert len((await queue.messages.claim(20, ttl=43200, grace=43200)).messages) == 20


async def test_the_second_claim_whose_time_is_over_makes_a_dead_letter(client, queue, db):
    await client.create_queue("q", max_takes=2, dead_letter="", dead_letter_key="dead")
    (id,) = await filled(queue, 1)
    for _ in range(2):
        await (await queue.messages.claim()).release()  # no attempt
        age(db, await queue.messages.claim())
    assert await queue.messages.claim() is None
    assert (await queue.peek(id)).queue == "dead"


async def test_pop_deletes_what_it_returns(queue):
    put = await filled(queue, 5)
    claim = await queue.messages.claim(2)
    popped = await queue.messages.delete_many(pop=2)
    assert [(message.id, message.data, message.state) for message in popped] == [
        (put[2], 2, "done"),
        (put[3], 3, "done"),
    ]
    assert ids((await claim.get()).messages) == put[:2]
    assert (await queue.messages.stats()).free == 1


# --- one claim and other verbs, clients and processes


async def test_a_claim_and_its_messages(client, queue):
    await queue.put({"n": 1}, priority=5, ttr=0.001)
    claim = await queue.messages.claim(ttl=70, grace=80)
    assert (claim.queue, claim.ttl, claim.grace, claim.age) == ("q", 70, 80, 0)
    (message,) = claim.messages
    assert (message.data, message.priority, message.state, message.queue) == ({"n": 1}, 5, "taken", "q")
    assert (await queue.peek(message.id)).holder == "a claim"
    assert repr(claim).startswith(("Claim(id=", "AsyncClaim(id="))


async def test_the_verbs_of_a_claimed_message(queue):
    put = await filled(queue, 5)
    claim = await queue.messages.claim()
    done, back, aside, kept, left = claim.messages
    await done.ack()
    await back.release()
    await aside.bury()
    with pytest.raises(pgqueue.TaskTakenByOther, match="taken by a claim"):
        await kept.touch()
    assert ids((await claim.get()).messages) == put[3:]
    await queue.ack_many([kept, left])
    assert (await claim.get()).messages == []
    assert (await queue.messages.stats()).total == 2


async def test_another_client_goes_on_with_a_claim(shell, queue):
    put = await filled(queue, 2)
    claim = await queue.messages.claim()
    other = shell.client().queue("q")
    found = await other.messages.get(str(claim.id))
    assert ids(found.messages) == put
    await found.messages[0].ack()
    await found.renew()
    assert ids((await claim.get()).messages) == put[1:]


async def test_a_claim_outlives_its_process(dsn, queue):
    put = await filled(queue, 2)
    with programs() as start:
        program = start("claimer", dsn, "q")
        id = program.hear()
        program.kill()
    claim = await queue.messages.get(id)
    assert ids(claim.messages) == put
    assert await queue.messages.claim() is None
    await claim.release()
    assert ids((await queue.messages.claim()).messages) == put


async def test_a_waiting_take_gets_what_a_claim_gives_back(shell, client, queue):
    (id,) = await filled(queue, 1)
    claim = await queue.messages.claim()
    taking = asyncio.ensure_future(queue.take(timeout=30))
    await waiting(client, "q")
    await claim.release()
    assert (await taking).id == id


async def test_deleting_joins_the_callers_transaction(shell, queue):
    first, second, third = await filled(queue, 3)
    claim = await queue.messages.claim(1)
    conn = await shell.connection()
    await queue.messages.delete(first, claim, conn=conn)
    await queue.messages.delete_many([second], conn=conn)
    assert ids(await queue.messages.delete_many(pop=1, conn=conn)) == [third]
    await conn.rollback()
    assert (await queue.messages.stats()).total == 3
    assert len((await claim.get()).messages) == 1


async def test_many_are_deleted_by_their_ids(client, queue):
    put = await filled(queue, 3)
    claim = await queue.messages.claim(1)
    other = await client.queue("other").put("x")
    deleted = await queue.messages.delete_many([*claim.messages, str(put[1]), other, 12345])
    assert [(message.id, message.data) for message in deleted] == [(put[0], 0), (put[1], 1)]
    assert (await other.peek()).state == "ready"
    assert await queue.messages.delete_many([]) == []


async def test_a_role_that_may_not_look_deletes_many_unseen(shell, queue, db, dsn):
    put = await filled(queue, 2)
    with made(dsn, db) as roles:
        deleted = await shell.client(roles.dsn(roles("manage"))).queue("q").messages.delete_many(put)
    assert [(message.id, message.data, message.state) for message in deleted] == [(id, None, "done") for id in put]
    assert value(db, "SELECT total FROM pgqueue.stats WHERE queue = 'q'") == 0


async def test_other_limits(queue):
    unwrapped(queue).messages.limits = MessageLimits(messages=2, shortest=0, longest=5)
    with pytest.raises(ValueError, match="from 1 to 2"):
        await queue.messages.claim(3, 1, 0)
    with pytest.raises(ValueError, match="0 to 5 seconds"):
        await queue.messages.claim(1, 6, 0)
    await filled(queue, 1)
    claim = await queue.messages.claim(2, ttl=2, grace=0)
    await claim.renew(ttl=5)
    assert (await claim.get()).ttl == 5


@pytest.mark.parametrize("id", ["x", "", "-1", -1, 2**63, "٣", "1" * 30])
async def test_an_id_that_no_claim_can_have_does_not_exist(queue, id):
    for verb in (queue.messages.get, queue.messages.renew, lambda id: queue.messages.delete(1, id)):
        with pytest.raises(pgqueue.errors.ClaimDoesNotExist) as caught:
            await verb(id)
        assert caught.value.claim_id == id
    await queue.messages.release(id)


@pytest.mark.parametrize("id", [1.5, True, None])
async def test_what_is_not_a_claims_id(queue, id):
    for verb in (queue.messages.get, queue.messages.renew, queue.messages.release):
        with pytest.raises(ValueError, match="a claim is named by its id"):
            await verb(id)
    with pytest.raises(pgqueue.errors.TaskIdRequired):
        await queue.messages.delete("x", 1)


async def test_an_unreadable_message_is_buried(queue, db):
    """SQL can put what Python's json does not read: the others are claimed."""
    db.execute("SELECT pgqueue.put('q', to_jsonb(repeat('1', 5000)::numeric))")
    (id,) = await filled(queue, 1)
    queue._shell.core.listener()  # who sees to it
    claim = await queue.messages.claim()
    assert ids(claim.messages) == [id]


async def test_exclusive_queues(shell, client, queue):
    await client.create_queue("q", exclusive=True)
    (id,) = await filled(queue, 1)
    with pytest.raises(pgqueue.errors.QueueExclusive):
        await shell.client().queue("q").messages.claim()
    assert ids((await queue.messages.claim()).messages) == [id]


async def test_age_and_ttl_of_messages(client, queue, db):
    await client.create_queue("q", listed=True)
    await queue.put("limited", ttl=3600)
    await queue.put("endless")
    claim = await queue.messages.claim()
    listing = await queue.messages.list(include_claimed=True)
    for messages in (claim.messages, (await claim.get()).messages, listing.messages):
        assert [(message.data, message.ttl) for message in messages] == [("limited", 3600.0), ("endless", None)]
        assert all(0 <= message.age < 60 for message in messages)
        assert messages[0].as_dict()["ttl"] == 3600.0
    (held, _) = claim.messages
    (gone,) = await queue.messages.delete_many([held])
    assert (gone.id, gone.ttl, gone.state) == (held.id, 3600.0, "done")
    await claim.release()
    (popped,) = await queue.messages.delete_many(pop=1)
    assert (popped.data, popped.ttl) == ("endless", None)
