"""A site that fails in the middle of many files: marked, told once, left alone by every component, and taken back."""

from __future__ import annotations

import zlib
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from include.federation.records import changes_of, obstacles
from include.federation.rounds import check_sites
from include.ledger.engine import reading
from include.notify import DeliveryOutcome, Message, Notifier
from include.site.site import Site
from include.stageout.blocks import close_workflow
from include.stageout.components.census import take_census
from include.stageout.files import check_request
from include.stageout.opening import SiteClients, open_stageout
from include.stageout.passes import COMPONENTS, run_pass
from include.stageout.requests import record_request
from include.stageout.states import TRANSFER_ENDED, TransferState
from include.stageout.status import TransferFilter, TransferStatus, list_transfers
from include.stageout.tables import stageout_jobs, stageout_queues
from lab.stageout import LINKS, USERS, LabPlaces, account_of, planned, requests_of
from tests.fakes.ftsservice import FtsService
from tests.integration.stageout.conftest import site_between

WORKFLOW, BAD = "site-fails", "Lab_West"
THROUGH = TRANSFER_ENDED | {TransferState.DONE, TransferState.REGISTERED}
EVERY = timedelta(minutes=15)
CONTENT = b"probe" * 1000


class Nights:
    """Passes and rounds of health checks by a clock moved by hand; what people were told."""

    def __init__(self, site: Site) -> None:
        self.site, self.now = site, datetime.now(UTC)
        self.told: list[str] = []
        self.stageout = open_stageout(site, "a test")

    def passes(self, minutes: int, limit: int = 1000) -> None:
        for _ in range(minutes):
            self.now += timedelta(minutes=1)
            run_pass(self.stageout, COMPONENTS, now=lambda: self.now, left=self._twice(), limit=limit).require_sound()  # type: ignore[misc]

    @staticmethod
    def _twice() -> Any:
        turns = iter([True] * 40)
        return lambda: next(turns, False)

    def round(self) -> dict[str, str]:
        """A round; the changes."""
        self.now += timedelta(minutes=1)
        outcome = check_sites(self.site, now=lambda: self.now).outcome
        self.stageout = open_stageout(self.site, "a test")  # as the next task does
        return {name: state.value for name, state in outcome.changed.items()}

    def rows(self) -> tuple[TransferStatus, ...]:
        rows: list[TransferStatus] = []
        after = None
        while after is not None or not rows:
            page = list_transfers(self.site.ledger, TransferFilter(workflow=WORKFLOW), after=after, limit=1000)
            rows += page.rows
            after = page.after
        return tuple(rows)

    def through(self, name: str) -> int:
        """Files of links of a site that are copied and verified."""
        return sum(row.state in THROUGH and name in (row.source, row.destination) for row in self.rows())

    def jobs_of(self, name: str) -> int:
        """Jobs that were made for links of a site."""
        joined = select(func.count()).select_from(stageout_jobs).join(
            stageout_queues, stageout_jobs.c.queue == stageout_queues.c.id
        ).where((stageout_queues.c.source == name) | (stageout_queues.c.destination == name))  # fmt: skip
        with reading(self.site.ledger) as connection:
            return connection.scalar(joined) or 0


@pytest.fixture
def nights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    folder = tmp_path / "sites"
    names = sorted({name for link in LINKS for name in link})
    probe = {"file": "/store/probe", "size": len(CONTENT), "checksum": f"{zlib.adler32(CONTENT):08x}"}
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "probe").write_bytes(CONTENT)
    with FtsService(tmp_path, "--folder", str(folder)) as fts:
        urls = {name: f"file://{folder}/{name}" for name in names}
        site = site_between(tmp_path, fts.url, urls, **{name: {"probe": probe} for name in names})
        nights = Nights(site)

        def tell(_: Notifier, message: Message, **__: object) -> DeliveryOutcome:
            nights.told.append(message.title)
            return DeliveryOutcome.TOLD

        monkeypatch.setattr(Notifier, "tell", tell)
        yield nights
        site.ledger.dispose()


@pytest.mark.parametrize("count", [300, pytest.param(2000, marks=pytest.mark.thorough)])
def test_a_site_fails_is_left_alone_and_taken_back(nights: Nights, tmp_path: Path, count: int) -> None:
    site, places = nights.site, LabPlaces(nights.site)
    files = planned(site.settings, WORKFLOW, count, seed=7)
    for file in files:
        places.put(file)
    for request in requests_of(WORKFLOW, files):
        check_request(request, site.settings.sites)
        record_request(site.ledger, request, now=nights.now)
    nights.round()
    while not nights.through(BAD):
        nights.passes(1, limit=count // 20)
    assert nights.through(BAD) < count / 2

    # it fails: nothing can be opened there any more
    folder = tmp_path / "sites" / BAD
    folder.rename(folder.with_name("away"))
    folder.symlink_to(folder)
    failed_at = nights.now
    nights.passes(3, limit=count // 20)
    while BAD not in obstacles(site.ledger):
        nights.now += EVERY
        nights.round()
    marked = changes_of(site.ledger, failed_at)[BAD][0].at
    minutes = {"marked": (marked - failed_at).total_seconds() / 60}
    assert [title for title in nights.told if title.endswith("failed")] == [f"site {BAD}: failed"]
    assert [title for title in nights.told if BAD not in title] == []

    # everything else ends; of this site nothing is sent, asked or removed
    jobs, calls = nights.jobs_of(BAD), Counter[str]()
    opened = SiteClients.any_place

    def counted(self: SiteClients, name: str, owner: str) -> Any:
        calls[name] += 1
        return opened(self, name, owner)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SiteClients, "any_place", counted)
        nights.passes(30)
        report = take_census(nights.stageout, now=lambda: nights.now)
    assert (nights.jobs_of(BAD), calls[BAD]) == (jobs, 0)
    assert calls["Lab_North"] > 0
    waiting = [row for row in nights.rows() if row.state not in THROUGH]
    assert {BAD in (row.source, row.destination) for row in waiting} == {True}
    held = [row for row in waiting if row.state is TransferState.NEW]
    assert held
    assert all(row.reason.startswith(f"held: {BAD}: it has failed") for row in held)
    assert any(finding.kind.value == "held" for finding in report.findings)
    assert nights.told.count(f"site {BAD}: failed") == 1

    # it is taken back, and all that waited ends
    folder.unlink()
    folder.with_name("away").rename(folder)
    back_at = nights.now
    while BAD in obstacles(site.ledger):
        nights.now += EVERY
        nights.round()
    minutes["taken back"] = (nights.now - back_at).total_seconds() / 60
    assert nights.told[-1] == f"site {BAD}: ok"
    for _ in range(200):
        if all(row.state in TRANSFER_ENDED for row in nights.rows()):
            break
        nights.passes(5)
        if all(row.state in THROUGH for row in nights.rows()):
            for owner in USERS:
                close_workflow(site.ledger, owner, WORKFLOW, now=nights.now)
        nights.now += EVERY
    account = account_of(WORKFLOW, files, nights.rows(), places, wall_s=1.0)
    assert account.problems == ()
    print(f"{count} files; minutes until {BAD} was: {minutes}")
