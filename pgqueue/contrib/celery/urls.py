"""The URLs of Celery for pgqueue.

    pgqueue://user:password@host:port/database?pool_size=10&sslmode=require
    pgqueue://                  PGQUEUE_DSN, else DATABASE_URL, else the embedded server
    pgqueue+embedded://         the embedded server

The options of URL_OPTIONS are pgqueue's, all others are libpq's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

from celery.exceptions import ImproperlyConfigured
from kombu.utils.url import as_url
from psycopg.pq import Conninfo

from ... import errors
from ..._engine import dsn
from ..._values.data import MOST_SIZE

SECRETS = ("password", "passfile", "sslpassword", "listen_dsn")

#: How the text of each option is read. All are arguments of pgqueue.Client.
URL_OPTIONS: dict[str, Callable[[str], Any]] = {
    "listen_dsn": str,
    "pool_size": int,
    "connect_timeout": float,
    "call_timeout": float,
    "poll": float,
    "idle_timeout": float,
    "max_data_size": int,
}

_URL = re.compile(r"(?P<scheme>\w+)(?:\+\w+)?://(?P<place>[^?]*)(?:\?(?P<query>.*))?", re.DOTALL)


def shown(url: str) -> str:
    """A URL without its secrets."""
    found = _URL.fullmatch(url)
    if found is None:
        return "pgqueue://**"
    login, at, where = found["place"].rpartition("@")
    user, colon, _ = login.partition(":")
    kept = [(name, "**" if name in SECRETS else value) for name, value in parse_qsl(found["query"] or "")]
    scheme = "pgqueue+embedded" if found["scheme"] == "embedded" else "pgqueue"
    query = f"?{urlencode(kept, safe='*/:')}" if kept else ""
    return f"{scheme}://{user}{colon and ':**'}{at}{where}{query}"


def read(url: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The address of a URL, for dsn_of(), and the arguments of pgqueue.Client.

    Args:
        url: as above.
        options: those of URL_OPTIONS; the URL's have precedence. Others are ignored, as other transports do.

    Raises:
        ImproperlyConfigured: the URL or an option of it is not valid.
    """
    known = {name: value for name, value in options.items() if name in URL_OPTIONS}
    address, given = _read(url)
    return address, {"max_data_size": MOST_SIZE, **known, **given}


def dsn_of(address: str) -> str | None:
    """The DSN for pgqueue.Client; None for the usual default."""
    return dsn.of_embedded() if address == "embedded" else address or None


def of_connection(connection: Any) -> str:
    """The URL of one of kombu's connections. It has read the URL itself where it has switched from another one."""
    if "://" in (connection.hostname or ""):
        return str(connection.hostname)
    user, password, port = connection.userid, connection.password, connection.port
    return str(as_url("pgqueue", connection.hostname, port, user, password, connection.virtual_host.lstrip("/")))


def _read(url: str) -> tuple[str, dict[str, Any]]:
    """The address for libpq, or `embedded`, or an empty string for the usual default; and the client's options."""
    if (found := _URL.fullmatch(url)) is None:
        raise ImproperlyConfigured(
            "this is not a URL of pgqueue: it has the form pgqueue://user:password@host/database"
        )
    given, left = dict[str, Any](), list[tuple[str, str]]()
    for name, text in parse_qsl(found["query"] or "", keep_blank_values=True):
        if name not in URL_OPTIONS:
            left.append((name, text))
            continue
        try:
            given[name] = URL_OPTIONS[name](text)
        except ValueError:
            raise ImproperlyConfigured(f"the option {name} of {shown(url)} is not a number: {text!r}") from None
    query = f"?{urlencode(left)}" if left else ""
    if found["scheme"] == "embedded":
        return "embedded", given
    if not found["place"].strip("/") and not left:
        return "", given
    try:
        return dsn.plain(f"postgresql://{found['place']}{query}"), given
    except errors.ServerError as error:
        unknown = [name for name, _ in left if name not in _of_libpq()]
        why = f"there is no option {unknown[0]!r}" if unknown else error
        raise ImproperlyConfigured(f"{shown(url)}: {why}") from None


def _of_libpq() -> set[str]:
    return {option.keyword.decode() for option in Conninfo.get_defaults()}
