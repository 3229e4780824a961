"""Run by Alembic at each upgrade and downgrade, in the transaction that pgqueue.migrate supplies.

The command `alembic` supplies none: then the DSN is that of `-x dsn=...`, or what any client takes.
"""

from __future__ import annotations

from typing import Any

from alembic import context

from pgqueue import sql as schema
from pgqueue._engine.dsn import resolve
from pgqueue.errors import SchemaError
from pgqueue.migrate import LOCK, LOCK_TIMEOUT, PATH, VERSION_TABLE, commanded, run

# Not CREATE SCHEMA IF NOT EXISTS, which requires the right to create schemas even if the schema exists.
CREATE_SCHEMA = """
DO $$ BEGIN
    IF pg_catalog.to_regnamespace('pgqueue') IS NULL THEN
        CREATE SCHEMA pgqueue;
    END IF;
END $$;
"""

# One of schema.CODE. It runs at the end, and first, because an object that it refuses could run in between.
OWNED = "8_grants/owned.sql"

# The script may run in a transaction that goes on, for example in a revision of the application's own history.
KEEP_PATH = "SELECT pg_catalog.set_config('pgqueue.path', pg_catalog.current_setting('search_path'), true);"
RESTORE_PATH = "SELECT pg_catalog.set_config('search_path', pg_catalog.current_setting('pgqueue.path'), true);"

# Citus would hand a part of what a migration makes to its other nodes: the schema and most functions, and no tables.
# With that nothing works there, and a migration fails. So each node is migrated by itself. Without Citus there is no
# such setting, and both statements do nothing.
KEEP_TO_THIS_NODE = """
SELECT pg_catalog.set_config('pgqueue.ddl_propagation', c.setting, true),
       pg_catalog.set_config('citus.enable_ddl_propagation', 'off', true)
  FROM (SELECT pg_catalog.current_setting('citus.enable_ddl_propagation', true) AS setting) AS c
 WHERE c.setting OPERATOR(pg_catalog.<>) '';
"""
GO_ON_AS_BEFORE = """
SELECT pg_catalog.set_config('citus.enable_ddl_propagation', c.setting, true)
  FROM (SELECT pg_catalog.current_setting('pgqueue.ddl_propagation', true) AS setting) AS c
 WHERE c.setting OPERATOR(pg_catalog.<>) '';
"""

# After the tables: every client may read the schema's version.
PUBLISH_VERSION = """
COMMENT ON TABLE pgqueue.schema_version IS 'The version of this schema; written by `pgqueue migrate`.';
GRANT SELECT ON pgqueue.schema_version TO PUBLIC;
"""


def main() -> None:
    if context.is_offline_mode() or "connection" in context.config.attributes:
        migrate()
    else:
        with commanded(context.config, lambda: resolve(context.get_x_argument(as_dictionary=True).get("dsn"))):
            migrate()


def migrate() -> None:
    attributes: dict[str, Any] = context.config.attributes
    if context.is_offline_mode():
        context.configure(dialect_name="postgresql", literal_binds=True, **VERSION_TABLE)
    else:
        # A transaction is under way (the migration's lock was taken in it), so Alembic leaves its end to the
        # caller.
        context.configure(connection=attributes["connection"], **VERSION_TABLE)
        refuse_newer()
        if context.get_context().opts.get("dont_mutate"):  # `alembic current`
            context.run_migrations()
            return
    with context.begin_transaction():
        if context.is_offline_mode():
            run(f"{KEEP_PATH}\nSET LOCAL search_path = {PATH};\nSET LOCAL lock_timeout = '{LOCK_TIMEOUT}';")
            run(f"SELECT pg_advisory_xact_lock({LOCK});")
        if attributes.get("force") is not None:  # a downgrade by pgqueue.migrate
            run(f"SET LOCAL pgqueue.force = {'on' if attributes['force'] else 'off'};")
        run(KEEP_TO_THIS_NODE)
        run(CREATE_SCHEMA)
        run(schema.read(OWNED))
        context.run_migrations()
        if at_head():
            for name in schema.CODE:
                run(schema.read(name))
            run(PUBLISH_VERSION)
        run(GO_ON_AS_BEFORE)
        if context.is_offline_mode():
            run(RESTORE_PATH)


def refuse_newer() -> None:
    """Raise a clear error before Alembic does: its own only says that the revision cannot be found."""
    known = {step.revision for step in context.script.walk_revisions()}
    for found in context.get_context().get_current_heads():
        if found not in known:
            raise schema.mismatch([found]) or SchemaError(f"unknown schema version {found}: upgrade the library")


def at_head() -> bool:
    """Whether the schema is now at the revision of this library's functions."""
    if context.is_offline_mode():
        return context.get_revision_argument() == context.get_head_revision()
    return context.get_context().get_current_heads() == (context.get_head_revision(),)


main()
