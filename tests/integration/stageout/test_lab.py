"""What `make stageout` does without Airflow: faulty files at the sites of the lab, passes, and the account."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from include.site.site import Site
from include.stageout.blocks import close_workflow
from include.stageout.files import check_request
from include.stageout.opening import open_stageout
from include.stageout.passes import COMPONENTS, run_pass
from include.stageout.requests import record_request
from include.stageout.states import TRANSFER_ENDED, TransferState
from include.stageout.status import TransferFilter, list_transfers
from lab.stageout import FAULTY, LINKS, USERS, LabFault, LabPlaces, account_of, percentile, planned, requests_of
from tests.fakes.ftsservice import FtsService
from tests.integration.stageout.conftest import site_between

FILES, WORKFLOW = 60, "lab-test"


@pytest.fixture
def lab_site(tmp_path: Path) -> Iterator[Site]:
    """The four sites as folders, and an FTS that copies between them."""
    with FtsService(tmp_path, "--folder", str(tmp_path / "sites")) as fts:
        urls = {name: f"file://{tmp_path}/sites/{name}" for link in LINKS for name in link}
        site = site_between(tmp_path, fts.url, urls)
        yield site
        site.ledger.dispose()


def test_every_file_ends_in_its_place_or_fails_with_its_reason(lab_site: Site) -> None:
    files, places = planned(lab_site.settings, WORKFLOW, FILES, seed=1), LabPlaces(lab_site)
    faulty = [file for file in files if file.fault is not None]
    assert len(faulty) == FILES // FAULTY
    assert {file.fault for file in faulty} == set(LabFault)
    assert {file.owner for file in files} == set(USERS)
    assert {(file.file.source, file.file.destination) for file in files} == set(LINKS)
    for file in files:
        places.put(file)
    now = datetime.now(UTC)
    for request in requests_of(WORKFLOW, files):
        check_request(request, lab_site.settings.sites)
        record_request(lab_site.ledger, request, now=now)
    stageout = open_stageout(lab_site, "a test")
    wanted = TransferFilter(workflow=WORKFLOW)
    found = list_transfers(lab_site.ledger, wanted, limit=FILES).rows
    while not {row.state for row in found} <= TRANSFER_ENDED:
        now += timedelta(minutes=1)
        run_pass(stageout, COMPONENTS, now=lambda now=now: now, left=lambda: True).require_sound()  # type: ignore[misc]
        found = list_transfers(lab_site.ledger, wanted, limit=FILES).rows
        if {row.state for row in found} <= TRANSFER_ENDED | {TransferState.DONE}:
            for owner in USERS:
                close_workflow(lab_site.ledger, owner, WORKFLOW, now=now)
    account = account_of(WORKFLOW, files, found, places, wall_s=1.0)
    assert account.problems == ()
    assert account.states == {"cleaned": FILES - len(faulty), "failed": len(faulty)}
    assert {kind: count for kind, (count, _) in account.failures.items()} == {
        fault.value.value: 1 for fault in LabFault
    }
    account.write(lab_site.settings.paths.var / "account.json")
    assert json.loads((lab_site.settings.paths.var / "account.json").read_text())["files"] == FILES

    copied = next(row for row in found if row.state is TransferState.CLEANED)
    copy = lab_site.settings.paths.var / "sites" / copied.destination / copied.destination_name.removeprefix("/store/")
    copy.unlink()
    kept = [dataclasses.replace(row, state=TransferState.KEPT) for row in found]
    assert len(account_of(WORKFLOW, files, kept, places, wall_s=1.0).problems) == 1 + len(faulty)
    assert len(account_of(WORKFLOW, files, (), places, wall_s=1.0).problems) == FILES


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([], 95) == 0
    assert percentile([3.0], 50) == 3
    assert percentile([float(number) for number in range(1, 101)], 95) == 95
