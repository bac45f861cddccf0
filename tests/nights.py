"""A deployment with a slot, on which the steps of nights are called one by one."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest

from include.cvmfs.check.check import CheckReport, check
from include.cvmfs.format.paths import link_target
from include.nightlies.errors import GateClosed, ReserveFailed
from include.nightlies.records import builds
from include.nightlies.records.publications import publications_of_run
from include.nightlies.removal.undo import UndoPlan, Wish, undo
from include.nightlies.rules.build import LinkState
from include.nightlies.rules.publication import Publication, State
from include.nightlies.steps.gate import Passed, gate
from include.nightlies.steps.inherit import inherit_batch
from include.nightlies.steps.links import Linked, link_night
from include.nightlies.steps.plan import plan_night, plan_publication
from include.nightlies.steps.prepare import prepare_batch
from include.nightlies.steps.publish import PublishOutcome, publish_batch, reserve_run
from include.nightlies.steps.values import Attempt, Batch, BatchOutcome, Clock, Night, Plan, PublicationRequest
from include.nightlies.steps.verify import verify_run
from tests.fakes.attempts import attempt
from tests.fakes.builds import Build, tree
from tests.site import FQRN, Deployment, now

FOLDER = "/nightlies/main"
"""The slot's directory of builds."""
LINKED = {"links": {}, "tag": "{slot}-{build_id}", "optional": {"platforms": ["dbg"]}}
"""A slot with links, a tag, and an optional platform."""
Projects = Mapping[str, bytes]
_runs = itertools.count()


def night_of(day: int, run: str = "", *, slot: str = "main", **more: Any) -> Night:
    return Night(run or f"night/{day}", slot, date(2026, 11, day), "test", **more)


def build_of(day: int, projects: Projects, *, slot: str = "main", **index: object) -> Build:
    """A build of these projects, each a tree of one `file`; `A:dbg` is another platform."""
    build = Build(f"2026-11-{day:02}", slot, index=dict(index))
    for name, content in projects.items():
        project, _, platform = name.partition(":")
        build.add(project, platform or "x86_64", tree({"file": content}))
    return build


def wish(build_id: str = "b20261103", **changes: Any) -> Wish:
    """To undo a build."""
    return Wish("main", build_id, "it crashes", **changes)


def base_of(day: int) -> dict[str, object]:
    """Fields of the index of a partial build."""
    return {"partial": True, "base": {"build_id": f"b202611{day:02}", "date": f"2026-11-{day:02}"}}


