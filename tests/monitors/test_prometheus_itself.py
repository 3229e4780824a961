"""Debian's Prometheus, where it is installed: its tool checks the rules, and the server scrapes `pgqueue metrics`."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from checkout import CHECKOUT
from commands import started

import pgqueue

yaml = pytest.importorskip("yaml")
PROMTOOL, PROMETHEUS = shutil.which("promtool"), shutil.which("prometheus")
pytestmark = [
    pytest.mark.once,
    pytest.mark.slow,
    pytest.mark.skipif(PROMTOOL is None, reason="needs promtool: apt-get install prometheus"),
]

RULES = CHECKOUT / "examples" / "monitoring" / "pgqueue-rules.yml"
GUIDE = CHECKOUT / "docs" / "guides" / "metrics.md"
DEADLINE = 60.0  # seconds for the server's answers
READY = 'pgqueue_tasks{instance="db", queue="mail", state="ready"}'
BURIED = 'pgqueue_calls_total{instance="db", queue="mail", verb="bury"}'
#: Samples, one a minute, and the alerts that are to fire at the tenth minute: each rule once, and a quiet hour.
SERIES: dict[str, tuple[dict[str, str], set[str]]] = {
    "quiet": (
        {
            READY: "3x15",
            BURIED: "7x15",
            'pgqueue_up{instance="db"}': "1x15",
            'pgqueue_sessions{instance="db"}': "2x15",
            "pgqueue_workers": "2x15",
            'pgqueue_oldest_ready_age_seconds{queue="mail"}': "5x15",
            'pgqueue_health_status{check="buried"}': "1x15",
            'pgqueue_schedule_failed{schedule="nightly"}': "0x15",
            'pgqueue_job_runs_total{outcome="done", job="send"}': "0+60x15",
        },
        set(),
    ),
    "the database is gone": ({"pgqueue_up": "0x15"}, {"QueuesNotRead"}),
    "tasks wait": ({'pgqueue_oldest_ready_age_seconds{queue="mail"}': "0+60x15"}, {"QueueTooSlow"}),
    "tasks are buried": ({BURIED: "0x8 3x7"}, {"TasksBuried"}),
    "no client takes": ({'pgqueue_health_status{check="unattended"}': "1x15"}, {"NoTaker"}),
    "a schedule is late": ({"pgqueue_schedule_late_seconds": "0+60x15"}, {"ScheduleLate"}),
    "a schedule failed": ({"pgqueue_schedule_failed": "1x15"}, {"ScheduleFailed"}),
    "a check is bad": ({'pgqueue_health_status{check="tick"}': "2x15"}, {"QueuesUnwell"}),
    "a job fails": ({'pgqueue_job_runs_total{outcome="failed", job="send"}': "0x8 1x7"}, {"JobFails"}),
    "a job times out": ({"pgqueue_job_timeouts_total": "0x8 1x7"}, {"JobTimesOut"}),
    "no worker runs": ({"pgqueue_workers": "0x15"}, {"NoWorker"}),
    "a queue has no worker": ({'pgqueue_health_status{check="unserved"}': "1x15"}, {"QueueUnserved"}),
}
#: The same for alerts that compare, or last, for longer: at the fortieth minute.
SLOW: dict[str, tuple[dict[str, str], set[str]]] = {
    "a queue grows": ({READY: "1x38 1000x6"}, {"QueueTooLong"}),
    "half of the runs are retried": (
        {
            'pgqueue_job_runs_total{outcome="retried", job="send"}': "0+60x45",
            'pgqueue_job_runs_total{outcome="done", job="send"}': "0+60x45",
        },
        {"JobRetriesOften"},
    ),
    "a job starts late": (
        {
            'pgqueue_job_wait_seconds_bucket{job="send", le="60"}': "0x45",
            'pgqueue_job_wait_seconds_bucket{job="send", le="300"}': "0+60x45",
            'pgqueue_job_wait_seconds_bucket{job="send", le="+Inf"}': "0+60x45",
        },
        {"JobStartsLate"},
    ),
}


def rules() -> list[dict[str, Any]]:
    found = yaml.safe_load(RULES.read_text("utf-8"))
    return [rule for group in found["groups"] for rule in group["rules"]]


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    assert PROMTOOL
    command = [PROMTOOL, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)


def configuration() -> dict[str, Any]:
    """The one of the guide."""
    (block,) = re.findall(r"\*\*`prometheus\.yml`\*\*\n```yaml\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    found: dict[str, Any] = yaml.safe_load(block)
    return found


def test_promtool_accepts_the_rules_and_the_guides_configuration(tmp_path: Path) -> None:
    done = promtool("check", "rules", RULES)
    assert done.returncode == 0, done.stderr
    assert f"{len(rules())} rules found" in done.stdout
    file = tmp_path / "prometheus.yml"
    file.write_text(yaml.safe_dump(configuration() | {"rule_files": [str(RULES)]}), "utf-8")
    done = promtool("check", "config", file)
    assert done.returncode == 0, done.stderr


def unit_test(series: dict[str, str], expected: set[str], minute: int) -> dict[str, Any]:
    """A test as promtool reads it: which of all alerts fire."""
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(expected)],
            }
        ],
    }


@pytest.mark.parametrize("name", [*SERIES, *SLOW])
def test_a_rule_fires_when_it_should(name: str, tmp_path: Path) -> None:
    series, expected = (SERIES | SLOW)[name]
    test = unit_test(series, expected, 10 if name in SERIES else 40)
    file = tmp_path / "tests.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": [test]}), "utf-8")
    done = promtool("test", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_rule_is_among_these() -> None:
    assert {rule["alert"] for rule in rules()} == {name for _, names in (SERIES | SLOW).values() for name in names}


@contextmanager
def prometheus(folder: Path, metrics: str) -> Iterator[str]:
    """The address of a Prometheus with the guide's configuration, but for the target and shorter intervals."""
    assert PROMETHEUS
    given = configuration()
    (scraped,) = given["scrape_configs"]
    scraped["static_configs"] = [{"targets": [metrics]}]
    given |= {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "rule_files": [str(RULES)]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(given), "utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [PROMETHEUS, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    log = folder / "log"
    with (
        log.open("w") as out,
        subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=out, stderr=out, cwd=folder) as process,
    ):
        try:
            yield f"http://{address}"
        except BaseException:
            print(log.read_text()[-3000:])
            raise
        finally:
            process.terminate()


