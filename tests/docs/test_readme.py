"""What the README and the pages beside the site say of files, examples and commands."""

import re

import pytest
from captions import README, blocks
from checkout import CHECKOUT


@pytest.mark.once
@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_the_links_of_a_page_beside_the_docs_lead_to_files(name):
    """Those within docs/ are checked in the site."""
    targets = re.findall(r"\]\(([^)#\s]+)", (CHECKOUT / name).read_text("utf-8"))
    assert [target for target in targets if "://" not in target and not (CHECKOUT / target).exists()] == []


@pytest.mark.once
@pytest.mark.parametrize(
    "excerpt", [block.text for block in blocks(README) if block.language == "py"], ids=lambda text: text.split("\n")[0]
)
def test_the_readmes_excerpts_stand_in_the_examples(excerpt):
    """Those have tests of their own, which run them as their users would."""
    assert any(excerpt.strip() in path.read_text("utf-8") for path in CHECKOUT.glob("examples/**/*.py"))


@pytest.mark.once
def test_the_two_commands_stand_near_the_top():
    first, second = [block.text for block in blocks(README) if block.language == "sh"][:2]
    assert first.rstrip().endswith("pgqueue demo")
    assert second.rstrip().endswith("pytest")
    assert all(len(command.strip().splitlines()) == 1 for command in (first, second))
