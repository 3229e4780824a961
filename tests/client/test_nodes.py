"""Nodes and watches, on both shells: the verbs, what is watched, and what goes when a process does."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from eventually import Stopwatch, eventually, soon
from hurrying import hurry
from statements import column, rows, value
from steady import steady

import pgqueue
from pgqueue._calls.nodes import Seen
from pgqueue.types import NodeEvent

pytestmark = pytest.mark.once

ANY = "SELECT count(*) FROM pgqueue.nodes WHERE path <> '/'"
GRACE = 0.5
BAD_PATHS = [
    None,
    7,
    b"/a",
    "",
    "a",
    "/a/",
    "//",
    "/.",
    "/a/../b",
    "/a\0",
    "/\ud800",
    "/" + "x" * 1024,
    "/" + "€" * 700,
]


def listener_of(client: Any) -> Any:
    return client.shell.core.running_listener


def terminate(db: psycopg.Connection, session: int) -> None:
    """End the session's connection; if it was ended before, the one that comes next."""
    query = "SELECT pg_terminate_backend(backend_pid, 5000) FROM pgqueue.sessions WHERE id = %s"
    eventually(lambda: value(db, query, session))


# --- the verbs


async def test_the_life_of_a_node(client):
    node = await client.nodes.create("/app", {"x": 1})
    assert (node.path, node.name, node.data, node.version) == ("/app", "app", {"x": 1}, 0)
    assert (node.ephemeral, node.holder) == (False, None)
    assert await client.nodes.get("/app") == node
    assert await client.nodes.exists("/app")
    changed = await client.nodes.set("/app", [2])
    assert (changed.data, changed.version, changed.id) == ([2], 1, node.id)
    assert changed.created_at == node.created_at < changed.updated_at
    assert await client.nodes.get("/app") == changed
    await client.nodes.delete("/app")
    assert not await client.nodes.exists("/app")
    again = await client.nodes.create("/app")
    assert again.id != node.id
    assert again.data is None


async def test_what_cannot_be_done_says_so(client):
    await client.nodes.create("/a", 1)
    with pytest.raises(pgqueue.errors.NodeExists, match="/a already") as raised:
        await client.nodes.create("/a", 2)
    assert raised.value.path == "/a"
    with pytest.raises(pgqueue.errors.NoNode, match="there is no node /b"):
        await client.nodes.create("/b/c")
    for call in (client.nodes.get, client.nodes.delete, client.nodes.children):
        with pytest.raises(pgqueue.errors.NoNode, match="no node /b"):
            await call("/b")
    with pytest.raises(pgqueue.errors.NoNode):
        await client.nodes.set("/b", 1)
    with pytest.raises(pgqueue.errors.BadVersion, match="at version 0, not 3"):
        await client.nodes.set("/a", 2, 3)
    with pytest.raises(pgqueue.errors.BadVersion, match="at version 0, not 3"):
        await client.nodes.delete("/a", version=3)
    await client.nodes.create("/a/b", ephemeral=True)
    with pytest.raises(pgqueue.errors.NotEmpty, match="has children"):
        await client.nodes.delete("/a")
    with pytest.raises(pgqueue.errors.EphemeralParent, match="/a/b is ephemeral"):
        await client.nodes.create("/a/b/c")
    assert (await client.nodes.get("/a")).data == 1
    assert await client.nodes.children("/a") == ["b"]


async def test_versions_make_a_counter_that_loses_nothing(shell):
    clients = [shell.client() for _ in range(4)]
    await clients[0].nodes.create("/n", 0)

    async def add(client):
        for _ in range(10):
            while True:
                node = await client.nodes.get("/n")
                try:
                    await client.nodes.set("/n", node.data + 1, node.version)
                except pgqueue.errors.BadVersion:
                    continue
                break

    await asyncio.gather(*map(add, clients))
    node = await clients[0].nodes.get("/n")
    assert (node.data, node.version) == (40, 40)


