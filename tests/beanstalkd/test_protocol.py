"""Lines to commands, and answers to bytes."""

from __future__ import annotations

import pytest

from pgqueue.beanstalkd import protocol
from pgqueue.beanstalkd.bodies import body_of, data_of
from pgqueue.beanstalkd.protocol import Command, Refused, command

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"put 4294967295 0 1 65535", Command("put", (4294967295, 0, 1, 65535))),
        (b"put  1   2 3 4", Command("put", (1, 2, 3, 4))),
        (b"reserve", Command("reserve")),
        (b"reserve-with-timeout 0", Command("reserve-with-timeout", (0,))),
        (b"reserve-job 18446744073709551615", Command("reserve-job", (2**64 - 1,))),
        (b"release 1 2 3", Command("release", (1, 2, 3))),
        (b"kick 5 jobs", Command("kick", (5,))),
        (b"use " + b"x" * 200, Command("use", (), "x" * 200)),
        (b"watch 0+/;.$_()-", Command("watch", (), "0+/;.$_()-")),
        (b"pause-tube a 7", Command("pause-tube", (7,), "a")),
        (b"pause-tubea  7", Command("pause-tube", (7,), "a")),
        (b"peek-ready", Command("peek-ready")),
        (b"stats", Command("stats")),
        (b"stats-tube stats", Command("stats-tube", (), "stats")),
        (b"list-tubes-watched", Command("list-tubes-watched")),
        (b"quit now", Command("quit")),
    ],
)
def test_a_command(line, expected):
    assert command(line) == expected


@pytest.mark.parametrize(
    "line",
    [b"", b" ", b"PUT 1 2 3 4", b"put", b"use", b"delete", b" stats", b"\xff\xfe", b"GET / HTTP/1.1"],
)
def test_an_unknown_command(line):
    with pytest.raises(Refused) as refused:
        command(line)
    assert refused.value.answer == b"UNKNOWN_COMMAND\r\n"


NUMBERS = "put |put 1 2 3|put 1 2 3 4 |put 1 2 3 4 5|put -1 0 0 0|put +1 0 0 0|put 4294967296 0 0 0|delete |delete x"
NUMBERS += "|delete 1 |delete -1|delete 18446744073709551616|reserve 1|reserve-job|reserve-with-timeout -1|kick |kick x"
NUMBERS += "|reserve-with-timeout 2147483648|pause-tube a|pause-tube a1|pause-tube a 1x|pause-tube a 4294967296"
NAMES = (
    "use |use -a|use a b|use a\tb|use \xe9|use a\0|pause-tube -a 1|statsx|stats\0|peek-readyx|list-tubesx|stats-tube -"
)


@pytest.mark.parametrize("line", [*NUMBERS.split("|"), *NAMES.split("|"), "use " + "x" * 201, "delete \u0661"])
def test_a_bad_format(line):
    with pytest.raises(Refused) as refused:
        command(line.encode())
    assert refused.value.answer == b"BAD_FORMAT\r\n"


def test_answers():
    assert protocol.line("INSERTED", 7) == b"INSERTED 7\r\n"
    assert protocol.job("FOUND", 7, b"\r\n\0") == b"FOUND 7 3\r\n\r\n\0\r\n"
    assert protocol.job("RESERVED", 8, b"") == b"RESERVED 8 0\r\n\r\n"
    assert protocol.listing(["default", "a"]) == b"OK 18\r\n---\n- default\n- a\n\r\n"
    assert protocol.mapping({"pri": 0, "tube": '"a"'}) == b'OK 21\r\n---\npri: 0\ntube: "a"\n\r\n'


@pytest.mark.parametrize(
    "body", [b"", b"text", "Grüße 😀".encode(), b"\r\n", b'{"a": 1}', b"\x01\x1f\x7f", b"\xef\xbb\xbfbom"]
)
def test_text_is_stored_as_text(body):
    assert data_of(body) == body.decode()
    assert body_of(data_of(body)) == body


@pytest.mark.parametrize(
    "body", [b"\0", b"a\0b", b"\xff", "Grüße".encode("latin-1"), b"\xed\xa0\x80", bytes(range(256))]
)
def test_bytes_that_are_no_text_stay_bytes(body):
    assert data_of(body) == body
    assert body_of(data_of(body)) == body


@pytest.mark.parametrize(
    ("data", "body"),
    [
        (None, b"null"),
        (1.5, b"1.5"),
        ({"to": "Grüße", "n": [1, 2]}, '{"to":"Grüße","n":[1,2]}'.encode()),
        ({"$bytes": "no!"}, b'{"$bytes":"no!"}'),
        ({"b": b"a"}, b'{"b":{"$bytes":"YQ=="}}'),
        ("a\0b\ud800", b"a\0b\xed\xa0\x80"),
    ],
)
def test_other_data_is_delivered_as_json(data, body):
    assert body_of(data) == body
