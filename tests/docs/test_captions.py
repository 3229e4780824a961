"""Each block of the documentation says where it belongs, and each page what it needs to be installed."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from captions import PAGES, QUICKSTART, Block, blocks, check_form, kind
from checkout import CHECKOUT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.once

PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
#: Modules of the package that need an extra of another name.
NEEDED = {"pgqueue.monitors.prometheus": "metrics"}
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@each_page
def test_every_block_says_where_it_belongs(page: Path) -> None:
    """A fence without a language would not be run, and one without a caption would leave its reader to guess."""
    fences = [line for line in page.read_text("utf-8").splitlines() if line.startswith("```")]
    found = blocks(page)
    assert len(fences) == 2 * len(found) + 2 * sum(line.startswith("```{") for line in fences)
    assert [str(block) for block in found if not kind(block)] == []


@each_page
def test_the_blocks_have_the_form_of_their_language(page: Path) -> None:
    """Those of a page that is not followed from top to bottom too."""
    for block in blocks(page):
        check_form(block)


def test_every_kind_of_caption_is_explained() -> None:
    text = QUICKSTART.read_text("utf-8").partition("\n## Follow these pages\n")[2].partition("\n## ")[0]
    explained = set(re.findall(r"\*\*([^*]+)\*\*", text))
    used = {re.sub(r"\d", "2", block.caption) for page in PAGES for block in blocks(page) if not block.file}
    assert used - {""} <= explained


@each_page
def test_each_page_names_the_packages_that_it_imports(page: Path) -> None:
    """As an extra, or by their names, in a block that installs them."""
    found = blocks(page)
    installed = closure(requirement for block in found for requirement in requirements(block))
    missing = {name for block in found for name in imported(block, found) if not distributions(name) & installed}
    assert missing == set()


def requirements(block: Block) -> Iterator[str]:
    """What a block installs besides pgqueue; and pgqueue's own extras as those name it."""
    for arguments in re.findall(r"pip install ([^&\n]+)", block.text) if block.language == "sh" else ():
        for word in arguments.replace("'", "").split():
            if word.startswith("-"):
                continue
            if match := re.fullmatch(r"\.(?:\[(.+)\])?", word):
                yield from (need for extra in (match[1] or "").split(",") if extra for need in EXTRAS[extra])
            else:
                yield word


def closure(names: Iterator[str]) -> set[str]:
    """These distributions and pgqueue's own, with those that they require."""
    waiting = [Requirement(name) for name in (*PROJECT["dependencies"], *names)]
    found: set[str] = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in found and not requirement.extras:
            continue
        found.add(name)
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for need in map(Requirement, needs):
            extras = requirement.extras or {""}
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(need)
    return found


def imported(block: Block, page: list[Block]) -> Iterator[str]:
    """The modules of other packages that a block of Python needs, and those of pgqueue that need an extra."""
    if block.language != "python":
        return
    own = {Path(each.caption).parts[0].removesuffix(".py") for each in page if each.file}
    for node in ast.walk(ast.parse(block.text)):
        found: list[str] = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found = [node.module]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(CRON, node.value):
            found = ["cronsim"]
        for name in found:
            top = name.partition(".")[0]
            extra = NEEDED.get(name, name.removeprefix("pgqueue.contrib."))
            if top == "pgqueue" and extra in EXTRAS and extra != "sqlalchemy":
                yield from (module_of(Requirement(need).name) for need in EXTRAS[extra][:1])
            elif top != "pgqueue" and top not in own | sys.stdlib_module_names:
                yield top


CRON = r"[\d*/]+(?: [\d*/]+){2,4} (?:\*|[a-z]{3}-[a-z]{3})"
MODULES = metadata.packages_distributions()


def module_of(distribution: str) -> str:
    return next(name for name, homes in MODULES.items() if distribution in {*map(canonicalize_name, homes)})


def distributions(module: str) -> set[str]:
    """Which of them has a module, as an import names it; `opentelemetry` and `django_tasks` are in more than one."""
    return {canonicalize_name(name) for name in MODULES.get(module, ())} or {canonicalize_name(module)}
