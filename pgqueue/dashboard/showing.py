"""The display of values in templates: times, sizes, JSON, and texts that a stranger may have set.

Jinja escapes markup wherever a value is shown. `printable` runs before that, on each value of a template, and escapes
the characters that a browser obeys or hides: control and bidirectional characters. A name in an address is
percent-encoded instead, so links and forms send it back exactly.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

from markupsafe import Markup

from .._values import data, printable
from ..monitors.words import filled
from .reading import EXACT
from .settings import HIDDEN

LONGEST = 16_000  # characters of a value that a page shows
CELL = 160  # characters of one in a cell of a table
_times = re.compile(r"(\d\d:\d\d:\d\d)(?:\.\d+)?(\+00)?")
UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def finalize(value: Any) -> Any:
    """Each value of a template, on its way to the page."""
    return printable.multiline(value) if type(value) is str else value


def number(value: float | None) -> str:
    """A number with separators of thousands; a dash for None."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.1f}"


def share_retried(job: Mapping[str, Any]) -> str:
    """Of the runs of a job, the part that was retried."""
    runs = job["done"] + job["failed"] + job["retried"]
    return f"{100 * job['retried'] / runs:.0f} %" if runs else "-"


def rate(value: float | None) -> str:
    """A rate: two digits of small ones."""
    if value is None:
        return "-"
    return "0" if value == 0 else f"{value:,.2f}" if abs(value) < 1 else f"{value:,.1f}"


def duration(seconds: float | timedelta | None) -> str:
    """A duration in its two largest units: `3 h 20 min`."""
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    if seconds is None or not math.isfinite(seconds):
        return "-"
    left = max(seconds, 0.0)
    if left < 1:
        return f"{1000 * left:.0f} ms"
    if left < 10:
        return f"{left:.1f} s"
    whole = round(left)
    words: list[str] = []
    for unit, size in UNITS:
        count, whole = divmod(whole, size)
        if count or words:
            words.append(f"{count} {unit}")
    return " ".join(word for word in words[:2] if not word.startswith("0 ")) or "0 s"


def size(number_of_bytes: float | None) -> str:
    """A number of bytes in a unit that fits."""
    if number_of_bytes is None:
        return "-"
    value, unit = float(number_of_bytes), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if value >= 100 or unit == "B" else f"{value:.1f} {unit}"


def ago(moment: datetime | None) -> str:
    """How long ago a moment was."""
    return "-" if moment is None else duration(datetime.now(UTC) - moment)


def until(moment: datetime | None) -> str:
    """How long it is until a moment."""
    return "-" if moment is None else duration(moment - datetime.now(UTC))


def when(moment: datetime | None) -> str | Markup:
    """A moment, as a <time> that the script of the page shows in the viewer's own zone."""
    if moment is None:
        return "-"
    exact = moment.astimezone(UTC).isoformat(timespec="milliseconds")
    return Markup('<time datetime="{}">{} UTC</time>').format(exact, exact[:19].replace("T", " "))


def short(value: str | None, longest: int = CELL) -> str:
    """A text on one line, cut."""
    line = printable.line((value or "").strip())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def last_line(error: str | None, longest: int = CELL) -> str:
    """The last line of an error: in a traceback, the exception."""
    return short((error or "").strip().rpartition("\n")[2], longest)


def readable(detail: str) -> str:
    """A detail of the server with times as people write them: no parts of seconds."""
    return _times.sub(lambda found: f"{found[1]}{' UTC' if found[2] else ''}", detail)


def pretty(value: Any) -> str:
    """JSON over several lines, cut. JSON that Python cannot hold, or that is nested too deep, is shown unchanged."""
    if value is HIDDEN:
        return "hidden"
    if isinstance(value, data.Unreadable):
        return str(value)
    try:
        whole = printable.readable(value, indent=2)
    except RecursionError:
        return "brackets, nested too deep to be shown"
    return whole if len(whole) <= LONGEST else f"{whole[:LONGEST]}\n… {len(whole) - LONGEST:,} characters more"


def link(path: str, arguments: Mapping[str, Any]) -> str:
    """A relative address with the arguments that are not None."""
    return _address(path, tuple((name, str(value)) for name, value in arguments.items() if value is not None))


@functools.lru_cache(4096)  # the page of workers names the same queues a thousand times
def _address(path: str, given: tuple[tuple[str, str], ...]) -> str:
    return f"{path}?{urlencode(given)}" if given else path


def field(name: str, value: str | None, attributes: str = "") -> Markup:
    """A text field of a form. Of a value that it shows with escapes, a hidden field has the exact one."""
    given = value or ""
    shown = printable.line(given)
    made = Markup('<input name="{}" value="{}" autocomplete="off"{}>').format(name, shown, Markup(attributes))
    if shown != given:
        made += Markup('<input type="hidden" name="{}" value="{}">').format(name + EXACT, quote(given))
    return made


def code(text: str, given: Mapping[str, str] | None = None) -> Markup:
    """A sentence in which `backquotes` mark code. In code, {names} are words of a shell, or whole commands."""
    parts = text.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(printable.line(filled(part, given or {}))) if n % 2 else printable.line(part)
        for n, part in enumerate(parts)
    )


FILTERS = {
    "number": number,
    "rate": rate,
    "share_retried": share_retried,
    "duration": duration,
    "size": size,
    "ago": ago,
    "until": until,
    "when": when,
    "short": short,
    "last_line": last_line,
    "readable": readable,
    "pretty": pretty,
    "code": code,
}
