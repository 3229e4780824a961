"""The loop in a thread, in which threads run coroutines."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from eventually import eventually

from pgqueue.worker.bridge import Bridge

pytestmark = pytest.mark.once


def test_a_close_just_before_the_loop_runs_lets_it_say_goodbye() -> None:
    """T1, the loop's thread, has not said hello yet when T2 closes. The loop ends after its goodbye, and not before."""
    said: list[str] = []

    async def hello() -> bool:
        closing.start()
        while not (bridge._present and bridge._present._closing):  # the loop stands still, as a busy one does
            time.sleep(0.001)
        return True

    async def goodbye() -> None:
        said.append("goodbye")

    async def close() -> None:
        said.append("closed")

    def close_bridge() -> None:
        eventually(lambda: bridge._present)
        bridge.close()
        bridge.join(30)

    homes: Any = SimpleNamespace(close=close)
    bridge = Bridge(lambda: homes, lambda: None, lambda: (hello, goodbye))
    closing = threading.Thread(target=close_bridge)
    bridge._enter()
    eventually(lambda: said == ["goodbye", "closed"])
    closing.join(30)
    assert not closing.is_alive()
