# Generated from pgqueue/_async/queue.py by tools/blocking.py: edit that file, not this one.

"""A queue by name, with all its verbs."""

from __future__ import annotations

from .._values import arguments
from .find import Finding
from .manage import Managing
from .messages import Messages
from .pick import Picking
from .put import Putting
from .settle import Settling
from .shell import Shell
from .take import Taking


class Queue(Putting, Taking, Settling, Picking, Finding, Managing):
    """A queue by name, from Client.queue(). Its first put or waiting take makes it in the database.

    Attributes:
        name: its name.
        messages: claims and listings of its tasks, as Zaqar's messages.
    """

    def __init__(self, shell: Shell, name: str) -> None:
        self.name = arguments.queue_name(name)
        self._shell = shell
        self.messages = Messages(shell, self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"
