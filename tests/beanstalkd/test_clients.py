"""A client that others wrote, over all its commands. tools/suites.py runs a project's own tests."""

from __future__ import annotations

import asyncio

import pytest

pytestmark = pytest.mark.once

greenstalk = pytest.importorskip("greenstalk")


async def test_greenstalk(port):
    await asyncio.to_thread(exercise, port)


def exercise(port):
    with greenstalk.Client(("127.0.0.1", port), use="mail", watch="mail") as client:
        id = client.put("Grüße", priority=7, delay=0, ttr=30)
        assert client.stats_job(id)["pri"] == 7
        job = client.reserve(timeout=30)
        assert (job.id, job.body) == (id, "Grüße")
        client.touch(job)
        client.bury(job, priority=3)
        assert client.peek_buried().id == id
        assert client.kick(10) == 1
        job = client.reserve()
        client.release(job, delay=60)
        assert client.peek_delayed().id == id
        client.kick_job(id)
        client.delete(client.reserve_job(id))
        with pytest.raises(greenstalk.NotFoundError):
            client.peek(id)
        with pytest.raises(greenstalk.TimedOutError):
            client.reserve(timeout=0)
        assert client.tubes() == ["default", "mail"]
        assert client.watching() == ["mail"]
        assert client.stats()["current-connections"] == 1
        client.pause_tube("mail", 1)
        assert client.stats_tube("mail")["name"] == "mail"
