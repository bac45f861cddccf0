"""The containers run the same commands as the lab, and hold no secret."""

from pathlib import Path

import pytest
import yaml

from include.lab import components
from include.lab.services import resolved

ROOT = Path(__file__).parents[3]
COMPOSE = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())
SERVICES = COMPOSE["services"]


@pytest.mark.parametrize(
    "component",
    [*components.AIRFLOW, components.GATEWAY, components.WORKER, components.MIGRATE],
    ids=lambda one: one.name,
)
def test_a_container_runs_the_command_that_the_lab_runs(component: components.Component) -> None:
    assert tuple(SERVICES[component.name]["command"]) == component.command
    program, *rest = resolved(component)
    assert (Path(program).name, *rest) == (*component.command, *component.on_one_disk)


def test_nothing_else_but_the_database_and_the_broker_runs() -> None:
    known = {one.name for one in (*components.AIRFLOW, components.GATEWAY, components.WORKER, components.MIGRATE)}
    assert SERVICES.keys() - known == {"postgres", "rabbitmq"}


def test_airflow_waits_for_its_tables_and_those_for_the_database() -> None:
    for component in (*components.AIRFLOW, components.WORKER):
        assert SERVICES[component.name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
    assert SERVICES["migrate"]["depends_on"]["postgres"] == {"condition": "service_healthy"}


def test_every_container_gets_its_secrets_from_the_untracked_file() -> None:
    for name, service in SERVICES.items():
        assert service["env_file"] == "secrets.env", name
        for key, value in service["environment"].items():
            assert not any(word in key for word in ("PASSWORD", "SECRET", "FERNET", "CONN")), (name, key, value)


def test_every_named_volume_is_declared() -> None:
    named = {volume.partition(":")[0] for service in SERVICES.values() for volume in service.get("volumes", ())}
    assert {volume for volume in named if not volume.startswith((".", "/"))} == COMPOSE["volumes"].keys()


def test_the_signing_keys_are_mounted_into_the_gateway_alone() -> None:
    holders = [
        name for name, service in SERVICES.items() if any("keys" in volume for volume in service.get("volumes", ()))
    ]
    assert holders == ["gateway"]


def test_the_folder_is_not_importable() -> None:
    assert not (ROOT / "docker/__init__.py").exists()


def test_the_image_starts_nothing_that_its_file_does_not_copy() -> None:
    text = (ROOT / "docker/Dockerfile").read_text()
    assert "USER nightshift" in text
    assert text.index("COPY requirements.txt") < text.index("COPY . .")
