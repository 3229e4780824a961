"""The argument of a page's function, and the table of a listing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

from starlette.requests import Request

from ... import AsyncClient
from ..._calls.call import Call
from ..._calls.rows import Row, rows
from ..reading import Asked, Reader
from ..settings import Settings

MOST = 200  # rows of a table that is not read page by page


@dataclass(frozen=True, slots=True)
class Visit:
    """One request for a page. `acts`: whether this viewer sees buttons."""

    request: Request
    asked: Asked
    read: Reader
    settings: Settings
    acts: bool

    @property
    def client(self) -> AsyncClient:
        return self.read.client

    def shown(self, queue: str, value: Any) -> Any:
        """A stored value as this viewer may see it."""
        return self.settings.shown(self.request, queue, value)


Read = Callable[[Visit], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its path below the dashboard, its title, its template, and the function that reads its values."""

    path: str
    title: str
    template: str
    read: Read


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a listing. `kind` says how the template shows it: text, number, duration, size, when, state, queue,
    task, list, json, and others of `table.html`."""

    title: str
    name: str
    kind: str = "text"


@dataclass(frozen=True, slots=True)
class Table:
    """A table as the template draws it. `cards`: in a narrow window each row is a card, since it has long texts."""

    id: str
    caption: str
    columns: Sequence[Column]
    rows: list[Row]
    empty: str
    more: bool = False
    cards: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """A table of a view, which is shown unchanged but for stored values: its first MOST rows.

    Attributes:
        source: the statement from FROM on, without LIMIT.
        select: the columns of the statement.
    """

    id: str
    caption: str
    columns: Sequence[Column]
    select: tuple[LiteralString, ...]
    source: LiteralString
    empty: str
    cards: bool = False

    def call(self) -> Call[list[Row]]:
        return rows(self.select, self.source + " LIMIT %s::int", MOST + 1)

    async def table(self, visit: Visit) -> Table:
        found = await visit.read(self.call())
        more = len(found) > MOST
        return Table(
            self.id, self.caption, self.columns, self._shown(visit, found[:MOST]), self.empty, more, self.cards
        )

    def _shown(self, visit: Visit, found: list[Row]) -> list[Row]:
        """Stored values of a listing belong to no queue that an application could decide by: hidden, if it decides."""
        if visit.settings.show_data is None:
            return found
        hidden = [column.name for column in self.columns if column.kind == "json"]
        return [row | {name: "hidden" for name in hidden if row[name] is not None} for row in found]


def listing_page(path: str, title: str, about: str, *listings: Listing) -> Page:
    """A page of listings, one below the other, with a sentence about them."""

    async def read(visit: Visit) -> dict[str, Any]:
        return {"about": about, "tables": [await listing.table(visit) for listing in listings]}

    return Page(path, title, "listing.html", read)
