"""The fault rig's proxy does to connections what each of its faults says."""

from __future__ import annotations

import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from checkout import CHECKOUT
from eventually import eventually

sys.path.append(str(CHECKOUT))  # behind everything else: pgqueue stays the installed one

from psycopg.conninfo import conninfo_to_dict

from faults.proxy import Proxy

SILENCE = 0.3  # seconds without an answer that show silence


class Echo(socketserver.BaseRequestHandler):
    """Sends back what it gets, and counts the connections that are open."""

    open = 0

    def handle(self) -> None:
        Echo.open += 1
        try:
            while data := self.request.recv(4096):
                self.request.sendall(data)
        except OSError:
            pass
        finally:
            Echo.open -= 1


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Server(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        proxy = Proxy(f"host=127.0.0.1 port={server.server_address[1]} dbname=x")
        yield proxy
        proxy.close()
        server.shutdown()


def connect(proxy: Proxy) -> socket.socket:
    given = conninfo_to_dict(proxy.dsn)
    plug = socket.create_connection((str(given["host"]), int(str(given["port"]))))
    plug.settimeout(5)
    return plug


def echoed(plug: socket.socket, data: bytes) -> bool:
    plug.sendall(data)
    return plug.recv(100) == data


def silent(plug: socket.socket) -> bool:
    """Whether nothing comes, not even the end."""
    plug.settimeout(SILENCE)
    try:
        plug.recv(100)
    except TimeoutError:
        return True
    finally:
        plug.settimeout(5)
    return False


def test_it_passes_data_on(proxy: Proxy) -> None:
    with connect(proxy) as plug:
        assert echoed(plug, b"one")
        assert echoed(plug, b"two")


def test_what_is_held_comes_late_and_complete(proxy: Proxy) -> None:
    with connect(proxy) as plug:
        assert echoed(plug, b"before")
        proxy.hold()
        plug.sendall(b"meanwhile")
        assert silent(plug)
        proxy.mend()
        assert plug.recv(100) == b"meanwhile"


@pytest.mark.slow
def test_a_black_hole_swallows_and_closes_nothing(proxy: Proxy) -> None:
    with connect(proxy) as plug:
        assert echoed(plug, b"before")
        proxy.swallow()
        plug.sendall(b"lost")
        assert silent(plug)
        with connect(proxy) as late:  # accepted, and never answered
            eventually(lambda: len(proxy._links) == 2)
            late.sendall(b"lost too")
            assert silent(late)
            proxy.mend()
            eventually(lambda: Echo.open == 0)  # the server has given them up
            with connect(proxy) as new:
                assert echoed(new, b"new")
            for dead in (plug, late):
                dead.sendall(b"anyone there?")
                assert silent(dead)


def test_after_a_black_hole_its_connections_can_be_reset(proxy: Proxy) -> None:
    with connect(proxy) as plug:
        assert echoed(plug, b"before")
        proxy.swallow()
        proxy.mend()
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            plug.recv(100)


def test_cut_connections_are_closed(proxy: Proxy) -> None:
    with connect(proxy) as plug:
        assert echoed(plug, b"before")
        proxy.cut()
        assert plug.recv(100) == b""
    with connect(proxy) as new:
        assert echoed(new, b"new")


def test_delayed_data_comes_later(proxy: Proxy) -> None:
    with connect(proxy) as plug:
        assert echoed(plug, b"before")
        proxy.delay = 0.1
        began = time.monotonic()
        assert echoed(plug, b"slowly")
        assert time.monotonic() - began >= 0.2  # there and back


def spoilt(proxy: Proxy, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> list[bytes]:
    """What arrives of an answer, if each is spoilt, until the end of the connection."""
    monkeypatch.setattr("faults.proxy.SPOILT", 1)
    with connect(proxy) as plug:
        plug.sendall(sent)
        return [plug.recv(100), b"open" if silent(plug) else b""]


def test_half_of_an_answer_comes_and_then_the_end(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy.halve()
    assert spoilt(proxy, monkeypatch, b"an answer!") == [b"an an", b""]
    proxy.mend()
    with connect(proxy) as plug:
        assert echoed(plug, b"an answer!")


def test_noise_comes_in_place_of_an_answer(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy.garble()
    answer, then = spoilt(proxy, monkeypatch, b"an answer!" * 10)
    assert len(answer) == 100
    assert answer != b"an answer!" * 10
    assert then == b"open"
