"""The documentation's sources, and the pages that they become."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from checkout import CHECKOUT

DOCS = CHECKOUT / "docs"


class Page(HTMLParser):
    """What a page refers to, and what in it can be referred to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.anchors: set[str] = set()
        self.text = ""
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if identifier := given.get("id"):
            self.anchors.add(identifier)
        for name in ("href", "src"):
            if (target := given.get(name)) is not None:
                self.targets.add(target)

    def handle_data(self, data: str) -> None:
        self.text += data