async def test_two_create_one_path_and_one_wins(shell):
    clients = [shell.client() for _ in range(8)]
    for n in range(10):
        made = await asyncio.gather(
            *(client.nodes.create(f"/{n}", number) for number, client in enumerate(clients)), return_exceptions=True
        )
        (winner,) = [node for node in made if not isinstance(node, Exception)]
        assert sum(isinstance(node, pgqueue.errors.NodeExists) for node in made) == 7
        assert await clients[0].nodes.get(f"/{n}") == winner


async def test_sequential_numbers_are_unique_under_eight_creators(shell):
    clients = [shell.client() for _ in range(8)]
    await clients[0].nodes.create("/line")

    async def create(client, number):
        made = [await client.nodes.create("/line/n-", sequential=True, ephemeral=number % 2 == 0) for _ in range(10)]
        assert [node.name for node in made] == sorted(node.name for node in made)

    await asyncio.gather(*(create(client, number) for number, client in enumerate(clients)))
    assert await clients[0].nodes.children("/line") == [f"n-{number:010}" for number in range(80)]


async def test_a_callers_transaction(shell, client):
    conn = await shell.connection()
    await client.nodes.create("/a", conn=conn)
    ephemeral = await client.nodes.create("/a/e", ephemeral=True, conn=conn)
    await client.nodes.set("/a", 1, conn=conn)
    assert (await client.nodes.get("/a", conn=conn)).data == 1
    assert await client.nodes.children("/a", conn=conn) == ["e"]
    assert not await client.nodes.exists("/a")
    with pytest.raises(pgqueue.errors.NodeExists):  # and the transaction goes on
        await client.nodes.create("/a", conn=conn)
    await conn.commit()
    assert await client.nodes.get("/a/e") == ephemeral
    await client.nodes.delete("/a/e", conn=conn)
    await conn.rollback()
    assert await client.nodes.exists("/a/e")


@pytest.mark.parametrize("path", BAD_PATHS)
async def test_a_path_that_cannot_be(client, db, path):
    for call in (
        client.nodes.create,
        client.nodes.get,
        client.nodes.exists,
        client.nodes.delete,
        client.nodes.children,
    ):
        with pytest.raises(ValueError, match="path"):
            await call(path)
    for call in (client.nodes.set(path, 1), client.nodes.watch(path)):
        with pytest.raises(ValueError, match="path"):
            await call
    assert value(db, ANY) == 0


async def test_other_arguments_that_cannot_be(client, db):
    for data in (float("nan"), {"\0": 1}, object(), {1: {2, 3}}, "x" * (1 << 21)):
        with pytest.raises(pgqueue.BadData):
            await client.nodes.create("/a", data)
        with pytest.raises(pgqueue.BadData):
            await client.nodes.set("/", data)
    for version in (-1, True, "0", 1.0, 2**31):
        with pytest.raises(ValueError, match="version"):
            await client.nodes.set("/", 1, version)
        with pytest.raises(ValueError, match="version"):
            await client.nodes.delete("/a", version)
    for flag in (None, 1, "yes"):
        with pytest.raises(ValueError, match="ephemeral"):
            await client.nodes.create("/a", ephemeral=flag)
        with pytest.raises(ValueError, match="sequential"):
            await client.nodes.create("/a", sequential=flag)
        with pytest.raises(ValueError, match="children"):
            await client.nodes.watch("/a", children=flag)
    with pytest.raises(ValueError, match="root"):
        await client.nodes.delete("/")
    assert rows(db, "SELECT path, version FROM pgqueue.nodes") == [("/", 0)]


async def test_no_listener_is_needed_for_lasting_nodes(client):
    await client.nodes.create("/a")
    await client.nodes.set("/a", 1)
    assert await client.nodes.children("/") == ["a"]
    await client.nodes.delete("/a")
    assert listener_of(client) is None


# --- watches


