"""Where a put goes: which server it asks first, and whether another one may have the task if that cannot be reached.

A task shares with others its lane, its key, what it waits for, and its batch: these are on one server. So it goes to
that server or fails. A place comes before the lane and the key, and then another server may have the task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..._records.task import Bound, home_of
from .servers import Place, Servers


def choose(servers: Servers[Any], place: Place | None, options: Mapping[str, Any]) -> tuple[int, bool]:
    """The index of the server to ask first, and whether the next ones may be asked after it.

    Raises:
        ValueError: the options name several servers, or none where one is needed.
    """
    if options.get("conn") is not None:
        raise ValueError(
            "a connection leads to one server, so put with it into the queue of that server:"
            " cluster.home(place).queue(name).put(data, conn=conn)"
        )
    asked = set() if place is None else {servers.home(place)}
    joined = list(_joined(options))
    named = asked | {servers.index(home) for home in map(_home, joined) if home is not None}
    if len(named) > 1:
        several = ", ".join(map(str, sorted(named)))
        raise ValueError(
            f"after, batch and place name servers {several} of the list: a task waits for tasks of its own server,"
            " and belongs to a batch of it"
        )
    if named:
        return named.pop(), not joined
    if joined:
        raise ValueError("an id in after or batch needs a place, which says whose it is; a task or a batch does not")
    return _by_name(servers, options)


def _by_name(servers: Servers[Any], options: Mapping[str, Any]) -> tuple[int, bool]:
    for name in (options.get("lane"), options.get("key")):
        if isinstance(name, str):
            return servers.home(name), False
    if options.get("unique_data") or options.get("unique_for") is not None:
        raise ValueError("a task that is unique by its data needs a place, so that equal data meets on one server")
    return servers.turn(), True


def _joined(options: Mapping[str, Any]) -> Iterator[Any]:
    """The tasks, batches and ids that the task waits for, and its own batch."""
    after = options.get("after")
    yield from after if isinstance(after, list | tuple) else [after] if after is not None else []
    if (batch := options.get("batch")) is not None:
        yield batch


def _home(given: Any) -> Any:
    """The shell of a task or a batch; None for an id."""
    return home_of(given) if isinstance(given, Bound) else getattr(given, "_shell", None)
