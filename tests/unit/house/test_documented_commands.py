"""Commands in the documentation and in hints exist, with the options that they are shown with."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from include.cli.main import assemble

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "decisions").glob("*.md")]
SOURCES = [
    file for folder in ("dags", "include", "operators", "hooks", "sensors") for file in (ROOT / folder).rglob("*.py")
]
AIRFLOW = re.compile(r"(?<![\w/.])airflow (?:backfill create|pools (?:set|import)|dags \w+) ")


def shown() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for line in page.read_text().splitlines():
            found = re.match(r"\$ (?:\.venv/bin/)?nightshift (.*)", line)
            if found:
                yield page.name, found[1]


COMMANDS = sorted(set(shown()))


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=[line for _, line in COMMANDS])
def test_a_command_of_the_pages_exists_with_its_options(page: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("include.cli.main._adopt_lab", lambda: None)
    words = shlex.split(line.split(" && ", maxsplit=1)[0], comments=True)
    command: Any = typer.main.get_command(assemble(words))
    while hasattr(command, "list_commands"):
        name = words.pop(0)
        known = command.commands.get(name)
        assert known is not None, f"{page}: {name}"
        command = known
    if not command.context_settings.get("ignore_unknown_options"):
        options = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
        assert {word for word in words if re.match("--?[a-z]", word)} <= options, page


def test_airflows_own_commands_are_shown_with_the_environment_that_they_need() -> None:
    """A shell that is new has no environment of Airflow's: `nightshift lab airflow` gives it."""
    for file in (*PAGES, *SOURCES):
        for number, line in enumerate(file.read_text().splitlines(), start=1):
            for found in AIRFLOW.finditer(line):
                before = line[: found.start()]
                reads = before.rstrip().endswith(("what `", "as `", "and `", "a real `"))
                assert before.endswith("lab ") or reads, f"{file.relative_to(ROOT)}:{number}: {found[0]}"


def test_each_page_with_commands_says_where_the_command_is_found() -> None:
    for page in ("operations.md", "repo.md", "dags.md"):
        assert 'eval "$(.venv/bin/nightshift lab env)"' in (ROOT / "docs" / page).read_text(), page