async def test_a_watch_of_each_kind(client):
    watch = await client.nodes.watch("/a")
    assert (watch.path, watch.node, watch.children) == ("/a", None, None)
    made = await client.nodes.create("/a", 1)
    assert await watch.wait(30) == NodeEvent("created", "/a")
    watch = await client.nodes.watch("/a")
    assert watch.node == made
    await client.nodes.set("/a", 2)
    assert await watch.wait(30) == NodeEvent("changed", "/a")
    below = await client.nodes.watch("/a", children=True)
    assert below.children == []
    await client.nodes.create("/a/b")
    assert await below.wait(30) == NodeEvent("children", "/a")
    below = await client.nodes.watch("/a", children=True)
    assert below.children == ["b"]
    watch = await client.nodes.watch("/a/b")
    await client.nodes.delete("/a/b")
    assert (await below.wait(30)).kind == "children"
    assert (await watch.wait(30)).kind == "deleted"


async def test_a_watch_of_children_hears_of_the_node_too(client):
    watch = await client.nodes.watch("/a", children=True)
    assert (watch.node, watch.children) == (None, [])
    await client.nodes.create("/a")
    assert (await watch.wait(30)).kind == "created"
    watch = await client.nodes.watch("/a", children=True)
    await client.nodes.set("/a", 1)  # is no matter of its children
    await client.nodes.delete("/a")
    assert (await watch.wait(30)).kind == "deleted"


async def test_a_watch_tells_of_the_first_event_and_once(client):
    watch = await client.nodes.watch("/a")
    await client.nodes.create("/a")
    await client.nodes.set("/a", 1)
    await client.nodes.delete("/a")
    assert (await watch.wait(30)).kind == "created"  # though there is nothing now, as there was nothing before
    with pytest.raises(pgqueue.ClosedError, match="over"):
        await watch.wait(0)


async def test_deleted_and_created_again_is_an_event(client):
    await client.nodes.create("/a")
    watch = await client.nodes.watch("/a")
    await client.nodes.delete("/a")
    await client.nodes.create("/a")
    assert (await watch.wait(30)).kind == "deleted"


async def test_a_watch_whose_time_is_over_goes_on(client):
    watch = await client.nodes.watch("/a")
    clock = Stopwatch()
    with pytest.raises(TimeoutError, match=r"/a within 0\.2 s"):
        await watch.wait(0.2)
    assert 0.2 <= clock() < 5
    with pytest.raises(TimeoutError):
        await watch.wait(0)
    with pytest.raises(ValueError, match="timeout"):
        await watch.wait("1")
    await client.nodes.create("/a")
    assert (await watch.wait(30)).kind == "created"


async def test_what_is_rolled_back_is_no_event(shell, client):
    conn = await shell.connection()
    watch = await client.nodes.watch("/a")
    await client.nodes.create("/a", conn=conn)
    await conn.rollback()
    await client.nodes.create("/b")
    with pytest.raises(TimeoutError):
        await watch.wait(0.2)
    await client.nodes.create("/a", conn=conn)
    await conn.commit()
    assert (await watch.wait(30)).kind == "created"


async def test_a_transaction_that_began_before_the_watch_is_news(shell, client):
    """Its number is lower than that of the watch's snapshot; its commit came later."""
    conn = await shell.connection()
    await client.nodes.create("/a", conn=conn)
    await client.nodes.create("/b")
    watch = await client.nodes.watch("/a")
    assert watch.node is None
    await conn.commit()
    assert (await watch.wait(30)).kind == "created"


async def test_closing_ends_a_wait(client):
    watch = await client.nodes.watch("/a")
    waiting = asyncio.ensure_future(watch.wait())
    await soon(lambda: watch._observer._ear.signal is not None)
    await watch.close()
    with pytest.raises(pgqueue.ClosedError):
        await waiting
    await watch.close()
    with pytest.raises(pgqueue.ClosedError):
        await watch.wait(0)


async def test_closing_the_client_ends_a_wait(client):
    watch = await client.nodes.watch("/a")
    waiting = asyncio.ensure_future(watch.wait())
    await soon(lambda: watch._observer._ear.signal is not None)
    await client.close()
    with pytest.raises(pgqueue.ClosedError):
        await waiting
    with pytest.raises(pgqueue.ClosedError):
        await client.nodes.watch("/a")


async def test_a_watch_in_a_with_block_leaves_no_listener_behind(client):
    async with await client.nodes.watch("/a") as watch:
        assert watch.node is None
    board = listener_of(client).switchboard
    assert [line.ears for line in board._lines.values()] == [[]]


