"""Faults of processes: killed, and stopped."""

from __future__ import annotations

from collections.abc import Iterable

from .fault import Scene

PACE = 0.05  # seconds between two kills


def kill(scene: Scene) -> Iterable[str]:
    """kill -9, of the process that was killed least often, among those that have worked in their present lives."""
    while not (able := scene.crew.stepped(0.0)):
        scene.sleep(PACE)
    least = min(scene.done[name] for name in able)
    victim = scene.random.choice(sorted(name for name in able if scene.done[name] == least))
    scene.sleep(PACE * scene.random.uniform(0, 2))  # at any moment of its step
    scene.done[victim] += 1
    scene.crew.kill(victim)
    return [victim]


def stop(scene: Scene) -> Iterable[str]:
    """SIGSTOP of three processes, for longer than their grace; then SIGCONT."""
    victims = scene.random.sample(sorted(scene.crew.members), min(3, len(scene.crew.members)))
    try:
        for victim in victims:
            scene.crew.stop(victim)
        scene.sleep(scene.seconds)
    finally:
        for victim in victims:
            scene.crew.resume(victim)
    return victims
