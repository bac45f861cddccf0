"""Hooks of mkdocs: pages at the root of the checkout become pages of the site, decisions are listed, links fit."""

# ruff: noqa: INP001 - beside the pages
from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
AT_ROOT = {
    "index.md": ROOT / "README.md",
    "contributing.md": ROOT / "CONTRIBUTING.md",
    "changelog.md": ROOT / "CHANGELOG.md",
}
FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(!?)\[((?:[^\]`]|`[^`]*`)*)\]\(([^)\s#]*)(#[^)\s]*)?\)")


def on_config(config: Any) -> None:
    """List the decisions, whatever their number."""
    config.nav.append({"Decisions": [f"decisions/{page.name}" for page in sorted((DOCS / "decisions").glob("*.md"))]})


def on_files(files: Any, config: Any) -> None:
    """Add the pages at the root."""
    from mkdocs.structure.files import File

    for name, page in AT_ROOT.items():
        files.append(File.generated(config, name, content=page.read_text()))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Have the links of a page lead to pages of the site; one that leaves the documentation becomes text."""
    name = page.file.src_uri
    source = AT_ROOT[name].parent if name in AT_ROOT else (DOCS / name).parent
    return rewritten(markdown, source, Path(name).parent)


def rewritten(markdown: str, source: Path, folder: Path) -> str:
    """A page's text with its links for the site; `source`: where they start from; `folder`: of the page in the site."""

    def link(found: re.Match[str]) -> str:
        image, text, target, heading = found[1], found[2], found[3], found[4] or ""
        if not target or ":" in target:
            return found[0]
        place = site_place((source / target).resolve())
        return text if place is None else f"{image}[{text}]({os.path.relpath(place, folder)}{heading})"

    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in FENCED.split(markdown))


def site_place(path: Path) -> str | None:
    """Where a file of the checkout is in the site; None if it is not."""
    for name, page in AT_ROOT.items():
        if page == path:
            return name
    if path == DOCS / "decisions":
        return f"decisions/{min(page.name for page in path.glob('*.md'))}"
    return str(path.relative_to(DOCS)) if DOCS in path.parents and path.suffix in {".md", ".png", ".svg"} else None