async def test_a_watch_that_fired_leaves_no_ear_behind(client):
    for n in range(3):
        watch = await client.nodes.watch("/a")
        await client.nodes.set("/", n)
        await (client.nodes.create("/a") if n % 2 == 0 else client.nodes.delete("/a"))
        await watch.wait(30)
    board = listener_of(client).switchboard
    assert [line.ears for line in board._lines.values()] == [[]]


def test_a_close_in_the_middle_of_a_look_leaves_no_ear_behind(blocking):
    """After a gap it looks from a new ear, and the close comes before that is entered."""
    client = blocking()
    watch = client.nodes.watch("/a")
    observer = watch._observer
    check = observer._check

    def closed_behind_it():
        check()
        observer._check = check
        observer.close()

    def first():
        check()
        observer._check = closed_behind_it

    observer._missed = True
    observer._check = first
    with pytest.raises(pgqueue.ClosedError):
        watch.wait(30)
    assert [line.ears for line in listener_of(client).switchboard._lines.values()] == [[]]


async def test_twenty_watchers_are_each_told_once(shell, client):
    others = [shell.client() for _ in range(2)]
    watches = [await (client, *others)[n % 3].nodes.watch("/a") for n in range(20)]
    waiting = [asyncio.ensure_future(watch.wait(30)) for watch in watches]
    await client.nodes.create("/a")
    await client.nodes.delete("/a")
    assert [event.kind for event in await asyncio.gather(*waiting)] == ["created"] * 20
    for watch in watches:
        with pytest.raises(pgqueue.ClosedError):
            await watch.wait(0)


@pytest.mark.slow
async def test_no_event_is_lost_in_300_races(shell):
    """The change is under way while the watch is made: either the node shows it, or the event tells of it."""
    client, other = shell.client(), shell.client()
    await client.nodes.create("/n", -1)
    for n in range(300):
        changing = asyncio.ensure_future(other.nodes.set("/n", n))
        watch = await client.nodes.watch("/n")
        if watch.node.data == n:
            await watch.close()
        else:
            assert await watch.wait(30) == NodeEvent("changed", "/n"), n
        await changing
        assert (await client.nodes.get("/n")).data == n


@pytest.mark.slow
async def test_a_follower_sees_the_last_state_of_a_fast_writer(shell):
    """Nothing but events can bring it to the last number."""
    reader, writer = shell.client(), shell.client()
    await writer.nodes.create("/n", 0)

    async def write():
        for n in range(1, 301):
            await writer.nodes.set("/n", n)

    writing = asyncio.ensure_future(write())
    seen = 0
    while seen < 300:
        watch = await reader.nodes.watch("/n")
        assert watch.node.data >= seen
        seen = watch.node.data
        if seen < 300:
            assert (await watch.wait(30)).kind == "changed"
        await watch.close()
    await writing


@pytest.mark.slow
async def test_children_that_come_and_go_while_they_are_watched(shell):
    reader, writer = shell.client(), shell.client()
    await writer.nodes.create("/p")
    for n in range(100):
        watch = await reader.nodes.watch("/p", children=True)
        changing = asyncio.ensure_future(writer.nodes.create(f"/p/{n}"))
        assert (await watch.wait(30)).kind == "children"
        await changing
        watch = await reader.nodes.watch("/p", children=True)
        assert watch.children == [str(n)]
        await writer.nodes.delete(f"/p/{n}")
        assert (await watch.wait(30)).kind == "children"


# --- the connection is lost


@pytest.mark.slow
async def test_a_watch_outlives_its_connection(shell, db):
    """Changes before the loss, during it, and after it."""
    client, other = shell.client(session_grace=30), shell.client()
    await client.nodes.create("/a")
    for n in range(10):
        watch = await client.nodes.watch("/a")
        waiting = asyncio.ensure_future(watch.wait(30))
        session = await soon(lambda: listener_of(client).session)
        terminate(db, session)
        await other.nodes.set("/a", n)
        assert (await waiting).kind == "changed"


