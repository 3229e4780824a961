"""Text that a stranger can set, as each sink gets it: one function for each kind of sink.

A stranger is a user who may put a task, name a queue, lane, key, exchange, node or session (`application_name`), fail a
task with an error, or post a payload. PostgreSQL stores any character except NUL in all of these. Some characters have
an effect where they are written:

- control characters (C0, DEL, C1) move a terminal's cursor, set its title, or hide earlier output;
- bidirectional and invisible characters show a text in another order than it is read;
- line breaks of any kind begin a new line of a log, a new field of an event, a new row of a completion.

These are the UNSAFE characters. Each function below replaces them by escapes of ASCII, so a reader sees them. Letters,
marks and emoji of all languages stay, with the joiners that Persian and emoji need: str.isprintable() is the shorter
test, and escapes the joiners too.

    sink                            function
    a terminal, a line of a log     line; multiline for a text that has several lines by intent
    JSON, for programs              json_text: the same value, with the escapes of JSON
    JSON, for people                readable: bytes are not in base64
    bash                            shell_word
    a browser's EventSource         server_sent_event
    Prometheus                      label
    Graphite                        path_part
    HTML                            line or multiline, and then Django's own escaping
"""

from __future__ import annotations

import json
import logging
import re
from typing import Any

UNSAFE = (
    "\x00-\x1f\x7f-\x9f"  # C0, DEL and C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional marks, embeddings, overrides and isolates
    "\u2028\u2029"  # line and paragraph separators
    "\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # invisible: no glyph, and no joiner
    "\ud800-\udfff"  # a lone surrogate, which no encoder takes
)
LONGEST_LOG = 8000  # characters of a message in a log: more is cut, since a name or an error may have megabytes
LONGEST_PART = 250  # bytes of a queue's part of a Graphite path: it becomes the name of a folder

_unsafe = re.compile(f"[{UNSAFE}]")
_unsafe_in_lines = re.compile(f"(?![\n\t])[{UNSAFE}]")
_before_an_escape = re.compile(rf"\\+(?=[xuUr]|{_unsafe_in_lines.pattern})")
_breaks = re.compile("\r\n|\r|\n")  # as EventSource sees them: str.splitlines() breaks at seven more characters
_special_to_bash = re.compile(r"[^\w./:@%+,-]")


def line(text: str) -> str:
    r"""The text on one line, for a terminal or a log: `\n`, `\x1b`, `\u202e` in place of such characters."""
    return _unsafe.sub(_escaped, text)


def multiline(text: str) -> str:
    """As line(), but line feeds and tabs stay: for a text that has several lines by intent, such as a traceback."""
    return _unsafe_in_lines.sub(_escaped, text)


def json_text(text: str) -> str:
    """A JSON text with the same value: outside of strings, JSON has none of these but the line feeds that stay."""
    return _unsafe_in_lines.sub(lambda found: json.dumps(found[0])[1:-1], text)


def readable(value: Any, indent: int | None = None) -> str:
    """A value as JSON for people, with bytes as Python writes them; for programs there is the JSON text."""
    if isinstance(value, bytes):
        return repr(value)
    return json_text(json.dumps(value, indent=indent, ensure_ascii=False, default=str))


def shell_word(name: str) -> str | None:
    """A name as one word of bash, quoted with backslashes, so that a prefix already typed stays a prefix.

    None if that is impossible: a backslash before a line feed removes both, and a leading minus makes an option.
    """
    if _unsafe.search(name) or name.startswith("-"):
        return None
    return _special_to_bash.sub(r"\\\g<0>", name)


def server_sent_event(data: str, name: str | None = None) -> str:
    """An event for a browser's EventSource. Its `data` is the text, with each line break as a line feed.

    Args:
        data: the text; no line of it can begin another field or another event.
        name: the event's type; None is `message`.
    """
    fields = [] if name is None else [f"event: {line(name)}\n"]
    fields.extend(f"data: {part}\n" for part in _breaks.split(data))
    return "".join(fields) + "\n"


def label(name: str) -> str:
    """The value of a Prometheus label: the name, with escapes for the characters that prometheus_client does not
    escape.

    Two names never have the same value, since Prometheus would refuse the scrape. So backslashes before an escape, or
    before a text that looks like one, are doubled.
    """
    return multiline(_before_an_escape.sub(lambda found: 2 * found[0], name))


def path_part(name: str) -> str:
    """A part of a Graphite path, in which dots, spaces and some other characters have a meaning."""
    ascii_only = name.encode("ascii", "backslashreplace").decode()
    return re.sub(r"[^A-Za-z0-9_-]", "_", ascii_only)[:LONGEST_PART]


def one_line(record: logging.LogRecord) -> bool:
    """A filter of loggers: the message is one line, and each line of a traceback is indented.

    A message that is too long is cut. A filter and not a formatter, because the application owns the handlers. A
    message without such characters keeps its template and arguments, by which tools group messages.
    """
    message = record.getMessage()
    if len(message) > LONGEST_LOG + 100:  # a record may be filtered twice
        message = f"{message[:LONGEST_LOG]}... ({len(message)} characters)"
        record.msg, record.args = "%s", (message,)
    if (safe := line(message)) != message:
        record.msg, record.args = safe, ()
    if record.exc_info and not record.exc_text:
        trace = logging.Formatter().formatException(record.exc_info)
        record.exc_text = "\n".join(f"  {part}" for part in multiline(trace).split("\n"))
    return True


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
