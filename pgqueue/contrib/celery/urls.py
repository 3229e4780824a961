"""The URLs that Celery is given for pgqueue, and the client of a process for each of them.

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

from pgqueue import Client, errors

from ..._engine import dsn

MAX_DATA_SIZE = 64 << 20  # bytes: the database takes no more
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

_clients: dict[tuple[Any, ...], Client] = {}  # without a lock, which a fork might copy locked: setdefault is atomic


def client_of(url: str | None, options: Mapping[str, Any]) -> Client:
    """The client of this process for a URL. It connects at its first call.

    Args:
        url: as above; None for `pgqueue://`.
        options: those of URL_OPTIONS; the URL's come first. Others are ignored, as other transports do.

    Raises:
        ImproperlyConfigured: the URL or an option is not valid.
    """
    address, given = _read(url or "pgqueue://")
    known = {name: value for name, value in options.items() if name in URL_OPTIONS}
    arguments = {"max_data_size": MAX_DATA_SIZE, **known, **given}
    key = (address, *sorted(arguments.items(), key=lambda one: one[0]))
    try:
        if (client := _clients.get(key)) is None:
            client = _clients.setdefault(key, Client(_found(address), **arguments))
    except (ValueError, errors.ServerError) as error:
        raise ImproperlyConfigured(f"{shown(url or 'pgqueue://')}: {error}") from None
    return client


def shown(url: str) -> str:
    """A URL without its secrets."""
    found = _URL.fullmatch(url)
    if found is None:
        return "pgqueue://**"
    who, at, where = found["place"].rpartition("@")
    user, colon, _ = who.partition(":")
    kept = [(name, "**" if name in SECRETS else value) for name, value in parse_qsl(found["query"] or "")]
    scheme = "pgqueue+embedded" if found["scheme"] == "embedded" else "pgqueue"
    query = f"?{urlencode(kept, safe='*/:')}" if kept else ""
    return f"{scheme}://{user}{colon and ':**'}{at}{where}{query}"


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
        raise ImproperlyConfigured(f"{shown(url)}: {error}") from None


def _found(address: str) -> str | None:
    return dsn.of_embedded() if address == "embedded" else address or None
