"""Servers with Citus, for tests."""

from __future__ import annotations

import sys

from checkout import CHECKOUT
from servers import Server

sys.path.append(str(CHECKOUT))  # behind everything else: pgqueue stays the installed one

from faults.citus.nodes import Nodes, nodes

__all__ = ["Nodes", "has_citus", "nodes"]


def has_citus(server: Server) -> bool:
    with server.connect() as conn:
        return bool(conn.execute("SELECT FROM pg_available_extensions WHERE name = 'citus'").rowcount)