async def test_what_did_not_change_meanwhile_is_no_event(shell, db):
    client, other = shell.client(session_grace=30), shell.client()
    await client.nodes.create("/a")
    watch = await client.nodes.watch("/a")
    session = await soon(lambda: listener_of(client).session)
    terminate(db, session)
    await soon(lambda: watch._observer._ear.payloads)  # the gap
    with pytest.raises(TimeoutError):
        await watch.wait(0.3)
    await other.nodes.delete("/a")
    assert (await watch.wait(30)).kind == "deleted"


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ((None, None), (None, None), None),
        ((None, None), (7, 0), "created"),
        ((7, 0), (None, None), "deleted"),
        ((7, 0), (8, 0), "deleted"),
        ((7, 0), (7, 1), "changed"),
        ((7, 1), (7, 1), None),
    ],
)
def test_the_difference_of_two_looks(before, after, told):
    first, second = (Seen(None, "1:1:", id, state) for id, state in (before, after))
    assert first.difference(second, "changed") == told


def test_the_snapshot_tells_old_from_new(db):
    """As PostgreSQL does."""
    for snapshot in ("10:10:", "10:20:10,14,17", "10:11:10"):
        seen = Seen(None, snapshot, None, None)
        for transaction in range(8, 23):
            visible = value(db, "SELECT pg_visible_in_snapshot(%s::text::xid8, %s)", transaction, snapshot)
            assert seen.covers(transaction) == visible
    assert seen.news("changed 10", "changed") == "changed"
    assert seen.news("changed 9", "changed") is None
    assert seen.news("children 10", "changed") is None
    assert seen.news("", "changed") is None  # somebody's own NOTIFY
    assert seen.news("changed x", "changed") is None


# --- ephemeral nodes


async def test_an_ephemeral_node_goes_with_its_client(shell, client, db):
    owner = shell.client()
    node = await owner.nodes.create("/a", ephemeral=True)
    assert node.ephemeral
    assert node.holder == owner.shell.core.label
    watch = await client.nodes.watch("/a")
    assert watch.node == node
    await owner.close()
    assert value(db, ANY) == 0
    assert (await watch.wait(30)).kind == "deleted"


@pytest.mark.slow
async def test_an_ephemeral_node_survives_a_lost_connection(shell, db):
    client, watcher = shell.client(session_grace=30), shell.client()
    await client.nodes.create("/a", ephemeral=True)
    watch = await watcher.nodes.watch("/a")
    session = listener_of(client).session
    for _ in range(5):
        terminate(db, session)
    await soon(lambda: value(db, "SELECT missing_since IS NULL FROM pgqueue.sessions WHERE id = %s", session))
    with pytest.raises(TimeoutError):
        await watch.wait(0.5)
    assert (await watcher.nodes.get("/a")).id == watch.node.id


@pytest.mark.slow
async def test_an_ephemeral_node_can_be_created_whenever_the_connection_breaks(shell, db):
    client = shell.client(session_grace=30)
    await client.nodes.create("/a", ephemeral=True)
    session = listener_of(client).session
    for n in range(20):
        terminate(db, session)
        assert (await client.nodes.create(f"/{n}", ephemeral=True)).holder == client.shell.core.label
    assert value(db, "SELECT count(*) FROM pgqueue.nodes WHERE ephemeral") == 21


async def test_a_session_that_was_given_up_takes_its_nodes_along(shell, db):
    """As after a crash of the server, or a long absence. The client goes on with a new session."""
    client, other = shell.client(), shell.client()
    await client.nodes.create("/a", ephemeral=True)
    watch = await other.nodes.watch("/a")
    session = listener_of(client).session
    db.execute("DELETE FROM pgqueue.session WHERE id = %s", [session])
    value(
        db,
        "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_locks"
        " WHERE classid = pgqueue._session_lock() AND objid = %s::int",
        session,
    )
    await soon(lambda: listener_of(client).session not in (None, session))
    db.execute("SELECT pgqueue._clean_nodes()")
    assert (await watch.wait(30)).kind == "deleted"
    with pytest.raises(pgqueue.errors.NoNode):
        await client.nodes.set("/a", 1)
    await client.nodes.create("/a", ephemeral=True)


