"""The gate of a run: whatever is required and missing in the ledger fails it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from include.ledger.engine import Bind
from include.nightlies.errors import BuildIncomplete, GateClosed
from include.nightlies.records import publications as records, quality
from include.nightlies.records.quality import QualityVerdict
from include.nightlies.rules.build import BuildRecord
from include.nightlies.rules.dependencies import CLEAR_PLAN, is_required, never_listed, required_pairs
from include.nightlies.rules.index import RejectedArtifact
from include.nightlies.rules.publication import Publication, State
from include.nightlies.steps.links import build_taken, keep_links
from include.nightlies.steps.values import Attempt, Night
from include.settings.model import Slot
from include.settings.prepare import QualityMode, Suite
from include.site.site import Site

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Passed:
    """Publications of a run that passed the gate; `lacking`: what is optional and missing, with its reason."""

    run: str
    repositories: tuple[str, ...]
    revision: int | None
    counts: Mapping[str, int]
    dry_run: bool = False
    lacking: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "repositories": list(self.repositories),
            "revision": self.revision,
            "dry_run": self.dry_run,
            "optional_missing": len(self.lacking),
            **{f"artifacts_{state}": count for state, count in sorted(self.counts.items())},
        }


def gate(
    site: Site, attempt: Attempt, *, night: Night | None = None, dry_run: bool = False, cause: str | None = None
) -> Passed:
    """Let the run pass if everything that it had to publish is published, or held already, and verified.

    With a night, what its slot requires (its projects times its platforms, as far as chosen), what its index lists but
    cannot be taken, an index that is not complete, and suites of the quality gate that block count too; what is
    optional is only reported. ``cause``: why nothing could be planned, which comes first then. Raises GateClosed with
    every missing thing and why, which is then also the reason why the slot's links stay.
    """
    run, dry_run = attempt.run, dry_run or (night is not None and night.dry_run)
    publications = records.publications_of_run(site.ledger, run)
    slot = site.settings.slot(night.slot).without(night.without) if night is not None else None
    build = build_taken(site.ledger, night, publications) if night is not None else None
    lines: list[str] = [cause] if cause else []
    lacking: list[str] = []
    for publication in publications:
        optional = slot is not None and _is_optional(slot, publication)
        (lacking if optional else lines).extend(missing_line(publication, dry_run=dry_run))
    if night is not None and slot is not None and not (cause and build is None):
        lines += missing_of_build(slot, night, build, publications)
        lacking += optional_of_build(slot, night, build, publications)
    if night is not None and slot is not None and build is not None:
        every = records.publications_of_build(site.ledger, build.id)
        lines += withdrawn_from_build(slot, night, build, publications, every)
        if not dry_run and not cause:
            lines += quality_of_run(site.ledger, run, slot)
    if not publications and not lines:
        nothing = None if build is None else f"build {build.build_id}: its index lists nothing that the run takes"
        lines.append(nothing or "nothing was planned; see the log of task plan")
    if lines:
        closed = GateClosed(run, lines)
        if night is not None and build is not None and not dry_run:
            keep_links(site, attempt, night, build, str(BuildIncomplete(build.build_id, lines)))
        raise closed
    for line in lacking:
        log.warning("optional and missing: %s", line)
    counts: dict[str, int] = {}
    for publication in publications:
        counts[publication.state.value] = counts.get(publication.state.value, 0) + 1
    return Passed(
        run,
        tuple(sorted({publication.repository for publication in publications})),
        max(
            (publication.revision_after for publication in publications if publication.revision_after is not None),
            default=None,
        ),
        counts,
        dry_run,
        tuple(lacking),
    )


def _is_optional(slot: Slot, artifact: Publication | RejectedArtifact) -> bool:
    return bool(artifact.project and artifact.platform) and not is_required(
        slot, str(artifact.project), str(artifact.platform)
    )


def missing_line(publication: Publication, *, dry_run: bool) -> list[str]:
    """Nothing if the publication is where it has to be, else one line with what is missing and why."""
    name = f"{publication.project}/{publication.platform}" if publication.project else publication.destination
    if publication.state.good:
        return [] if publication.verified_at or dry_run else [f"{name}: published, but not read back; see verify"]
    if dry_run and publication.state is State.SKIPPED:
        return []
    if not publication.state.ended:
        return [f"{name}: {publication.state.value}, and no task of the run publishes it any more. {CLEAR_PLAN}"]
    return [f"{name}: {publication.state.value}: {publication.reason}"]


def missing_of_build(
    slot: Slot, night: Night, build: BuildRecord | None, publications: Sequence[Publication]
) -> list[str]:
    """Return what the slot or the build's index wants and no publication is for."""
    if build is None:
        return [f"slot {slot.name}: no build for {night.date} was planned; see why the plan failed"]
    planned = {(publication.project, publication.platform) for publication in publications}
    lines = [
        f"{artifact.name}: rejected: {artifact.reason}"
        for artifact in _rejected(night, slot, build, planned)
        if not _is_optional(slot, artifact)
    ]
    rejected = {(artifact.project, artifact.platform) for artifact in build.rejected}
    lines += [
        f"{project}/{platform}: not in the index of build {build.build_id}"
        for project, platform in required_pairs(slot, ())
        if (project, platform) not in planned | rejected
        and _wanted(project, night.projects)
        and _wanted(platform, night.platforms)
    ]
    if not (night.projects or night.platforms):
        listed = [
            *planned,
            *rejected,
            *((record.artifact.project, record.artifact.platform) for record in build.artifacts),
        ]
        absent = never_listed(slot, [(project, platform) for project, platform in listed if project and platform])
        lines += [f"{name}: nothing of it is in the index of build {build.build_id}" for name in absent]
    if not build.complete and not (night.projects and night.platforms):
        lines.append(f"build {build.build_id}: its index is not complete yet; run again when it is")
    return lines


