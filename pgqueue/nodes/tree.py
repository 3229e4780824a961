"""Nodes: a tree of small values with versions and owners, as ZooKeeper has it. Both shells."""

from __future__ import annotations

import threading
from typing import Any

from ..base import mirrors
from ..borrowed import AsyncConn, Conn
from ..calls import nodes as calls
from ..calls.nodes import Node
from ..shell import LoopSignal
from .groups import AsyncGroups, Groups
from .watches import AsyncWatch, Watch, observer


class Nodes(Groups):
    def create_node(
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
            path: as `/app/config`; the node above must exist. At most 1024 characters, and 2048 bytes.
            data: any JSON.
            ephemeral: it goes when this client closes or its process dies, or loses its session: when the connection
                was away for longer than session_grace. It cannot have children.
            sequential: add a number of ten digits to the path, which no other node below that parent gets.
            conn: a connection of the caller's, to create it in its transaction. With an ephemeral node that should be
                short: until it ends, this client's session can be neither resumed nor closed.

        Raises:
            NodeExists: there is one, perhaps of a process that died just now and has its grace.
            NoNode: there is none above it.
            EphemeralParent: the one above it is ephemeral.
            BadData, ValueError: the data, or another argument, cannot be.
            ServerError: an ephemeral node needs a session, and the server cannot be reached.
            ConnectionLost: whether it was created is unknown.
        """
        make = calls.create(path, data, self._encode(data), ephemeral, sequential)
        return self._run_for_session(make, conn) if ephemeral else self._run(make(None), conn)

    def get_node(self, path: str, *, conn: Conn | None = None) -> Node:
        """The node as it is now. Raises NoNode if there is none. As ZooKeeper's getData."""
        return self._run(calls.get(path), conn)

    def node_exists(self, path: str, *, conn: Conn | None = None) -> bool:
        """Whether there is such a node."""
        return self._run(calls.exists(path), conn)

    def set_node(self, path: str, data: Any, version: int | None = None, *, conn: Conn | None = None) -> Node:
        """Change a node's data; its version goes up by one. As ZooKeeper's setData.

        Args:
            path: the node's.
            data: any JSON.
            version: only if it is still at this one; None whatever it is.
            conn: a connection of the caller's, to change it in its transaction.

        Raises:
            NoNode: there is none.
            BadVersion: it is at another version.
            BadData, ValueError: the data, or another argument, cannot be.
        """
        return self._run(calls.set_data(path, data, self._encode(data), version), conn)

    def delete_node(self, path: str, version: int | None = None, *, conn: Conn | None = None) -> None:
        """Delete a node without children. As ZooKeeper's delete.

        Args:
            path, version, conn: as for set_node.

        Raises:
            NoNode: there is none.
            BadVersion: it is at another version.
            NotEmpty: it has children.
            ValueError: it is the root, or an argument cannot be.
        """
        self._run(calls.delete(path, version), conn)

    def children(self, path: str, *, conn: Conn | None = None) -> list[str]:
        """The names of a node's children, sorted. Raises NoNode if there is no node. As ZooKeeper's getChildren."""
        return self._run(calls.children(path), conn)

    def watch(self, path: str, *, children: bool = False) -> Watch:
        """Read a node, and hear of the first thing that happens to it after that. As ZooKeeper's watches: one-shot.

        The watch has the node (`.node`, None if there is none) and waits for the event. Nothing is missed in between,
        not even what was undone again, unless the connection was lost for it: then the last state counts.

        Args:
            path: the node's, whether there is one or not.
            children: watch its list of children instead of its data. Both are set off when it is created or deleted.

        Raises:
            ValueError: the path cannot be.
            ServerError: the server cannot be reached.
        """
        seeing = observer(self._listener(), threading.Event, path, children)
        return Watch(self, self._drive(seeing.begin(self._core.settings.connect_timeout)))


@mirrors(Nodes)
class AsyncNodes(AsyncGroups):
    async def create_node(
        self,
        path: str,
        data: Any = None,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        conn: AsyncConn | None = None,
    ) -> Node:
        make = calls.create(path, data, self._encode(data), ephemeral, sequential)
        return await self._run_for_session(make, conn) if ephemeral else await self._run(make(None), conn)

    async def get_node(self, path: str, *, conn: AsyncConn | None = None) -> Node:
        return await self._run(calls.get(path), conn)

    async def node_exists(self, path: str, *, conn: AsyncConn | None = None) -> bool:
        return await self._run(calls.exists(path), conn)

    async def set_node(
        self, path: str, data: Any, version: int | None = None, *, conn: AsyncConn | None = None
    ) -> Node:
        return await self._run(calls.set_data(path, data, self._encode(data), version), conn)

    async def delete_node(self, path: str, version: int | None = None, *, conn: AsyncConn | None = None) -> None:
        await self._run(calls.delete(path, version), conn)

    async def children(self, path: str, *, conn: AsyncConn | None = None) -> list[str]:
        return await self._run(calls.children(path), conn)

    async def watch(self, path: str, *, children: bool = False) -> AsyncWatch:
        seeing = observer(await self._listener(), LoopSignal, path, children)
        return AsyncWatch(self, await self._drive(seeing.begin(self._core.settings.connect_timeout)))
