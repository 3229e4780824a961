"""Puts in the middle of puts, and Ctrl-C in the middle of what hands over to those that wait."""

from __future__ import annotations

import itertools
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

import pgqueue
from pgqueue._calls.call import Call
from pgqueue._engine import gathering
from pgqueue._engine.gathering import Batch, Gatherings, Member

pytestmark = pytest.mark.once


def test_a_put_in_the_middle_of_puts_of_its_thread_waits_for_none_of_them(
    blocking: Callable[..., pgqueue.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a handler of a signal, or a finaliser, puts. Those below it have all places under way."""
    client = blocking(call_timeout=5.0)
    queue, connections = client.queue("q"), client.shell.connections
    run, depth = connections.run, itertools.count(1)

    def run_and_put(call: Call[Any], **options: Any) -> Any:
        if next(depth) < 5:
            signal.raise_signal(signal.SIGUSR1)
        return run(call, **options)

    monkeypatch.setattr(connections, "run", run_and_put)
    before = signal.signal(signal.SIGUSR1, lambda *_: queue.put("in between"))
    try:
        queue.put("first")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(queue.take_many(10, 0)) == 5
    assert client.shell.together is not None
    _, gatherings = client.shell.together._home
    assert not gatherings._putting


def test_a_put_while_its_thread_hands_over_waits_for_nobody() -> None:
    """The thread that would give it its turn needs the lock that its own thread has."""
    threads = itertools.chain((1, 2, 3), itertools.repeat(1))
    gatherings = Gatherings(threading.Event, lambda: False, lambda: next(threads))
    first, *others, inner = (Member("", gatherings) for _ in range(4))
    for member in (first, *others):
        gatherings.enter("q", member)
    with gatherings._lock:
        assert gatherings.enter("q", inner)
        gatherings.leave(inner)
    gatherings.leave(first)
    assert others[1].turn.wait(0)


def lines(function: Callable[[], object], interrupt_at: int) -> bool:
    """Call a function, interrupted before that line of gathering.py which it reaches. Returns whether it was."""
    left = itertools.count(interrupt_at, -1)

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != gathering.__file__ or frame.f_code.co_name.startswith("<"):
            return None
        if event in ("call", "line") and next(left) == 0:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("ended", ["a put", "a batch of one"])
def test_a_put_that_is_interrupted_while_it_hands_over_leaves_no_place_taken(ended: str) -> None:
    for number in itertools.count():
        gatherings = Gatherings(threading.Event, lambda: False, lambda: None)
        first, second, *others = (Member("", gatherings) for _ in range(6))
        assert gatherings.enter("q", first)
        assert gatherings.enter("q", second)
        if ended == "a batch of one":
            gatherings.enter("q", others[0])
            gatherings.leave(first)
            first = others.pop(0)
        for member in others:
            assert not gatherings.enter("q", member)
        interrupted = lines(partial(gatherings.leave, first), number)
        if interrupted:
            gatherings.leave(first)
        (left,) = gatherings._known.values()
        (batch,) = left.under_way - {second}
        assert isinstance(batch, Batch)
        assert batch.members == others
        assert all(member.batch is batch for member in others)
        assert batch.leader is not None
        assert batch.leader.turn.wait(0)
        assert not left.waiting
        assert second in left.under_way
        assert not gatherings._putting
        if not interrupted:
            assert number > 10
            break
