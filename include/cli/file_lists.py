"""Lists of files to transfer, as CSV with a head or as JSON lines; what is wrong is named by its line."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from include.stageout.errors import StageoutError
from include.stageout.files import MAX_FILES, FileKind, FileToTransfer, StageoutRequest, check_all

if TYPE_CHECKING:
    from include.settings.model import SiteSettings

MAX_LINES = 1_000_000
_REQUIRED = {field.name: field.default is MISSING for field in fields(FileToTransfer)}
_Document = Mapping[Any, Any] | str
"""A line of the list, or its fault."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file and the line that has it."""

    line: int
    file: FileToTransfer


@dataclass(frozen=True, slots=True)
class ListFault:
    """The fault of a line."""

    line: int
    what: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.what}"


def read_list(lines: Iterable[str]) -> tuple[list[ListedFile], list[ListFault]]:
    """Read a list of files; the fields are those of `FileToTransfer`.

    Args:
        lines: At most MAX_LINES, of JSON if the first one begins with `{`, otherwise of CSV with a head.

    Returns:
        The files, and the faults of the lines that have none.
    """
    whole = list(islice(lines, MAX_LINES + 1))
    if len(whole) > MAX_LINES:
        return [], [ListFault(MAX_LINES + 1, f"the list has more than {MAX_LINES} lines")]
    start = next((line for line in whole if line.strip()), "")
    documents = _json_lines(whole) if start.lstrip().startswith("{") else _csv_lines(whole)
    files: list[ListedFile] = []
    faults: list[ListFault] = []
    for number, document in documents:
        text = document if isinstance(document, str) else _file(document)
        if isinstance(text, str):
            faults.append(ListFault(number, text))
        else:
            files.append(ListedFile(number, text))
    return files, faults


def _json_lines(lines: Sequence[str]) -> Iterator[tuple[int, _Document]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            yield number, "it is not JSON"
            continue
        yield number, document if isinstance(document, dict) else "it is not a JSON object"


def _csv_lines(lines: Sequence[str]) -> Iterator[tuple[int, _Document]]:
    reader = csv.reader(lines, strict=True)
    head: list[str] = []
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if not any(cells):
                continue
            if not head:
                head = cells
                if len(set(head)) < len(head):
                    yield reader.line_num, "a column is there twice"
                    return
            elif len(cells) != len(head):
                yield reader.line_num, f"it has {len(cells)} cells, not {len(head)} as the head"
            else:
                yield (
                    reader.line_num,
                    {name: _value(name, cell) for name, cell in zip(head, cells, strict=True) if cell},
                )
    except csv.Error as error:
        yield reader.line_num, f"it is not CSV: {error}"


def _value(name: str, cell: str) -> str | int:
    return int(cell) if name == "size" and cell.isascii() and cell.isdigit() and len(cell) < 20 else cell


def _file(document: Mapping[Any, Any]) -> FileToTransfer | str:
    """The file that a line describes, or what is wrong with it."""
    values = {name: value for name, value in document.items() if value is not None}
    unknown = sorted(str(name)[:80] for name in values.keys() - _REQUIRED.keys())
    if unknown:
        return f"there is no field {unknown[0]!r}; there are {', '.join(_REQUIRED)}"
    missing = [name for name, required in _REQUIRED.items() if required and name not in values]
    if missing:
        return f"`{missing[0]}` is missing"
    for name, value in values.items():
        expected = int if name == "size" else str
        if type(value) is not expected:
            return f"`{name}` is not {'a whole number' if expected is int else 'a text'}"
    kinds = [kind.value for kind in FileKind]
    if values.setdefault("kind", FileKind.OUTPUT.value) not in kinds:
        return f"`kind` is not one of {', '.join(kinds)}"
    return FileToTransfer(**{**values, "kind": FileKind(values["kind"])})


def read_file(listed: str) -> tuple[list[ListedFile], list[ListFault]]:
    """The files of a list, and what is wrong with its lines."""
    if listed == "-":
        return read_list(sys.stdin)
    try:
        # bytes that are not UTF-8 are refused with their line, as part of a name
        with Path(listed).open(encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
            return read_list(lines)
    except OSError as error:
        raise typer.BadParameter(f"{listed}: {error.strerror}") from None


def requests_of(owner: str, key: str | None, workflow: str, files: Sequence[ListedFile]) -> list[StageoutRequest]:
    """The files, in as many requests as they need; the same files have the same keys."""
    lines = []
    for start in range(0, len(files), MAX_FILES):
        piece = tuple(listed.file for listed in files[start : start + MAX_FILES])
        request = StageoutRequest(owner, "", workflow, piece)
        number = start // MAX_FILES
        given = request.digest if key is None else f"{key}.{number}" if number else key
        lines.append(StageoutRequest(owner, given, workflow, piece))
    return lines


def check_files(
    settings: SiteSettings, requests: Sequence[StageoutRequest], files: Sequence[ListedFile]
) -> list[ListFault]:
    """Return the faults of the files, by line. Raises StageoutError for a fault of all of them."""
    faults: list[ListFault] = []
    first: dict[str, int] = {}
    for listed in files:
        line = first.setdefault(listed.file.place, listed.line)
        if line != listed.line:
            faults.append(ListFault(listed.line, f"it has the same destination as line {line}"))
        alone = replace(requests[0], files=(listed.file,))
        try:
            check_all(alone, settings)
        except StageoutError as error:
            if error.subject != "file 0":
                raise
            faults.append(ListFault(listed.line, str(error).removeprefix("file 0: ")))
    return faults
