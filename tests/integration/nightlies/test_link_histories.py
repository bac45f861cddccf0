"""Nights, backfills, retries, rebuilds and undos in any order: a link goes back by an undo only, and never nowhere."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date

import pytest

from include.nightlies.records import builds
from include.nightlies.removal.undo import Wish, redo, undo
from include.nightlies.rules.build import BuildKey
from include.nightlies.rules.links import all_links_of
from include.nightlies.steps.errors import GateClosed, NotVerified
from include.nightlies.steps.gate import gate
from include.nightlies.steps.links import link_night
from include.nightlies.steps.values import Night
from include.nightlies.steps.verify import verify_run
from tests.fakes.attempts import attempt
from tests.fakes.builds import Build, tree
from tests.nights import LINKED, Nights
from tests.site import FQRN, now

pytestmark = pytest.mark.slow
STEPS = 14
DAYS = (2, 3, 9)  # two Mondays and a Tuesday
IDS = ("b9", "b10")
"""Of each day two builds; which is the later one, their numbers say and their letters do not."""


@dataclass
class Story:
    """What happened so far. ``runs``: of each build the nights that were run; ``contents``: what it lists at last."""

    nights: Nights
    chance: random.Random
    runs: list[tuple[Night, str]] = field(default_factory=list)
    contents: dict[str, bytes] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)

    def go_on(self) -> bool:
        """One more thing happens; whether it was an undo."""
        kinds: list[Callable[[], str]] = [self.a_night, self.a_night]
        if self.runs:
            kinds += [self.a_retry, self.a_rebuild, self.a_broken_rebuild, self.an_undo, self.a_redo]
        self.said.append(self.chance.choice(kinds)())
        return self.said[-1].startswith("undo")

    def a_night(self) -> str:
        """Of any date, so that many are backfills."""
        day, which = self.chance.choice(DAYS), self.chance.choice(IDS)
        build_id = f"d{day}-{which}"
        self._install(day, build_id, self.contents.setdefault(build_id, build_id.encode()))
        return f"night of {build_id}"

    def a_retry(self) -> str:
        """The last tasks of an old run are cleared."""
        night, build_id = self.chance.choice(self.runs)
        self._end(night, build_id)
        return f"retry of {night.run}"

    def a_rebuild(self) -> str:
        night, build_id = self.chance.choice(self.runs)
        self.contents[build_id] += b" rebuilt"
        self._install(night.date.day, build_id, self.contents[build_id])
        return f"rebuild of {build_id}"

    def a_broken_rebuild(self) -> str:
        night, build_id = self.chance.choice(self.runs)
        self._install(night.date.day, build_id, b"broken", lost=True)
        return f"broken rebuild of {build_id}"

    def an_undo(self) -> str:
        _, build_id = self.chance.choice(self.runs)
        wish = Wish("main", build_id, "it is bad", move_links=True)
        undo(self.nights.site, attempt("undo"), wish)
        return f"undo of {build_id}"

    def a_redo(self) -> str:
        _, build_id = self.chance.choice(self.runs)
        redo(self.nights.site, Wish("main", build_id, "it was good"), now=now())
        return f"redo of {build_id}"

    def _install(self, day: int, build_id: str, content: bytes, *, lost: bool = False) -> None:
        build = Build(f"2026-11-{day:02}", build_id=build_id)
        for project in ("A", "B"):
            build.add(project, "x86_64", tree({"file": project.encode() + content}))
        if lost:
            build.artifacts["B/x86_64"]["size"] += 1
        build.store_in(self.nights.site.store("cvmfs"))
        night = Night(f"night/{len(self.runs)}", "main", date(2026, 11, day), "test")
        self.runs.append((night, build_id))
        self.nights.publish_night(night)
        self._end(night, build_id)

    def _end(self, night: Night, build_id: str) -> None:
        site = self.nights.site
        try:
            verify_run(site, attempt(night.run))
            gate(site, attempt(night.run), night=night)
        except (NotVerified, GateClosed):  # an old run finds another tree, what failed is missing
            if self.chance.random() < 0.5:
                return  # as Airflow does; else somebody lets the links task run all the same
        build = builds.build(site.ledger, "main", build_id)
        assert build is not None
        link_night(site, attempt(night.run), night, build)

    def links(self) -> dict[str, BuildKey | None]:
        site, found = self.nights.site, dict[str, BuildKey | None]()
        slot, head = site.settings.slot("main"), site.head(FQRN)
        for path in all_links_of(slot):
            target = self.nights.leads_to(path.rpartition("/")[2])
            found[path] = builds.key_of_directory(site.ledger, slot, target) if target else None
            assert not target or head.revision.listing(target), (
                f"{path} leads to {target}, where nothing is: {self.said}"
            )
        return found

    def tags(self) -> dict[str, int]:
        return {one.name: one.revision for one in self.nights.head().tags() if one.name[:4] == "main"}


@pytest.mark.parametrize("seed", [0, 2, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (1, 3))])
def test_whatever_happens_a_link_goes_back_by_an_undo_only(nights: Nights, seed: int) -> None:
    story = Story(nights.with_slot(**LINKED), random.Random(seed))
    links, tags = story.links(), story.tags()
    for _ in range(STEPS):
        undone = story.go_on()
        now_links, now_tags = story.links(), story.tags()
        for path, key in now_links.items():
            before = links[path]
            if before is not None and not undone:
                assert key is not None, f"{path} is gone: {story.said}"
                assert key >= before, f"{path} went from {before} back to {key}: {story.said}"
        assert now_tags.items() >= tags.items(), f"a tag was moved: {story.said}"
        links, tags = now_links, now_tags
    assert not story.nights.check().problems, story.said
