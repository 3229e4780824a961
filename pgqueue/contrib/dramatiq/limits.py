"""The backend for rate limiters and barriers: counters as statuses by key.

Theory of operation
-------------------
A counter is read, compared and written in one transaction T1, behind an advisory lock L that T1 holds until its end:

    T1  lock L
    T1  read the counter, and write it if the new value is allowed

For a window T1 reads the counters of several keys, those of the last seconds, and asks for these keys only behind L. If
T1 asked before, and then waited for L while the second ended, its sum would lack what T2 added for the next second.
Then the window would admit one call too many. The clocks of two machines may still differ by that much, with Redis too.

- The read is a statement of its own, at READ COMMITTED. Its snapshot is newer than L, so it sees the commits of each
  earlier holder of L.
- L is that of the key up to its last `@`. The keys of a window, `key@1700000001`, `key@1700000002` and so on, share
  one: otherwise two calls for two seconds would each read the sum without the other's addition. A sum over keys with
  several locks takes them in the order of their numbers, so that no two calls wait for each other.
- The commit need not be durable: a crash of the server may lose the changes of its last half second, as Redis without a
  log loses all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dramatiq.rate_limits import RateLimiterBackend

from ... import Client
from ..._calls.call import Call
from . import statements
from .clients import client_of
from .results import bounded


class PgqueueRateLimiterBackend(RateLimiterBackend):
    """Counters of Dramatiq's rate limiters and barriers, as statuses by key in PostgreSQL. Safe in every thread.

    Args:
        namespace: begins the keys of all counters.
        client: a pgqueue client to use, for example the broker's, in place of the URL and the options.
        url, options: as for PgqueueBroker.

    Raises:
        ValueError, TypeError: as for PgqueueBroker.
    """

    def __init__(
        self,
        *,
        namespace: str = "dramatiq-limits",
        client: Client | None = None,
        url: str | None = None,
        **options: Any,
    ) -> None:
        self.namespace = namespace
        self.client = client_of(url, client, options)

    def add(self, key: str, value: int, ttl: int) -> bool:
        """Set a counter that does not exist, for `ttl` milliseconds. Returns whether it was set."""
        return self._alone([key], statements.add(self._key(key), value, _seconds(ttl)))

    def incr(self, key: str, amount: int, maximum: int, ttl: int) -> bool:
        """Increment a counter unless it would be over the maximum. Returns whether it was incremented."""
        return self._alone([key], statements.change(self._key(key), amount, _seconds(ttl), highest=maximum))

    def decr(self, key: str, amount: int, minimum: int, ttl: int) -> bool:
        """Decrement a counter unless it would be under the minimum. Returns whether it was decremented."""
        return self._alone([key], statements.change(self._key(key), -amount, _seconds(ttl), lowest=minimum))

    def incr_and_sum(self, key: str, keys: Callable[[], Iterable[str]], amount: int, maximum: int, ttl: int) -> bool:
        """Increment a counter unless the sum of the counters of `keys` would be over the maximum.

        Returns:
            Whether it was incremented.
        """

        def calls() -> Iterator[Call[bool]]:
            yield self._locks([key, *keys()])
            summed = [self._key(name) for name in keys()]
            yield statements.change(self._key(key), amount, _seconds(ttl), highest=maximum, summed=summed)

        return self._run(calls(), ahead=0)

    def wait(self, key: str, timeout: int | None) -> bool:
        """Wait for wait_notify() of a key; also for one that was called before, in the time of its ttl.

        Args:
            key: the key.
            timeout: milliseconds to wait; None waits without limit.

        Returns:
            Whether it was called in time.
        """
        try:
            self.client.statuses.wait(self._key(key), timeout=None if timeout is None else timeout / 1000)
        except TimeoutError:
            return False
        return True

    def wait_notify(self, key: str, ttl: int) -> None:
        """End the waits for a key, and those that begin in the next `ttl` milliseconds."""
        self.client.statuses.set(self._key(key), True, ttl=_seconds(ttl))

    def _key(self, key: str) -> str:
        return bounded(f"{self.namespace}:{key}")

    def _alone(self, keys: Iterable[str], call: Call[bool]) -> bool:
        """Run a call behind the locks of the keys."""
        return self._run([self._locks(keys), call])

    def _locks(self, keys: Iterable[str]) -> Call[bool]:
        return statements.lock({f"{self.namespace}:{key.rpartition('@')[0] or key}" for key in keys})

    def _run(self, calls: Iterable[Call[bool]], ahead: int = 1) -> bool:
        """Run calls in one transaction. Returns the answer to the last one."""
        *_, done = self.client.shell.connections.run_all(calls, ahead)
        return bool(done)


def _seconds(ttl: int) -> float:
    return max(ttl, 1) / 1000
