"""Strings that a stranger can set, each with characters that some sink obeys."""

from __future__ import annotations

import re

ESCAPES = "\x1b]0;title\x07\x1b[2J\x1b[31m\x08\x7f\r"
C1 = "\x9b2J\x9d0;title\x9c\x85\x90"
BIDI = "\u202eevil\u202c\u2066x\u2069\u200e\u200f\u061c\u2028\u2029\ufeff\U000e0041"
BREAKS = "a\nforged: line\r\n\r\ndata: forged\revent: forged\n\n2030-01-01 00:00:00 ERROR forged\x0b\x0c\x1c"
SHELL = "$(touch ran)`touch ran`;touch ran|'\"\\ * ~ {a,b} !!"
MARKUP = "<script>alert(1)</script>&amp;\"'><img src=x onerror=alert(1)>{{ 7*7 }}{% now 'Y' %}"
STRINGS = {
    "escapes": ESCAPES,
    "c1": C1,
    "bidi": BIDI,
    "breaks": BREAKS,
    "shell": SHELL,
    "markup": MARKUP,
}

#: What no sink for people may get, besides its own line feeds.
UNSAFE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)


def obeyed(text: str) -> list[str]:
    """The characters in a text that a terminal obeys, or that reorder or hide a part of it."""
    return UNSAFE.findall(text)
