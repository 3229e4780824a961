"""The compose files, and the DSNs of docker-compose.yml that the documentation names."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from checkout import CHECKOUT
from psycopg.conninfo import conninfo_to_dict

from pgqueue.dashboard.guarding import checked_hash, is_password

PAGES = [CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md", *sorted(CHECKOUT.glob("docs/**/*.md"))]
SERVICES: dict[str, Any] = yaml.safe_load((CHECKOUT / "docker-compose.yml").read_text())["services"]
SETTINGS: dict[str, str] = SERVICES["db"]["environment"]
((ADDRESS, PORT),) = re.findall(r"^(.*):(\d+):5432$", "\n".join(SERVICES["db"]["ports"]), re.MULTILINE)
NAMED = [
    (page.name, dsn)
    for page in PAGES
    for dsn in re.findall(r"postgres(?:ql)?://[^\s\"'`<>)]+", page.read_text("utf-8"))
    if f":{PORT}" in dsn
]


def test_only_this_machine_reaches_it() -> None:
    assert ADDRESS == "127.0.0.1"


def test_the_documentation_names_its_dsn() -> None:
    assert NAMED


@pytest.mark.parametrize(("page", "dsn"), NAMED)
def test_a_dsn_in_the_documentation_fits_it(page: str, dsn: str) -> None:
    told = conninfo_to_dict(dsn)
    assert (told["host"], told["port"]) == (ADDRESS, PORT)
    assert_opens(told)


@pytest.mark.parametrize("name", ["migrate", "worker", "dashboard"])
def test_a_service_of_the_image_has_its_dsn(name: str) -> None:
    told = conninfo_to_dict(SERVICES[name]["environment"]["PGQUEUE_DSN"])
    assert told["host"] == "db"
    assert told.get("port", "5432") == "5432"
    assert_opens(told)
    assert SERVICES[name]["build"] == "."


def test_the_schema_is_installed_between_the_server_and_the_worker() -> None:
    assert SERVICES["migrate"]["depends_on"] == {"db": {"condition": "service_healthy"}}
    assert SERVICES["migrate"]["command"] == ["pgqueue", "migrate", "up"]
    assert SERVICES["migrate"]["healthcheck"] == {"disable": True}
    assert SERVICES["worker"]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}


def test_the_dashboard_has_the_password_that_is_told_and_is_published_on_loopback() -> None:
    service = SERVICES["dashboard"]
    assert is_password("pgqueue-example", checked_hash(service["environment"]["PGQUEUE_DASHBOARD_PASSWORD_HASH"]))
    assert "pgqueue-example" in (CHECKOUT / "docs" / "deployment" / "docker.md").read_text("utf-8")
    assert service["ports"] == ["127.0.0.1:9188:9188"]
    assert service["command"][:2] == ["pgqueue", "dashboard"]
    assert service["healthcheck"] == {"disable": True}
    assert service["depends_on"] == SERVICES["worker"]["depends_on"]


def test_it_is_healthy_once_it_answers_over_tcp() -> None:
    """While the image initialises, a server without TCP runs for a moment."""
    kind, command, *options = SERVICES["db"]["healthcheck"]["test"]
    assert (kind, command) == ("CMD", "pg_isready")
    assert options == ["-h", "127.0.0.1", "-U", SETTINGS["POSTGRES_USER"]]


def test_the_tests_use_the_same_image() -> None:
    assert f'"{SERVICES["db"]["image"]}"' in (CHECKOUT / "tests" / "helpers" / "servers.py").read_text()


def assert_opens(told: dict[str, Any]) -> None:
    asked = SETTINGS["POSTGRES_USER"], SETTINGS["POSTGRES_PASSWORD"], SETTINGS["POSTGRES_DB"]
    assert (told["user"], told["password"], told["dbname"]) == asked


# --- docker-compose.citus.yml

CITUS: dict[str, Any] = yaml.safe_load((CHECKOUT / "docker-compose.citus.yml").read_text())["services"]


def test_the_nodes_of_citus_are_migrated_in_order() -> None:
    """The coordinator comes first, and each node has a worker."""
    told = re.findall(r"--dsn (\S+) migrate up --server (\d+)", CITUS["migrate"]["command"][-1])
    hosts = [conninfo_to_dict(dsn)["host"] for dsn, _ in told]
    assert hosts == ["coordinator", "node1", "node2"]
    assert [number for _, number in told] == ["1", "2", "3"]
    workers = [service for service in CITUS.values() if "PGQUEUE_DSN" in service.get("environment", {})]
    assert [service["environment"]["PGQUEUE_DSN"] for service in workers] == [dsn for dsn, _ in told]
    assert all(service["depends_on"] == SERVICES["worker"]["depends_on"] for service in workers)


def test_the_nodes_of_citus_are_reached_from_this_machine_only() -> None:
    assert [port for service in CITUS.values() for port in service.get("ports", [])] == ["127.0.0.1:54330:5432"]
