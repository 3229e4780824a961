"""The Dockerfile, without an engine: its files, its RUN lines in a virtual environment, its CMD and its health check.

Of a real build this leaves out the base images, the engine's reading of the file, and USER: hosted CI builds the image.
"""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
import yaml
from checkout import CHECKOUT
from eventually import eventually

KUBERNETES = CHECKOUT / "docs" / "deployment" / "kubernetes"


class Line(NamedTuple):
    word: str
    rest: str


def lines() -> list[Line]:
    text = (CHECKOUT / "Dockerfile").read_text().replace("\\\n", " ")
    pairs = (line.partition(" ") for line in text.splitlines() if line and not line.startswith("#"))
    return [Line(word, " ".join(rest.split())) for word, _, rest in pairs]


def command(word: str) -> list[str]:
    (line,) = (one.rest for one in lines() if one.word == word)
    found: list[str] = json.loads(line[line.index("[") :])
    return found


def copied() -> list[tuple[list[str], str]]:
    """The sources and the target of each COPY from the checkout."""
    found = [one.rest.split() for one in lines() if one.word == "COPY" and not one.rest.startswith("--from")]
    return [(names[:-1], names[-1]) for names in found]


def let_through(name: str) -> bool:
    """Whether .dockerignore lets a path through: the last pattern that fits it or a folder above it counts."""
    result = True
    for pattern in (CHECKOUT / ".dockerignore").read_text().splitlines():
        if pattern and not pattern.startswith("#"):
            bare = pattern.removeprefix("!").removeprefix("**/")
            above = [name, *(str(path) for path in Path(name).parents)]
            places = Path(name).parts if "**/" in pattern else above
            if any(fnmatch.fnmatchcase(place, bare) for place in places):
                result = pattern.startswith("!")
    return result


