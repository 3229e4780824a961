# Generated from pgqueue/_async/nodes.py by tools/blocking.py: edit that file, not this one.

"""Nodes: a tree of small values with versions and owners, as ZooKeeper has it."""

from __future__ import annotations

from typing import Any

from .._calls import nodes as calls
from .._calls.nodes import Node
from .._engine.blocking import Conn, Signal
from .._engine.watches import observer
from .shell import Shell
from .watches import Watch


class Nodes:
    """Nodes, as `client.nodes`: a tree of small values with versions and owners, as ZooKeeper has it."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    def create(
        self,
        path: str,
        data: Any = None,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        conn: Conn | None = None,
    ) -> Node:
        """Create a node. As ZooKeeper's create.

        Args:
            path: for example `/app/config`; the node above must exist. At most 1024 characters, and 2048 bytes.
            data: any JSON.
            ephemeral: delete it when this client closes, its process dies, or it loses its session because the
                connection was away for longer than session_grace. It cannot have children.
            sequential: add a number of ten digits to the path, which no other node below that parent gets.
            conn: the caller's connection, to create it in its transaction. With an ephemeral node that should be
                short: until it ends, this client's session can be neither resumed nor closed. And at REPEATABLE READ
                its snapshot must not be older than the session: create or take something with the client before.

        Raises:
            NodeExists: it exists, perhaps as an ephemeral node of a process that died just now and has its grace.
            NoNode: there is no node above it.
            EphemeralParent: the node above it is ephemeral.
            BadData, ValueError: the data, or another argument, is not valid.
            ServerError: an ephemeral node needs a session, and the server cannot be reached.
            ConnectionLost: whether it was created is unknown.
        """
        make = calls.create(path, data, self._shell.encode(data), ephemeral, sequential)
        return self._shell.for_session(make, conn) if ephemeral else self._shell.run(make(None), conn)

    def get(self, path: str, *, conn: Conn | None = None) -> Node:
        """The node as it is now. Raises NoNode if it does not exist. As ZooKeeper's getData."""
        return self._shell.run(calls.get(path), conn)

    def exists(self, path: str, *, conn: Conn | None = None) -> bool:
        """Whether the node exists."""
        return self._shell.run(calls.exists(path), conn)

    def set(self, path: str, data: Any, version: int | None = None, *, conn: Conn | None = None) -> Node:
        """Change a node's data; its version is incremented. As ZooKeeper's setData.

        Args:
            path: the node's.
            data: any JSON.
            version: change it only if it is still at this version; None: at any version.
            conn: the caller's connection, to change it in its transaction.

        Raises:
            NoNode: it does not exist.
            BadVersion: it is at another version.
            BadData, ValueError: the data, or another argument, is not valid.
        """
        return self._shell.run(calls.set_data(path, data, self._shell.encode(data), version), conn)

    def delete(self, path: str, version: int | None = None, *, conn: Conn | None = None) -> None:
        """Delete a node without children. As ZooKeeper's delete.

        Args:
            path, version, conn: as for set.

        Raises:
            NoNode: it does not exist.
            BadVersion: it is at another version.
            NotEmpty: it has children.
            ValueError: it is the root, or an argument is not valid.
        """
        self._shell.run(calls.delete(path, version), conn)

    def children(self, path: str, *, conn: Conn | None = None) -> list[str]:
        """The names of a node's children, sorted. Raises NoNode if there is no node. As ZooKeeper's getChildren."""
        return self._shell.run(calls.children(path), conn)

    def watch(self, path: str, *, children: bool = False) -> Watch:
        """Read a node, and wait for the first event after that. As ZooKeeper's watches: one-shot.

        The watch has the node (`.node`, None if it does not exist) and waits for the event. No event is missed in
        between, not even one that was undone again, except while the connection is lost: then the last state counts.

        Args:
            path: the node's, whether there is one or not.
            children: watch its list of children instead of its data. Both are set off when it is created or deleted.

        Raises:
            ValueError: the path is not valid.
            ServerError: the server cannot be reached.
        """
        seeing = observer(self._shell.listener(), Signal, path, children)
        return Watch(self._shell, self._shell.drive(seeing.begin(self._shell.settings.patience)))