@dataclass
class Nights(Deployment):
    """Its slot is `main`; builds are dropped in the store of the repository. `clock`: that of its steps."""

    clock: Clock = now

    def attempt(self, run: str = "night/run", number: int = 1) -> Attempt:
        return attempt(run, number=number, clock=self.clock)

    # -- builds

    def store_build(self, build: Build) -> Build:
        build.store_in(self.site.store("cvmfs"))
        return build

    def drop(self, day: int, projects: Projects, *, lost: str = "", **index: object) -> Build:
        """A build of these projects, of which the tarball of `lost` is not uploaded."""
        build = build_of(day, projects, **index)
        return self.store_build(build.lose(*lost.split("/")) if lost else build)

    # -- the steps of a run

    def plan_of(self, night: Night) -> Plan:
        return plan_night(self.site, self.attempt(), night, max_mapped=1)

    def plan(self, day: int, projects: Mapping[str, Mapping[str, bytes]], run: str = "") -> Batch:
        """Drop a build of these trees and plan its night."""
        build = Build(f"2026-11-{day:02}")
        for project, files in projects.items():
            build.add(project, "x86_64", tree(files))
        self.store_build(build)
        return self.planned(day, run)

    def planned(self, day: int, run: str = "") -> Batch:
        (batch,) = self.plan_of(night_of(day, run)).batches
        return batch

    def prepare(self, batch: Batch, try_number: int = 1) -> BatchOutcome:
        return prepare_batch(self.site, self.attempt(number=try_number), batch)

    def publish(self, batch: Batch, try_number: int = 1) -> PublishOutcome:
        reserve_run(self.site, self.attempt(), [batch])
        return publish_batch(self.site, self.attempt(number=try_number), batch)

    def night(self, day: int, projects: Mapping[str, Mapping[str, bytes]]) -> dict[str, Publication]:
        """A whole night; the publication of each project."""
        batch = self.plan(day, projects)
        assert not self.prepare(batch).failures
        outcome = self.publish(batch)
        assert not outcome.failures
        assert not outcome.busy
        return {str(done.project): done for done in outcome.done}

    def by_hand(self, path: str, data: bytes, **request: Any) -> Publication:
        """Publish a tarball by hand, as a run of its own as far as its steps let it."""
        store, run = self.site.store("cvmfs"), f"publication/{next(_runs)}"
        store.put(f"{run}.tar.gz", data)
        asked = PublicationRequest(FQRN, path, f"{store.url}/{run}.tar.gz", **request)
        (batch,) = plan_publication(self.site, self.attempt(run), asked).batches
        if not self.prepare(batch).failures and not batch.dry_run:
            with suppress(ReserveFailed):  # which the publication's reason repeats
                self.publish(batch)
        return self.publication(batch)

    def publish_night(self, night: Night) -> None:
        """All steps before the gate; what fails is recorded, nothing is busy."""
        for batch in self.plan_of(night).batches:
            self.prepare(batch)
            assert not self.publish(batch).busy
        verify_run(self.site, self.attempt(night.run))

    def published(self, day: int, projects: Projects, run: str = "", *, lost: str = "", **index: object) -> Night:
        """Drop a build, see ``drop``, and have its night as far as the gate."""
        self.drop(day, projects, lost=lost, **index)
        night = night_of(day, run)
        self.publish_night(night)
        return night

    def to_the_gate(self, night: Night) -> PublishOutcome | None:
        """All steps up to the gate, of which none fails; the outcome of what was taken from another build."""
        plan, taken = self.plan_of(night), None
        if plan.inherited is not None:
            taken = inherit_batch(self.site, self.attempt(), plan.inherited)
            assert not taken.failures
            assert not taken.busy
        for batch in plan.batches:
            self.prepare(batch)
            assert not self.publish(batch).failures
        verify_run(self.site, self.attempt(night.run))
        self.gate(night)
        return taken

    def gate(self, night: Night) -> Passed:
        return gate(self.site, self.attempt(night.run), night=night)

    def missing(self, night: Night) -> list[str]:
        """Names in the message of the gate, which is closed."""
        with pytest.raises(GateClosed) as closed:
            self.gate(night)
        return [line.partition(": ")[0] for line in closed.value.missing]

    def link(self, night: Night) -> Linked:
        (build,) = builds.builds_of(self.site.ledger, "main", night.date)
        return link_night(self.site, self.attempt(night.run), night, build)

    def link_states(self, night: Night) -> set[LinkState]:
        """Let the links of a night be set; the states of all of them."""
        return {link.state for link in self.link(night).links}

    def install_build(self, day: int, projects: Projects, run: str = "", **index: object) -> Linked:
        """Drop a build and have its whole night, of which nothing fails; what became of its links."""
        self.drop(day, projects, **index)
        self.to_the_gate(night_of(day, run))
        return self.link(night_of(day, run))

    # -- what became of it

    def publication(self, batch: Batch) -> Publication:
        (publication,) = self.publications(batch.run)
        return publication

    def publications(self, run: str) -> tuple[Publication, ...]:
        return tuple(publications_of_run(self.site.ledger, run))

    def states(self, *runs: str) -> dict[str, State]:
        """The state of each project's publication."""
        return {str(done.project): done.state for run in runs for done in self.publications(run)}

    def reason(self, batch: Batch, name: str) -> str:
        """The reason of the state of an artifact's publication."""
        (item,) = (item for item in batch.items if item.name == name)
        return next(done.reason for done in self.publications(batch.run) if done.destination == item.destination)

    @property
    def revision(self) -> int:
        return self.head().manifest.revision

    def leads_to(self, name: str) -> str:
        """The target of a link of the slot; empty if there is none."""
        path = f"{FOLDER}/{name}"
        entry = self.head().revision.lookup(path)
        return link_target(path, entry.symlink) if entry is not None else ""

    def files(self) -> dict[str, bytes]:
        """The `file` of each tree, by path."""
        revision = self.head().revision
        return {
            path: revision.read(path)
            for path, entry in revision.walk("/nightlies")
            if entry.is_regular and entry.name == "file"
        }

    def data_objects(self) -> set[str]:
        """The keys of what is stored beside catalogs, histories and meta data."""
        return {meta.key for meta in self.store.list("data/") if meta.key[-1] not in "CHXM"}

    def check(self) -> CheckReport:
        return check(self.site.head(FQRN), contents=True)

    def assert_whole(self) -> None:
        """A full check finds no problem."""
        assert self.check().problems == ()

    def forget_the_first(self) -> None:
        """Let the current revision need nothing of the first night any more."""
        self.site.publisher(FQRN).remove(f"{FOLDER}/b20261101", holder="test", now=now())

    def taken_back(self, wish: Wish) -> tuple[UndoPlan, int | None]:
        return undo(self.site, self.attempt("test/undo"), wish)
