"""A corpus is recorded once: nothing of it changes, and the recorder refuses what is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat import record
from tests.compat.corpus import HERE, MARK, SUMS, sums

CORPORA = sorted(file.parent for file in HERE.glob(f"*/{MARK}"))
FOLDERS = pytest.mark.parametrize("folder", CORPORA, ids=lambda folder: folder.name)
RECORDED = [(folder, part) for folder in CORPORA for part in record.PARTS if (folder / part).is_dir()]


@FOLDERS
def test_nothing_of_a_corpus_has_changed(folder: Path) -> None:
    assert sums(folder) == (folder / SUMS).read_text()


@pytest.mark.parametrize(("folder", "part"), RECORDED, ids=lambda value: getattr(value, "name", value))
def test_what_is_recorded_is_not_recorded_again(folder: Path, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "_git", lambda *words: folder.name if "rev-parse" in words else "")
    monkeypatch.setattr("sys.argv", ["record", part])
    with pytest.raises(SystemExit, match="never recorded again"):
        record.main()


def test_a_checkout_with_other_code_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "_git", lambda *words: "abcdef0" if "rev-parse" in words else " M include/errors.py")
    monkeypatch.setattr("sys.argv", ["record", "documents"])
    with pytest.raises(SystemExit, match="differs from abcdef0"):
        record.main()


@FOLDERS
def test_a_corpus_is_small(folder: Path) -> None:
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) < 500_000
