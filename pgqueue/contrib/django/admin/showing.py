"""The display of values: JSON and errors escaped, ages in words, links between the pages.

Django escapes markup wherever a value is shown. printable_page() escapes the characters that a browser obeys or hides,
in all texts of a page. A value that becomes a part of another text is first passed through printable.line().
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.http import HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.text import Truncator

from ...._calls.attempts import Attempt
from ...._values import data, printable

_texts = re.compile("(?<=>)[^<>]+")
LONGEST = 50_000  # characters of a text that a page shows: the data of a task may be a megabyte
BIGGEST_ID = 2**63 - 1
UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def pretty(value: Any) -> SafeString | str:
    """JSON over several lines. JSON that Python cannot hold, or that is nested too deep, is shown unchanged."""
    if value is None or isinstance(value, data.Unreadable):
        return block(value)
    for indent in (2, None):  # without indent the encoder is another one, which gets deeper
        with contextlib.suppress(RecursionError):
            return block(printable.readable(value, indent))
    return "brackets, nested too deep to be shown"


def printable_page(response: HttpResponse) -> HttpResponse:
    """The page, once it is rendered, with escapes in its texts. Attributes stay: a form sends them back."""
    if isinstance(response, TemplateResponse):
        response.add_post_render_callback(_escape)
    return response


def _escape(page: HttpResponse) -> None:
    page.content = _texts.sub(lambda text: printable.multiline(text[0]), page.content.decode(page.charset))


def block(text: str | None) -> SafeString | str:
    """A text with its line breaks, up to LONGEST characters."""
    if not text:
        return "-"
    rest = f"\n… and {len(text) - LONGEST:,} characters more" if len(text) > LONGEST else ""
    return format_html("<pre>{}{}</pre>", printable.multiline(text[:LONGEST]), rest)


def attempt(one: Attempt) -> str:
    """A failed attempt of a task, as lines of text."""
    ended = timezone.localtime(one.ended_at).isoformat(" ", "seconds")
    said = f"{one.number}. {one.state} at {ended}, by {one.worker or 'an unknown worker'}: {one.error or '-'}"
    return "\n".join(filter(None, (said, one.traceback)))


def last_line(text: str | None, longest: int = 80) -> str:
    """The last line of an error: in a traceback, the exception."""
    return Truncator(printable.line((text or "").strip().rpartition("\n")[2])).chars(longest)


def duration(time: timedelta | None) -> str:
    """A duration in its two largest units: `3 h 20 min`."""
    if time is None:
        return "-"
    seconds = max(round(time.total_seconds(), 1 if time < timedelta(seconds=10) else 0), 0)
    words: list[str] = []
    for unit, size in UNITS[:-1]:
        count, seconds = divmod(seconds, size)
        if count or words:
            words.append(f"{count:g} {unit}")
    return " ".join([*words, f"{seconds:g} s"][:2])


def age(moment: datetime | None) -> str:
    """The time since a moment."""
    return "-" if moment is None else duration(timezone.now() - moment)


def until(moment: datetime | None) -> str:
    """The time until a moment."""
    return "-" if moment is None else duration(moment - timezone.now())


def ids(term: str) -> list[int]:
    """The id in a search term; an empty list if the term is not an id."""
    return [int(term)] if term.isdecimal() and len(term) < 20 and int(term) <= BIGGEST_ID else []


def rate(number: float | None) -> str:
    return "-" if number is None else f"{number:,.1f}"


def lines(pattern: str, rows: Iterable[Sequence[Any]]) -> SafeString | str:
    """The rows, one a line. Their texts are parts of a sentence; HTML is kept."""
    rows = ([printable.line(one) if type(one) is str else one for one in row] for row in rows)
    return format_html_join(mark_safe("<br>"), pattern, rows) or "-"


def link(address: str, text: object) -> SafeString:
    return format_html('<a href="{}">{}</a>', address, text)
