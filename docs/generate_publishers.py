"""Writes the table in docs/publishers.md from the one that the publishers ask: `make docs`. A test compares."""

# ruff: noqa: INP001 - a script beside the page that it writes
from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "publishers.md"
BEGIN, END = "<!-- table: written by `make docs`, do not edit -->", "<!-- end of the table -->"


def render(page: str) -> str:
    """The page with its table as it has to be."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n{END}{after}"


def table() -> str:
    """The table, and below it the reason and the cure of everything that is not simply supported."""
    from include.publishers.capabilities import TABLE, Cell, Operation, OperationOutcome, PublishRoute

    notes: dict[tuple[str, str], int] = {}

    def shown(cell: Cell) -> str:
        if cell.outcome is OperationOutcome.SUPPORTED:
            return "yes"
        number = notes.setdefault((cell.reason, cell.cure), len(notes) + 1)
        named = "refused" if cell.loss is None else f"lossy (`{cell.loss.value}`)"
        return f"{named} [{number}]"

    rows = [f"| | {' | '.join(way.value for way in PublishRoute)} |", "|---" * (len(PublishRoute) + 1) + "|"]
    rows += [f"| {one.value} | {' | '.join(shown(TABLE[one][way]) for way in PublishRoute)} |" for one in Operation]
    listed = [f"{number}. {reason}. Instead: {cure}." for (reason, cure), number in notes.items()]
    return "\n".join([*rows, "", *listed, ""])


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(render(PAGE.read_text()))
