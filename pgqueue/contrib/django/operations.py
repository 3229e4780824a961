"""Migrations of the schema `pgqueue`: the revisions of pgqueue.migrate, run on Django's connection.

They run the same SQL and write the same version table as `pgqueue migrate`, in the transaction of Django's migration.
A step that the other tool has done already is skipped, so both tools may be used in turn.

A new revision "0002" of the library needs a migration here with the next free number:

    operations = [Schema("0002", before="0001")]
"""

from __future__ import annotations

from typing import Any

from django.core.management import CommandError
from django.db import router
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from ... import SchemaError, migrate

HINT = "Repeat with --force (force=True) to lose them."  # in the messages of the down files


class Schema(Operation):
    """Upgrade the schema to a revision, or downgrade it to the one before.

    Does nothing in a database that is not PostgreSQL, that a router excludes, or that is at the revision already. The
    downgrade refuses, as `pgqueue migrate down` does, if tasks would be lost.

    Args:
        revision: a revision of pgqueue.migrate.
        before: the revision before it; "base" is an empty database.
    """

    reversible = True
    reduces_to_sql = True

    def __init__(self, revision: str, before: str = "base") -> None:
        self.revision = revision
        self.before = before

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Do nothing: another migration has the models."""

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        if not _concerned(app_label, schema_editor):
            return
        if schema_editor.collect_sql:
            _collect(schema_editor, migrate.sql(f"{self.before}:{self.revision}"))
            return
        conn = _raw(schema_editor)
        if (_current(conn) or "") < self.revision:
            _plainly(migrate.up, conn, self.revision)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        if not _concerned(app_label, schema_editor):
            return
        if schema_editor.collect_sql:
            _collect(schema_editor, migrate.sql(f"{self.revision}:{self.before}", down=True))
            return
        conn = _raw(schema_editor)
        if (_current(conn) or "") >= self.revision:
            _plainly(migrate.down, conn, self.before)

    def describe(self) -> str:
        return f"Bring the schema pgqueue to {self.revision}"


def _concerned(app_label: str, schema_editor: BaseDatabaseSchemaEditor) -> bool:
    connection = schema_editor.connection
    return connection.vendor == "postgresql" and router.allow_migrate(connection.alias, app_label)


def _raw(schema_editor: BaseDatabaseSchemaEditor) -> Any:
    """psycopg's connection below Django's, in the transaction of the migration."""
    schema_editor.connection.ensure_connection()
    return schema_editor.connection.connection


def _current(conn: Any) -> str | None:
    return migrate.status(connection=conn).current


def _plainly(step: Any, conn: Any, revision: str) -> None:
    """Run a step. An error of the schema becomes a CommandError: `manage.py migrate` prints it without a traceback."""
    with conn.cursor() as cursor:
        cursor.execute("SELECT pg_catalog.set_config('lock_timeout', %s, true)", [migrate.LOCK_TIMEOUT])
    try:
        step(connection=conn, revision=revision)
    except SchemaError as error:
        why = " ".join(str(error).split()).replace(HINT, "`manage.py pgqueue migrate --down --force` loses them.")
        raise CommandError(f"pgqueue: {why}") from error


def _collect(schema_editor: BaseDatabaseSchemaEditor, script: str) -> None:
    """Collect the script for sqlmigrate, which adds BEGIN and COMMIT itself."""
    lines = [line for line in script.strip().splitlines() if line not in ("BEGIN;", "COMMIT;")]
    schema_editor.collected_sql.append("\n".join(lines).strip())
