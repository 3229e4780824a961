"""The protocol: a line of a client to a command, and answers to the bytes that a client expects. No I/O.

It follows doc/protocol.txt of beanstalkd, and where that is silent prot.c of version 1.13. For example a command is
recognized by the first letters of its line, so that "statsx" is a stats command in a bad format and not an unknown one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

LINE = 224  # bytes of a line, its CRLF included
FOREVER = 2**31 - 1  # seconds: the longest timeout of a reserve

BAD_FORMAT = b"BAD_FORMAT\r\n"
BURIED = b"BURIED\r\n"
DEADLINE_SOON = b"DEADLINE_SOON\r\n"
DELETED = b"DELETED\r\n"
DRAINING = b"DRAINING\r\n"
EXPECTED_CRLF = b"EXPECTED_CRLF\r\n"
INTERNAL_ERROR = b"INTERNAL_ERROR\r\n"
JOB_TOO_BIG = b"JOB_TOO_BIG\r\n"
KICKED = b"KICKED\r\n"
NOT_FOUND = b"NOT_FOUND\r\n"
NOT_IGNORED = b"NOT_IGNORED\r\n"
OUT_OF_MEMORY = b"OUT_OF_MEMORY\r\n"
PAUSED = b"PAUSED\r\n"
RELEASED = b"RELEASED\r\n"
TIMED_OUT = b"TIMED_OUT\r\n"
TOUCHED = b"TOUCHED\r\n"
UNKNOWN_COMMAND = b"UNKNOWN_COMMAND\r\n"

_LETTERS = r"A-Za-z0-9+/;.$_()"
_TUBE = rf"([{_LETTERS}][-{_LETTERS}]{{0,199}})"
_NUMBER = r" *([0-9]+)"
_U32, _U64 = 2**32, 2**64

is_tube = re.compile(_TUBE).fullmatch
is_http = re.compile(rb"[A-Z]+ \S+ HTTP/1\.[01]").fullmatch


@dataclass(frozen=True, slots=True)
class Command:
    """A command that a client has sent.

    Attributes:
        name: as in the protocol, for example `reserve-with-timeout`.
        numbers: its whole numbers, in their order. The first one of a command about one job is the job's id.
        tube: the name of a tube, or empty.
    """

    name: str
    numbers: tuple[int, ...] = ()
    tube: str = ""


class Refused(Exception):
    """A line that is not a command. `answer` is for its client."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(answer)
        self.answer = answer


def command(line: bytes) -> Command:
    """The command of a line without its CRLF. Raises Refused."""
    text = line.decode("latin-1")
    if "\0" in text:
        raise Refused(BAD_FORMAT)
    for name, arguments, bounds in _COMMANDS:
        if text.startswith(name):
            return _read(name.rstrip(), arguments.fullmatch(text, len(name)), bounds)
    raise Refused(UNKNOWN_COMMAND)


def _read(name: str, found: re.Match[str] | None, bounds: tuple[int, ...]) -> Command:
    if found is None:
        raise Refused(BAD_FORMAT)
    groups = found.groups()
    numbers = tuple(int(group) for group in groups[-len(bounds) :]) if bounds else ()
    if any(number >= bound for number, bound in zip(numbers, bounds, strict=True)):
        raise Refused(BAD_FORMAT)
    return Command(name, numbers, groups[0] if len(groups) > len(bounds) else "")


def _form(name: str, arguments: str = "", *bounds: int) -> tuple[str, re.Pattern[str], tuple[int, ...]]:
    return name, re.compile(arguments), bounds


#: The first letters of each command, its arguments, and the bounds of its numbers. The first one that fits counts.
_COMMANDS = (
    _form("put ", _NUMBER * 4, _U32, _U32, _U32, _U32),  # priority, delay, ttr, bytes
    _form("peek ", _NUMBER, _U64),
    _form("peek-ready"),
    _form("peek-delayed"),
    _form("peek-buried"),
    _form("reserve-with-timeout ", _NUMBER + ".*", FOREVER + 1),
    _form("reserve-job ", _NUMBER, _U64),
    _form("reserve"),
    _form("delete ", _NUMBER, _U64),
    _form("release ", _NUMBER * 3, _U64, _U32, _U32),  # id, priority, delay
    _form("bury ", _NUMBER * 2, _U64, _U32),  # id, priority
    _form("kick ", _NUMBER + ".*", _U64),
    _form("kick-job ", _NUMBER, _U64),
    _form("touch ", _NUMBER, _U64),
    _form("stats-job ", _NUMBER, _U64),
    _form("stats-tube ", _TUBE),
    _form("stats"),
    _form("use ", _TUBE),
    _form("watch ", _TUBE),
    _form("ignore ", _TUBE),
    _form("list-tubes-watched"),
    _form("list-tube-used"),
    _form("list-tubes"),
    _form("quit", ".*"),
    _form("pause-tube", f" *{_TUBE} {_NUMBER}", _U32),
)


def line(*words: object) -> bytes:
    """An answer of one line, for example `INSERTED 7`."""
    return " ".join(map(str, words)).encode() + b"\r\n"


def job(word: str, id: int, body: bytes) -> bytes:
    """An answer with a job: RESERVED or FOUND."""
    return b"%s%s\r\n" % (line(word, id, len(body)), body)


def chunk(text: str) -> bytes:
    """An answer with YAML."""
    body = text.encode()
    return b"%s%s\r\n" % (line("OK", len(body)), body)


def mapping(values: Mapping[str, object]) -> bytes:
    """An answer with a dictionary in YAML."""
    return chunk("---\n" + "".join(f"{key}: {value}\n" for key, value in values.items()))


def listing(names: Iterable[str]) -> bytes:
    """An answer with a list in YAML."""
    return chunk("---\n" + "".join(f"- {name}\n" for name in names))
