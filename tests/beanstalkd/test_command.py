"""`pgqueue beanstalkd` as a process: where it listens, how many it serves, and how it ends."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, contextmanager

import pytest
from beans import Bean
from commands import failed, invoke, started
from eventually import Stopwatch, eventually, soon, soon_enough

pytestmark = pytest.mark.once

LINE = re.compile(r"serving on (127\.0\.0\.1|unix):(\S+)\n").fullmatch
ALL_WITHIN = 240.0  # seconds for two thousand answers; alone they take six, beside many processes forty


@contextmanager
def serving(dsn, *options, listen="127.0.0.1:0", **kept):
    """A server, and its port or path."""
    command = ("beanstalkd", "--listen", listen, *options)
    with started(*command, settings={"PGQUEUE_DSN": dsn}, stdout=subprocess.PIPE, text=True, **kept) as process:
        line = process.stdout.readline()
        found = LINE(line)
        assert found, line
        yield process, found[2]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_and_its_jobs_are_ready(dsn, blocking, number):
    queue = blocking().queue("default")
    with serving(dsn, stderr=subprocess.PIPE) as (process, port):
        bean, waiter = await Bean.connect(int(port)), await Bean.connect(int(port))
        id = await bean.put()
        await bean.reserve()
        waiter.send(b"reserve\r\n")
        process.send_signal(number)
        assert await waiter.reader.read() == b""
        out, err = await asyncio.to_thread(process.communicate, timeout=30)
        assert (process.returncode, out, err) == (0, "", "")
        assert queue.take(0).id == id
        await bean.close()
        await waiter.close()


@pytest.mark.slow
async def test_the_jobs_of_a_server_that_is_killed_are_ready_within_a_second(dsn, awaiting):
    queue = awaiting().queue("default")

    async def killed():
        with serving(dsn) as (process, port):
            bean = await Bean.connect(int(port))
            id = await bean.put(ttr=600)
            await bean.reserve()
            taking = asyncio.ensure_future(queue.take(60))
            watch = Stopwatch()
            process.kill()
            task = await taking
            seconds = watch()
            assert task.id == id
            await task.ack()
            bean.writer.close()
        return seconds

    await soon_enough(killed, within=1.0)


@pytest.mark.slow
async def test_sigusr1_begins_the_drain_mode(dsn):
    with serving(dsn) as (process, port):
        bean = await Bean.connect(int(port))
        await bean.put()
        process.send_signal(signal.SIGUSR1)
        while (await bean.stats())["draining"] == "false":
            await asyncio.sleep(0)
        assert await bean("put 0 0 1 1\r\nx") == b"DRAINING\r\n"
        await bean.close()


@pytest.mark.slow
def test_it_listens_at_a_socket_of_the_file_system(dsn, tmp_path):
    path = tmp_path / "socket"
    with serving(dsn, "--max-job-size", "10", listen=f"unix:{path}") as (process, where):
        assert where == str(path)
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(path))
            peer.sendall(b"put 0 0 1 11\r\n12345678901\r\n")
            assert peer.recv(99) == b"JOB_TOO_BIG\r\n"
        taken = invoke("beanstalkd", "--listen", f"unix:{path}", PGQUEUE_DSN=dsn)
        assert "Address already in use" in failed(taken, 1)
        process.kill()
    assert path.exists()
    with serving(dsn, listen=f"unix:{path}") as (process, _):  # the dead server's socket is in the way
        process.terminate()
        assert process.wait(30) == 0
    assert not path.exists()


@pytest.mark.parametrize("address", ["11300", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:-1"])
def test_an_address_that_is_none(dsn, address):
    assert "HOST:PORT or unix:PATH" in failed(invoke("beanstalkd", "--listen", address, PGQUEUE_DSN=dsn), 2)


def test_a_port_that_is_taken(dsn):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = invoke("beanstalkd", "--listen", f"127.0.0.1:{port}", PGQUEUE_DSN=dsn)
    assert failed(done, 1) == f"cannot listen at 127.0.0.1:{port}: Address already in use"


def test_without_a_database_it_ends():
    done = invoke("beanstalkd", "--listen", "127.0.0.1:0", PGQUEUE_DSN="host=/nonexistent")
    assert "nonexistent" in failed(done, 1)


@asynccontextmanager
async def connections(port: str, number: int) -> AsyncIterator[list[Bean]]:
    """So many of them; they are closed at the end of the block."""
    beans = list[Bean]()
    try:
        for _ in range(number):
            beans.append(await Bean.connect(int(port)))
        yield beans
    finally:
        for bean in beans:
            bean.writer.close()


@pytest.mark.slow
async def test_two_thousand_connections_wait_for_jobs(dsn):
    number = 2000
    with serving(dsn) as (_, port):
        async with connections(port, number) as beans, connections(port, 1) as [producer]:
            for bean in beans:
                bean.send(b"reserve\r\n")

            async def all_wait():
                return int((await producer.stats())["current-waiting"]) == number

            await soon(all_wait)
            ids = {await producer.put(ttr=3600) for _ in range(number)}
            async with asyncio.timeout(ALL_WITHIN):
                answers = [await bean.answer() for bean in beans]
            assert {int(answer.split()[1]) for answer in answers} == ids


@pytest.mark.slow
async def test_two_thousand_connections_that_close_give_their_jobs_back(dsn, blocking):
    number, queue = 2000, blocking().queue("default")
    queue.put_many(["x"] * number)
    with serving(dsn) as (_, port):
        async with connections(port, number) as beans:
            for bean in beans:
                bean.send(b"reserve\r\n")
            async with asyncio.timeout(ALL_WITHIN):
                assert all([(await bean.answer()).startswith(b"RESERVED") for bean in beans])
            assert queue.stats()["taken"] == number
        await asyncio.to_thread(eventually, lambda: queue.stats()["ready"] == number)