def context(target: Path, sources: list[str], place: str) -> None:
    """Do a COPY."""
    for source in sources:
        origin = CHECKOUT / source
        assert let_through(source), source
        if origin.is_dir():
            shutil.copytree(origin, target / place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(origin, target / place)


@pytest.mark.slow
@pytest.mark.once
def test_the_image_is_built_and_its_worker_runs(dsn: str, tmp_path: Path) -> None:
    """The RUN lines build the wheel without a network, and leave the dependencies to the tests' environment."""
    for name in ("src", "app"):
        (tmp_path / name).mkdir()
    both = copied()
    for sources, place in both[:-1]:
        context(tmp_path / "src", sources, place)
    context(tmp_path / "app", *both[-1])
    (run,) = (one.rest for one in lines() if one.word == "RUN")
    for inside in ("/wheels", "/opt/pgqueue"):
        run = run.replace(inside, f"{tmp_path}{inside}")
    (tmp_path / "opt").mkdir()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    offline = {"PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1"}
    subprocess.run(["sh", "-ec", run], cwd=tmp_path / "src", env={**os.environ, **offline, "PATH": path}, check=True)

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    dependencies = str(Path(psycopg.__file__).parents[1])
    path = f"{tmp_path}/opt/pgqueue/bin:{path}"
    settings = {**os.environ, "PATH": path, "PYTHONPATH": dependencies, "PGQUEUE_DSN": dsn}
    probe = [part.replace(":8080", f":{port}") for part in command("HEALTHCHECK")]

    def healthy() -> bool:
        return subprocess.run(probe, env=settings, capture_output=True, check=False).returncode == 0

    assert not healthy()
    start = [port if part == "8080" else part for part in command("CMD")]
    which = shutil.which(start[0], path=path)
    assert which == f"{tmp_path}/opt/pgqueue/bin/pgqueue"
    with subprocess.Popen([which, *start[1:]], cwd=tmp_path / "app", env=settings) as worker:
        try:
            eventually(healthy)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(30) == 0
        finally:
            worker.kill()


def test_a_file_that_is_copied_is_let_through_by_dockerignore() -> None:
    sources = [source for names, _ in copied() for source in names]
    assert sources
    for source in sources:
        assert (CHECKOUT / source).exists()
        assert let_through(source)
    assert let_through("pgqueue/sql/1_tables/tasks.sql")
    left_out = [".git", ".venv/bin/python", "docs/index.md", "pgqueue/__pycache__/x.pyc", "pgqueue/sql/.env", ".ci/run"]
    assert not any(let_through(name) for name in left_out)


def test_the_image_is_not_run_as_root_and_signals_reach_the_worker() -> None:
    (user,) = (one.rest for one in lines() if one.word == "USER")
    assert int(user.partition(":")[0]) > 0
    start = command("CMD")  # a JSON list: no shell in between
    assert int(start[start.index("--grace") + 1]) < 10, "docker stop kills after 10 s"
    assert f":{start[start.index('--health') + 1]}/ready" in " ".join(command("HEALTHCHECK"))


APART = {"dashboard.yaml", "servers.yaml"}  # files with objects of their own


def objects() -> dict[str, Any]:
    files = [file for file in sorted(KUBERNETES.glob("*.yaml")) if file.name not in APART]
    return {one["kind"]: one for file in files for one in yaml.safe_load_all(file.read_text())}


def container(kind: str) -> dict[str, Any]:
    (found,) = objects()[kind]["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def test_the_objects_for_kubernetes_fit_each_other() -> None:
    """`.ci/lint` compares them with Kubernetes' own schema."""
    found = objects()
    assert set(found) == {"Deployment", "Job", "PodDisruptionBudget", "Secret"}
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for kind in ("Deployment", "PodDisruptionBudget"):
        assert found[kind]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    secret = found["Secret"]
    for kind in ("Deployment", "Job"):
        (variable,) = container(kind)["env"]
        reference = variable["valueFrom"]["secretKeyRef"]
        assert variable["name"] == "PGQUEUE_DSN"
        assert reference["name"] == secret["metadata"]["name"]
        assert reference["key"] in secret["stringData"]


def test_the_worker_in_kubernetes_has_probes_and_time_to_stop() -> None:
    start = container("Deployment")["command"]
    given = dict(zip(start[3::2], start[4::2], strict=True))
    pod = objects()["Deployment"]["spec"]["template"]["spec"]
    assert float(given["--grace"]) + 5 < pod["terminationGracePeriodSeconds"]
    (port,) = container("Deployment")["ports"]
    assert given["--health"] == f"0.0.0.0:{port['containerPort']}"
    probes = {name: container("Deployment")[name]["httpGet"] for name in ("readinessProbe", "livenessProbe")}
    assert probes == {
        "readinessProbe": {"path": "/ready", "port": port["name"]},
        "livenessProbe": {"path": "/live", "port": port["name"]},
    }


def test_the_dashboard_in_kubernetes_has_its_secrets_and_its_port() -> None:
    """Its page tells how the Secret is made."""
    made = {one["kind"]: one for one in yaml.safe_load_all((KUBERNETES / "dashboard.yaml").read_text())}
    (only,) = made["Deployment"]["spec"]["template"]["spec"]["containers"]
    (port,) = only["ports"]
    assert only["command"][:2] == ["pgqueue", "dashboard"]
    assert only["command"][-1] == str(port["containerPort"])
    labels = made["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert labels == made["Deployment"]["spec"]["selector"]["matchLabels"] == made["Service"]["spec"]["selector"]
    (served,) = made["Service"]["spec"]["ports"]
    assert served["targetPort"] == port["name"]
    page = (KUBERNETES.parent / "dashboard.md").read_text("utf-8")
    for variable in only["env"]:
        reference = variable["valueFrom"]["secretKeyRef"]
        assert f"create secret generic {reference['name']} " in page
        assert f"--from-literal={reference['key']}=" in page
    assert {variable["name"] for variable in only["env"]} == {"PGQUEUE_DSN", "PGQUEUE_DASHBOARD_PASSWORD_HASH"}


def test_hosted_ci_runs_the_checks_with_few_rights() -> None:
    flow = yaml.safe_load((CHECKOUT / ".github" / "workflows" / "ci.yml").read_text())
    assert set(flow[True]) == {"push", "pull_request"}  # YAML 1.1 reads `on` as true
    assert flow["permissions"] == {"contents": "read"}
    checks = flow["jobs"]["checks"]
    assert checks["timeout-minutes"] == 90
    assert ".ci/run" in [step.get("run") for step in checks["steps"]]
    pyproject = (CHECKOUT / "pyproject.toml").read_text()
    assert all(f'Python :: {version}"' in pyproject for version in checks["strategy"]["matrix"]["python"])
    for job in flow["jobs"].values():
        used = [step["uses"] for step in job["steps"] if "uses" in step]
        assert all(name.startswith("actions/") and name.partition("@v")[2].isdecimal() for name in used)


def test_each_of_several_servers_has_a_number_and_workers() -> None:
    secret, *others = yaml.safe_load_all((KUBERNETES / "servers.yaml").read_text())
    assert [one["kind"] for one in others] == ["Job", "Deployment"] * 2
    for number, (job, deployment) in enumerate(zip(others[::2], others[1::2], strict=True), 1):
        (migrate,) = job["spec"]["template"]["spec"]["containers"]
        (worker,) = deployment["spec"]["template"]["spec"]["containers"]
        assert migrate["command"] == ["pgqueue", "migrate", "up", "--server", str(number)]
        for each in (migrate, worker):
            (variable,) = each["env"]
            reference = variable["valueFrom"]["secretKeyRef"]
            assert reference == {"name": secret["metadata"]["name"], "key": f"dsn-{number}"}
            assert reference["key"] in secret["stringData"]
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert deployment["spec"]["selector"]["matchLabels"] == labels
