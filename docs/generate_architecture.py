"""Writes docs/images/architecture.svg, the picture of docs/architecture.md: `make docs`. A test compares."""

# ruff: noqa: INP001 - a script beside the picture that it writes
from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

PICTURE = Path(__file__).resolve().parent / "images" / "architecture.svg"
WIDTH, HEIGHT = 1000, 560
LINE = 17
HEAD = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"
 font-family="sans-serif" font-size="13">
<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">
<path d="M0 0L8 4L0 8z" fill="#455a64"/></marker></defs>
<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>"""


@dataclass(frozen=True)
class Box:
    """A part of a deployment; its first line is its name."""

    x: int
    y: int
    width: int
    height: int
    text: tuple[str, ...]
    fill: str = "#e3f2fd"

    def drawn(self) -> list[str]:
        shape = f'<rect x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}" rx="6"'
        lines = [f'{shape} fill="{self.fill}" stroke="#78909c"/>']
        for number, text in enumerate(self.text):
            weight = ' font-weight="bold"' if number == 0 else ""
            place = f'x="{self.x + 12}" y="{self.y + 22 + LINE * number}"'
            lines.append(f'<text {place} fill="#263238"{weight}>{escape(text)}</text>')
        return lines


@dataclass(frozen=True)
class Flow:
    """An arrow from one point to another, with a label beside it."""

    start: tuple[int, int]
    end: tuple[int, int]
    label: str
    at: tuple[int, int]

    def drawn(self) -> list[str]:
        (x, y), (to_x, to_y) = self.start, self.end
        line = f'<path d="M{x} {y}L{to_x} {to_y}" stroke="#455a64" stroke-width="1.5" fill="none"'
        label = f'<text x="{self.at[0]}" y="{self.at[1]}" fill="#455a64" font-size="12">{escape(self.label)}</text>'
        return [f'{line} marker-end="url(#tip)"/>', label]


OUTSIDE, AIRFLOW, SERVICE, DATA = "#eceff1", "#e3f2fd", "#fff3e0", "#e8f5e9"
BOXES = (
    Box(20, 20, 200, 62, ("Build system", "tarballs and a build index"), OUTSIDE),
    Box(400, 20, 200, 62, ("People", "pages, forms, commands"), OUTSIDE),
    Box(780, 20, 200, 62, ("Users of stage-out", "REST, command line"), OUTSIDE),
    Box(20, 130, 960, 150, ("Airflow",), "#f5faff"),
    Box(40, 165, 200, 96, ("Workers", "operators: read, compress,", "hash, upload, ask for", "commits"), AIRFLOW),
    Box(280, 165, 200, 96, ("Triggerer", "waits: leases, indices,", "objects, FTS jobs, outages"), AIRFLOW),
    Box(520, 165, 200, 96, ("Scheduler", "DAGs of nights, care,", "stage-out, benchmarks"), AIRFLOW),
    Box(760, 165, 200, 96, ("API server", "pages of Nightshift,", "REST, health, figures"), AIRFLOW),
    Box(280, 340, 200, 79, ("Gateway", "leases, commits, signature", "ours, or the stock one"), SERVICE),
    Box(520, 340, 200, 79, ("Ledger", "SQLite, MySQL, MariaDB", "states, reasons, figures"), SERVICE),
    Box(760, 340, 200, 79, ("FTS", "copies between sites", "ours in the lab, or FTS3"), SERVICE),
    Box(
        20,
        470,
        460,
        70,
        ("Stores: S3, Ceph, folders", "content-addressed objects; the manifest names the revision"),
        DATA,
    ),
    Box(520, 470, 200, 70, ("Readers", "CernVM-FS clients,", "stratum 1"), OUTSIDE),
    Box(760, 470, 200, 70, ("Storage sites", "WebDAV, XRootD, S3"), DATA),
)
FLOWS = (
    Flow((120, 82), (120, 130), "drops builds into a store", (128, 112)),
    Flow((500, 82), (500, 130), "start, approve, look", (508, 112)),
    Flow((880, 82), (880, 165), "requests", (888, 112)),
    Flow((90, 261), (90, 470), "objects, before the lease", (98, 330)),
    Flow((200, 261), (310, 340), "commit", (262, 300)),
    Flow((380, 419), (380, 470), "catalogs, manifest by compare-and-swap", (118, 449)),
    Flow((620, 280), (620, 340), "every decision with its reason", (628, 314)),
    Flow((860, 280), (860, 340), "jobs", (868, 314)),
    Flow((860, 419), (860, 470), "third-party copies", (868, 449)),
    Flow((480, 505), (520, 505), "", (0, 0)),
)


def render() -> str:
    """The picture as text."""
    parts = [HEAD]
    for box in BOXES:
        parts += box.drawn()
    for flow in FLOWS:
        parts += flow.drawn()[: 2 if flow.label else 1]
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(render(), encoding="utf-8")
