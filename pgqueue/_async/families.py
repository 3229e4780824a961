"""The families of verbs: to which servers of a cluster a verb goes.

A class of the cluster names the verb of a single server, and the family, as in ``touch = by_task(AsyncQueue.touch)``.
The verb keeps its signature. Its documentation gets a sentence on the family.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from .._engine.awaiting import Answer
from .client import AsyncClient
from .members import AsyncMembers

P = ParamSpec("P")
T = TypeVar("T")
X = TypeVar("X")
F = TypeVar("F", bound=Callable[..., object])
X_co = TypeVar("X_co", covariant=True)


class AsyncSpread(Protocol[X_co]):
    """What stands for a client, or for a part of one, on all servers of a cluster."""

    @property
    def _members(self) -> AsyncMembers: ...

    def _at(self, client: AsyncClient) -> X_co:
        """The part of one server's client."""


def by_task(
    verb: Callable[Concatenate[X, P], Answer[T]],
) -> Callable[Concatenate[AsyncSpread[X], P], Answer[T]]:
    """A verb for one task, which is its first argument: it goes to the task's server."""

    async def at_its_server(self: AsyncSpread[X], /, *args: P.args, **kwargs: P.kwargs) -> T:
        members = self._members
        server = await members.having(args[0] if args else kwargs.get("task", kwargs.get("id")))
        return await members.ask(server, lambda client: verb(self._at(client), *args, **kwargs))

    return _documented(at_its_server, verb, "On a cluster it goes to the server that the id names.")


def at_home(
    verb: Callable[Concatenate[X, P], Answer[T]],
) -> Callable[Concatenate[AsyncSpread[X], P], Answer[T]]:
    """A verb that is one for the cluster: it goes to the home server."""

    async def at_the_home(self: AsyncSpread[X], /, *args: P.args, **kwargs: P.kwargs) -> T:
        members = self._members
        return await members.ask(members.home, lambda client: verb(self._at(client), *args, **kwargs))

    return _documented(at_the_home, verb, "On a cluster it goes to the home server.")


def at_each(
    verb: Callable[Concatenate[X, P], Answer[T]],
    merge: Callable[[list[T]], T],
) -> Callable[Concatenate[AsyncSpread[X], P], Answer[T]]:
    """A verb that changes every server: all are called, and then the first error is raised."""

    async def at_each_server(self: AsyncSpread[X], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return merge(await self._members.tell_all(lambda client: verb(self._at(client), *args, **kwargs)))

    return _documented(at_each_server, verb, "On a cluster it goes to every server, also behind one that fails.")


def over_all(
    verb: Callable[Concatenate[X, P], Answer[T]],
    merge: Callable[[list[T]], T],
) -> Callable[Concatenate[AsyncSpread[X], P], Answer[T]]:
    """A verb that reads: the answers of the servers that can be reached are merged."""

    async def over_the_servers(self: AsyncSpread[X], /, *args: P.args, **kwargs: P.kwargs) -> T:
        answers = await self._members.ask_all(lambda client: verb(self._at(client), *args, **kwargs))
        return merge([answer for answer in answers if answer is not None])

    return _documented(
        over_the_servers, verb, "On a cluster it is of all servers; one that cannot be reached is left out."
    )


def made_at_home(
    verb: Callable[Concatenate[X, P], T],
) -> Callable[Concatenate[AsyncSpread[X], P], T]:
    """The same for a verb that makes an object, and calls no server."""

    def made(self: AsyncSpread[X], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return verb(self._at(self._members.home.client), *args, **kwargs)

    return _documented(made, verb, "On a cluster it is on the home server.")


def _documented(spread: F, verb: Callable[..., object], note: str) -> F:
    """Give a verb of the cluster the name and the documentation of the verb of one server, and a sentence on both."""
    functools.update_wrapper(spread, verb)
    summary, _, rest = (verb.__doc__ or "").partition("\n\n")
    spread.__doc__ = f"{summary}\n\n        {note}\n\n{rest}".rstrip()
    return spread
