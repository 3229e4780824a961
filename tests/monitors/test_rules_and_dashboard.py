"""The rules of Prometheus and the dashboard of Grafana ask for metrics, labels and values that are exported."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import psycopg
import pytest
from checkout import CHECKOUT
from statements import column

from pgqueue._calls.stats import VERBS
from pgqueue.monitors.exposition import HISTOGRAMS, METRICS, OUTCOMES, STATES

Values = dict[tuple[str, str], set[str]]  # by the name of a metric and of its label
yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.once

FOLDER = CHECKOUT / "examples" / "monitoring"
GUIDES = CHECKOUT / "docs" / "guides"

#: The labels of each exported sample, by its name.
EXPORTED = {
    **{one.name + ("_total" if one.kind == "counter" else ""): set(one.labels) for one in METRICS},
    **{f"{one.name}_{part}": set(one.labels) for one in HISTOGRAMS for part in ("count", "sum")},
    **{f"{one.name}_bucket": {*one.labels, "le"} for one in HISTOGRAMS},
}
SCRAPED = {"instance"}  # of the target. `job` is one of ours, by honor_labels
FUNCTIONS = {"avg_over_time", "clamp_min", "count", "histogram_quantile", "increase", "max", "rate", "sum", "vector"}
WORDS = {"and", "or", "by", "on"}
TOKEN = re.compile(
    r"""(?P<matchers>\{[^{}]*\}) | (?P<range>\[[^\[\]]+\]) | (?P<labels>\b(?:by|on)\s*\([^()]*\))
      | (?P<name>[a-zA-Z_:][\w:]*) | (?P<number>\d+(?:\.\d+)?) | (?P<sign>==|!=|>=|<=|[-+*/<>(),]) | (?P<space>\s+)""",
    re.VERBOSE,
)
MATCHER = re.compile(r'\s*(\w+)\s*(=~|!~|=|!=)\s*"([^"]*)"\s*(?:,|$)')
RANGE = re.compile(r"\[(?:\d+[smhd](?::\d+[smhd])?|\$__rate_interval)\]")


class Asked(NamedTuple):
    """What an expression asks for: metrics, each with the labels and values that it has to have, and other labels."""

    metrics: list[tuple[str, list[tuple[str, str]]]]
    labels: set[str]


def parse(expression: str) -> Asked:
    """Read an expression of PromQL. Raises AssertionError for what it does not know."""
    metrics: list[tuple[str, list[tuple[str, str]]]] = []
    labels: set[str] = set()
    at, depth = 0, 0
    while at < len(expression):
        token = TOKEN.match(expression, at)
        assert token, f"{expression[at:]!r} in {expression}"
        kind, text = str(token.lastgroup), token[0]
        if kind == "name" and text not in FUNCTIONS | WORDS:
            metrics.append((text, []))
        elif kind == "labels":
            labels |= set(re.findall(r"\w+", text.partition("(")[2]))
        elif kind == "range":
            assert RANGE.fullmatch(text), text
        elif kind == "matchers":
            found = MATCHER.findall(text[1:-1])
            assert MATCHER.sub("", text[1:-1]).strip() == "", text
            metrics[-1][1].extend((name, value) for name, _, value in found)
        depth += (text == "(") - (text == ")")
        assert depth >= 0, expression
        at = token.end()
    assert depth == 0, expression
    return Asked(metrics, labels)


def problems(expression: str, values: Values) -> Iterator[str]:
    """What an expression asks for and does not get."""
    asked = parse(expression)
    for name, matchers in asked.metrics:
        if name not in EXPORTED:
            yield f"{name} is not exported"
            continue
        known = EXPORTED[name] | SCRAPED
        yield from (f"{name} has no label {label}" for label, _ in matchers if label not in known)
        yield from (f"{name} has no label {label}" for label in asked.labels if label not in known)
        yield from (
            f"{label} is never {one}"
            for label, value in matchers
            if (name, label) in values
            for one in value.split("|")
            if one not in values[name, label]
        )


@pytest.fixture(scope="module")
def values(shared: str) -> Values:
    """The values that a label of a metric may have."""
    with psycopg.connect(shared, autocommit=True) as conn:
        checks = set(column(conn, "SELECT name FROM pgqueue.health"))
    return {
        ("pgqueue_tasks", "state"): {*STATES},
        ("pgqueue_batches", "state"): {"open", "running", "failed"},
        ("pgqueue_batch_tasks", "state"): {"open", "failed"},
        ("pgqueue_calls_total", "verb"): {*VERBS},
        ("pgqueue_job_runs_total", "outcome"): {*OUTCOMES},
        ("pgqueue_health_status", "check"): checks,
    }


def rules() -> list[dict[str, Any]]:
    found = yaml.safe_load((FOLDER / "pgqueue-rules.yml").read_text("utf-8"))
    return [rule for group in found["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "grafana.json").read_text("utf-8"))
    return found


def expressions() -> list[str]:
    of_panels = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    table = (GUIDES / "metrics.md").read_text("utf-8").partition("| panel |")[2].partition("\n\n")[0]
    of_guide = re.findall(r"`([^`]+)`", table)
    assert of_guide
    return [*(rule["expr"] for rule in rules()), *of_panels, *(one.replace(r"\|", "|") for one in of_guide)]


@pytest.mark.parametrize("expression", expressions())
def test_an_expression_asks_for_what_is_exported(expression: str, values: Values) -> None:
    assert list(problems(expression, values)) == []
    assert parse(expression).metrics


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("pgqueue_task > 1", "pgqueue_task is not exported"),
        ("rate(pgqueue_done[1m])", "pgqueue_done is not exported"),
        ("sum by (host) (pgqueue_tasks)", "pgqueue_tasks has no label host"),
        ('pgqueue_done_total{state="ready"}', "pgqueue_done_total has no label state"),
        ('pgqueue_calls_total{verb=~"put|lose"}', "verb is never lose"),
        ("sum by (le) (pgqueue_job_run_seconds_sum)", "pgqueue_job_run_seconds_sum has no label le"),
    ],
)
def test_an_expression_that_asks_for_something_else_is_found(expression: str, problem: str, values: Values) -> None:
    assert list(problems(expression, values)) == [problem]


def test_the_rules_are_those_of_the_guides() -> None:
    blocks = [
        block
        for page in ("metrics", "job-statistics")
        for block in re.findall(
            r"\*\*`pgqueue-rules\.yml`\*\*\n```yaml\n(.*?)```", (GUIDES / f"{page}.md").read_text("utf-8"), re.DOTALL
        )
    ]
    guides = [rule for block in blocks for group in yaml.safe_load(block)["groups"] for rule in group["rules"]]
    assert rules() == guides
    assert len({rule["alert"] for rule in guides}) == len(guides) > 10


def test_the_dashboard_shows_each_kind_of_metric() -> None:
    shown = {name for panel in dashboard()["panels"] for t in panel["targets"] for name, _ in parse(t["expr"]).metrics}
    assert {one.name for one in METRICS} - {name.removesuffix("_total") for name in shown} == {
        "pgqueue_health_value",  # in units of their own
        "pgqueue_limit_rate",
        "pgqueue_schedule_last_timestamp_seconds",
    }
    assert {f"{one.name}_bucket" for one in HISTOGRAMS} <= shown


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    found = dashboard()
    places = [panel["gridPos"] for panel in found["panels"]]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in found["panels"]}) == len(found["panels"])
    assert all(panel["title"] and panel["description"] for panel in found["panels"])


def test_the_dashboard_takes_its_data_from_the_chosen_source() -> None:
    found = dashboard()
    variables = {one["name"]: one for one in found["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)\}?", json.dumps(found["panels"]))) - {"__rate_interval"}
    assert used <= set(variables)
    sources = {json.dumps(t["datasource"]) for panel in found["panels"] for t in [panel, *panel["targets"]]}
    assert sources == {json.dumps({"type": "prometheus", "uid": "${source}"})}
    for name in ("instance", "queue"):
        metric, label = re.fullmatch(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", variables[name]["definition"]).groups()  # type: ignore[union-attr]
        assert label in EXPORTED[metric] | SCRAPED
