"""The steps of the quality gate: a build's index before anything is published, and the build before links move."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

from include.nightlies.errors import QualityBlocked
from include.nightlies.records import builds, quality as records, undos
from include.nightlies.records.publications import publications_of_build
from include.nightlies.records.quality import NightFigures, QualityRecord, QualityVerdict
from include.nightlies.rules.build import BuildKey, BuildRecord, destination_of
from include.nightlies.rules.publication import Publication
from include.nightlies.steps.links import build_of_night
from include.nightlies.steps.sources import read_again
from include.nightlies.steps.values import Attempt, Night
from include.quality import suites
from include.quality.results import SuiteInput, SuiteResult, folder_of_run, write_docs
from include.settings.model import Slot
from include.settings.prepare import QualityMode, Suite
from include.site.site import Site

log = logging.getLogger(__name__)


def check_index(site: Site, attempt: Attempt, night: Night, *, accepted: str = "") -> tuple[QualityRecord, ...]:
    """Judge the index of a night's build by the suite `index`; its result is stored in the ledger and in the Data Docs.

    Args:
        site: The deployment.
        attempt: The try of the task.
        night: The night of the run.
        accepted: Why a person accepts what is found; "" if it is not accepted.

    Raises:
        QualityBlocked: the suite blocks and found something.
        NightshiftError: the index cannot be read, or a suite cannot be applied.
    """
    slot = site.settings.slot(night.slot)
    if _is_off(slot, Suite.INDEX) or slot.quality is None:
        return ()
    index, _ = read_again(site, slot, night.date)
    nights = records.earlier_nights(site.ledger, slot.name, BuildKey(index.date, index.build_id), limit=suites.NIGHTS)
    given = suites.index_suite(index, slot, slot.quality, nights)
    return _judge(site, attempt, slot, BuildKey(index.date, index.build_id), [given], accepted)


def check_build(site: Site, attempt: Attempt, night: Night, *, accepted: str = "") -> tuple[QualityRecord, ...]:
    """Judge the build of a night by the suites `published`, `night` and `growth`, as the repository and ledger have it.

    All of the build counts, whichever run published it. Arguments and errors as `check_index`; raises BuildMissing if
    the ledger has no build of the night.
    """
    slot = site.settings.slot(night.slot)
    if slot.quality is None:
        return ()
    build = build_of_night(site.ledger, night)
    nights = records.earlier_nights(site.ledger, slot.name, build.key, limit=suites.NIGHTS)
    tonight = records.night(site.ledger, slot.name, build.build_id, build.date)
    given = []
    if not _is_off(slot, Suite.PUBLISHED):
        found = published_artifacts(site, slot, build, _whole_before(site, slot, build, nights))
        given.append(suites.published_suite(found, slot.quality.band))
    if not _is_off(slot, Suite.NIGHT):
        given.append(suites.night_suite(tonight, nights, slot.quality))
    if not _is_off(slot, Suite.GROWTH):
        given.append(suites.growth_suite(tonight, nights, slot.quality))
    return _judge(site, attempt, slot, build.key, given, accepted)


def published_artifacts(
    site: Site, slot: Slot, build: BuildRecord, whole: Mapping[str, BuildRecord]
) -> tuple[suites.PublishedArtifact, ...]:
    """Each published artifact of a build, with what the current revision's catalogs say of it and of it in `whole`."""
    revision, found = site.head(slot.repository).revision, []
    undone, newest = undos.of_build(site.ledger, build.id), dict[int, Publication]()
    for published in publications_of_build(site.ledger, build.id):
        if published.state.good and published.artifact is not None:
            newest.setdefault(published.artifact, published)
    for record in build.artifacts:
        publication, artifact = newest.get(record.id), record.artifact
        if publication is None or (record.id, artifact.sha256) in undone:
            continue
        before = whole.get(artifact.name)
        old = None if before is None else before.artifact(artifact.project, artifact.platform)
        facts_before = None
        if old is not None and before is not None:
            facts_before = suites.tree_facts(revision, slot.repository, destination_of(slot, before, old.artifact))
        runs = facts_before.executables if facts_before is not None else frozenset[str]()
        facts = suites.tree_facts(revision, slot.repository, destination_of(slot, build, artifact), runs)
        found.append(
            suites.PublishedArtifact(
                artifact.name, artifact.sha256, publication.artifact_sha256, publication.files, publication.bytes,
                facts, facts_before,
            )
        )  # fmt: skip
    return tuple(found)


def _whole_before(site: Site, slot: Slot, build: BuildRecord, nights: Sequence[NightFigures]) -> dict[str, BuildRecord]:
    """The newest earlier build in which each artifact was published, by artifact; failed ones are passed over."""
    names = {record.artifact.name for record in build.artifacts}
    ids = _newest_with(names, nights)
    if len(nights) >= suites.NIGHTS and names - ids.keys():
        ids = _newest_with(names, records.earlier_nights(site.ledger, slot.name, build.key, limit=records.LOOKED_AT))
    found = {build_id: builds.build(site.ledger, slot.name, build_id) for build_id in set(ids.values())}
    return {name: before for name, build_id in ids.items() if (before := found[build_id]) is not None}


def _newest_with(names: Collection[str], nights: Sequence[NightFigures]) -> dict[str, str]:
    ids: dict[str, str] = {}
    for night in nights:
        for name, figures in night.artifacts.items():
            if name in names and figures.files is not None:
                ids.setdefault(name, night.key.build_id)
    return ids


def _judge(
    site: Site, attempt: Attempt, slot: Slot, build: BuildKey, given: Iterable[SuiteInput], accepted: str
) -> tuple[QualityRecord, ...]:
    from include.quality.validate import validate

    pages, found, faults = {}, [], list[str]()
    for suite_input in given:
        result, pages[suite_input.suite] = validate(suite_input)
        record = _record(attempt, slot, build, result, accepted)
        records.record(site.ledger, record)
        found.append(record)
        level = logging.INFO if record.verdict is QualityVerdict.PASSED else logging.WARNING
        for line in [*result.faults, *result.notes] or [result.reason]:
            log.log(level, "quality, suite %s: %s: %s", suite_input.suite.value, record.verdict.value, line)
        if record.verdict is QualityVerdict.BLOCKED:
            faults += [f"suite {suite_input.suite.value}: {line}" for line in result.faults]
    if pages and slot.quality is not None:
        folder = folder_of_run(site.settings.paths.var, slot.name, attempt.run)
        write_docs(folder, pages, records.of_run(site.ledger, attempt.run).values(), keep=slot.quality.keep_runs)
    if faults:
        raise QualityBlocked(build.build_id, faults)
    return tuple(found)


def _record(attempt: Attempt, slot: Slot, build: BuildKey, result: SuiteResult, accepted: str) -> QualityRecord:
    verdict = QualityVerdict.PASSED
    if result.faults:
        blocks = slot.quality is not None and slot.quality.mode(result.suite) is QualityMode.BLOCK
        verdict = QualityVerdict.BLOCKED if blocks else QualityVerdict.WARNED
        verdict = QualityVerdict.ACCEPTED if accepted else verdict
    why = accepted if verdict is QualityVerdict.ACCEPTED else ""
    return QualityRecord(
        attempt.run, result.suite, slot.name, build.build_id, verdict, result.reason, why, len(result.faults),
        attempt.clock(), build.date, result.faults,
    )  # fmt: skip


def _is_off(slot: Slot, suite: Suite) -> bool:
    return slot.quality is None or slot.quality.mode(suite) is QualityMode.OFF