def asked(address: str, path: str, **query: str) -> Any:
    """The data of an answer of Prometheus; None while it does not answer."""
    try:
        with urllib.request.urlopen(f"{address}{path}?{urllib.parse.urlencode(query)}", timeout=10) as answer:
            return json.load(answer)["data"]
    except OSError:  # it is starting
        return None


def until(found: Any) -> Any:
    """What a function finds, once it is something. Not `eventually`: Prometheus has its own pace."""
    end = time.monotonic() + DEADLINE
    while not (value := found()) and time.monotonic() < end:
        time.sleep(0.2)
    assert value
    return value


@pytest.mark.skipif(PROMETHEUS is None, reason="needs prometheus: apt-get install prometheus")
def test_prometheus_scrapes_the_metrics_and_evaluates_the_rules(dsn: str, tmp_path: Path) -> None:
    with (
        pgqueue.Client(dsn) as client,
        started("metrics", "--port", "0", settings={"PGQUEUE_DSN": dsn}, stdout=subprocess.PIPE, text=True) as command,
    ):
        mail = client.queue("mail")
        mail.put_many([1, 2, 3])
        found = re.fullmatch(r"serving on http://(\S+)/metrics\n", command.stdout.readline())
        assert found
        with prometheus(tmp_path, found[1]) as address:

            def value(query: str) -> list[tuple[dict[str, str], float]]:
                data = asked(address, "/api/v1/query", query=query) or {"result": []}
                return [(one["metric"], float(one["value"][1])) for one in data["result"]]

            until(lambda: value("pgqueue_up"))
            ((labels, length),) = until(lambda: value('pgqueue_tasks{queue="mail", state="ready"}'))
            assert (labels["job"], length) == ("pgqueue", 3)
            mail.take(5).bury(error="the disk is full")
            firing = 'ALERTS{alertname="TasksBuried", alertstate="firing", queue="mail"}'
            until(lambda: value(firing))
            groups = asked(address, "/api/v1/rules")["groups"]
            states = {
                rule["name"]: (rule["health"], rule.get("lastError", "")) for one in groups for rule in one["rules"]
            }
            assert states == {rule["alert"]: ("ok", "") for rule in rules()}
            (up,) = until(lambda: value("pgqueue_up"))  # a scrape that took a second leaves none until the next one
            assert up == ({"__name__": "pgqueue_up", "instance": found[1], "job": "pgqueue"}, 1.0)
