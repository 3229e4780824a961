"""Where a put goes: which server it asks first, and whether another one may have the task if that cannot be reached.

A task shares with others its lane, its key, the tasks that it waits for, and its batch: these are on one server. So it
goes to that server or fails. A place comes before the lane and the key, and then another server may have the task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .servers import C, Place, Server, Servers


def choose(
    servers: Servers[C], place: Place | None, options: Mapping[str, Any], joined: Iterable[Server[C]] = ()
) -> tuple[Server[C], bool]:
    """The server to ask first, and whether the next ones may be asked after it.

    Args:
        joined: the servers of the tasks that the task waits for, and of its batch.

    Raises:
        ValueError: the options name several servers, or none where one is needed.
    """
    bound = set(joined)
    named = bound if place is None else bound | {servers.placed(place)}
    if len(named) > 1:
        raise ValueError(
            f"after, batch and place name {' and '.join(sorted(map(servers.name, named)))}: a task waits for tasks of"
            " its own server, and belongs to a batch of it"
        )
    if named:
        return named.pop(), not bound
    for name in (options.get("lane"), options.get("key")):
        if isinstance(name, str):
            return servers.placed(name), False
    if options.get("unique_data") or options.get("unique_for") is not None:
        raise ValueError("a task that is unique by its data needs a place, so that equal data meets on one server")
    return servers.turn(), True


def agree(servers: Servers[C], server: Server[C], place: Place | None, options: Mapping[str, Any]) -> None:
    """Check that a put on the caller's connection, which leads to one server, is not asked onto another one.

    Raises:
        ValueError: its place, or without one its lane or its key, names another server.
    """
    names = {"place": place} if place is not None else {name: options.get(name) for name in ("lane", "key")}
    for name, given in names.items():
        if isinstance(given, int | str | bytes) and (other := servers.placed(given)) is not server:
            raise ValueError(
                f"the connection leads to {servers.name(server)}, and the {name} {given!r} names {servers.name(other)}:"
                f" connect to that one, as cluster.client({given!r}) does"
            )


def joined(options: Mapping[str, Any]) -> Iterator[Any]:
    """The tasks, batches and ids that a task waits for, and its own batch."""
    after = options.get("after")
    yield from after if isinstance(after, list | tuple) else [after] if after is not None else []
    if (batch := options.get("batch")) is not None:
        yield batch
