"""System checks: of the setting PGQUEUE, and with `check --database` of the schema."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections, router
from django.db.migrations.executor import MigrationExecutor

from ... import sql as schema
from . import clients

APP = "pgqueue"
LISTEN_HINT = (
    "Set listen_dsn to a DSN of the same database without the pooler: takes that wait need a direct connection."
)


def register() -> None:
    checks.register(check_settings, APP)
    checks.register(check_schema, checks.Tags.database)


def check_settings(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[checks.CheckMessage]:
    """E001 to E004, W001."""
    given = getattr(settings, "PGQUEUE", {})
    if not isinstance(given, dict):
        return [_error(1, "PGQUEUE must be a dict of the aliases of databases, each with a dict of options")]
    return [message for alias in {**given, **connections.settings} for message in _check_database(alias, given)]


def check_schema(
    app_configs: Sequence[AppConfig] | None, databases: Iterable[str] | None = None, **kwargs: Any
) -> list[checks.CheckMessage]:
    """E005 and E006. A schema that `manage.py migrate` will upgrade is no error: migrate runs this check first."""
    return [message for alias in databases or () if _concerned(alias) for message in _check_schema(alias)]


def _check_database(alias: str, given: dict[str, Any]) -> list[checks.CheckMessage]:
    if alias in given:
        try:
            clients.wrapper(alias)
        except ImproperlyConfigured as error:
            return [_error(2, f"PGQUEUE: {str(error).removeprefix('pgqueue: ')}")]
    options = given.get(alias, {})
    if not isinstance(options, dict):
        return [_error(3, f"PGQUEUE[{alias!r}] must be a dict of options, not {options!r}")]
    if fault := clients.fault(options):
        return [_error(4, f"PGQUEUE[{alias!r}]: {fault}")]
    used = alias in given or alias == DEFAULT_DB_ALIAS
    if used and connections.settings[alias].get("DISABLE_SERVER_SIDE_CURSORS") and not options.get("listen_dsn"):
        what = (
            f"the database {alias!r} seems to be behind a transaction pooler, and PGQUEUE[{alias!r}] has no listen_dsn"
        )
        return [checks.Warning(what, hint=LISTEN_HINT, id="pgqueue.W001")]
    return []


def _concerned(alias: str) -> bool:
    return connections[alias].vendor == "postgresql" and router.allow_migrate(alias, APP)


def _check_schema(alias: str) -> list[checks.CheckMessage]:
    connection = connections[alias]
    try:
        executor = MigrationExecutor(connection)
        if executor.migration_plan([node for node in executor.loader.graph.leaf_nodes() if node[0] == APP]):
            return []
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_catalog.to_regclass('pgqueue.schema_version') IS NOT NULL")
            found = []
            if cursor.fetchone()[0]:
                cursor.execute(schema.VERSIONS)
                found = [version for (version,) in cursor.fetchall()]
    except DatabaseError as error:
        return [_error(6, f"the schema in the database {alias!r} cannot be looked at: {str(error).strip()}")]
    if fault := schema.mismatch(found):
        return [_error(5, f"the database {alias!r}: {fault}")]
    return []


def _error(number: int, message: str) -> checks.Error:
    return checks.Error(message, id=f"pgqueue.E{number:03}")
