"""Graphite: what is sent, and to real sockets of a server that comes and goes."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from carbon import TcpServer, UdpServer
from commands import environment, failed, invoke, started
from dying import catches
from eventually import PATIENCE, Stopwatch, eventually, in_time

import pgqueue
from pgqueue._calls import stats as counting
from pgqueue._values.printable import path_part
from pgqueue.monitors import links
from pgqueue.monitors.graphite import USUAL, GraphiteReporter, lines

pytestmark = pytest.mark.once

QUICK = 0.02  # seconds between reports
LINE = re.compile(r"(?P<path>[A-Za-z0-9_.-]+) (?P<value>[0-9]+) (?P<at>[0-9]{10})\n")


@pytest.fixture
def tcp() -> Iterator[TcpServer]:
    with contextlib.closing(TcpServer()) as server:
        yield server


@pytest.fixture
def udp() -> Iterator[UdpServer]:
    with contextlib.closing(UdpServer()) as server:
        yield server


def report(receive: Callable[[], str], n: int = 4) -> dict[str, int]:
    """The next n lines, by their paths; all of one moment, which is now."""
    return dated_report(receive, n)[1]


def dated_report(receive: Callable[[], str], n: int = 4) -> tuple[int, dict[str, int]]:
    """The same, behind that moment."""
    found = [LINE.fullmatch(receive()) for _ in range(n)]
    assert all(found)
    (at,) = {int(match["at"]) for match in found if match}
    assert abs(at - time.time()) < 30
    return at, {match["path"]: int(match["value"]) for match in found if match}


def stats(**figures: Any) -> counting.Stats:
    return cast(counting.Stats, counting.summed([]) | figures)


# --- what is sent


def test_a_line_is_a_path_a_whole_number_and_a_moment():
    found = {"mail": stats(total=6, ready=3, delayed=2, taken=1, oldest_ready_age=61.9)}
    assert lines(found, "queue.stats", USUAL, 1234567890) == [
        "queue.stats.mail.total 6 1234567890\n",
        "queue.stats.mail.ready 3 1234567890\n",
        "queue.stats.mail.delayed 2 1234567890\n",
        "queue.stats.mail.taken 1 1234567890\n",
    ]
    assert lines(found, "p", ["buried", "oldest_ready_age"], 1) == [
        "p.mail.buried 0 1\n",
        "p.mail.oldest_ready_age 61 1\n",
    ]
    assert lines({"idle": stats()}, "p", ["oldest_ready_age"], 1) == ["p.idle.oldest_ready_age 0 1\n"]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("mail", "mail"),
        ("Mail-2_x", "Mail-2_x"),
        ("mail.eu/north west", "mail_eu_north_west"),
        ("a 1 2\nb.c 3 4", "a_1_2_b_c_3_4"),
        ("a\r\t\x0b\x1c\x85\u2028b", "a_____x85_u2028b"),
        ("tag;x=y~*{a,b}[0]?", "tag_x_y___a_b__0__"),
        ("почта", "_u043f_u043e_u0447_u0442_u0430"),
        ("📫", "_U0001f4eb"),
    ],
)
def test_a_name_is_one_part_of_a_path(name, part):
    assert path_part(name) == part


def test_the_longest_name_fits_a_folder():
    assert len(path_part("📫" * 200)) == 250


def test_queues_whose_names_become_the_same_are_added_up():
    found = {"a.b": stats(ready=1), "a b": stats(ready=2), "a-b": stats(ready=4)}
    assert lines(found, "p", ["ready"], 1) == ["p.a_b.ready 3 1\n", "p.a-b.ready 4 1\n"]


# --- to whom


@pytest.mark.slow
def test_graphite_over_tcp(blocking, tcp, caplog):
    """Four lines, whole numbers, one timestamp, each second; and 2 s after the server is back at the latest, again."""
    client = blocking()
    client.queue("mail").put_many(range(5))
    client.queue("mail").put(1, delay=60)
    client.queue("mail").take(timeout=0)
    expected = {"queue.stats.mail.total": 6, "queue.stats.mail.ready": 4, "queue.stats.mail.delayed": 1}
    tcp.start()
    with GraphiteReporter(client, "127.0.0.1", tcp.port, prefix="queue.stats"):
        receive = lambda: tcp.lines.get(timeout=30)  # noqa: E731

        def three_reports() -> float:
            began = Stopwatch()
            moments, reports = zip(*(dated_report(receive) for _ in range(3)), strict=True)
            assert [*reports] == 3 * [expected | {"queue.stats.mail.taken": 1}]
            assert moments[2] - moments[0] >= 1, "whole seconds, of three reports a second apart"
            return began()

        in_time(three_reports, within=3.0)
        assert tcp.connections() == 1

        def start_to_report() -> float:
            caplog.clear()
            tcp.stop()
            eventually(lambda: "gets no report" in caplog.text)
            tcp.start()
            back = Stopwatch()
            report(receive)
            return back()

        in_time(start_to_report, within=2.0)


@pytest.mark.slow
def test_graphite_over_udp(blocking, udp, caplog):
    """One line a datagram."""
    client = blocking()
    client.queue("mail").put_many(range(5))
    udp.start()
    with GraphiteReporter(client, "127.0.0.1", udp.port, "udp", interval=0.25):
        for _ in range(2):
            found = report(udp.receive)
            assert found == {
                "pgqueue.mail.total": 5,
                "pgqueue.mail.ready": 5,
                "pgqueue.mail.delayed": 0,
                "pgqueue.mail.taken": 0,
            }

        def start_to_line() -> float:
            caplog.clear()
            udp.stop()
            eventually(lambda: "gets no report" in caplog.text)
            udp.start()
            back = Stopwatch()
            assert LINE.fullmatch(udp.receive())
            return back()

        in_time(start_to_line, within=2.0)


@pytest.mark.slow
def test_a_server_that_is_not_there_yet(blocking, tcp, caplog):
    client = blocking()
    client.queue("q").put(1)
    with GraphiteReporter(client, "localhost", tcp.port, interval=QUICK):
        eventually(lambda: "gets no report" in caplog.text)
        tcp.start()
        report(lambda: tcp.lines.get(timeout=30))
        eventually(lambda: "it works again" in caplog.text)
    assert caplog.text.count("gets no report") == 2  # when it began, and when it was over


def test_a_connection_that_the_server_closes_costs_no_report(blocking, tcp, monkeypatch):
    """Neither is lost nor is there a pause: a send into a closed connection would succeed the first time."""
    monkeypatch.setattr(links._Tcp, "pause", 600.0)
    client = blocking()
    mail = client.queue("mail")
    mail.put(0)
    tcp.start()
    with GraphiteReporter(client, "127.0.0.1", tcp.port, interval=QUICK, keys=["total"]):
        tcp.lines.get(timeout=30)
        tcp._conns[0].shutdown(socket.SHUT_RDWR)
        eventually(lambda: tcp.connections() == 2)
        mail.put(1)
        eventually(lambda: tcp.lines.get(timeout=30).split()[1] == "2")


def test_a_server_that_reads_nothing_is_left(tcp, monkeypatch):
    """And half a line with it: the next report begins on a connection of its own."""
    monkeypatch.setattr(links, "TIMEOUT", 0.1)
    with tcp._bound() as deaf:
        deaf.listen()
        link = links.link("127.0.0.1", tcp.port, "tcp")
        with pytest.raises(TimeoutError):
            link.send(["x" * 50_000_000])
    monkeypatch.setattr(links, "TIMEOUT", PATIENCE)
    tcp.start()
    link.send(["p.q.total 1 1234567890\n"])
    assert tcp.lines.get(timeout=30) == "p.q.total 1 1234567890\n"
    link.close()


def test_several_queues_and_those_that_come_later(blocking, tcp):
    client = blocking()
    client.queue("a").put(1)
    tcp.start()
    seen: dict[str, int] = {}

    def receive() -> dict[str, int]:
        seen.update(report(lambda: tcp.lines.get(timeout=30), 1))
        return seen

    with GraphiteReporter(client, "127.0.0.1", tcp.port, interval=QUICK, keys=["ready"]):
        eventually(lambda: receive() == {"pgqueue.a.ready": 1})
        client.queue("b").put_many([1, 2])
        eventually(lambda: receive() == {"pgqueue.a.ready": 1, "pgqueue.b.ready": 2})


def test_only_the_queues_that_were_asked_for(blocking, tcp):
    client = blocking()
    for name in ("a", "b"):
        client.queue(name).put(1)
    tcp.start()
    with GraphiteReporter(client, "127.0.0.1", tcp.port, interval=QUICK, keys=["ready"], queues=["b", "not there"]):
        found = report(lambda: tcp.lines.get(timeout=30), 2)
    assert found == {"pgqueue.b.ready": 1, "pgqueue.not_there.ready": 0}


def test_one_of_many_is_elected(blocking, tcp):
    first, second = blocking(), blocking()
    first.queue("q").put(1)
    tcp.start()
    options: dict[str, Any] = {"interval": QUICK, "keys": ["total"], "elect": "graphite"}
    with GraphiteReporter(first, "127.0.0.1", tcp.port, prefix="first", **options) as leader:
        assert tcp.lines.get(timeout=30).startswith("first.")
        with GraphiteReporter(second, "127.0.0.1", tcp.port, prefix="second", **options):
            assert {tcp.lines.get(timeout=30).split(".")[0] for _ in range(10)} == {"first"}
            leader.close()
            eventually(lambda: tcp.lines.get(timeout=30).startswith("second."))


def test_the_end_of_the_client_is_the_end_of_the_thread(blocking, tcp):
    client = blocking()
    client.queue("q").put(1)
    tcp.start()
    with GraphiteReporter(client, "127.0.0.1", tcp.port, interval=QUICK):
        tcp.lines.get(timeout=30)
        client.close()
        eventually(lambda: "pgqueue-graphite" not in {thread.name for thread in threading.enumerate()})


FORKING = """
import os, sys, time
import pgqueue
from pgqueue.monitors.graphite import GraphiteReporter

