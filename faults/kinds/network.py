"""Faults of the network: by the proxy, and by a namespace that is unplugged."""

from __future__ import annotations

from .fault import Scene

DELAY = 0.05  # seconds, each way


def black_hole(scene: Scene) -> None:
    """All data vanishes, and nothing is closed. The connections that were in it stay silent after its end."""
    assert scene.proxy is not None
    scene.proxy.swallow()
    scene.sleep(scene.seconds)
    scene.proxy.mend()


def black_hole_reset(scene: Scene) -> None:
    """The same; at its end the connections that were in it are reset, as a server does that has given them up."""
    black_hole(scene)
    assert scene.proxy is not None
    scene.proxy.reset()


def late(scene: Scene) -> None:
    """Nothing passes for a while; then all of it does."""
    assert scene.proxy is not None
    scene.proxy.hold()
    scene.sleep(scene.seconds)
    scene.proxy.mend()


def delay(scene: Scene) -> None:
    """Each piece of data takes longer."""
    assert scene.proxy is not None
    scene.proxy.delay = DELAY
    scene.sleep(scene.seconds)
    scene.proxy.mend()


def cut(scene: Scene) -> None:
    """All connections are closed."""
    assert scene.proxy is not None
    scene.proxy.cut()


def halve(scene: Scene) -> None:
    """Some answers end in the middle, with their connection."""
    assert scene.proxy is not None
    scene.proxy.halve()
    scene.sleep(scene.seconds)
    scene.proxy.mend()


def garble(scene: Scene) -> None:
    """Some answers are noise."""
    assert scene.proxy is not None
    scene.proxy.garble()
    scene.sleep(scene.seconds)
    scene.proxy.mend()


def unplug(scene: Scene) -> None:
    """The kernel loses every packet."""
    assert scene.namespace is not None
    scene.namespace.cut()
    try:
        scene.sleep(scene.seconds)
    finally:
        scene.namespace.mend()
