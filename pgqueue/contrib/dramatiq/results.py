"""The backend for results: a result is a status by key, and waiting for one is a wait for NOTIFY."""

from __future__ import annotations

import hashlib
from typing import Any

from dramatiq import Encoder
from dramatiq.results import ResultBackend, ResultTimeout
from dramatiq.results.backend import DEFAULT_TIMEOUT, Missing

from ... import Client
from ..._values.marked import bytes_of, text_of
from .clients import client_of

MAX_KEY = 200  # characters of a status key


class PgqueueResultBackend(ResultBackend):
    """Results of Dramatiq's actors, as statuses by key in PostgreSQL.

    Args:
        namespace: begins the keys of all results.
        encoder: of the results; default Dramatiq's.
        use_namespace_prefix_keys: whether a key has the names of the queue and the actor in place of their digest.
        client: a pgqueue client to use, for example the broker's, in place of the URL and the options.
        url, options: as for PgqueueBroker.

    Raises:
        ValueError, TypeError: as for PgqueueBroker.
    """

    def __init__(
        self,
        *,
        namespace: str = "dramatiq-results",
        encoder: Encoder | None = None,
        use_namespace_prefix_keys: bool = False,
        client: Client | None = None,
        url: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(namespace=namespace, encoder=encoder, use_namespace_prefix_keys=use_namespace_prefix_keys)
        self.client = client_of(url, client, options)

    def get_result(self, message: Any, *, block: bool = False, timeout: int | None = None) -> Any:
        """The result of a message.

        Args:
            message: the message.
            block: whether to wait for it.
            timeout: milliseconds to wait; default 10 seconds.

        Raises:
            ResultMissing: there is none yet, or none any more, and the call was not to wait.
            ResultTimeout: there was none in time.
            ResultFailure: the actor has failed.
        """
        if not block:
            return super().get_result(message)
        seconds = (DEFAULT_TIMEOUT if timeout is None else timeout) / 1000
        try:
            status = self.client.statuses.wait(self._key(self.build_message_key(message)), timeout=seconds)
        except TimeoutError:
            raise ResultTimeout(message) from None
        return self.unwrap_result(self.encoder.decode(bytes_of(status["text"])))  # type: ignore[no-untyped-call]  # of Dramatiq

    def _get(self, message_key: str) -> Any:
        status = self.client.statuses.get(self._key(message_key))
        return Missing if status is None else self.encoder.decode(bytes_of(status["text"]))

    def _store(self, message_key: str, result: Any, ttl: int) -> None:
        status = {"text": text_of(self.encoder.encode(result))}
        self.client.statuses.set(self._key(message_key), status, ttl=max(ttl, 1) / 1000)

    def _key(self, message_key: str) -> str:
        begin = f"{self.namespace}:"
        return bounded(message_key if message_key.startswith(begin) else begin + message_key)


def bounded(key: str) -> str:
    """A key, or its digest if it is longer than a status key can be."""
    return key if len(key) <= MAX_KEY else hashlib.md5(key.encode(), usedforsecurity=False).hexdigest()
