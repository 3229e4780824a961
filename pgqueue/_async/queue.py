"""A queue by name, with all its verbs."""

from __future__ import annotations

from .._values import arguments
from .find import AsyncFinding
from .manage import AsyncManaging
from .messages import AsyncMessages
from .pick import AsyncPicking
from .put import AsyncPutting
from .settle import AsyncSettling
from .shell import AsyncShell
from .take import AsyncTaking


class AsyncQueue(AsyncPutting, AsyncTaking, AsyncSettling, AsyncPicking, AsyncFinding, AsyncManaging):
    """A queue by name, from Client.queue(). Its first put or waiting take makes it in the database.

    Attributes:
        name: its name.
        messages: claims and listings of its tasks, as Zaqar's messages.
    """

    def __init__(self, shell: AsyncShell, name: str) -> None:
        self.name = arguments.queue_name(name)
        self._shell = shell
        self.messages = AsyncMessages(shell, self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"
