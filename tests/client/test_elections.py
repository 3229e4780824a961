"""Elections, on both shells: one leader at a time, told in order, and campaigning again after each term."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from eventually import Stopwatch, eventually, soon
from locks import in_line, left, nothing_left, terminate_listeners
from servers import Server

import pgqueue


class Story:
    """What the callbacks of elections told, in its order."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def elect(self, client: Any, who: str, name: str = "boss") -> Any:
        def gained(election: Any) -> None:
            assert election.name == name
            self.events.append(f"{who} gained")

        def lost(election: Any) -> None:
            assert not election.leader
            self.events.append(f"{who} lost")

        return client.elect(name, gained, lost)


async def test_one_leader_and_then_the_other(shell: Any, db: psycopg.Connection) -> None:
    one, other = shell.client(), shell.client()
    story = Story()
    first = story.elect(one, "first")
    await first.wait(30)
    assert first.leader
    assert first.fence > 0
    second = story.elect(other, "second")
    await in_line(db, 1)
    assert not second.leader
    watch = Stopwatch()
    with pytest.raises(TimeoutError, match=r"the election 'boss' was not won within 0.2 s"):
        await second.wait(0.2)
    assert watch() >= 0.2
    await first.close()
    assert not first.leader
    await second.wait(30)
    await soon(lambda: len(story.events) == 3)
    assert story.events == ["first gained", "first lost", "second gained"]
    await second.close()
    assert story.events[3:] == ["second lost"]
    assert left(db) == (0, 0, 0)


async def test_who_resigns_goes_to_the_end_of_the_line(shell: Any, db: psycopg.Connection) -> None:
    story = Story()
    clients = [shell.client() for _ in range(3)]
    elections = []
    for i, client in enumerate(clients):
        elections.append(story.elect(client, str(i)))
        await soon(lambda: left(db)[:2] == (1, len(elections) - 1))
    await elections[2].resign()  # not the leader: nothing
    for turn in range(6):
        leader = elections[turn % 3]
        await leader.wait(30)
        assert [election.leader for election in elections].count(True) == 1
        fence = leader.fence
        await leader.resign()
        assert leader.fence != fence
        await soon(lambda: left(db)[:2] == (1, 2))
    for election in reversed(elections):
        await election.close()
    gained = [event for event in story.events if event.endswith("gained")]
    assert gained[:6] == [f"{turn % 3} gained" for turn in range(6)]
    assert [event.split()[0] for event in story.events[::2]] == [event.split()[0] for event in story.events[1::2]]


async def test_alone_one_is_elected_again(client: Any) -> None:
    async with client.elect("boss") as election:
        await election.wait(30)
        fence = election.fence
        await election.resign()
        await election.wait(30)
        assert election.fence > fence


async def test_the_connection_breaks(shell: Any, db: psycopg.Connection) -> None:
    story = Story()
    client = shell.client()
    election = story.elect(client, "it")
    for terms in (1, 2, 3):
        await soon(lambda terms=terms: len(story.events) == 2 * terms - 1)
        terminate_listeners(db)
    await soon(lambda: len(story.events) == 7)
    await election.wait(30)
    assert story.events == ["it gained", "it lost"] * 3 + ["it gained"]
    await election.close()


async def test_callbacks_that_fail_are_logged(client: Any, caplog: Any) -> None:
    told = []

    def gained(election: Any) -> None:
        told.append("gained")
        raise ZeroDivisionError

    def lost(election: Any) -> None:
        told.append("lost")
        raise ZeroDivisionError

    async with client.elect("boss", gained, lost) as election:
        for _ in range(2):
            await election.wait(30)
            await election.resign()
        await election.wait(30)
    assert told == ["gained", "lost"] * 3
    assert "gained of the election 'boss' failed" in caplog.text
    assert "lost of the election 'boss' failed" in caplog.text


def test_callbacks_may_resign_and_close(blocking: Callable[..., pgqueue.Client], db: psycopg.Connection) -> None:
    terms = []
    over = threading.Event()

    def gained(election: pgqueue.Election) -> None:
        terms.append(election.fence)
        election.resign()
        assert not election.leader
        if len(terms) == 3:
            election.close()

    def lost(election: pgqueue.Election) -> None:
        if len(terms) == 3:
            over.set()

    election = blocking().elect("boss", gained, lost)
    assert over.wait(30)
    election.close()
    assert len(terms) == 3
    assert left(db)[:2] == (0, 0)


