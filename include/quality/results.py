"""Tables, rules and results of suites, and the Data Docs that are kept of runs. It knows no Great Expectations."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from html import escape
from pathlib import Path

from include.nightlies.records.quality import QualityRecord
from include.settings.prepare import Suite

STYLE = """
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0; padding: 1.5rem; }
main { max-width: 76rem; margin: auto; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; width: 100%; }
th, td { border: 1px solid #8886; padding: .35rem .6rem; text-align: left; vertical-align: top; }
.badge, code { background: #8883; border-radius: .25rem; padding: .05rem .35rem; }
.fa-check-circle::before { content: "ok"; color: light-dark(#17692f, #6fd08c); font-style: normal; }
.fa-times::before { content: "failed"; color: light-dark(#a11, #ff9a8a); font-style: normal; font-weight: 700; }
.collapse, [data-toggle=collapse], [id$=subheader] { display: none; }
h5, h6 { font-size: 1.1rem; margin: 1rem 0 .25rem; }
</style>"""
"""In the head of every page: nothing is loaded from elsewhere, and no script runs."""

_RUN = re.compile("[0-9a-f]{32}")


def folder_of_run(var: Path, slot: str, run: str) -> Path:
    """Return where the Data Docs of a run are; the first page is `index.html`.

    Args:
        var: Folder of Nightshift's own files, `paths.var` of the configuration.
        slot: Name of the slot.
        run: The run as the ledger names it, `<dag id>/<run id>`; it may hold any character.
    """
    return var / "quality" / slot / hashlib.sha256(run.encode()).hexdigest()[:32]


def docs_file(var: Path, slot: str, run: str, name: str) -> Path | None:
    """A page of a run's Data Docs as a URL names it; None if there is no such page.

    Args:
        var: As for `folder_of_run`.
        slot: Name of a slot that is configured.
        run: Name of the run's folder.
        name: Name of the file in it.
    """
    if not _RUN.fullmatch(run) or name not in {"index.html", *(f"{suite.value}.html" for suite in Suite)}:
        return None
    file = var / "quality" / slot / run / name
    return file if file.is_file() and not file.is_symlink() else None


def write_docs(folder: Path, pages: Mapping[Suite, str], records: Iterable[QualityRecord], *, keep: int) -> None:
    """Write pages of suites and the first page of a run, each whole or not at all, and remove the oldest runs.

    Args:
        folder: As `folder_of_run` gives it.
        pages: The HTML of each suite that was judged now.
        records: What every suite of the run said, for the first page.
        keep: How many runs of the slot are kept, this one among them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in ({suite.value: page for suite, page in pages.items()} | {"index": _first_page(records)}).items():
        part = folder / f".{name}.{os.getpid()}"
        part.write_text(text, encoding="utf-8", errors="backslashreplace")
        part.replace(folder / f"{name}.html")
    os.utime(folder)
    known = [sibling for sibling in folder.parent.iterdir() if sibling.is_dir() and not sibling.is_symlink()]
    for old in sorted(known, key=lambda sibling: sibling.stat().st_mtime, reverse=True)[keep:]:
        shutil.rmtree(old, ignore_errors=True)  # another task may be removing it too


def _first_page(records: Iterable[QualityRecord]) -> str:
    rows, about = [], ""
    for record in sorted(records, key=lambda item: list(Suite).index(item.suite)):
        about = f"Build {escape(record.build_id)} of slot {escape(record.slot)}, run {escape(record.run_id)}"
        accepted = f"<br>accepted: {escape(record.accepted)}" if record.accepted else ""
        cells = (
            f'<a href="{record.suite.value}.html">{record.suite.value}</a>',
            f"<strong>{record.verdict.value}</strong>",
            str(record.faults),
            f"{escape(record.reason)}{accepted}",
            f"{record.checked_at:%Y-%m-%d %H:%M} UTC",
        )
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(f'<th scope="col">{name}</th>' for name in ("suite", "verdict", "faults", "reason", "checked"))
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Quality</title>{STYLE}</head><body><main>'
        f"<h1>Quality</h1><p>{about}</p><table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        "</main></body></html>\n"
    )


Cell = str | int | float | None
Row = Mapping[str, Cell]


class Expect(Enum):
    """Condition on a column in every row. A row without the value, or without the other one, is passed over."""

    BETWEEN = "between"
    AT_LEAST = "at least"
    EQUAL = "equal"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class QualityRule:
    """An expectation. `reason`: what is said of a row that breaks it, with the row's cells as `{column}`.

    `least`, `most`: for `BETWEEN`; `other`: the second column of `AT_LEAST` and `EQUAL`.
    """

    expect: Expect
    column: str
    reason: str
    other: str | None = None
    least: float | None = None
    most: float | None = None


def columns_of(rules: Sequence[QualityRule]) -> tuple[str, ...]:
    """The columns that rules need, after `name`."""
    named = [name for rule in rules for name in (rule.column, rule.other) if name is not None]
    return tuple(dict.fromkeys(["name", *named]))


@dataclass(frozen=True, slots=True)
class SuiteInput:
    """A table and the rules for it; `name` is a column of every row. `notes`: what could not be compared, and why.

    Only the columns that rules name, and `name`, leave this process's own code: others may hold text from archives.
    """

    suite: Suite
    rows: tuple[Row, ...]
    rules: tuple[QualityRule, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """Findings of a suite: a reason for each row that breaks a rule, in the order of the rules."""

    suite: Suite
    faults: tuple[str, ...]
    notes: tuple[str, ...]
    rows: int
    rules: int

    @property
    def reason(self) -> str:
        """The first fault; else what could not be compared; else what was."""
        texts = [*self.faults, *self.notes, f"{self.rules} rules hold in {self.rows} rows"]
        return texts[0]
