"""Nodes as in ZooKeeper: the tree and its verbs (tree), what happens to a node (watches), who is there (groups)."""

from .groups import AsyncMembership, AsyncMembersWatch, Membership, MembersWatch
from .tree import AsyncNodes, Nodes
from .watches import AsyncWatch, Watch

__all__ = [
    "AsyncMembersWatch",
    "AsyncMembership",
    "AsyncNodes",
    "AsyncWatch",
    "MembersWatch",
    "Membership",
    "Nodes",
    "Watch",
]
