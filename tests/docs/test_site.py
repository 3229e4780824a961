"""The documentation's site builds without a warning, every public name is in it, and no link in it leads nowhere.

Sphinx comes with the extra `docs`; without it there is nothing to build, and these tests are left out.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click
import psycopg
import pytest
from pages import DOCS, Page

import pgqueue
from pgqueue import cli, errors, types
from pgqueue._calls.queue import AlterArguments, QueueArguments

pytest.importorskip("sphinx", reason="the site needs the extra docs")

pytestmark = [pytest.mark.once, pytest.mark.slow, pytest.mark.timeout(600)]


def test_every_source_is_a_page(pages: dict[str, Page]) -> None:
    sources = {path.relative_to(DOCS).with_suffix(".html").as_posix() for path in DOCS.rglob("*.md")}
    assert sources <= pages.keys()
    assert "search.html" in pages


def test_every_link_within_the_site_leads_somewhere(site: Path, pages: dict[str, Page]) -> None:
    broken = []
    for name, page in pages.items():
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            path = (site / name).parent / unquote(parts.path) if parts.path else site / name
            found = path.resolve().relative_to(site.resolve()).as_posix()
            there = path.is_file() and (not parts.fragment or _has(pages.get(found), unquote(parts.fragment)))
            if not there:
                broken.append(f"{name}: {target}")
    assert broken == []


def _has(page: Page | None, fragment: str) -> bool:
    return page is not None and fragment in page.anchors


def test_nothing_is_fetched_from_the_network(pages: dict[str, Page], site: Path) -> None:
    """Neither fonts nor scripts: a page works, and can be searched, without a network."""
    fetched = re.compile(r"""<(?:script|link|img)\b[^>]*?\b(?:src|href)="(?:https?:)?//""")
    assert [name for name in pages if fetched.search((site / name).read_text("utf-8"))] == []
    assert (site / "searchindex.js").is_file()


def test_every_public_python_name_is_in_the_reference(pages: dict[str, Page]) -> None:
    anchors = set().union(*(page.anchors for name, page in pages.items() if name.startswith("reference/")))
    homes = {name: "pgqueue" for name in pgqueue.__all__ if not inspect.ismodule(getattr(pgqueue, name))}
    homes |= dict.fromkeys(types.__all__, "pgqueue.types")
    missing = [
        f"{home}.{name}" for name, home in homes.items() if not {f"{home}.{name}", f"pgqueue.errors.{name}"} & anchors
    ]
    assert missing == []
    undocumented = [
        f"{home}.{name}.{method}"
        for name, home in homes.items()
        if f"{home}.{name}" in anchors and inspect.isclass(found := getattr(sys.modules[home], name))
        for method, value in inspect.getmembers(found, inspect.isfunction)
        if not method.startswith("_") and value.__module__.startswith("pgqueue")
        if f"{home}.{name}.{method}" not in anchors
    ]
    assert undocumented == []


@pytest.mark.parametrize("module", ["embedded", "contrib/flask", "contrib/django", "monitors/alerts"])
def test_every_name_of_a_module_of_its_own_is_in_the_reference(pages: dict[str, Page], module: str) -> None:
    """Read from the sources: Django's cannot be imported without settings."""
    path = Path(pgqueue.__path__[0]) / module
    tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text("utf-8"))
    (names,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    anchors, home = pages["reference/modules.html"].anchors, f"pgqueue.{module.replace('/', '.')}"
    assert [name for name in names if not any(re.fullmatch(rf"{home}(\.\w+)?\.{name}", at) for at in anchors)] == []


def test_every_error_is_in_the_reference(pages: dict[str, Page]) -> None:
    public = {
        name
        for name, found in vars(errors).items()
        if inspect.isclass(found) and issubclass(found, Exception) and found.__module__ == errors.__name__
        if not (found.__doc__ or "").startswith("Internal")
    }
    assert {f"pgqueue.errors.{name}" for name in public} <= pages["reference/errors.html"].anchors


def test_every_public_function_and_view_is_in_the_reference(pages: dict[str, Page], db: psycopg.Connection) -> None:
    query = """
        SELECT proname FROM pg_proc WHERE pronamespace = 'pgqueue'::regnamespace AND prorettype <> 'trigger'::regtype
        UNION SELECT relname FROM pg_class WHERE relnamespace = 'pgqueue'::regnamespace AND relkind = 'v'"""
    public = {name for (name,) in db.execute(query) if not name.startswith("_")}
    assert len(public) > 80
    slugs = pages["reference/sql.html"].anchors
    assert {name for name in public if name not in slugs and name.replace("_", "-") not in slugs} == set()


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, f"{path} {name}")


def test_every_command_and_option_is_in_the_reference(pages: dict[str, Page]) -> None:
    page = pages["reference/cli.html"]
    missing = []
    for path, command in commands(cli.main, "pgqueue"):
        slug = path.replace(" ", "-")
        if slug not in page.anchors and path not in page.text:
            missing.append(path)
        for parameter in command.params:
            names = [name for name in parameter.opts if name.startswith("--")]
            missing += [
                f"{path} {name}" for name in names if f"cmdoption-{slug}-{name.lstrip('-')}" not in page.anchors
            ]
    assert missing == []


def test_every_setting_is_in_the_reference() -> None:
    page = (DOCS / "reference" / "settings.md").read_text("utf-8")
    client = page.partition("\n## Client\n")[2].partition("\n## ")[0]
    parameters = inspect.signature(pgqueue.Client).parameters
    assert re.findall(r"^\| `(\w+)` \|", client, re.MULTILINE) == list(parameters)
    assert set(re.findall(r"`(PGQUEUE_\w+)`", page)) >= {f"PGQUEUE_{name.upper()}" for name in parameters}
    worker = page.partition("\n## Worker\n")[2].partition("\n## ")[0]
    assert {f"`{name}`" for name in inspect.signature(pgqueue.Worker).parameters if name != "client"} <= set(
        re.findall(r"`\w+`", worker)
    )
    queue = page.partition("\n## Queue\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]* \| (yes|no) \|", queue, re.MULTILINE))
    assert rows.keys() == typing.get_type_hints(QueueArguments).keys()
    assert {name for name, altered in rows.items() if altered == "yes"} == typing.get_type_hints(AlterArguments).keys()


def test_every_variable_of_the_environment_is_in_the_reference() -> None:
    sources = [*(DOCS.parent / "pgqueue").rglob("*.py"), DOCS.parent / "tests" / "helpers" / "servers.py"]
    read = re.compile(r"environ(?:\.get\(|\[)\"((?:PGQUEUE|DATABASE)_\w+)\"")
    names = {name for path in sources for name in read.findall(path.read_text("utf-8"))}
    assert len(names) > 4
    page = (DOCS / "reference" / "settings.md").read_text("utf-8")
    assert {name for name in names if f"`{name}`" not in page} == set()