async def test_coroutine_callbacks(awaiting: Callable[..., pgqueue.AsyncClient], db: psycopg.Connection) -> None:
    story = []

    async def gained(election: pgqueue.AsyncElection) -> None:
        await asyncio.sleep(0)
        story.append("gained")
        await election.resign()

    async def lost(election: pgqueue.AsyncElection) -> None:
        await asyncio.sleep(0)
        story.append("lost")
        if len(story) == 4:
            await election.close()

    election = awaiting().elect("boss", gained, lost)
    await soon(lambda: len(story) == 4)
    await election.close()
    assert story == ["gained", "lost"] * 2
    assert left(db)[:2] == (0, 0)


async def test_the_next_leader_begins_after_lost_has_returned(shell: Any, db: psycopg.Connection) -> None:
    events: list[str] = []
    go_on = threading.Event()

    def lost(election: Any) -> None:
        if shell.name == "sync":  # in the loop it would block the test
            go_on.wait(30)
        events.append("lost")

    one, other = shell.client(), shell.client()
    first = one.elect("boss", None, lost)
    await first.wait(30)
    second = other.elect("boss", lambda election: events.append("gained"))
    await in_line(db, 1)
    resigning = asyncio.ensure_future(first.resign())
    await soon(lambda: not first.leader)
    if shell.name == "sync":
        assert not second.leader
    go_on.set()
    await resigning
    await second.wait(30)
    await soon(lambda: len(events) == 2)
    assert events == ["lost", "gained"]
    await second.close()
    await first.close()


async def test_it_ends_with_the_client(shell: Any, db: psycopg.Connection) -> None:
    """Of the leader, and of one in line."""
    story = Story()
    one, other = shell.client(), shell.client()
    leader = story.elect(one, "leader")
    await leader.wait(30)
    heir = story.elect(other, "heir")
    await in_line(db, 1)
    waiting = asyncio.ensure_future(heir.wait(30))
    await other.close()
    with pytest.raises(pgqueue.ClosedError, match="the election 'boss' is closed"):
        await waiting
    await one.close()
    assert not leader.leader
    await soon(lambda: story.events == ["leader gained", "leader lost"])
    for election in (leader, heir):
        await election.close()
        await election.close()
        await election.resign()
        with pytest.raises(pgqueue.ClosedError):
            await election.wait(0)


async def test_a_lock_and_an_election_of_one_name_exclude_each_other(shell: Any, db: psycopg.Connection) -> None:
    client = shell.client()
    async with client.lock("boss"):
        election = client.elect("boss")
        await in_line(db, 1)
        assert not election.leader
    await election.wait(30)
    assert await client.try_lock("boss") is None
    await election.close()


def test_a_forked_child_leads_nothing(blocking: Callable[..., pgqueue.Client], db: psycopg.Connection) -> None:
    with blocking().elect("boss") as election:
        election.wait(30)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                assert not election.leader
                election.resign()
                election.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert election.leader
        assert left(db) == (1, 0, 1)


async def test_a_cancelled_campaign_releases_it_and_stands_again(awaiting: Any, db: psycopg.Connection) -> None:
    client = awaiting()
    election = client.elect("boss")
    await election.wait(30)
    fence = election.fence
    election._background._task.cancel()
    await soon(lambda: not election.leader)
    await election.wait(30)
    assert election.fence > fence
    await election.close()
    await nothing_left(db)


def test_a_server_that_is_away_is_waited_for(
    blocking: Callable[..., pgqueue.Client], db: psycopg.Connection, pg_server: Server
) -> None:
    """By the campaign, and not by closing it."""

    def let_in(yes: bool) -> None:
        with pg_server.connect() as admin:
            admin.execute(f'ALTER DATABASE "{db.info.dbname}" ALLOW_CONNECTIONS {yes}')

    with blocking().elect("boss") as election:
        election.wait(30)
        let_in(False)
        terminate_listeners(db)
        eventually(lambda: not election.leader)
        let_in(True)
        election.wait(30)
        let_in(False)
        terminate_listeners(db)
        eventually(lambda: not election.leader)
        election.close()
        let_in(True)
