"""CONTRIBUTING.md, the Makefile, the commit hooks and the templates name what there is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from checkout import CHECKOUT

GUIDE = (CHECKOUT / "CONTRIBUTING.md").read_text("utf-8")
MAKEFILE = (CHECKOUT / "Makefile").read_text("utf-8")
TEMPLATES = sorted((CHECKOUT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z]+):.*## ", MAKEFILE, re.MULTILINE))


def command(words: str) -> str:
    """A check without the files that it is given, and without how it is told to take them."""
    return " ".join(word for word in shlex.split(words) if "*" not in word and word not in (".", "--force-exclude"))


def test_the_hooks_and_the_lint_step_run_the_same_checks() -> None:
    hooks: list[dict[str, Any]] = yaml.safe_load((CHECKOUT / ".pre-commit-config.yaml").read_text())["repos"][0][
        "hooks"
    ]
    lint = re.findall(r"^check (.+)$", (CHECKOUT / ".ci" / "lint").read_text(), re.MULTILINE)
    assert [command(hook["entry"]) for hook in hooks] == [command(line) for line in lint]
    assert {hook["language"] for hook in hooks} == {"system"}


def test_every_target_is_listed_and_is_no_file() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)
    assert set(phony.split()) == TARGETS


def test_the_targets_that_are_named_exist() -> None:
    named = set(re.findall(r"`make ([a-z]+)", GUIDE)) | set(
        re.findall(r"\bmake ([a-z]+)(?: [A-Z]|$)", GUIDE, re.MULTILINE)
    )
    assert named == TARGETS - {"help"}
    template = (CHECKOUT / ".github" / "pull_request_template.md").read_text("utf-8")
    assert set(re.findall(r"`make ([a-z]+)`", template)) <= TARGETS


def test_the_paths_that_are_named_exist() -> None:
    spans = re.findall(r"`([\w./]+/[\w./]*)`", GUIDE)
    assert len(spans) > 20
    folders = CHECKOUT, CHECKOUT / "pgqueue"  # some spans in the table of layers leave out the package's own name
    missing = {span for span in spans if not any((folder / span).exists() for folder in folders)}
    assert missing == {"build/site", "migrations/versions/NNNN_what.py"}  # yet to be written


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_a_template_is_a_form(path: Path) -> None:
    form = yaml.safe_load(path.read_text("utf-8"))
    assert {"name", "description", "labels", "body"} == set(form)
    assert len({field["id"] for field in form["body"]}) == len(form["body"])
    assert all(field["attributes"]["label"] for field in form["body"])
    assert any(field.get("validations", {}).get("required") for field in form["body"])


def test_the_changelog_keeps_its_form() -> None:
    lines = (CHECKOUT / "CHANGELOG.md").read_text("utf-8").splitlines()
    versions = [line for line in lines if line.startswith("## ")]
    assert versions[0] == "## [Unreleased]"
    assert all(re.fullmatch(r"## \[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", version) for version in versions[1:])
    kinds = {line for line in lines if line.startswith("### ")}
    assert kinds <= {f"### {kind}" for kind in ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")}
