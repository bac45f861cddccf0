"""The pages: generated ones are current, links lead somewhere, each alert and each package is described."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from docs import generate_architecture, generate_configuration, generate_dashboards
from docs.site_hooks import AT_ROOT, DOCS, FENCED, LINK, rewritten
from tests.fakes.airflowhome import ROOT

PAGES = [*AT_ROOT.values(), *sorted(DOCS.glob("*.md")), *sorted((DOCS / "decisions").glob("*.md"))]
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
LONGEST_CHANGE = 160
LARGEST_PICTURE = 150_000


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return FENCED.sub("", page.read_text())


@cache
def headings(page: Path) -> set[str]:
    """The names by which links reach the headings of a page."""
    texts = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text) for text in HEADING.findall(prose(page)))
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower()) for text in texts}


def broken(page: Path) -> Iterator[str]:
    for _, _, target, heading in LINK.findall(prose(page)):
        if ":" in target:
            continue
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (heading and heading[1:] not in headings(file)):
            yield target + heading


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_link_leads_to_a_file_and_a_heading_of_it(page: Path) -> None:
    assert list(broken(page)) == []


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    listed = {
        page
        for part in yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
        for pages in part.values()
        for page in pages
    }
    assert listed == {*AT_ROOT, *(page.name for page in DOCS.glob("*.md"))}


def test_links_that_leave_the_documentation_become_text_in_the_site() -> None:
    text = "[a](docs/tour.md#the-end) [b](tests/conftest.py) [c](https://example.org/d) ![e](docs/images/night.png)"
    expected = "[a](tour.md#the-end) b [c](https://example.org/d) ![e](images/night.png)"
    assert rewritten(text, ROOT, Path()) == expected
    assert rewritten("[a](../glossary.md) [b](../../README.md)", DOCS / "decisions", Path("decisions")) == (
        "[a](../glossary.md) [b](../index.md)"
    )
    code = "```python\nx[1](y.py)\n```\n"
    assert rewritten(code, ROOT, Path()) == code


def test_generated_pages_are_current() -> None:
    assert generate_configuration.PAGE.read_text() == generate_configuration.render(), "run `make docs`"
    assert generate_architecture.PICTURE.read_text() == generate_architecture.render(), "run `make docs`"
    for name in generate_dashboards.DASHBOARDS:
        file = generate_dashboards.FOLDER / f"{name}.json"
        assert file.read_text() == generate_dashboards.render(name), "run `make docs`"


def test_every_key_of_the_configuration_has_a_meaning() -> None:
    rows = re.findall(r"^\| (`\w+`) \|.*\| *([^|]*?) *\|$", generate_configuration.render(), re.MULTILINE)
    assert len(rows) > 200
    assert [key for key, meaning in rows if not meaning] == []


def test_every_alert_links_to_its_entry_with_meaning_check_and_cure() -> None:
    rules = yaml.safe_load((ROOT / "config" / "prometheus" / "alerts.yaml").read_text())["groups"]
    entries = dict(
        re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", (DOCS / "alerts.md").read_text(), re.DOTALL | re.MULTILINE)
    )
    alerts = [rule for group in rules for rule in group["rules"]]
    assert list(entries) == [rule["alert"] for rule in alerts]
    for rule in alerts:
        assert rule["annotations"]["runbook_url"] == f"docs/alerts.md#{rule['alert'].lower()}"
        parts = re.findall(r"\*\*(\w+)\.\*\* \S", entries[rule["alert"]])
        assert parts == ["Meaning", "Check", "Cure"], rule["alert"]


def test_the_architecture_names_every_package() -> None:
    page = (DOCS / "architecture.md").read_text()
    packages = [path.parent for path in (ROOT / "include").glob("*/__init__.py")]
    folders = ("dags", "operators", "sensors", "triggers", "hooks", "plugins")
    expected = [*folders, *(f"include/{package.name}" for package in packages)]
    assert [name for name in expected if f"`{name}`" not in page] == []


def test_the_changelog_has_one_line_a_change() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text().partition("## [")[2].splitlines()[1:]
    wrong = [
        line for line in lines if (line and not line.startswith(("## [", "### ", "* "))) or len(line) > LONGEST_CHANGE
    ]
    assert wrong == []


def test_pictures_are_small_and_shown() -> None:
    shown = "".join(page.read_text() for page in PAGES)
    for picture in (DOCS / "images").iterdir():
        assert picture.stat().st_size < LARGEST_PICTURE, picture.name
        assert f"images/{picture.name}" in shown, picture.name
