"""`pgqueue beanstalkd`"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket

import click

from .. import AsyncClient
from .._engine import dsn as dsns
from .._values.data import MAX_SIZE
from ..beanstalkd import Server
from ..beanstalkd.server import MAX_CONNECTIONS, MAX_JOB_SIZE
from .plainly import Fault, plainly

ESCAPED = 6  # bytes of JSON for a character, at most
BACKLOG = 1024  # connections that are not accepted yet
UNIX = "unix:"


@click.command()
@click.option(
    "-l",
    "--listen",
    default="127.0.0.1:11300",
    show_default=True,
    metavar="ADDRESS",
    help="HOST:PORT, or unix:PATH. Port 0: any free port. The protocol has no password.",
)
@click.option(
    "-z",
    "--max-job-size",
    type=click.IntRange(1, 10_000_000),
    default=MAX_JOB_SIZE,
    show_default=True,
    metavar="BYTES",
    help="The longest body of a job.",
)
@click.option(
    "--max-connections",
    type=click.IntRange(1),
    default=MAX_CONNECTIONS,
    show_default=True,
    help="A further connection gets OUT_OF_MEMORY.",
)
@click.option("--pool-size", type=click.IntRange(1), default=5, show_default=True, help="Connections of a pool.")
@click.option("--delete-tubes", is_flag=True, help="Delete queues that are empty and that no connection refers to.")
@click.pass_obj
@plainly
def beanstalkd(
    dsn: str | None, listen: str, max_job_size: int, max_connections: int, pool_size: int, delete_tubes: bool
) -> None:
    """Serve clients of beanstalkd, until SIGTERM or SIGINT; print the address.

    Tubes are queues, and jobs are tasks. SIGUSR1 begins the drain mode, in which puts are refused.
    """
    client = AsyncClient(
        dsns.resolve(dsn), pool_size=pool_size, max_data_size=max(MAX_SIZE, ESCAPED * max_job_size + ESCAPED)
    )
    client.shell.core.conninfo(0)  # fails if the database is absent, or has no schema; later the server waits for it
    allow_files()
    listening = bound(listen)
    server = Server(client, max_job_size=max_job_size, max_connections=max_connections, delete_tubes=delete_tubes)
    try:
        asyncio.run(serving(server, client, listening))
    finally:
        if listen.startswith(UNIX):
            with contextlib.suppress(OSError):
                os.unlink(listen.removeprefix(UNIX))


async def serving(server: Server, client: AsyncClient, listening: socket.socket) -> None:
    """Serve until a signal; a second one ends the process at once."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def stopped() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped)
    loop.add_signal_handler(signal.SIGUSR1, server.drain)
    async with client:
        await server.start(listening)
        click.echo(f"serving on {address_of(listening)}")
        await stop.wait()
        await server.close()


def bound(address: str) -> socket.socket:
    """A socket that listens at an address. Raises Fault and UsageError."""
    if address.startswith(UNIX):
        listening, where = socket.socket(socket.AF_UNIX), address.removeprefix(UNIX)
    else:
        host, colon, port = address.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65535:
            raise click.UsageError(f"--listen needs HOST:PORT or unix:PATH, not {address}")
        host = host.removeprefix("[").removesuffix("]")
        listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a peer that vanished gives its jobs back
    try:
        if listening.family == socket.AF_UNIX:
            forget(where)
            listening.bind(where)
        else:
            listening.bind((host, int(port)))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise Fault(f"cannot listen at {address}: {error.strerror or error}") from error
    return listening


def forget(path: str) -> None:
    """Remove a socket at which no process listens any more."""
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(FileNotFoundError):
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)


def address_of(listening: socket.socket) -> str:
    """As --listen takes it."""
    name = listening.getsockname()
    if listening.family == socket.AF_UNIX:
        return f"{UNIX}{name}"
    return f"[{name[0]}]:{name[1]}" if listening.family == socket.AF_INET6 else f"{name[0]}:{name[1]}"


def allow_files() -> None:
    """Let this process have as many descriptors, one for each connection, as it may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
