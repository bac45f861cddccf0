"""The image: pinned, not root, nothing secret in it; and the script that makes a deployment's secrets."""

from __future__ import annotations

import base64
import re
import subprocess
from pathlib import Path

import pytest

from tests.fakes import compose

ROOT = compose.ROOT
DOCKERFILE = (ROOT / "docker/Dockerfile").read_text()
MAKE_ENV = ROOT / "docker/make-env"


def settings() -> dict[str, str]:
    block = DOCKERFILE.partition("\nENV ")[2].partition("\n\n")[0]
    return dict(line.strip().removesuffix("\\").strip().split("=", 1) for line in block.splitlines())


def pins(file: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / file).read_text(), re.MULTILINE))


def ignored(file: str) -> list[str]:
    return [line for line in (ROOT / file).read_text().splitlines() if line and not line.startswith("#")]


def test_the_base_is_pinned_and_the_dependencies_are_hash_checked() -> None:
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) == {"${PYTHON_IMAGE}"}
    assert re.findall(r"^ARG (.*)", DOCKERFILE, re.MULTILINE) == ["PYTHON_IMAGE=python:3.11.14-slim-bookworm"]
    installs = re.findall(r"pip (?:install|sync) .*", DOCKERFILE)
    assert len(installs) == 4
    assert not (ROOT / "docker/__init__.py").exists(), "the folder is not importable"
    assert [line for line in installs if "--require-hashes" not in line and "--no-deps --editable ." not in line] == []


def test_the_image_carries_the_lock_of_production_alone() -> None:
    (sync,) = re.findall(r"uv pip sync .*", DOCKERFILE.replace("\\\n", ""))
    assert re.findall(r"\S+\.txt", sync) == ["requirements.txt", "requirements-image.txt"]
    production, image = (pins(file) for file in ("requirements.txt", "requirements-image.txt"))
    assert {name: pin for name, pin in image.items() if production.get(name, pin) != pin} == {}
    assert "apache-airflow-providers-fab" in image.keys() - production.keys()
    assert settings()["AIRFLOW__CORE__AUTH_MANAGER"].startswith("airflow.providers.fab.")
    last = DOCKERFILE.rpartition("\nFROM ")[2]
    assert re.findall(r"COPY .*", last) == ["COPY --from=environment /opt/venv /opt/venv", "COPY . ."]
    (install,) = re.findall(r"pip (?:install|sync) .*", last)
    assert install.endswith("--no-deps --editable .")


def test_it_does_not_run_as_root_and_owns_its_folders() -> None:
    users = re.findall(r"^USER (.*)$", DOCKERFILE, re.MULTILINE)
    assert users == re.findall(r"--uid (\d+)", DOCKERFILE) != ["0"]
    assert DOCKERFILE.rindex("USER") > DOCKERFILE.rindex("uv pip install")


def test_it_finds_its_state_its_configuration_and_its_dags() -> None:
    there = {key: value.replace("/opt/nightshift", str(ROOT)) for key, value in settings().items()}
    for name in ("AIRFLOW_CONFIG", "AIRFLOW__CORE__DAGS_FOLDER", "AIRFLOW__CORE__PLUGINS_FOLDER", "NIGHTSHIFT_HOME"):
        assert Path(there[name]).exists(), name
    assert there["AIRFLOW_HOME"].startswith(there["NIGHTSHIFT_VAR"])


def test_secrets_go_neither_into_the_image_nor_into_the_repository() -> None:
    for path in ("docker/.env", "docker/keys"):
        assert path in ignored(".dockerignore")
        assert path in {line.rstrip("/") for line in ignored(".gitignore")}


def made(path: Path) -> dict[str, str]:
    subprocess.run([MAKE_ENV, path], check=True, capture_output=True)
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def test_the_script_makes_what_the_compose_file_needs_and_no_two_alike(tmp_path: Path) -> None:
    first, second = made(tmp_path / "one"), made(tmp_path / "two")
    assert first.keys() == compose.required()
    assert len({*first.values(), *second.values()}) == 2 * len(first)
    assert (tmp_path / "one").stat().st_mode & 0o777 == 0o600
    # they are written into URLs, JSON and YAML, and neither `docker compose` nor a shell finds anything in them
    assert all(re.fullmatch(r"[A-Za-z0-9_=-]{16,}", value) for value in first.values())
    assert len(first["JWT_SECRET"]) >= 64, "Airflow warns below"
    assert len(base64.urlsafe_b64decode(first["FERNET_KEY"])) == 32


def test_the_script_adds_what_a_file_lacks_and_replaces_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "env"
    first = made(path)
    path.write_text(
        path.read_text().replace(f"CELERY_PASSWORD={first['CELERY_PASSWORD']}\n", "NIGHTSHIFT_CONFIG=mine\n")
    )
    again = subprocess.run([MAKE_ENV, path], check=True, capture_output=True, text=True)
    assert again.stdout == f"added CELERY_PASSWORD to {path}\n"
    second = made(path)
    assert second.pop("NIGHTSHIFT_CONFIG") == "mine"
    assert {name for name in first if first[name] != second[name]} == {"CELERY_PASSWORD"}


@pytest.mark.parametrize(
    "last", ["NIGHTSHIFT_CONFIG=mine", "NIGHTSHIFT_CONFIG=mine\n", "", "JWT_SECRET=", 'JWT_SECRET=""\n']
)
def test_the_script_keeps_a_last_line_without_an_end_and_fills_an_empty_value(tmp_path: Path, last: str) -> None:
    path = tmp_path / "env"
    path.write_text(f'CELERY_PASSWORD="mine\'s"\n{last}')
    values = made(path)
    assert values.pop("NIGHTSHIFT_CONFIG", "mine") == "mine"
    assert values.keys() == compose.required()
    assert values["CELERY_PASSWORD"] == '"mine\'s"'
    assert len(values["JWT_SECRET"]) >= 64
