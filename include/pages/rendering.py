"""Draws a page from its template. Whatever an index, an error or a person said is escaped."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from include.care.watch.render import size
from include.pages.registry import PAGES, Page

HERE = Path(__file__).parent


def page_html(page: Page, values: dict[str, Any]) -> str:
    """The whole page."""
    return _environment().get_template(f"{page.name}.html").render(page=page, **values)


def live_part(page: Page, values: dict[str, Any]) -> str:
    """Only what is replaced while the page is open."""
    template = _environment().get_template(f"{page.name}.html")
    return "".join(template.blocks["live"](template.new_context({"page": page, **values})))


def refusal_html(reason: str) -> str:
    """What is shown in place of a page."""
    return _environment().get_template("refusal.html").render(page=None, reason=reason, every=0)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.globals |= {"airflow": "..", "pages": [page for page in PAGES if page.nav], "static": _static}
    made.filters |= {"size": size, "clock": clock, "minute": minute, "span": span, "number": number}
    # macros as a global: a block that is drawn alone sees no import of its template
    made.globals["parts"] = made.get_template("parts.html").module
    return made


@cache
def _static(name: str) -> str:
    """The URL of one of our files; its digest makes the browser take a new one at once."""
    file = HERE / "static" / name
    mark = hashlib.sha256(file.read_bytes()).hexdigest()[:12] if file.exists() else _version(name)
    return f"static/{name}?{mark}"


def _version(name: str) -> str:
    from importlib.metadata import version

    return version(name.partition(".")[0])


def clock(instant: datetime | None) -> str:
    """The time of day in UTC."""
    return f"{instant.astimezone(UTC):%H:%M:%S}" if instant else ""


def minute(instant: datetime | None) -> str:
    """Date and time in UTC, to the minute."""
    return f"{instant.astimezone(UTC):%Y-%m-%d %H:%M}" if instant else ""


def span(seconds: float | None) -> str:
    """A length of time as people read it; nothing for nothing known."""
    if seconds is None:
        return ""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s" if whole < 600 else f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def number(value: int | None) -> str:
    """A whole number with its thousands apart."""
    return "" if value is None else f"{value:,}".replace(",", " ")
