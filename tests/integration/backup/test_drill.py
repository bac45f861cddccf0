"""A night and stage-out run, a backup is taken in the middle, everything is lost, restored and reconciled.

Then a second night follows: nothing was removed, and nothing is there twice.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from include.backup.report import RestoreOutcome, RestoreReport, make_report
from include.cvmfs.errors import CollectionRefused
from include.monitoring.store_checks import look_at_restores
from include.nightlies.rules.publication import State
from include.nightlies.steps.verify import verify_run
from include.site.collecting import require_collectable
from include.stageout.blocks import close_workflow
from include.stageout.components.census import take_census
from include.stageout.files import FileToTransfer, StageoutRequest
from include.stageout.findings import FindingKind, FindingOutcome
from include.stageout.opening import open_stageout
from include.stageout.passes import COMPONENTS, run_pass
from include.stageout.requests import record_request
from include.stageout.states import TransferState
from tests.fakes.backups import Backups, recipient
from tests.fakes.ftsservice import FtsService
from tests.fakes.ledgers import from_a_template
from tests.fakes.refused import refused
from tests.fakes.transfers import states
from tests.nights import FOLDER, LINKED, Nights, night_of
from tests.site import FQRN

T = TransferState


@dataclass
class Drill:
    """A deployment with a slot and two storage sites, an FTS that survives it, and the clock of its transfers."""

    nights: Nights
    backups: Backups
    fts: FtsService
    clock: datetime

    def place(self, site: str, name: str) -> Path:
        return self.nights.folder.parent / "sites" / site / name.removeprefix("/store/")

    def request(self, group: str, count: int) -> list[str]:
        """Write so many files at pisa, and request their transfer to bari; the names of their copies."""
        files = []
        for number in range(count):
            source = self.place("pisa", f"/store/temp/user/ann/{group}{number}.root")
            source.parent.mkdir(parents=True, exist_ok=True)
            source.write_bytes(f"{group} {number}".encode() * 100)
            files.append(
                FileToTransfer(
                    "pisa", f"/store/temp/user/ann/{group}{number}.root", "bari",
                    f"/store/user/ann/{group}{number}.root", size=source.stat().st_size,
                    checksum=f"adler32:{zlib.adler32(source.read_bytes()):08x}",
                )
            )  # fmt: skip
        record_request(self.nights.site.ledger, StageoutRequest("ann", group, group, tuple(files)), now=self.clock)
        close_workflow(self.nights.site.ledger, "ann", group, now=self.clock)
        return [file.destination_name for file in files]

    def passes(self, *names: str) -> None:
        """A pass of these components, or of all."""
        components = {name: COMPONENTS[name] for name in names or COMPONENTS}
        self.clock += timedelta(minutes=1)
        stageout = open_stageout(self.nights.site, "drill")
        run_pass(stageout, components, now=lambda: self.clock, left=lambda: True).require_sound()

    def until_ended(self) -> set[TransferState]:
        """Passes until every transfer has ended; the states that they have then."""
        for _ in range(60):
            self.passes()
            if set(states(self.nights.site.ledger).values()) <= {T.CLEANED, T.KEPT, T.FAILED, T.KILLED}:
                break
        return set(states(self.nights.site.ledger).values())

    def copies(self) -> dict[str, tuple[bytes, int]]:
        """The copies at bari: what is in each, and when it was written."""
        files = sorted(self.place("bari", "/store/user/ann").glob("*.root"))
        return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in files}

    def sources(self, group: str) -> int:
        return len([*self.place("pisa", "/store/temp/user/ann").glob(f"{group}*.root")])

    def report(self, *, accepts: bool = False) -> RestoreReport:
        return make_report(self.nights.site, by="test", now=self.clock, accepts=accepts)


@pytest.fixture
def drill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Drill]:
    from_a_template(monkeypatch)
    folder = tmp_path / "machine"
    folder.mkdir()
    with FtsService(tmp_path, "--folder", str(tmp_path / "sites")) as fts:
        nights = Nights(folder)
        nights.with_gateway().with_slot(**LINKED).with_options(garbage_collectable=True)
        sites = {}
        for name in ("pisa", "bari"):
            rules = [{"prefix": "/store", "url": f"file://{tmp_path}/sites/{name}"}]
            sites[name] = {
                "read": rules, "write": rules, "third_party": rules, "temporary": "/store/temp", "clean": True,
                "clean_unknown": True,
            }  # fmt: skip
        backups = Backups(nights)
        # folders of sites are below `paths.var`, which is not lost here: the sites are other machines
        nights.configure(sites=sites, paths={"var": str(tmp_path)})
        nights.environment["AIRFLOW_CONN_FTS_DEFAULT"] = json.dumps({"conn_type": "fts", "host": fts.url})
        for name, value in nights.environment.items():
            monkeypatch.setenv(name, value)
        yield Drill(nights, backups, fts, datetime.now(UTC))
        nights.close()


def test_a_second_night_follows_a_restore_with_nothing_removed_and_nothing_doubled(drill: Drill) -> None:
    nights, alpha, beta = drill.nights, {"Alpha": b"a1", "Beta": b"b1"}, {"Alpha": b"a2", "Beta": b"b2"}
    nights.install_build(1, alpha)
    drill.request("done", 2)
    assert drill.until_ended() == {T.CLEANED}

    # in the middle of a night and of transfers
    nights.drop(2, beta)
    night = night_of(2)
    batches = nights.plan_of(night).batches
    for batch in batches:
        nights.prepare(batch)
    drill.request("sent", 3)
    drill.passes("submit")
    drill.request("unsent", 3)
    manifest = drill.backups.take(to=recipient()[0])
    assert manifest.repositories == {FQRN: nights.revision}

    # what the backup does not have
    for batch in batches:
        assert not nights.publish(batch).failures
    verify_run(nights.site, nights.attempt(night.run))
    nights.gate(night)
    nights.link(night)
    assert drill.until_ended() == {T.CLEANED}
    assert drill.sources("unsent") == 0
    drill.request("later", 2)
    copies, files, revision = drill.copies(), nights.files(), nights.revision
    objects = nights.data_objects()
    assert len(copies) == 8

    nights.stop()
    drill.backups.lose_everything()
    drill.backups.restore(opener=recipient()[1])
    nights.start()
    report = drill.report()
    heads = [line.text for line in report.lines if line.subject == FQRN]
    assert f"its head is revision {revision}" in heads[0]
    assert len([text for text in heads if "exists in the repository" in text]) == 2
    unsent = [line for line in report.lines if "its copy exists" in line.text]
    assert {(line.outcome, line.subject) for line in unsent} == {(RestoreOutcome.RECONCILED, "bari")}
    assert len(unsent) == 3
    with refused(CollectionRefused, fqrn=FQRN):
        require_collectable(nights.site, FQRN)
    assert drill.report(accepts=True).restores
    assert (drill.report().restores, list(look_at_restores(nights.site))) == ((), [])

    # every transfer ends as it had ended; no file was copied again, or removed
    assert drill.until_ended() == {T.CLEANED}
    assert drill.copies() == copies
    stageout = open_stageout(nights.site, "drill")
    later = drill.clock + timedelta(days=40)
    census = take_census(stageout, now=lambda: later, deletes=True)
    unknown = {finding.name: finding.outcome for finding in census.findings if finding.kind is FindingKind.UNKNOWN_FILE}
    assert {Path(str(name)).name for name in unknown} == {"later0.root", "later1.root"}
    assert set(unknown.values()) == {FindingOutcome.REPORTED}
    assert drill.sources("later") == 2
    drill.request("later", 2)  # its user asks again
    assert drill.until_ended() == {T.CLEANED}
    assert len(drill.copies()) == 10

    # the interrupted night is run again, and a further one follows
    nights.to_the_gate(night)
    assert set(nights.states(night.run).values()) <= {State.UNCHANGED, State.PUBLISHED}
    assert (nights.revision, nights.files(), nights.data_objects()) == (revision, files, objects)
    nights.link(night)
    nights.install_build(3, {"Alpha": b"a3", "Beta": b"b3"})
    assert nights.leads_to("latest") == f"{FOLDER}/b20261103"
    assert files.items() < nights.files().items()
    nights.assert_whole()
    assert nights.client().leases() == []
