"""Rights and plans of the functions: 8_grants/settings.sql gives them what their heads do not say."""

from __future__ import annotations

import re

import psycopg
import pytest
from statements import column, put, rows

from pgqueue import sql as schema

FILE = "8_grants/settings.sql"
OURS = "FROM pg_proc WHERE pronamespace = 'pgqueue'::regnamespace"
PINNED = "coalesce(proconfig, '{}') @> ARRAY ['search_path=pg_catalog, pg_temp, pg_temp']"

# Public functions that run as their caller, as the head of the file says.
INVOKER = {
    *("data_key", "arm", "arm_again", "disarm", "own_session", "run_bounds", "stop_hearing"),
    *("server_number", "set_quota", "set_server"),
    *("add_server", "copy_servers", "remove_server", "set_server_state"),
    *("grant", "revoke", "grant_to", "revoke_from", "grant_monitor", "revoke_monitor", "restrict_queue"),
}
OF_VIEWS = {
    "_could_begin_now",
    "_foreign_locks",
    "_health_stats",
    "_is_attended",
    "_jobs_taken",
    "_lost_roles",
    "_may_see",
    "_may_see_all",
    "_unserved",
}  # called with a reader's rights


def test_public_functions_run_as_their_owner_and_helpers_do_not(db: psycopg.Connection) -> None:
    kinds = rows(db, f"SELECT proname, prosecdef, prorettype = 'trigger'::regtype {OURS}")
    for name, definer, trigger in kinds:
        assert definer is (trigger or name in OF_VIEWS or (not name.startswith("_") and name not in INVOKER)), name


def test_each_function_that_runs_as_its_owner_has_a_pinned_search_path(db: psycopg.Connection) -> None:
    assert column(db, f"SELECT proname {OURS} AND prosecdef AND NOT {PINNED}") == []


def test_a_function_without_a_search_path_is_bound_or_the_owners_alone(db: psycopg.Connection) -> None:
    """It has the path of its caller, and that must be a function with one. The hot helpers of settings.sql are so."""
    db.execute("CREATE ROLE pgqueue_test_monitor")
    try:
        db.execute("SELECT pgqueue.grant_monitor('pgqueue_test_monitor')")
        unpinned = f"""
            SELECT p.proname, bool_or(a.grantee <> p.proowner)
              FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
             WHERE p.pronamespace = 'pgqueue'::regnamespace AND p.prosqlbody IS NULL AND NOT {PINNED}
             GROUP BY p.oid"""
        for name, others in rows(db, unpinned):
            assert name.startswith("_"), name
            assert not others, name
            assert re.search(rf"\b{name}\b", hot_helpers()), name
    finally:
        db.execute("DROP OWNED BY pgqueue_test_monitor; DROP ROLE pgqueue_test_monitor")


def test_each_hot_helper_exists_and_has_no_search_path(db: psycopg.Connection) -> None:
    names = hot_helpers().split()
    assert len(names) > 50
    query = f"SELECT proname, NOT coalesce(array_to_string(proconfig, ' ') ~ 'search_path', false) {OURS}"
    inherits = dict(rows(db, query))
    assert [name for name in names if not inherits.get(name)] == []


def hot_helpers() -> str:
    found = re.search(r"hot +CONSTANT [\w.]+ :=\s*'([^']+)'", schema.read(FILE))
    assert found is not None
    return found[1]


def test_each_name_is_listed_once() -> None:
    lists = schema.read(FILE).partition("FROM (VALUES")[2].partition(") l(")[0]
    names = [name for text in re.findall(r"'([\w ]+)'", re.sub(r"--.*", "", lists)) for name in text.split()]
    assert len(names) > 100
    assert sorted(set(names)) == sorted(names)


def test_a_name_that_does_not_exist_is_refused(db: psycopg.Connection) -> None:
    with pytest.raises(psycopg.errors.RaiseException, match="a function gone that does not exist"):
        db.execute(schema.read(FILE).replace("find_tasks", "find_tasks gone", 1).encode())


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
    db.execute(schema.read("5_verbs/put/put.sql").encode())
    assert definers - set(column(db, f"SELECT proname {OURS} AND prosecdef")) == {"put", "put_many"}
    db.execute(schema.read(FILE).encode())
    assert set(column(db, f"SELECT proname {OURS} AND prosecdef")) == definers
