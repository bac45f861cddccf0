"""Last step of a run: the ledger says what is there, and whatever the run had to publish and is missing fails it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from include.nightlies import builds, records
from include.nightlies.builds import BuildRecord
from include.nightlies.records import Publication
from include.nightlies.states import State
from include.nightlies.steps.errors import GateClosed
from include.nightlies.steps.values import Night
from include.publishers.connect import Connections
from include.settings.model import Slot


@dataclass(frozen=True, slots=True)
class Passed:
    """What a run that passed the gate has published."""

    run: str
    repositories: tuple[str, ...]
    revision: int | None
    counts: Mapping[str, int]
    dry_run: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "repositories": list(self.repositories),
            "revision": self.revision,
            "dry_run": self.dry_run,
            **{f"artifacts_{state}": count for state, count in sorted(self.counts.items())},
        }


def gate(connections: Connections, run: str, *, night: Night | None = None, dry_run: bool = False) -> Passed:
    """Let the run pass if everything that it had to publish is published, or held already, and verified.

    With a night, what its slot requires (its projects times its platforms, as far as chosen), what its index lists but
    cannot be taken, and an index that is not complete count too. Raises GateClosed with every missing thing and why.
    """
    dry_run = dry_run or (night is not None and night.dry_run)
    publications = records.publications_of_run(connections.ledger, run)
    lines = [line for one in publications for line in missing_line(one, dry_run=dry_run)]
    if night is not None:
        slot = connections.site.slot(night.slot)
        build = _build(connections, publications, night)
        lines += missing_of_build(slot, night, build, publications)
    if not publications and not lines:
        lines.append("nothing was planned; see why the plan failed")
    if lines:
        raise GateClosed(run, lines)
    counts: dict[str, int] = {}
    for one in publications:
        counts[one.state.value] = counts.get(one.state.value, 0) + 1
    return Passed(
        run,
        tuple(sorted({one.repository for one in publications})),
        max((one.revision_after for one in publications if one.revision_after is not None), default=None),
        counts,
        dry_run,
    )


def missing_line(publication: Publication, *, dry_run: bool) -> list[str]:
    """Nothing if the publication is where it has to be, else one line that says what is missing and why."""
    name = f"{publication.project}/{publication.platform}" if publication.project else publication.destination
    if publication.state.good:
        return [] if publication.verified_at or dry_run else [f"{name}: published, but not read back; see verify"]
    if dry_run and publication.state is State.SKIPPED:
        return []
    return [f"{name}: {publication.state.value}: {publication.reason}"]


def missing_of_build(
    slot: Slot, night: Night, build: BuildRecord | None, publications: Sequence[Publication]
) -> list[str]:
    """What the slot or the build's index wants and no publication stands for."""
    if build is None:
        return [f"slot {slot.name}: no build for {night.date} was planned; see why the plan failed"]
    planned = {(one.project, one.platform) for one in publications}
    lines = [
        f"{one.name}: rejected: {one.reason}"
        for one in build.rejected
        if (one.project, one.platform) not in planned
        and _wanted(one.project, night.projects or slot.projects)
        and _wanted(one.platform, night.platforms or slot.platforms)
    ]
    rejected = {(one.project, one.platform) for one in build.rejected}
    lines += [
        f"{project}/{platform}: not in the index of build {build.build_id}"
        for project in night.projects or slot.projects
        for platform in night.platforms or slot.platforms
        if (project, platform) not in planned | rejected
    ]
    if not build.complete and not (night.projects and night.platforms):
        lines.append(f"build {build.build_id}: its index is not complete yet; run again when it is")
    return lines


def _wanted(name: str | None, chosen: Sequence[str]) -> bool:
    return name is None or not chosen or name in chosen


def _build(connections: Connections, publications: Sequence[Publication], night: Night) -> BuildRecord | None:
    for one in publications:
        if one.slot is not None and one.build_id is not None:
            return builds.build(connections.ledger, one.slot, one.build_id)
    return next(iter(builds.builds_of(connections.ledger, night.slot, night.date)), None)
