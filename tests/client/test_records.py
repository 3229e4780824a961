"""What calls return can be serialised, copied and pickled, on both shells."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from datetime import UTC, datetime
from typing import Any

import pytest
from eventually import soon

import pgqueue
from pgqueue.types import Change

pytestmark = pytest.mark.once

DATA = {"token": "of a user", "to": ["ada", {"n": 1.5}], "none": None}


def same(record: Any) -> Any:
    """The record itself, out of the wrapper of the blocking shell."""
    return getattr(record, "_thing", record)


def through_json(record: Any) -> Any:
    return json.loads(json.dumps(record.as_dict(), allow_nan=False))


async def test_a_task_as_a_dict(queue: Any) -> None:
    await queue.put(DATA, ttr=60, priority=3)
    task = await queue.take(0)
    assert task.token is not None
    found = task.as_dict()
    assert through_json(task) == found
    assert list(found) == [field.name for field in dataclasses.fields(same(task)) if field.name != "token"]
    assert (found["id"], found["data"], found["priority"], found["state"]) == (task.id, DATA, 3, "taken")
    assert datetime.fromisoformat(found["deadline"]) == task.deadline
    found["data"]["to"].append("bob")
    assert task.data == DATA  # a copy


async def test_every_way_to_get_a_task_gives_one_that_serialises(client: Any, queue: Any) -> None:
    put = await queue.put(1, key="a")
    peeked = await queue.peek(put)
    taken = await queue.take(0)
    released = await taken.release(3600)
    popped = (await client.pop(["q", "r"]), await queue.put(2), await queue.pop())[2][0]
    listed = await client.create_queue("l", listed=True)
    await listed.put(3)

    async def committed() -> Any:  # a page waits for older transactions of the whole server
        return (await listed.messages.list()).messages

    (message,) = await soon(committed)
    for task in (put, peeked, taken, released, popped, message):
        assert through_json(task) == task.as_dict()
        assert "token" not in task.as_dict()


async def test_a_claim_as_a_dict(queue: Any) -> None:
    await queue.put_many([DATA, 2])
    claim = await queue.messages.claim(ttl=60)
    found = claim.as_dict()
    assert through_json(claim) == found
    assert list(found) == ["id", "queue", "ttl", "grace", "age", "messages"]
    assert found["messages"] == [message.as_dict() for message in claim.messages]
    assert [message["data"] for message in found["messages"]] == [DATA, 2]


async def test_all_other_records_as_dicts(client: Any, queue: Any) -> None:
    listed = await client.create_queue("listed", listed=True, ttr=60, metadata={"team": "post"})
    await listed.put(1)
    task = await queue.put(DATA)
    await client.exchanges.declare("x", "fanout")
    await client.exchanges.bind("q", "x")
    dying = await client.create_queue("dying", dead_letter="", dead_letter_key="dead")
    await dying.put("dies")
    await (await dying.take(0)).bury()
    (dead,) = await client.queue("dead").take_many(1, 0)
    await client.nodes.create("/a", DATA, ephemeral=True)
    membership = await client.groups.join("g", {"port": 1})
    records: dict[str, tuple[Any, dict[str, Any]]] = {
        "outcome": (await task.outcome(), {"id": task.id, "state": "ready", "result": None}),
        "info": (await listed.info(), {"name": "listed", "ttr": 60.0, "metadata": {"team": "post"}}),
        "node": (await client.nodes.get("/a"), {"path": "/a", "data": DATA, "ephemeral": True}),
        "member": ((await client.groups.members("g"))[0], {"name": "member-0000000000", "data": {"port": 1}}),
        "death": ((await client.exchanges.deaths(dead))[0], {"queue": "dying", "reason": "rejected", "count": 1}),
        "exchange": ((await client.exchanges.list())[0], {"name": "x", "type": "fanout"}),
        "binding": ((await client.exchanges.bindings("x"))[0], {"queue": "q", "exchange": "x"}),
        "task stats": (await task.stats(), {"id": task.id, "reserves": 0}),
        "message stats": (await listed.messages.stats(), {"free": 1, "claimed": 0, "total": 1}),
        "page": (await listed.messages.list(), {}),
    }
    await membership.leave()
    for name, (record, expected) in records.items():
        found = record.as_dict()
        assert through_json(record) == found, name
        assert list(found) == [field.name for field in dataclasses.fields(same(record))], name
        assert {key: found[key] for key in expected} == expected, name
    page = records["page"][0]
    assert page.as_dict()["messages"] == [message.as_dict() for message in page.messages]


def test_every_record_that_is_exported_has_as_dict() -> None:
    named = {name: getattr(module, name) for module in (pgqueue, pgqueue.types) for name in module.__all__}
    records = {name for name, kind in named.items() if isinstance(kind, type) and dataclasses.is_dataclass(kind)}
    given = {"Put", "MessageLimits", "Retry", "Rate"}  # made by callers, and returned by no call
    assert {name for name in records if not hasattr(named[name], "as_dict")} == given
    assert records > {"Task", "AsyncTask", "Claim", "Outcome", "Node", "QueueInfo", "Change", "Member"}


def test_a_change_as_a_dict() -> None:
    at = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert Change(7, "q", "put", at).as_dict() == {
        "task_id": 7,
        "queue": "q",
        "op": "put",
        "at": "2030-01-02T03:04:05+00:00",
    }


@pytest.mark.parametrize(
    "copied",
    [lambda it: pickle.loads(pickle.dumps(it)), copy.copy, copy.deepcopy, lambda it: dataclasses.replace(it)],
    ids=["pickle", "copy", "deepcopy", "replace"],
)
async def test_a_copy_is_equal_and_has_no_client(queue: Any, copied: Any) -> None:
    await queue.put_many([DATA, 2, 3], ttr=60)
    task, claim = same(await queue.take(0)), same(await queue.messages.claim(limit=1))
    for original in (task, claim, claim.messages[0]):
        other = copied(original)
        assert other == original
        assert type(other) is type(original)
        assert other.as_dict() == original.as_dict()
        assert pickle.loads(pickle.dumps(other)) == original  # again
    message = r"this (Async)?Task was copied or unpickled, so it has no client: use the verbs of its queue"
    for verb in ("ack", "release", "bury", "touch", "peek"):
        with pytest.raises(RuntimeError, match=message):
            await called(getattr(copied(task), verb))
    with pytest.raises(RuntimeError, match=message.replace("Task", "Claim")):
        await called(copied(claim).release)
    await queue.ack(copied(task))  # its token is in the copy
    assert (await queue.stats())["taken"] == 1


async def called(verb: Any) -> Any:
    answer = verb()
    return await answer if hasattr(answer, "__await__") else answer


async def test_asdict_has_all_fields(queue: Any) -> None:
    await queue.put(DATA)
    task = same(await queue.take(0))
    found = dataclasses.asdict(task)
    assert (found["token"], found["data"]) == (task.token, DATA)
    assert type(task)(**found) == task
