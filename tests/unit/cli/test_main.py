"""What commands print: within the width, and with commands that can be typed as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from include.cli import interventions
from include.cli.main import NOT_A_TERMINAL, main, typeable
from include.monitoring.airflow_checks import judged_paused
from include.monitoring.findings import Finding, PreflightReport, Severity
from tests.fakes.airflowhome import ROOT

LONG = "http://store.example.org/" + "a" * 300


def test_the_table_of_preflight_fits_and_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    paused = judged_paused({f"nightly_install_{name}": "no night begins" for name in "abc"}, {})
    finding = Finding("store", "software", Severity.ERROR, f"{LONG} [red] does not answer", "Check its URL.")
    interventions._print(PreflightReport.of([finding, *paused]))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= NOT_A_TERMINAL
    text = "".join(line.split("software")[-1].strip() for line in lines)
    assert LONG in text
    assert "[red]" in text
    assert "Check its URL." in text
    (hint,) = [line for line in lines if "dags on" in line]
    assert hint.endswith("dags on")


@pytest.mark.parametrize("folder", [ROOT, Path("/")])
def test_commands_in_hints_have_the_path_of_a_program_that_the_shell_does_not_find(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(folder)
    hint = typeable("Run: nightshift dags on, or `nightshift preflight`; nightshift is a name")
    command = hint.removeprefix("Run: ").partition(" dags on")[0]
    assert hint.count(command) == 2
    assert hint.endswith("nightshift is a name")
    assert (folder / command).samefile(Path(sys.executable).parent / "nightshift")
    assert typeable(hint) == hint
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert typeable("nightshift lab up") == "nightshift lab up"


def test_the_command_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("nightshift 0.")


ASSEMBLED = """
import sys
from include.cli.main import COMMANDS, GROUPS, assemble
heavy = {"airflow", "alembic", "boto3", "botocore", "cryptography", "obstore", "requests", "sqlalchemy",
         "starlette", "uvicorn"}
for name in (*GROUPS, *COMMANDS):
    assemble([name, "--help"])
    print(name, *sorted(heavy & set(sys.modules)))
"""


def test_no_command_loads_databases_stores_or_servers_to_show_its_help() -> None:
    done = subprocess.run([sys.executable, "-c", ASSEMBLED], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert len(loaded) > 10
    assert {name: modules for name, modules in loaded.items() if modules} == {}
