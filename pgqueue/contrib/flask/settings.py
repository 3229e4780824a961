"""The options of a client from an application's config. Errors are raised when the application is created."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import click

from ... import Client, Error
from ..._engine import dsn
from ..._engine.core import Settings

#: The settings, and the option of a client that each one sets.
OPTIONS = {f"PGQUEUE_{name.upper()}": name for name in inspect.signature(Client).parameters}
URI = "SQLALCHEMY_DATABASE_URI"


class SettingError(click.ClickException, ValueError):
    """A setting of the application is not valid. The command `flask`, which loads the application, prints one line."""


def client_options(config: Mapping[str, Any], *, with_db: bool) -> dict[str, Any]:
    """The options of a client from the settings.

    Args:
        config: the application's config.
        with_db: without a PGQUEUE_DSN, connect to Flask-SQLAlchemy's database.

    Raises:
        SettingError: a setting does not exist or is not valid.
    """
    if unknown := sorted(key for key in config if key.startswith("PGQUEUE_") and key not in OPTIONS):
        raise SettingError(f"{unknown[0]} is not a setting of pgqueue; the settings are {', '.join(OPTIONS)}")
    options = {name: config[key] for key, name in OPTIONS.items() if key in config}
    if with_db and not options.get("dsn") and config.get(URI):
        options["dsn"] = _libpq(config[URI])
    for name in ("dsn", "listen_dsn"):
        if options.get(name):
            _check_dsn(f"PGQUEUE_{name.upper()}", options[name])
    try:
        Settings.of(**options)
    except ValueError as error:
        raise SettingError(f"a setting PGQUEUE_... is not valid: {error}") from None
    return options


def _check_dsn(key: str, value: object) -> None:
    if not isinstance(value, str):
        raise SettingError(f"{key} must be a string, not {type(value).__name__}")
    try:
        dsn.plain(value)
    except Error as error:
        raise SettingError(f"{key}: {str(error).strip()}") from None


def _parsed(uri: Any) -> Any:
    """SQLAlchemy's URL, or None. The text of its errors may have a part of the password."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(uri)
    except (ArgumentError, ValueError):
        return None


def _libpq(uri: Any) -> str:
    """SQLAlchemy's URL in libpq's form. Parameters after the question mark may be for the driver only."""
    url = _parsed(uri)
    if url is None:
        raise SettingError(f"{URI} is not a URL that SQLAlchemy understands; it may hold a password, and is not shown")
    if url.get_backend_name() != "postgresql":
        raise SettingError(f"{URI} is of {url.get_backend_name()}, not PostgreSQL: set PGQUEUE_DSN")
    plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
    try:
        return dsn.plain(plain)
    except Error as error:
        raise SettingError(f"{URI} is only for SQLAlchemy ({str(error).strip()}): set PGQUEUE_DSN") from None
