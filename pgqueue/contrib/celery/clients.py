"""The clients of a process: one for each URL, however many connections kombu and backends open.

A client is a listener connection and two pools. All connections of kombu to a URL share it, and so does the backend of
an application whose broker and results are in one database.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celery.exceptions import ImproperlyConfigured

from ... import Client, errors
from . import urls


@dataclass(slots=True)
class Lent:
    client: Client
    users: int = 0


class Clients:
    """Lends clients, and closes one after its last use. Thread-safe.

    In a fork it still lends them: a client opens connections of its own there.
    """

    def __init__(self) -> None:
        self._unlock()
        self._lent: dict[tuple[Any, ...], Lent] = {}
        os.register_at_fork(after_in_child=self._unlock)

    def _unlock(self) -> None:
        """In a fork: a thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    def borrow(self, url: str, options: Mapping[str, Any]) -> Client:
        """The client for a URL, to be given back. It connects at its first call.

        Args:
            url: see urls.py.
            options: those of urls.URL_OPTIONS; the URL's have precedence. Others are ignored, as other transports do.

        Raises:
            ImproperlyConfigured: the URL or an option is not valid, or this is a process of eventlet.
        """
        _refuse_eventlet()
        address, arguments = urls.read(url, options)
        key = (address, *sorted(arguments.items(), key=lambda one: one[0]))
        with self._lock:
            lent = self._lent.get(key)
            if lent is None:
                try:
                    lent = Lent(Client(urls.dsn_of(address), **arguments))
                except (ValueError, errors.ServerError) as error:
                    raise ImproperlyConfigured(f"{urls.shown(url)}: {error}") from None
                self._lent[key] = lent
            lent.users += 1
            return lent.client

    def give_back(self, client: Client) -> None:
        """End a use. The last one closes the client."""
        with self._lock:
            key = next((key for key, lent in self._lent.items() if lent.client is client), None)
            if key is None:
                return
            self._lent[key].users -= 1
            if self._lent[key].users > 0:
                return
            del self._lent[key]
        client.close()


def _refuse_eventlet() -> None:
    """Where eventlet has replaced threads, the pools' threads open no connection, and each call waits for one."""
    patcher = sys.modules.get("eventlet.patcher")
    if patcher is not None and patcher.is_monkey_patched("thread"):
        raise ImproperlyConfigured("pgqueue does not run under eventlet: use the pool gevent, threads, prefork or solo")


CLIENTS = Clients()
