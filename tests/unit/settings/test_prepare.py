"""What a slot may say of its quality gate, and how a mistake in it is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from include.settings.errors import InvalidSettings
from include.settings.model import SiteSettings
from include.settings.prepare import QualityMode, QualitySettings, Suite
from tests.fakes.airflowhome import ROOT

PROJECTS = "projects: [Gaudi, LHCb]\n"


def _with(parsed: Callable[..., SiteSettings], block: str) -> QualitySettings | None:
    return parsed((PROJECTS, f"{PROJECTS}    {block}\n")).slot("main").quality


def test_what_a_build_is_judged_by_blocks_and_what_nights_differ_by_warns(
    parsed: Callable[..., SiteSettings],
) -> None:
    found = _with(parsed, "quality: {}")
    assert found is not None
    block, warn = QualityMode.BLOCK, QualityMode.WARN
    assert [found.mode(suite) for suite in Suite] == [block, block, warn, warn]
    assert (found.band, found.factor, found.keep_runs) == (0.3, 3.0, 30)


def test_without_the_block_nothing_is_judged(parsed: Callable[..., SiteSettings]) -> None:
    assert parsed((PROJECTS, PROJECTS)).slot("main").quality is None


def test_off_may_be_written_without_quotes(parsed: Callable[..., SiteSettings]) -> None:
    found = _with(parsed, "quality: {index: off, night: block}")
    assert found is not None
    assert (found.index, found.night) == (QualityMode.OFF, QualityMode.BLOCK)


@pytest.mark.parametrize(
    ("block", "key", "says"),
    [
        ("quality: {indx: warn}", "slots.main.quality.indx", "Did you mean `index`?"),
        ("quality: {index: maybe}", "slots.main.quality.index", "'block', 'warn' or 'off'"),
        ("quality: {index: on}", "slots.main.quality.index", "'block', 'warn' or 'off'"),
        ("quality: {band: 0}", "slots.main.quality.band", "greater than 0"),
        ("quality: {factor: 0.5}", "slots.main.quality.factor", "greater than or equal to 1"),
        ("quality: {keep_runs: 0}", "slots.main.quality.keep_runs", "greater than or equal to 1"),
        ("quality: {index: off, published: off, night: off, growth: off}", "slots.main.quality", "Turn one on"),
    ],
)
def test_a_mistake_is_named_with_its_hint(parsed: Callable[..., SiteSettings], block: str, key: str, says: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        _with(parsed, block)
    (problem,) = refused.value.problems
    assert key in str(problem)
    assert says in str(problem)


def test_the_page_about_the_gate_has_every_setting_with_its_default() -> None:
    page = (ROOT / "docs" / "quality.md").read_text()
    for name, field in QualitySettings.model_fields.items():
        default = field.default.value if isinstance(field.default, QualityMode) else field.default
        assert f"| `{name}` | `{default}` |" in page
