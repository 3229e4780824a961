"""Faults of the server's machine: a full disk, and a clock that steps."""

from __future__ import annotations

from ..machines import FalseClock, SmallDisk
from .fault import Scene

HOUR = 3600.0


def disk_full(scene: Scene) -> None:
    """No room for a while. The server may refuse writes, or crash."""
    assert isinstance(scene.server, SmallDisk)
    try:
        scene.server.fill()
        scene.sleep(scene.seconds)
    finally:
        scene.server.free()


def clock_forward(scene: Scene) -> None:
    """An hour ahead for a while, then right again."""
    _step(scene, HOUR)


def clock_back(scene: Scene) -> None:
    """An hour behind for a while, then right again."""
    _step(scene, -HOUR)


def _step(scene: Scene, seconds: float) -> None:
    assert isinstance(scene.server, FalseClock)
    try:
        scene.server.step(seconds)
        scene.sleep(scene.seconds)
    finally:
        scene.server.step(0)
