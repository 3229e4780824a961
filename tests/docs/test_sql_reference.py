"""docs/reference/sql.md is what the catalogue says, and its examples run."""

from __future__ import annotations

import re

import psycopg
import pytest
import sqlreference
from checkout import CHECKOUT


def test_every_public_function_and_view_has_a_comment_and_an_example(db: psycopg.Connection) -> None:
    assert sqlreference.faults(sqlreference.Catalogue(db), sqlreference.sections()) == []


def test_the_page_is_what_the_catalogue_says(db: psycopg.Connection) -> None:
    """Run tools/sqlreference.py after a change of the SQL or of the examples."""
    assert sqlreference.PAGE.read_text("utf-8") == sqlreference.page(db)


@pytest.mark.slow
def test_the_examples_run_in_their_order(db: psycopg.Connection) -> None:
    """Each names its function or view, no answer tells of a problem, and each that settles had something to settle."""
    for section in sqlreference.sections():
        for name, example in section.examples.items():
            assert re.search(rf"\bpgqueue\.{name}\b", example), name
            if name == "set_server":
                db.execute("ALTER SEQUENCE pgqueue.task_id_seq RESTART")  # as if no task had been put
            for statement in filter(str.strip, example.split(";\n")):
                cursor = db.execute(statement)
                columns = [column.name for column in cursor.description or ()]
                rows = cursor.fetchall() if columns else []
                if "problem" in columns:
                    assert {row[columns.index("problem")] for row in rows} <= {None}, statement
                assert rows or "id" in columns or not {"state", "problem"} <= set(columns), statement


def test_a_state_is_found_through_the_functions_that_are_called(db: psycopg.Connection) -> None:
    """put's own body raises nothing of the kind: what it calls does."""
    catalogue = sqlreference.Catalogue(db)
    assert {"PQ001", "PQ035", "PQ036", "PQ038", "PQ039"} <= set(catalogue.states("put"))
    assert catalogue.states("last_tick") == []


def test_what_lacks_a_comment_or_an_example_is_told(db: psycopg.Connection) -> None:
    db.execute("CREATE FUNCTION pgqueue.forgotten() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    db.execute("CREATE FUNCTION pgqueue._internal() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    found = sqlreference.faults(sqlreference.Catalogue(db), sqlreference.sections())
    assert {"forgotten has no COMMENT", "forgotten has no example in examples.sql"} <= set(found)
    assert not [fault for fault in found if "_internal" in fault]


@pytest.mark.once
def test_every_sqlstate_is_in_the_table_of_errors() -> None:
    raised = {
        state
        for folder in ("pgqueue/sql", "migrations/sql")
        for path in CHECKOUT.glob(f"{folder}/**/*.sql")
        for state in re.findall(r"(?:ERRCODE =|code =>) '(PQ\d+)'", path.read_text("utf-8"))
    }
    page = (CHECKOUT / "docs/reference/errors.md").read_text("utf-8")
    assert raised == set(re.findall(r"^\| `(PQ\d+)` \|", page, re.MULTILINE))
