"""Takers and claims that wait: a test goes on when they sleep."""

from __future__ import annotations

from eventually import soon


async def waiting(client, *queues):
    """Until a taker is asleep on each of these queues."""
    core = client.shell.core

    def asleep():
        listener = core.running_listener
        channels = listener and [listener.hub._channels.get(core.queue_ids.get(queue)) for queue in queues]
        return channels and all(channel and channel.drained and channel.waiters for channel in channels)

    await soon(asleep)
