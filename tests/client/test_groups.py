"""Groups of processes, on both shells: joining, leaving, and who is told of it."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from eventually import eventually, soon
from statements import column, rows, value
from steady import steady

import pgqueue

pytestmark = pytest.mark.once

GRACE = 0.5


def names(members: list[pgqueue.types.Member]) -> list[str]:
    return [member.name for member in members]


async def test_members_come_and_go(shell, client):
    other = shell.client()
    assert await client.groups.members("g") == []
    first = await client.groups.join("g", {"port": 1})
    second = await other.groups.join("g")
    assert (first.group, first.name, first.path) == ("g", "member-0000000000", "/groups/g/member-0000000000")
    assert await other.groups.members("g") == [
        pgqueue.types.Member(name="member-0000000000", data={"port": 1}, holder=client.shell.core.label),
        pgqueue.types.Member(name="member-0000000001", data=None, holder=other.shell.core.label),
    ]
    await first.leave()
    await first.leave()
    assert names(await client.groups.members("g")) == [second.name]
    await other.close()
    assert await client.groups.members("g") == []
    assert (await client.groups.join("g")).name == "member-0000000002"
    assert await client.groups.members("h") == []


async def test_members_stand_in_the_order_in_which_they_joined(client):
    for name in ("z", "a", None, "m"):
        await client.groups.join("g", name=name)
    assert names(await client.groups.members("g")) == ["z", "a", "member-0000000000", "m"]


async def test_a_name_is_taken_once(shell, client):
    other = shell.client()
    mine = await client.groups.join("g", name="ada")
    with pytest.raises(pgqueue.errors.NodeExists, match="/groups/g/ada"):
        await other.groups.join("g", name="ada")
    await mine.leave()
    theirs = await other.groups.join("g", name="ada")
    await mine.leave()  # is nothing to who has the name now
    assert names(await client.groups.members("g")) == [theirs.name]


async def test_a_membership_lasts_as_long_as_its_block(client):
    async with await client.groups.join("g") as membership:
        assert names(await client.groups.members("g")) == [membership.name]
    assert await client.groups.members("g") == []


async def test_leaving_after_the_client_is_closed(client, db):
    membership = await client.groups.join("g")
    await client.close()
    await membership.leave()
    assert column(db, "SELECT path FROM pgqueue.nodes WHERE ephemeral") == []


@pytest.mark.parametrize("name", [None, 1, "", "a/b", ".", "..", "a\0", "\ud800", "x" * 1024])
async def test_names_that_cannot_be(client, db, name):
    for call in (client.groups.join, client.groups.members, client.groups.watch):
        with pytest.raises(ValueError, match=r"name|path"):
            await call(name)
    if name is not None:
        with pytest.raises(ValueError, match=r"name|path"):
            await client.groups.join("g", name=name)
    with pytest.raises(pgqueue.BadData):
        await client.groups.join("g", object())
    assert rows(db, "SELECT path FROM pgqueue.nodes") == [("/",)]


async def test_eight_join_at_once(shell):
    clients = [shell.client() for _ in range(8)]
    joined = await asyncio.gather(*(client.groups.join("g") for client in clients))
    assert sorted(membership.name for membership in joined) == names(await clients[0].groups.members("g"))
    assert [membership.name[:7] for membership in joined] == ["member-"] * 8


# --- watching


async def test_the_list_first_and_then_each_change(shell, client):
    other = shell.client()
    first = await other.groups.join("g", 1)
    async with await client.groups.watch("g") as watch:
        assert watch.group == "g"
        assert [(member.name, member.data) for member in await watch.get(0)] == [(first.name, 1)]
        with pytest.raises(TimeoutError, match="'g' did not change"):
            await watch.get(0.1)
        second = await other.groups.join("g")
        assert names(await watch.get(30)) == [first.name, second.name]
        await first.leave()
        assert names(await watch.get(30)) == [second.name]
        await other.close()
        assert await watch.get(30) == []
    with pytest.raises(pgqueue.ClosedError):
        await watch.get(0)
    with pytest.raises(ValueError, match="timeout"):
        await watch.get("1")


async def test_a_group_that_is_not_there_yet(client):
    async with await client.groups.watch("g") as watch:
        assert await watch.get(0) == []
        membership = await client.groups.join("g")
        assert names(await watch.get(30)) == [membership.name]


async def test_an_iteration_ends_with_close(client):
    membership = await client.groups.join("g")
    watch = await client.groups.watch("g")
    seen = []

    async def follow():
        async for members in watch:
            seen.append(names(members))

    following = asyncio.ensure_future(follow())
    await soon(lambda: watch._roll._ear.signal is not None)
    await membership.leave()
    await soon(lambda: len(seen) == 2 and watch._roll._ear.signal is not None)
    await watch.close()
    await asyncio.wait_for(following, 30)
    assert seen == [[membership.name], []]
    await watch.close()
    assert [line.ears for line in client.shell.core.running_listener.switchboard._lines.values()] == [[]]


async def test_an_iteration_ends_with_the_client(client):
    watch = await client.groups.watch("g")
    assert await watch.get() == []

    async def follow():
        return [members async for members in watch]

    following = asyncio.ensure_future(follow())
    await soon(lambda: watch._roll._ear.signal is not None)
    await client.close()
    assert await asyncio.wait_for(following, 30) == []


@pytest.mark.slow
async def test_the_last_state_always_comes(shell):
    """Members come and go while the list is read. Nothing but events brings a watcher to the end: `last` alone."""
    client, *others = (shell.client() for _ in range(4))
    watches = [await client.groups.watch("g") for _ in range(3)]

    async def come_and_go(other):
        for _ in range(30):
            await (await other.groups.join("g")).leave()

    async def follow(watch):
        while names(await watch.get(30)) != ["last"]:
            pass
        await watch.close()

    following = [asyncio.ensure_future(follow(watch)) for watch in watches]
    await asyncio.gather(*map(come_and_go, others))
    await others[0].groups.join("g", name="last")
    await asyncio.gather(*following)


@pytest.mark.slow
async def test_a_watch_of_members_outlives_its_connection(shell, db):
    client, other = shell.client(session_grace=30), shell.client()
    watch = await client.groups.watch("g")
    assert await watch.get(0) == []
    session = await soon(lambda: client.shell.core.running_listener.session)
    for n in range(1, 8):
        waiting = asyncio.ensure_future(watch.get(30))
        query = "SELECT pg_terminate_backend(backend_pid, 5000) FROM pgqueue.sessions WHERE id = %s"
        eventually(lambda query=query: value(db, query, session))
        await other.groups.join("g")
        assert len(await waiting) == n
    await watch.close()


@pytest.mark.slow
async def test_a_killed_member_is_gone_in_time(client, dsn, start):
    mine = await client.groups.join("g")
    victim = start("node_owner", dsn, GRACE)
    name = victim.ask("join g")["joined"]
    watch = await client.groups.watch("g")
    assert names(await watch.get(0)) == [mine.name, name]
    with steady(dsn) as took:
        victim.kill()
        assert names(await watch.get(30)) == [mine.name]
        assert took() <= GRACE + 0.5
    await watch.close()


FORKED = """
import os, sys
import pgqueue
client = pgqueue.Client(sys.argv[1])
membership = client.groups.join("g")
watch = client.groups.watch("g")
watch.get()
if os.fork() == 0:
    watch.close()
    membership.leave()
    with client.groups.join("g") as mine:
        os._exit(0 if len(client.groups.members("g")) == 2 else 1)
_, status = os.wait()
assert status == 0, status
print([member.name for member in client.groups.members("g")][:1], flush=True)
client.close()
"""


@pytest.mark.slow
def test_a_forked_child_does_not_leave_for_its_parent(dsn):
    done = subprocess.run([sys.executable, "-c", FORKED, dsn], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "['member-0000000000']\n"), done.stderr
