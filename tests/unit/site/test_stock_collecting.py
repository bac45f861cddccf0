"""The output of `cvmfs_server gc -l` becomes the figures of our own collections."""

from __future__ import annotations

import io

import pytest

from include.cvmfs.collect.report import CollectionReport

ONE, TWO = "5798f7f4ca7585d850eea64610a1f73d8f8de7a3", "e8ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78"
OUTPUT = f"""\
Affected Repositories:         nights.example.org
Dry Run (no actual deletion):  no
Preserve Revisions newer than: 11/20/26 04:00:00
Running Garbage Collection
  --> marking unreferenced objects [Mon, 23 Nov 2026 04:00:00 GMT]
Preserving data objects in latest revision
Preserving Revision 12 (23 Nov 2026 03:00:00 / added @ 23 Nov 2026 03:00:01)
├─ {ONE} /
Preserving Revision 11 (20 Nov 2026 03:00:00 / added @ 20 Nov 2026 03:00:01)
  --> sweeping unreferenced objects [Mon, 23 Nov 2026 04:00:02 GMT]
Sweeping Revision 10 (19 Nov 2026 03:00:00)
├─ {TWO} /
│  ├─ {ONE} /nested
Sweep: {ONE}
Sweep: {ONE}-shake128P
Sweep: {TWO}C
      - 100%    1 / 1 unreferenced revisions removed [Mon, 23 Nov 2026 04:00:03 GMT]
  --> done garbage collecting [Mon, 23 Nov 2026 04:00:03 GMT]
""".splitlines()


def taken(lines: list[str], *, dry_run: bool = False) -> CollectionReport:
    report = CollectionReport("nights.example.org", dry_run=dry_run)
    report.read_stock_output(lines)
    return report


def test_kept_and_condemned_revisions_and_deleted_objects_are_counted() -> None:
    report = taken(OUTPUT)
    assert (report.roots_kept, report.roots_condemned) == (2, 1)
    assert (report.condemned, report.deleted, report.notes) == (3, 3, [])


def test_a_dry_run_deleted_nothing() -> None:
    report = taken(OUTPUT, dry_run=True)
    assert (report.condemned, report.deleted) == (3, 0)
    assert "3 objects would be deleted" in report.lines()[0]


def test_the_deletion_log_has_the_names_with_their_letters() -> None:
    log = io.StringIO()
    CollectionReport("nights.example.org").read_stock_output(OUTPUT, log)
    assert log.getvalue().splitlines()[1:4] == [ONE, f"{ONE}-shake128P", f"{TWO}C"]


@pytest.mark.parametrize("lines", [OUTPUT[:-1], [], ["Repository nights.example.org is empty, nothing to do"]])
def test_an_output_without_its_end_is_noted_with_its_last_words(lines: list[str]) -> None:
    (note,) = taken(lines).notes
    assert (lines[-1] if lines else "nothing") in note


def test_warnings_are_noted_and_revisions_are_counted_by_the_progress_too() -> None:
    progress = [line for line in OUTPUT if not line.startswith("Sweeping")]
    report = taken(["Warning: legacy catalog", *progress])
    assert report.notes == ["Warning: legacy catalog"]
    assert report.roots_condemned == 1