async def test_without_a_server_an_ephemeral_node_is_given_up(shell, dsn, monkeypatch):
    client = shell.client()
    await client.nodes.create("/a", ephemeral=True)
    hurry(client, connect_timeout=0.3)
    monkeypatch.setattr(listener_of(client), "session", None)
    with pytest.raises(pgqueue.ServerError, match="without a session"):
        await client.nodes.create("/b", ephemeral=True)


@pytest.mark.slow
async def test_a_watcher_is_told_once_of_a_kill(shell, db, dsn, start):
    """Within the grace and half a second."""
    client = shell.client()
    watch = await client.nodes.watch("/warm-up")
    await client.nodes.create("/warm-up")
    await watch.wait(30)
    for _ in range(3):
        victim = start("node_owner", dsn, GRACE)
        assert victim.ask("create /a") == {"created": "/a"}
        watch = await client.nodes.watch("/a")
        assert watch.node.ephemeral
        waiting = asyncio.ensure_future(watch.wait(30))
        with steady(dsn) as stopwatch:
            victim.kill()
            assert await waiting == NodeEvent("deleted", "/a")
            took = stopwatch()
        assert took <= GRACE + 0.5, took
        with pytest.raises(pgqueue.ClosedError):
            await watch.wait(0)
        watch = await client.nodes.watch("/a")
        assert watch.node is None
        with pytest.raises(TimeoutError):
            await watch.wait(0.5)  # nothing more comes
        await watch.close()


@pytest.mark.slow
def test_a_stop_that_is_shorter_than_the_grace_keeps_the_node(dsn, db, start, blocking):
    """Even one that loses the connection: it comes back in time."""
    client = blocking()
    owner = start("node_owner", dsn, 30)
    owner.ask("create /a")
    session = owner.ask("session")["session"]
    with client.nodes.watch("/a") as watch:
        owner.stop()
        terminate(db, session)
        eventually(
            lambda: value(db, "SELECT missing_since IS NOT NULL FROM pgqueue.sessions WHERE id = %s", session), 10
        )
        owner.resume()
        eventually(lambda: value(db, "SELECT missing_since IS NULL FROM pgqueue.sessions WHERE id = %s", session))
        eventually(lambda: owner.ask("session") == {"session": session})  # it reads the answer a little later
        with pytest.raises(TimeoutError):
            watch.wait(0.5)
    assert client.nodes.get("/a").id == watch.node.id


@pytest.mark.slow
def test_a_stop_with_its_connection_keeps_the_node_however_long(dsn, start, blocking):
    client = blocking()
    owner = start("node_owner", dsn, 0.1)
    owner.ask("create /a")
    with client.nodes.watch("/a") as watch:
        owner.stop()
        with pytest.raises(TimeoutError):
            watch.wait(1.5)
        owner.resume()
        assert owner.end() == 0
        assert watch.wait(30).kind == "deleted"


@pytest.mark.slow
def test_owners_killed_at_any_moment_leave_nothing(dsn, db, start, blocking):
    """In the middle of creating too."""
    client = blocking(session_grace=0.1)
    chance = random.Random(7)
    client.nodes.create("/e")
    with client.nodes.watch("/"):  # a listener that sweeps
        for _ in range(8):
            owner = start("node_owner", dsn, 0.1)
            owner.ask("session")
            for n in range(20):
                owner.tell(f"create /e/{owner.pid}-{n}")
            for _ in range(chance.randrange(20)):
                owner.hear()
            owner.kill()
        eventually(lambda: client.nodes.children("/e") == [])
    assert column(db, "SELECT session_id FROM pgqueue.node WHERE session_id IS NOT NULL") == []


def test_many_threads_share_a_client(blocking):
    client = blocking()

    def work(n: int) -> str:
        with client.nodes.watch(f"/{n}") as watch:
            client.nodes.create(f"/{n}", ephemeral=True)
            return watch.wait(30).path

    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(work, range(64))) == [f"/{n}" for n in range(64)]
