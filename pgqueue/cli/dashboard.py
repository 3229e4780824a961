"""`pgqueue dashboard`"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import signal
import socket
import threading
from typing import TYPE_CHECKING

import click

from .. import AsyncClient
from .._engine import dsn as dsns
from .connecting import at_once
from .plainly import Fault, plainly
from .stopping import until_signal

if TYPE_CHECKING:
    import uvicorn

LEAVE = 1  # seconds for requests that are under way at the end
HERE = ("localhost", "127.0.0.1", "::1")  # the names of loopback in a browser's address


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=9188, show_default=True, help="0: any free port.")
@click.option("--read-only", is_flag=True, help="Show no buttons.")
@click.option("--title", default="pgqueue", show_default=True, help="The headline of all pages.")
@click.option(
    "--password-hash",
    envvar="PGQUEUE_DASHBOARD_PASSWORD_HASH",
    show_envvar=True,
    help="Ask each browser for a password. Required to listen beyond loopback.",
)
@click.option("--hash-password", is_flag=True, help="Ask for a password, print its hash, and end.")
@click.pass_obj
@plainly
def dashboard(
    dsn: str | None, host: str, port: int, read_only: bool, title: str, password_hash: str | None, hash_password: bool
) -> None:
    """Serve the web pages of the queues, until SIGTERM or SIGINT; print the URL."""
    try:
        import uvicorn

        from ..dashboard import guarding, silence
        from ..dashboard.application import dashboard as application
    except ImportError as error:
        needs = "the dashboard needs Starlette, Jinja2 and uvicorn: "
        raise Fault(f"{needs}run `pip install '.[dashboard]'` in a checkout of pgqueue") from error

    if hash_password:
        click.echo(
            guarding.hash_password(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
        )
        return
    inside = is_loopback(host)
    if not inside and password_hash is None:
        raise click.UsageError(f"{host} is beyond loopback: give --password-hash, which --hash-password makes")
    hashed = None if password_hash is None else guarding.checked_hash(password_hash)
    client = AsyncClient(dsns.resolve(dsn))
    at_once(client)
    client.shell.core.conninfo()  # fails if the database is absent, or has no schema; later the pages say so
    listening = listen(host, port)
    may_act = None if read_only else (lambda request: True)
    app = application(client, may_act=may_act, actor=guarding.user_of, title=title, hosts=HERE if inside else None)
    if hashed is not None:
        app = guarding.Password(app, hashed)
    config = uvicorn.Config(
        app,
        http=silence.Attentive,
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=LEAVE,
    )
    serve(uvicorn.Server(config), client, listening, url(host, listening))


def serve(server: uvicorn.Server, client: AsyncClient, listening: socket.socket, address: str) -> None:
    """Serve in a thread, since the main one gets the signals, until one arrives. Raises Fault if the server ends."""
    ended: list[BaseException] = []

    async def serving() -> None:
        async with client:
            await server.serve([listening])

    def run() -> None:
        try:
            asyncio.run(serving())
        except BaseException as error:
            ended.append(error)
        finally:
            if not server.should_exit:
                os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=run, name="pgqueue dashboard")
    thread.start()
    click.echo(f"serving on {address}")
    until_signal()
    server.should_exit = True
    thread.join()
    if ended:
        raise Fault(f"the server ended: {ended[0]}")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises Fault."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(100)
    except OSError as error:
        listening.close()
        raise Fault(f"cannot listen at {host}:{port}: {error.strerror}") from error
    return listening


def url(host: str, listening: socket.socket) -> str:
    """The address for a browser."""
    return f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}/"
