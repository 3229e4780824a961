"""Faults of the server: restarts, and terminated backends."""

from __future__ import annotations

from ..servers import Cluster
from .fault import Scene

OTHERS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
     WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


def restart_fast(scene: Scene) -> None:
    assert isinstance(scene.server, Cluster)
    scene.server.restart("fast")


def restart_immediate(scene: Scene) -> None:
    assert isinstance(scene.server, Cluster)
    scene.server.restart("immediate")


def terminate_all(scene: Scene) -> None:
    """All connections at once."""
    with scene.server.connect() as admin:
        admin.execute(OTHERS)


def terminate_some(scene: Scene) -> None:
    """Each connection with a probability of a third."""
    with scene.server.connect() as admin:
        admin.execute(OTHERS + " AND random() < 0.33")


def terminate_listeners(scene: Scene) -> None:
    """The connections that hold sessions."""
    with scene.server.connect() as admin:
        admin.execute(OTHERS + " AND pid IN (SELECT backend_pid FROM pgqueue.session)")
