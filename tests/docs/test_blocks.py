"""What the README and the guides in docs/ show is run, block by block."""

import os
import re
import subprocess
import sys

import pytest
from checkout import CHECKOUT
from walking import PAGES

README = CHECKOUT / "README.md"
# tests/docs/test_walks.py has the other pages, which are followed from top to bottom.
GUIDES = [page for page in sorted(CHECKOUT.glob("docs/**/*.md")) if page not in PAGES]


def blocks(language, *pages):
    return [
        text
        for page in pages or (README,)
        for tag, text in re.findall(r"^```(\w+)\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
        if tag == language
    ]


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize("code", blocks("python", README, *GUIDES), ids=lambda code: code.strip().splitlines()[-1])
def test_python_blocks_run(code, dsn, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "PGQUEUE_DSN": dsn},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr


def test_sql_block_runs_in_psql_order(db):
    (block,) = blocks("sql")
    answers = {}
    for line in filter(None, block.splitlines()):
        statement = line.partition("--")[0].strip()
        answers[statement] = db.execute(statement).fetchall()
    assert answers["SELECT * FROM pgqueue.ack(2);"] == [("done", None, None, None)]
    stats = answers["SELECT queue, ready, delayed, taken, buried FROM pgqueue.stats;"]
    assert stats == [("mail", 0, 1, 1, 0)]


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_sql_blocks_of_the_guides_run(page, db):
    for block in blocks("sql", page):
        bare = "\n".join(line.partition("--")[0].rstrip() for line in block.splitlines())
        for statement in re.split(r";$", bare, flags=re.MULTILINE):
            db.execute(statement)


@pytest.mark.once
@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_the_links_of_a_page_beside_the_docs_lead_to_files(name):
    """Those within docs/ are checked in the site."""
    targets = re.findall(r"\]\(([^)#\s]+)", (CHECKOUT / name).read_text("utf-8"))
    assert [target for target in targets if "://" not in target and not (CHECKOUT / target).exists()] == []


@pytest.mark.once
@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_shell_blocks_of_the_guides_are_a_shells_syntax(page):
    """Those of docs/guides/cli.md are run by a test of their own."""
    for block in blocks("sh", page):
        subprocess.run(["bash", "-n"], input=block, check=True, text=True)


@pytest.mark.parametrize("excerpt", blocks("py"), ids=lambda code: code.strip().splitlines()[0])
def test_the_readmes_excerpts_stand_in_the_examples(excerpt):
    """Those have tests of their own, which run them as their users would."""
    assert any(excerpt.strip() in path.read_text("utf-8") for path in CHECKOUT.glob("examples/**/*.py"))


def test_the_two_commands_stand_near_the_top():
    first, second = blocks("sh")[:2]
    assert first.rstrip().endswith("pgqueue demo")
    assert second.rstrip().endswith("pytest")
    assert all(len(command.strip().splitlines()) == 1 for command in (first, second))
