"""The compose file keeps the promises of the README: authenticated, loopback only, no work on the head."""

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
COMPOSE = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8"))
SERVICES = sorted(COMPOSE["services"])


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest) -> dict[str, Any]:
    return COMPOSE["services"][request.param]


def test_every_service_asks_for_the_token(service: dict[str, Any]) -> None:
    assert service["environment"]["RAY_AUTH_MODE"] == "token"
    assert service["secrets"] == ["ray_token"]


def test_every_service_reaps_children_and_has_shared_memory(service: dict[str, Any]) -> None:
    assert service["init"] is True
    assert service["shm_size"] == "1gb"


def test_ports_are_published_on_loopback_only(service: dict[str, Any]) -> None:
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_the_head_runs_no_work() -> None:
    assert "--num-cpus=0" in COMPOSE["services"]["head"]["command"]


def test_the_job_waits_for_a_healthy_cluster() -> None:
    awaited = COMPOSE["services"]["submit"]["depends_on"]
    assert awaited == {name: {"condition": "service_healthy"} for name in ("head", "worker")}
    assert all("healthcheck" in COMPOSE["services"][name] for name in awaited)


def test_the_token_is_neither_committed_nor_copied_into_the_image() -> None:
    token = f"docker/{COMPOSE['secrets']['ray_token']['file']}"
    assert f"/{token}" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in ignored
    assert not any(line.startswith("!docker") for line in ignored)
