"""An application's decisions about its dashboard: which requests may act, and which data is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request

from .._calls.audit import LONGEST_ACTOR
from .._values import printable


class _Hidden:
    def __repr__(self) -> str:
        return "HIDDEN"


#: What `show_data` returns for data that this viewer does not see.
HIDDEN: Final = _Hidden()

MayAct = Callable[[Request], bool]
Actor = Callable[[Request], str | None]
ShowData = Callable[[Request, str, Any], Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of dashboard(), checked; its docstring explains them."""

    may_act: MayAct | None
    actor: Actor | None
    show_data: ShowData | None
    title: str
    live: bool

    def acts(self, request: Request) -> bool:
        return self.may_act is not None and self.may_act(request) is True

    def name(self, request: Request) -> str | None:
        """The viewer's name for the audit trail; None if it is unknown."""
        if self.actor is not None:
            found = self.actor(request)
        else:
            found = getattr(request.scope.get("user"), "display_name", None)  # of Starlette's authentication
        return printable.line(found.replace("\0", ""))[:LONGEST_ACTOR] or None if isinstance(found, str) else None

    def shown(self, request: Request, queue: str, value: Any) -> Any:
        """A value that a program stored, as this viewer may see it."""
        return value if self.show_data is None else self.show_data(request, queue, value)


def checked(
    may_act: MayAct | None, actor: Actor | None, show_data: ShowData | None, title: str, live: bool
) -> Settings:
    """Raises ValueError."""
    for name, given in (("may_act", may_act), ("actor", actor), ("show_data", show_data)):
        if given is not None and not callable(given):
            raise ValueError(f"{name} is a function, or None, and not {given!r}")
    if not isinstance(title, str) or not 1 <= len(title) <= 100:
        raise ValueError(f"title is a text of 1 to 100 characters, not {title!r}")
    return Settings(may_act, actor, show_data, title, live)
