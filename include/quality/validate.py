"""Great Expectations applied to a suite's table: one expectation for each rule, and its own page of the results.

Imported by tasks that judge only: the import costs seconds. Great Expectations writes no file, and contacts no server.
"""

# ruff: noqa: E402 - settings that Great Expectations reads, and the level of its logger, come before its import
from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

os.environ["GX_ANALYTICS_ENABLED"] = "false"  # read when it is imported
# its import logs 214 lines on what is in its own documentation
logging.getLogger("great_expectations._docs_decorators").setLevel(logging.WARNING)

import hashlib
import logging
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from html import escape
from pathlib import Path

import great_expectations as gx
import pandas as pd
from great_expectations import expectations as gxe
from great_expectations.data_context.types.base import DataContextConfig, InMemoryStoreBackendDefaults
from great_expectations.render.renderer import ValidationResultsPageRenderer
from great_expectations.render.view import DefaultJinjaPageView
from jinja2 import ChoiceLoader, DictLoader

from include.nightlies.records.quality import QualityRecord
from include.nightlies.steps.errors import QUALITY_UNCHECKED
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


NAME = "name"
"""The column that names a row of the table; no two rows have one name."""
RULE = "rule"
"""The key under which an expectation carries the number of its rule."""


def validate(given: SuiteInput) -> tuple[SuiteResult, str]:
    """Return what the rules find in the table, and the page that Great Expectations makes of it, as HTML.

    Raises QUALITY_UNCHECKED if an expectation could not be applied.
    """
    faults, page = apply_rules(given.suite.value, given.rows, given.rules, given.notes)
    return SuiteResult(given.suite, faults, given.notes, len(given.rows), len(given.rules)), page


def apply_rules(
    name: str,
    rows: Sequence[Row],
    rules: Sequence[QualityRule],
    notes: Sequence[str] = (),
    *,
    back: tuple[str, str] = ("index.html", "all suites of the run"),
) -> tuple[tuple[str, ...], str]:
    """A reason for each row that breaks a rule, and the page as HTML.

    Args:
        name: Of the suite.
        rows: The table; `name` is a column of every row.
        rules: What is asked of it.
        notes: Further lines of the page.
        back: Where the page leads back to, and the text of that link.

    Raises:
        StepError: QUALITY_UNCHECKED if an expectation could not be applied.
    """
    config = DataContextConfig(
        store_backend_defaults=InMemoryStoreBackendDefaults(init_temp_docs_sites=False),
        analytics_enabled=False,
        progress_bars={"globally": False, "metric_calculations": False},
    )
    context = gx.get_context(project_config=config, mode="ephemeral")
    columns = columns_of(rules)
    table = pd.DataFrame([[row.get(column) for column in columns] for row in rows], columns=list(columns))
    asset = context.data_sources.add_pandas("nightshift").add_dataframe_asset(name)
    batch = asset.add_batch_definition_whole_dataframe("night").get_batch({"dataframe": table})
    suite = gx.ExpectationSuite(name=name, expectations=[_expectation(*numbered) for numbered in enumerate(rules)])
    kept = {"result_format": "COMPLETE", "unexpected_index_column_names": [NAME]}
    found = batch.validate(suite, result_format=kept)
    # results come in an order of their own
    results = {result.expectation_config.meta[RULE]: result for result in found.results}
    faults = []
    for number, rule in enumerate(rules):
        if results[number].exception_info.get("raised_exception", True):
            raise QUALITY_UNCHECKED(f"quality, suite {name}: `{rule.column}` could not be compared")
        broken = {row[NAME] for row in results[number].result["unexpected_index_list"]}
        faults += [rule.reason.format(**row) for row in rows if row[NAME] in broken]
    return tuple(faults), _page(found, name, [*faults, *notes], back)


def _expectation(number: int, rule: QualityRule) -> Any:
    about: dict[str, Any] = {"meta": {RULE: number}}
    pair = about | {"column_A": rule.column, "column_B": rule.other, "ignore_row_if": "either_value_is_missing"}
    match rule.expect:
        case Expect.BETWEEN:
            limits = {"min_value": rule.least, "max_value": rule.most}
            return gxe.ExpectColumnValuesToBeBetween(column=rule.column, **limits, **about)
        case Expect.AT_LEAST:
            return gxe.ExpectColumnPairValuesAToBeGreaterThanB(**pair, or_equal=True)
        case Expect.EQUAL:
            return gxe.ExpectColumnPairValuesToBeEqual(**pair)
        case Expect.EMPTY:
            return gxe.ExpectColumnValuesToBeNull(column=rule.column, **about)


class _OwnPage(DefaultJinjaPageView):  # type: ignore[misc]
    """Its own page without what it loads from elsewhere: styles, scripts, fonts and images of content networks."""

    def __init__(self) -> None:
        super().__init__()
        own = DictLoader({"page.j2": _PAGE})
        self.env.loader = ChoiceLoader([own, self.env.loader])


def _page(found: Any, name: str, lines: Sequence[str], back: tuple[str, str]) -> str:
    found.meta["run_id"] = {"run_name": name, "run_time": found.meta["batch_markers"]["ge_load_time"]}
    document = ValidationResultsPageRenderer().render(found)
    page: str = _OwnPage().render(document, suite=name, lines=lines, back=back)
    return page


_PAGE = (
    """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Quality: {{ suite | e }}</title>"""
    + STYLE
    + """</head><body><main><p><a href="{{ back[0] | e }}">{{ back[1] | e }}</a></p><h1>Suite {{ suite | e }}</h1>
<ul>{% for line in lines %}<li>{{ line | e }}</li>{% endfor %}</ul>
{% for section in sections %}{% set section_loop = loop -%}{% include 'section.j2' %}{% endfor %}
</main></body></html>
"""
)
