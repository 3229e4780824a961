"""The primary crashes, and its standby is promoted."""

from __future__ import annotations

from ..standbys import Pair
from .fault import Scene


def prepare(scene: Scene) -> None:
    """Make the old primary the new one's standby, and let it get some work by streaming."""
    assert isinstance(scene.server, Pair)
    if scene.turn > 0:
        scene.server.mend()
        scene.sleep(1)


def fail_over(scene: Scene) -> None:
    """The clients find the new primary by themselves."""
    assert isinstance(scene.server, Pair)
    scene.server.fail_over()
