"""Takers and claims that wait: a test goes on when they sleep."""

from __future__ import annotations

from eventually import soon

LISTENERS = (
    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgqueue listener' AND datname = current_database()"
)


async def waiting(client, *queues):
    """Until a taker is asleep on each of these queues."""
    core = client.shell.core

    def asleep():
        listener = core.running_listener
        channels = listener and [listener.hub._channels.get(core.queue_ids.get(queue)) for queue in queues]
        return channels and all(channel and channel.drained and channel.waiters for channel in channels)

    await soon(asleep)


def hears(client, channel):
    """Whether the client has a waiter for this channel, and listens to it."""
    listener = client.shell.core.running_listener
    line = listener and listener.switchboard._lines.get(channel)
    return bool(line and line.listening and line.ears)


async def listening(client, n=1):
    """Until so many wait on some channel that is listened to."""

    def listened():
        listener = client.shell.core.running_listener
        lines = list(listener.switchboard._lines.values()) if listener else []
        return sum(len(line.ears) for line in lines if line.listening) >= n

    await soon(listened)
