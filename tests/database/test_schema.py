"""The list of SQL files, and the answer to "can this library work with that database?"."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pgqueue import sql as schema


def test_every_sql_file_is_listed_once() -> None:
    home = Path(schema.__file__).parent
    found = [path.relative_to(home).as_posix() for path in home.rglob("*.sql")]
    assert sorted(schema.FILES) == sorted(found)
    folders = {name.partition("/")[0] for name in found}
    assert list(schema.LAYERS) == sorted(folders)  # their numbers are their order


def test_code_files_can_be_run_again() -> None:
    """Tables have history, functions have none: only 1_tables may create what must be absent."""
    for name in schema.CODE:
        for line in schema.read(name).upper().splitlines():
            if line.startswith("CREATE "):
                assert line.startswith("CREATE OR REPLACE "), f"{name}: {line}"


def test_a_fitting_version_is_no_mismatch() -> None:
    assert schema.mismatch([schema.OLDEST]) is None
    assert schema.mismatch([schema.NEWEST]) is None


@pytest.mark.parametrize(
    ("versions", "sqlstate", "remedy"),
    [
        ([], None, "no pgqueue schema: run `pgqueue migrate up`"),
        ([], "42P01", "no pgqueue schema: run `pgqueue migrate up`"),
        ([], "3F000", "no pgqueue schema: run `pgqueue migrate up`"),
        (["0000"], None, "version 0000, .* run `pgqueue migrate up`"),
        (["9999"], None, "version 9999, .* upgrade the library"),
    ],
)
def test_a_mismatch_names_its_remedy(versions: list[str], sqlstate: str | None, remedy: str) -> None:
    error = schema.mismatch(versions, sqlstate=sqlstate)
    assert error is not None
    with pytest.raises(type(error), match=remedy):
        raise error


def test_another_error_says_nothing_about_the_schema() -> None:
    assert schema.mismatch(sqlstate="57P01") is None


@pytest.mark.slow
def test_importing_migrate_does_not_import_alembic() -> None:
    """0.3 s, which neither a client nor `pgqueue --help` should pay."""
    code = "import sys, pgqueue.migrate; print({'alembic', 'sqlalchemy'} & sys.modules.keys() or 'neither')"
    # -P: without it, the current directory's pgqueue comes before the one under test.
    output = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout
    assert output == "neither\n"
