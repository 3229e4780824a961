"""An entry of DATABASES from a DSN, for projects that configure their database by a DSN."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from psycopg.conninfo import conninfo_to_dict

from ... import ServerError
from ..._engine.dsn import resolve

SETTINGS = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}


def database(dsn: str | None = None, **settings: Any) -> dict[str, Any]:
    """An entry for DATABASES: `DATABASES = {"default": database()}`.

    Args:
        dsn: a URI or conninfo string; default PGQUEUE_DSN, else DATABASE_URL, else the embedded server, which is
            started.
        settings: more of Django's settings for this database, such as ATOMIC_REQUESTS. OPTIONS are added to those of
            the DSN.

    Raises:
        ImproperlyConfigured: the DSN is not valid, or the embedded server cannot be started.
    """
    try:
        conninfo = resolve(dsn)
    except ServerError as error:
        raise ImproperlyConfigured(f"pgqueue: {error}") from None
    known = {name: value for name, value in conninfo_to_dict(conninfo).items() if value not in (None, "")}
    options = {name: value for name, value in known.items() if name not in SETTINGS}
    return {
        "ENGINE": "django.db.backends.postgresql",
        **{setting: str(known[name]) for name, setting in SETTINGS.items() if name in known},
        **settings,
        "OPTIONS": options | settings.get("OPTIONS", {}),
    }
