"""Faults of a pooler. The listeners' connections are direct, so no session is lost, and nothing is excused."""

from __future__ import annotations

from .fault import Scene


def restart(scene: Scene) -> None:
    assert scene.pooler is not None
    scene.pooler.restart()


def kill(scene: Scene) -> None:
    assert scene.pooler is not None
    scene.pooler.kill()
