"""Rights and plans of the functions: 6_grants/settings.sql gives them what their heads do not say."""

from __future__ import annotations

import re

import psycopg
import pytest
from statements import column, put, rows

from pgqueue import sql as schema

FILE = "6_grants/settings.sql"
OURS = "FROM pg_proc WHERE pronamespace = 'pgqueue'::regnamespace"
PINNED = "coalesce(proconfig, '{}') @> ARRAY ['search_path=pg_catalog, pg_temp']"

# Public functions that run as their caller, as the head of the file says.
INVOKER = {"arm", "arm_again", "disarm", "own_session", "why", "grant", "revoke", "grant_to", "grant_monitor"}


def test_public_functions_run_as_their_owner_and_helpers_do_not(db: psycopg.Connection) -> None:
    kinds = rows(db, f"SELECT proname, prosecdef, prorettype = 'trigger'::regtype {OURS}")
    for name, definer, trigger in kinds:
        assert definer is (trigger or (not name.startswith("_") and name not in INVOKER)), name


def test_each_function_that_runs_as_its_owner_has_a_pinned_search_path(db: psycopg.Connection) -> None:
    assert column(db, f"SELECT proname {OURS} AND prosecdef AND NOT {PINNED}") == []


def test_each_name_is_listed_once() -> None:
    lists = schema.read(FILE).partition("FROM (VALUES")[2].partition(") l(")[0]
    names = [name for text in re.findall(r"'([\w ]+)'", re.sub(r"--.*", "", lists)) for name in text.split()]
    assert len(names) > 100
    assert sorted(set(names)) == sorted(names)


def test_a_name_that_does_not_exist_is_refused(db: psycopg.Connection) -> None:
    with pytest.raises(psycopg.errors.RaiseException, match="a function gone that does not exist"):
        db.execute(schema.read(FILE).replace("'find_tasks'", "'find_tasks gone'").encode())


def test_running_it_again_changes_nothing_and_leaves_the_search_path(db: psycopg.Connection) -> None:
    query = f"SELECT oid, prosecdef, proconfig {OURS} ORDER BY oid"
    before = rows(db, query)
    with db.transaction():
        db.execute("SET LOCAL search_path = pg_catalog, public")
        db.execute(schema.read(FILE).encode())
        assert column(db, "SHOW search_path") == ["pg_catalog, public"]
    assert rows(db, query) == before


def test_another_file_run_alone_by_hand_gives_no_rights_away(db: psycopg.Connection) -> None:
    """Its functions run as their caller until settings.sql has been run too."""
    put(db, "q")
    definers = set(column(db, f"SELECT proname {OURS} AND prosecdef"))
    db.execute(schema.read("3_tasks/put.sql").encode())
    assert definers - set(column(db, f"SELECT proname {OURS} AND prosecdef")) == {"put", "put_many"}
    db.execute(schema.read(FILE).encode())
    assert set(column(db, f"SELECT proname {OURS} AND prosecdef")) == definers