client = pgqueue.Client()
client.queue("q").put(1)
reporter = GraphiteReporter(client, "127.0.0.1", int(sys.argv[1]), interval=0.02, prefix="parent")
sys.stdin.readline()  # it has connected
if os.fork() == 0:
    reporter.close()  # neither waits for ever nor ends the parent's connection
    with GraphiteReporter(client, "127.0.0.1", int(sys.argv[1]), interval=0.02, prefix="child"):
        sys.stdin.readline()
    client.close()
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.slow
def test_a_forked_child_leaves_the_reports_to_its_parent(dsn, tcp):
    tcp.start()
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING, str(tcp.port)]
    with subprocess.Popen(command, env=environment(PGQUEUE_DSN=dsn), stdin=subprocess.PIPE, text=True) as process:
        assert tcp.lines.get(timeout=30).startswith("parent.")
        process.stdin.write("\n")
        process.stdin.flush()
        eventually(lambda: tcp.lines.get(timeout=30).startswith("child."))
        eventually(lambda: tcp.lines.get(timeout=30).startswith("parent."))  # it goes on
        assert tcp.connections() == 2
        process.stdin.close()
        assert process.wait(30) == 0


# --- what goes wrong


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"host": "no-such-host.invalid"}, "the Graphite host 'no-such-host.invalid' cannot be resolved: "),
        ({"host": "a" * 70}, "cannot be resolved: "),
        ({"host": ""}, "host must be a name or an address, not ''"),
        ({"port": 0}, "port must be a whole number from 1 to 65535, not 0"),
        ({"port": None}, "port must be a whole number from 1 to 65535, not None"),
        ({"protocol": "sctp"}, "protocol must be tcp or udp, not 'sctp'"),
        ({"prefix": "a b"}, "prefix must be words"),
        ({"prefix": "a..b"}, "prefix must be words"),
        ({"prefix": "a\n"}, "prefix must be words"),
        ({"prefix": ""}, "prefix must be words"),
        ({"interval": 0}, "interval must be over 0"),
        ({"interval": None}, "interval must be a number of seconds or a timedelta, not None"),
        ({"queues": []}, "at least one queue name is needed"),
        ({"queues": ""}, "a queue's name has 1 to 200 characters"),
        ({"keys": []}, "keys are some of total, ready"),
        ({"keys": ["calls"]}, "keys are some of total, ready"),
        ({"elect": ""}, "a lock's name has 1 to 200 characters"),
        ({"client": None}, "it needs a pgqueue.Client, not this NoneType"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_at_the_start(options, said):
    nowhere = pgqueue.Client("postgresql://nowhere.invalid")  # nothing is asked of the database
    given = {"client": nowhere, "host": "localhost", "port": 2003} | options
    with pytest.raises((pgqueue.ServerError, ValueError), match=re.escape(said)):
        GraphiteReporter(**given)


# --- the command


@pytest.mark.slow
def test_the_command_reports_until_it_is_told_to_stop(dsn, blocking, udp):
    blocking().queue("mail").put(1)
    udp.start()
    arguments = [f"127.0.0.1:{udp.port}", "--udp", "--prefix", "x.y", "--interval", "0.05", "--queue", "mail"]
    with started("--dsn", dsn, "graphite", *arguments, "--key", "ready", stderr=subprocess.PIPE, text=True) as process:
        assert report(udp.receive, 1) == {"x.y.mail.ready": 1}  # by a thread that begins before the wait for a signal
        eventually(lambda: catches(process.pid, signal.SIGTERM))
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert process.stderr.read() == ""


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["no-such-host.invalid"], 1, "the Graphite host 'no-such-host.invalid' cannot be resolved"),
        (["localhost:x"], 2, "'localhost:x' is not HOST[:PORT]"),
        (["localhost:99999"], 2, "'localhost:99999' is not HOST[:PORT]"),
        (["user@localhost"], 2, "'user@localhost' is not HOST[:PORT]"),
        (["localhost/path"], 2, "'localhost/path' is not HOST[:PORT]"),
        (["[::1"], 2, "'[::1' is not HOST[:PORT]"),
        (["localhost", "--prefix", "a b"], 2, "prefix must be words"),
        (["localhost", "--key", "calls"], 2, "'calls' is not one of"),
        (["localhost", "--interval", "0"], 2, "must be over 0"),
    ],
    ids=str,
)
def test_a_wrong_command_line_is_one_line(shared, arguments, code, said):
    assert said in failed(invoke("--dsn", shared, "graphite", *arguments), code)
