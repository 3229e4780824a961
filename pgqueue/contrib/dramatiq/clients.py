"""The client of a broker or of a backend, and its errors as Dramatiq knows them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from dramatiq.errors import ConnectionClosed
from psycopg.pq import Conninfo

from ... import Client, errors
from ..._engine import dsn
from ..._values.data import MOST_SIZE

#: After these the same call, repeated, may succeed: Dramatiq's worker begins again with a new consumer.
LOST = (errors.ServerError, errors.ConnectionLost, errors.NotRunning, errors.ClosedError)


def client_of(url: str | None, client: Client | None, options: dict[str, Any]) -> Client:
    """The client that was given, or a new one. It connects at its first call.

    Args:
        url: a PostgreSQL URI or conninfo string; default PGQUEUE_DSN, else DATABASE_URL, else the embedded server.
        client: the client to use, in place of the URL and the options.
        options: those of pgqueue.Client; max_data_size is 64 MB by default, the most that the database accepts.

    Raises:
        ValueError: the URL or an option is not valid, or a client was given beside them.
        TypeError: there is no such option.
    """
    if client is None:
        return Client(url if url is None else _checked(url), **{"max_data_size": MOST_SIZE, **options})
    if url is not None or options:
        raise ValueError("a client was given, so there can be no URL, and no options of a client, beside it")
    return client


def _checked(url: str) -> str:
    try:
        return dsn.plain(url)
    except errors.ServerError as error:
        known = {option.keyword.decode() for option in Conninfo.get_defaults()}
        unknown = [name for name, _ in parse_qsl(urlsplit(url).query) if name not in known]
        raise ValueError(f"the URL has an unknown option, {unknown[0]!r}" if unknown else str(error)) from None


@contextmanager
def connected() -> Iterator[None]:
    """Raise Dramatiq's ConnectionClosed for an error of the connection, whose text it keeps."""
    try:
        yield
    except LOST as error:
        raise ConnectionClosed(error) from error