def quality_of_run(ledger: Bind, run: str, slot: Slot) -> list[str]:
    """Return which suites of the quality gate keep the run's build back, and which should have judged it and did
    not."""
    if slot.quality is None:
        return []
    found, lines = quality.of_run(ledger, run), []
    for suite in Suite:
        if slot.quality.mode(suite) is not QualityMode.BLOCK:
            continue
        if suite not in found:
            lines.append(f"quality, suite {suite.value}: it was not checked; see the log of its task")
        elif found[suite].verdict is QualityVerdict.BLOCKED:
            lines.append(str(found[suite]))
    return lines


def withdrawn_from_build(
    slot: Slot, night: Night, build: BuildRecord, publications: Sequence[Publication], every: Sequence[Publication]
) -> list[str]:
    """Return what is required, was listed once and is not any more, and no run has published; `every` publication of
    it."""
    planned = {publication.artifact for publication in publications}
    good = {(publication.artifact, publication.artifact_sha256) for publication in every if publication.state.good}
    rejected = {(artifact.project, artifact.platform) for artifact in build.rejected}
    cure = "Let the index list it again, or make it optional."
    return [
        f"{record.artifact.name}: is no longer listed, and no run has published it. {cure}"
        for record in build.artifacts
        if record.id not in planned
        and (record.id, record.artifact.sha256) not in good
        and (record.artifact.project, record.artifact.platform) not in rejected
        and is_required(slot, record.artifact.project, record.artifact.platform)
        and _wanted(record.artifact.project, night.projects)
        and _wanted(record.artifact.platform, night.platforms)
    ]


def optional_of_build(
    slot: Slot, night: Night, build: BuildRecord | None, publications: Sequence[Publication]
) -> list[str]:
    """Return what the index lists, cannot be taken, and is optional."""
    if build is None:
        return []
    planned = {(publication.project, publication.platform) for publication in publications}
    return [
        f"{artifact.name}: rejected: {artifact.reason}"
        for artifact in _rejected(night, slot, build, planned)
        if _is_optional(slot, artifact)
    ]


def _rejected(
    night: Night, slot: Slot, build: BuildRecord, planned: Collection[tuple[str | None, str | None]]
) -> list[RejectedArtifact]:
    return [
        artifact
        for artifact in build.rejected
        if (artifact.project, artifact.platform) not in planned
        and _wanted(artifact.project, night.projects or slot.projects)
        and _wanted(artifact.platform, night.platforms or slot.platforms)
    ]


def _wanted(name: str | None, chosen: Sequence[str]) -> bool:
    return name is None or not chosen or name in chosen


def gate_of_pass(ledger: Bind, run: str, slot: Slot, *, planned: bool, cause: str | None = None) -> None:
    """Let a pass end well if all is published that it took and that is required; what is optional is only reported.

    The night goes on all the same, and its last pass tries again what failed. `planned`: whether the plan came to its
    end, ``cause``: why it did not. Raises GateClosed with every artifact that failed and why.
    """
    if not planned:
        raise GateClosed(run, [f"{cause or 'nothing was planned'}. The next pass looks again by itself"])
    lines: list[str] = []
    for publication in records.publications_of_run(ledger, run):
        if publication.state.good or publication.state is State.SKIPPED:
            continue
        (line,) = missing_line(publication, dry_run=False)
        if is_required(slot, str(publication.project), str(publication.platform)):
            lines.append(line)
        else:
            log.warning("optional: %s", line)
    if lines:
        raise GateClosed(run, lines)
