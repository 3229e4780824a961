"""Tasks by state and a filter, page by page, and the verbs for all of them; verbs of a client for one task."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from sampling import sampled
from statements import column, rows

from pgqueue import NoQueue, TaskNotFound
from pgqueue.errors import QueueDraining, QueueFull, TaskTakenByOther

STATES = ["ready", "delayed", "taken", "buried", "blocked", "waiting", "cancelling", "done"]


async def fill(client: Any, db: psycopg.Connection, state: str, n: int) -> list[int]:
    """n tasks in a state, and some in the others."""
    queue = await client.create_queue("q", keep_done=3600)
    made = {}
    for one in STATES:
        count = n if one == state else 2
        options: dict[str, Any] = {"delay": 60} if one == "delayed" else {}
        if one == "blocked":
            await queue.put("first", lane="a", priority=-1)
            options = {"lane": "a"}
        elif one == "waiting":
            first = await queue.put("first", delay=60)
            options = {"after": [first]}
        made[one] = [(await queue.put(i, priority=i % 3, **options)).id for i in range(count)]
        if one in ("taken", "buried", "cancelling", "done"):
            for id in made[one]:
                task = await queue.take_id(id)
                if one == "buried":
                    await task.bury(error="ValueError: no")
                elif one == "done":
                    await task.ack()
                elif one == "cancelling":
                    await client.cancel(id)
    return made[state]


@pytest.mark.parametrize("state", STATES)
async def test_pages_have_each_task_of_a_state_once_and_in_its_order(
    client: Any, db: psycopg.Connection, state: str
) -> None:
    made = await fill(client, db, state, 7)
    queue = client.queue("q")
    found, marker, pages = [], None, 0
    while True:
        page = await queue.tasks(state, limit=3, marker=marker)
        found += [task.id for task in page.tasks]
        assert {task.state for task in page.tasks} <= {state}
        pages, marker = pages + 1, page.marker
        if marker is None:
            break
    assert set(made) <= set(found)
    assert len(set(found)) == len(found)
    assert found == column(db, "SELECT id FROM pgqueue.find_tasks('q', %s)", state)
    assert pages == len(found) // 3 + 1


async def test_a_page_goes_on_where_the_last_one_ended_though_its_tasks_are_gone(client: Any) -> None:
    queue = client.queue("q")
    ids = await queue.put_many(range(6))
    page = await queue.tasks("ready", limit=2)
    for id in ids[:4]:
        await client.delete(id)
    assert [task.id for task in (await queue.tasks("ready", marker=page.marker)).tasks] == ids[4:]


async def bury_some(client: Any) -> dict[str, list[int]]:
    """Buried tasks of two jobs with two errors."""
    queue = client.queue("q")
    for n in range(8):
        await queue.put({"job": "even" if n % 2 == 0 else "odd", "args": {}})
    buried: dict[str, list[int]] = {"even": [], "odd": [], "ValueError": [], "KeyError": []}
    for n in range(8):
        task = await queue.take(0)
        error = "ValueError" if n < 4 else "KeyError"
        await task.bury(error=f"{error}: why (app.py:7)")
        buried[task.data["job"]].append(task.id)
        buried[error].append(task.id)
    return buried


async def test_tasks_are_chosen_by_job_error_and_age(client: Any, db: psycopg.Connection) -> None:
    buried = await bury_some(client)
    queue = client.queue("q")

    async def found(**which: Any) -> list[int]:
        return [task.id for task in (await queue.tasks("buried", **which)).tasks]

    assert await found(job="odd") == buried["odd"]
    assert await found(error="KeyError") == buried["KeyError"]
    assert await found(job="odd", error="KeyError") == [id for id in buried["odd"] if id in buried["KeyError"]]
    assert await found(error="%") == []
    assert await found(older=3600) == []
    db.execute("UPDATE pgqueue.task SET created_at = now() - interval '2 h' WHERE id = ANY (%s)", [buried["even"]])
    assert await found(older=3600) == buried["even"]


async def test_tasks_are_chosen_by_key_lane_and_data(client: Any) -> None:
    queue = await client.create_queue("q", keep_done=3600)
    for n in range(4):
        await queue.put({"job": "send", "args": {"to": "ada" if n % 2 else "bob", "n": n}}, lane="a" if n < 3 else "b")
    await queue.put([1, {"deep": "%"}], key="the key", delay=60)
    for one in ("the key", "again"):
        await queue.put("x", key=one, priority=-1, if_exists="ignore")
    await (await queue.take(0)).ack()
    await queue.put("y", key="again", delay=60)

    async def found(state: str, **which: Any) -> list[Any]:
        return [task.data for task in (await queue.tasks(state, **which)).tasks]

    assert [data["args"]["n"] for data in await found("ready", lane="a")] == [0]
    assert [data["args"]["n"] for data in await found("blocked", lane="a")] == [1, 2]
    assert await found("delayed", lane="a") == []
    assert await found("delayed", key="the key") == [[1, {"deep": "%"}]]
    assert await found("delayed", key="again") == ["y"]
    assert await found("done", key="again") == ["x"]
    assert await found("ready", key="the key") == await found("delayed", key="the ke") == []
    assert [data["args"]["n"] for data in await found("blocked", contains={"args": {"to": "ada"}})] == [1]
    assert await found("delayed", contains=[{"deep": "%"}]) == [[1, {"deep": "%"}]]
    assert await found("delayed", contains={"deep": "%"}) == []
    assert await queue.delete_all("delayed", key="the key", contains=[1]) == 1
    assert await queue.cancel_all("blocked", lane="b") == 0
    assert await queue.cancel_all("ready", lane="b") == 1


@pytest.mark.parametrize("state", sampled(STATES, keep=3))
async def test_a_search_whose_time_is_over_goes_on_where_it_stopped(
    client: Any, db: psycopg.Connection, state: str
) -> None:
    made = await fill(client, db, state, 40)
    which = "contains => to_jsonb(5), within => '0'"
    found: list[int] = []
    marker, calls = None, 0
    while True:
        ((ids, marker),) = (
            rows(db, f"SELECT ids, next FROM pgqueue.search_tasks('q', %s, after => %s, {which})", state, Jsonb(marker))
            if marker
            else rows(db, f"SELECT ids, next FROM pgqueue.search_tasks('q', %s, {which})", state)
        )
        found, calls = found + ids, calls + 1
        if marker is None:
            break
    assert found == [made[5]]
    assert calls > 30
    (whole,) = rows(db, f"SELECT ids, next FROM pgqueue.search_tasks('q', %s, {which.replace('0', '1 min')})", state)
    assert whole == ([made[5]], None)


async def test_a_verb_acts_on_all_tasks_that_the_filter_lets_pass(client: Any, db: psycopg.Connection) -> None:
    buried = await bury_some(client)
    queue = client.queue("q")
    assert await queue.kick_all(job="odd", error="KeyError") == 2
    assert [task.id for task in (await queue.tasks("ready")).tasks] == buried["odd"][2:]
    assert await queue.delete_all("buried", job="odd") == 2
    assert await queue.cancel_all("buried", error="KeyError") == 2
    assert column(db, "SELECT id FROM pgqueue.tasks WHERE state = 'buried' ORDER BY id") == buried["even"][:2]
    taken = await queue.take_many(2, timeout=0)
    assert await queue.release_all(job="even") == 0
    assert await queue.release_all(job="odd") == 2
    assert column(db, "SELECT count(*) FROM pgqueue.take") == [0]
    assert [task.id for task in taken] == buried["odd"][2:]


async def test_tasks_are_put_again(client: Any, db: psycopg.Connection) -> None:
    queue = await client.create_queue("q", keep_done=3600)
    for n in range(5):
        await queue.put({"n": n}, priority=n, lane="a" if n < 2 else None, ttr=60, key=str(n))
    for n in range(5):
        task = await queue.take(0)
        await (task.ack() if n % 2 else task.bury(error="no"))
    assert await queue.put_again_all(contains={"n": 1}) == 1
    assert await queue.put_again_all("buried", error="no") == 3
    again = "SELECT data ->> 'n', priority, lane, ttr, key, attempts FROM pgqueue.tasks WHERE stored NOT IN ('F', 'B')"
    ttr = timedelta(seconds=60)
    assert rows(db, f"{again} ORDER BY id") == [
        ("1", 1, "a", ttr, None, 0),
        ("0", 0, "a", ttr, None, 0),
        ("2", 2, None, ttr, None, 0),
        ("4", 4, None, ttr, None, 0),
    ]
    assert (await queue.stats())["buried"] == 3
    with pytest.raises(ValueError, match="put_again for buried and done ones"):
        await queue.put_again_all("ready")


async def test_a_task_is_put_again_in_any_state(client: Any, db: psycopg.Connection) -> None:
    queue = client.queue("q")
    first = await queue.put("x", delay=60, key="k")
    new = await client.put_again(first)
    assert rows(db, "SELECT id, state, key FROM pgqueue.tasks ORDER BY id") == [
        (first.id, "delayed", "k"),
        (new, "ready", None),
    ]
    await queue.alter(capacity=2)
    with pytest.raises(QueueFull):
        await client.put_again(new)
    await queue.drain()
    with pytest.raises(QueueDraining):
        await client.put_again(new)
    await client.delete(new)
    with pytest.raises(TaskNotFound):
        await client.put_again(new)


async def test_many_tasks_are_acted_on_in_parts(
    client: Any, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgqueue._calls.find.MOST", 3)
    queue = client.queue("q")
    await queue.put_many([{"job": "a" if n % 3 else "b"} for n in range(20)], delay=60)
    db.execute("UPDATE pgqueue.task SET run_at = (SELECT max(run_at) FROM pgqueue.task)")  # only the ids differ
    told: list[int] = []
    assert await queue.kick_all("delayed", job="a", on_progress=told.append) == 13
    assert told == [3, 6, 9, 12, 13]
    assert await queue.delete_all("delayed", on_progress=told.append) == 7
    assert told[5:] == [3, 6, 7]
    await queue.take_many(4, timeout=0)
    assert await queue.release_all(job="a", on_progress=told.append) == 4
    assert told[8:] == [3, 4]
    assert await queue.cancel_all("ready", on_progress=told.append) == 13
    assert told[10:] == [3, 6, 9, 12, 13]


async def test_what_another_transaction_has_locked_is_left_out(client: Any, connect: Any) -> None:
    queue = client.queue("q")
    ids = await queue.put_many(range(3))
    other = connect()
    with other.transaction():
        other.execute("SELECT FROM pgqueue.task WHERE id = %s FOR UPDATE", [ids[1]])
        assert await queue.delete_all("ready") == 2
    assert [task.id for task in (await queue.tasks("ready")).tasks] == [ids[1]]


async def test_wrong_arguments_are_refused(client: Any) -> None:
    queue = client.queue("q")
    await queue.put(1)
    with pytest.raises(ValueError, match="no task is ever 'lost'"):
        await queue.tasks("lost")
    with pytest.raises(ValueError, match="marker"):
        await queue.tasks("ready", marker="next")
    with pytest.raises(ValueError, match="marker"):
        await queue.tasks("ready", marker="[1]")
    with pytest.raises(ValueError, match="kick is for buried and delayed tasks"):
        await queue.kick_all("taken")
    with pytest.raises(NoQueue):
        await client.queue("none").kick_all()


async def test_a_client_looks_at_kicks_and_deletes_a_task_of_any_queue(
    client: Any, connect: Any, db: psycopg.Connection
) -> None:
    put = await client.queue("q").put("data")
    assert (await client.peek(put.id)).data == "data"
    assert await client.kick(put.id) is False
    await (await client.queue("q").take(0)).bury(error="why")
    assert await client.kick(str(put.id)) is True
    assert rows(db, "SELECT state, attempts FROM pgqueue.tasks") == [("ready", 0)]
    other = connect()
    other.execute("SELECT FROM pgqueue.take('q')")
    with pytest.raises(TaskTakenByOther):
        await client.delete(put, strict=True)
    await client.delete(put)
    for call in (client.peek, client.kick, client.delete):
        with pytest.raises(TaskNotFound):
            await call(put.id)
