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

import great_expectations as gx
import pandas as pd
from great_expectations import expectations as gxe
from great_expectations.data_context.types.base import DataContextConfig, InMemoryStoreBackendDefaults
from great_expectations.render.renderer import ValidationResultsPageRenderer
from great_expectations.render.view import DefaultJinjaPageView
from jinja2 import ChoiceLoader, DictLoader

from include.nightlies.errors import QUALITY_UNCHECKED
from include.quality.results import STYLE, Expect, QualityRule, Row, SuiteInput, SuiteResult, columns_of

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
