# Generated from pgqueue/_async/statuses.py by tools/blocking.py: edit that file, not this one.

"""Status by key: a value under a name, and waiting until it is as wanted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .._calls import statuses as calls
from .._engine import follows, looks, waits
from .._engine.blocking import Conn, Signal
from .._engine.waits import TimeLeft
from .._values import arguments
from .._values.arguments import Seconds
from .shell import Shell


class Statuses:
    """Statuses by key, as `client.statuses`: the state of a page, a report or a device, for example."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    def set(
        self,
        key: str,
        value: Any,
        *,
        ttl: Seconds | None = None,
        if_absent: bool = False,
        conn: Conn | None = None,
    ) -> bool:
        """Set the status of a key, and wake the calls that wait for it.

        Args:
            key: 1 to 200 characters. The key of a web page may be the md5 of its URL.
            value: anything that JSON can hold, and bytes; not None.
            ttl: seconds, or a timedelta, after which the status is removed; None for never.
            if_absent: only if the key has no status, for example to claim a piece of work for one of several processes.
            conn: the caller's connection: the status is set and announced when its transaction commits. Until
                then, another client that sets the same key waits.

        Returns:
            Whether it was set: False only with if_absent, for a key that has a status.

        Raises:
            BadData: JSON or jsonb cannot hold the value, or it is over max_data_size.
            ValueError: the key, the ttl or if_absent is not valid.
        """
        return self._shell.run(calls.set_status(key, self._shell.encode(value), ttl, if_absent), conn)

    def get(self, key: str) -> Any:
        """The status of a key; None if it has none, or none any more. Raises ValueError for a key that is not valid."""
        return self._shell.run(calls.get_status(key))

    def get_many(self, keys: Iterable[str]) -> dict[str, Any]:
        """The statuses of those keys that have one, in one call. At most 100,000 keys; ValueError as for get."""
        return self._shell.run(calls.get_statuses(keys))

    def delete(self, key: str, *, conn: Conn | None = None) -> bool:
        """Remove the status of a key. Returns whether there was one. Wakes no call."""
        return self._shell.run(calls.delete_status(key), conn)

    def wait(self, key: str, until: Any = None, timeout: Seconds | None = None) -> Any:
        """Wait for the status of a key, and return it.

        Args:
            key: as for set.
            until: the status to wait for, or a function that is given a status and returns whether it is the one. None,
                the default, waits for any.
            timeout: seconds to wait, or a timedelta; None waits without limit, 0 does not wait.

        No status that is set after the call is missed, but the newest one counts: of two that follow each other at
        once, only the second may be seen.

        Raises:
            TimeoutError: the status was not as wanted in time.
            BadData: JSON cannot hold the status that is waited for, so it can never be set.
            ValueError: the key or the timeout is not valid.
            ClosedError: the client is closed, also while waiting.
        """
        channel, seconds, look = calls.status_channel(key), arguments.timeout(timeout), looks.status(key, until)
        left = TimeLeft(seconds)
        found = self._shell.drive(look())
        if found is None and not left.over():
            poll, listener = self._shell.settings.poll or float("inf"), self._shell.listener()
            found = self._shell.drive(waits.until(listener, Signal, channel, look, left.seconds(), lambda: poll))
        return looks.in_time(found, f"the status of {key!r}", seconds)

    def follow(
        self, keys: Iterable[str], until: Any = None, timeout: Seconds | None = None
    ) -> Iterator[tuple[str, Any]]:
        """Wait for the statuses of several keys: iterate over pairs of a key and its status, in their order of arrival.

        Each key is returned once, when its status is as wanted; the iteration ends after the last one. All keys are
        read in one call, and later those that were set again. As for wait, no status that is set after the call is
        missed.

        Args:
            keys: at most 100,000 of them, as for set.
            until: as for wait, for each of the keys.
            timeout: seconds for all of it, or a timedelta; None waits without limit, 0 does not wait.

        Raises:
            TimeoutError: some statuses were not as wanted in time. Those that were have been returned before.
            BadData, ValueError, ClosedError: as for wait.
        """
        return followed(self._shell, keys, until, timeout)


def followed(
    shell: Shell, keys: Iterable[str], until: Any, timeout: Seconds | None, *, unset: bool = False
) -> Iterator[tuple[str, Any]]:
    """As AsyncStatuses.follow.

    Args:
        unset: the keys have probably no statuses yet, so there is no look before the LISTEN. The look behind it finds
            those that have one.
    """
    channels = {calls.status_channel(key): key for key in keys}
    calls.get_statuses(channels.values())  # checks their number
    return _followed(shell, channels, looks.holding(until), arguments.timeout(timeout), unset)


def _followed(
    shell: Shell, channels: dict[str, str], holds: looks.Holds, timeout: float | None, unset: bool
) -> Iterator[tuple[str, Any]]:
    left, missing = TimeLeft(timeout), dict.fromkeys(channels.values())
    several: follows.Several | None = None
    asked = [] if unset else list(missing)
    try:
        while missing:
            found = shell.drive(looks.statuses(asked)) if asked else {}
            for key, value in found.items():
                if holds(value):
                    missing.pop(key)
                    if several is not None:
                        several.leave(calls.status_channel(key))
                    yield key, value
            if not missing:
                break
            if asked and left.over():
                raise TimeoutError(f"the statuses of {len(missing)} of {len(channels)} keys did not come in time")
            if several is None:
                several = follows.Several(shell.listener(), Signal, map(calls.status_channel, missing))
                shell.drive(several.enter(left))
                asked = list(missing)
            else:
                poll = shell.settings.poll or float("inf")
                heard = shell.drive(several.next(left.at_most(poll)))
                asked = [channels[channel] for channel in heard] or list(missing)
    finally:
        if several is not None:
            several.close()
