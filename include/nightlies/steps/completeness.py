"""Whether a build is whole: all that its slot requires is in the repository as it was published and read back."""

from __future__ import annotations

from include.cvmfs.revision.revision import Revision
from include.ledger.engine import Bind
from include.nightlies.records import publications as records
from include.nightlies.records import quality
from include.nightlies.rules.build import ArtifactRecord, BuildRecord
from include.nightlies.rules.current_content import standing
from include.nightlies.rules.destinations import destination_of
from include.nightlies.rules.publication import Publication
from include.nightlies.rules.requirements import Pair, never_listed, required_pairs
from include.settings.model import Slot


class Completeness:
    """Judges one build against one revision after the other. The ledger is read once."""

    def __init__(self, ledger: Bind, slot: Slot, build: BuildRecord) -> None:
        self.build = build
        self._bind = ledger
        self._slot = slot
        self._published: dict[int, list[Publication]] = {}
        for publication in records.publications_of_build(ledger, build.id):
            if publication.artifact is not None:
                self._published.setdefault(publication.artifact, []).append(publication)
        self._wanted: dict[Pair, tuple[str, str]] = {}
        self._others: list[tuple[str, str]] = []
        self._faults: list[str] = []
        self._look_at_ledger()

    def lacking(self, tree: Revision) -> list[str]:
        """What is missing in that revision, each with its reason; nothing if the build is whole."""
        gone = []
        for pair, (where, recorded) in self._wanted.items():
            if not _stands(tree, where, recorded):
                what = "nothing is" if standing(tree, where) is None else "another tree is"
                gone.append(f"{'/'.join(pair)}: was published, and now {what} at {where}")
        if not (self._wanted or self._faults or any(_stands(tree, *other) for other in self._others)):
            # nothing is required, and yet no link may lead to what is not there
            return ["nothing of it is in the repository"]
        return self._faults + gone

    def _look_at_ledger(self) -> None:
        build, slot = self.build, self._slot
        rejected = {(artifact.project, artifact.platform): artifact.reason for artifact in build.rejected}
        self._faults += [
            f"{artifact.name}: rejected: {artifact.reason}"
            for artifact in build.rejected
            if not (artifact.project and artifact.platform)
        ]
        known = {(row.artifact.project, row.artifact.platform): row for row in build.artifacts}
        listed = [*known, *((str(a), str(b)) for a, b in rejected if a and b)]
        required = required_pairs(slot, listed)
        for pair in required:
            record = known.get(pair)
            if record is None or pair in rejected:
                # also what was published before: which of two is meant now cannot be known
                reason = f"rejected: {rejected[pair]}" if pair in rejected else "not in the index"
                self._faults.append(f"{'/'.join(pair)}: {reason}")
            elif (fault := self._fault(record)) is not None:
                self._faults.append(f"{'/'.join(pair)}: {fault}")
        self._faults += [f"{name}: nothing of it is in the index" for name in never_listed(slot, listed)]
        if not required:
            self._others = [found for record in known.values() if (found := self._recorded(record))[1]]
        if not build.complete:
            self._faults.append("its index is not complete yet")
        self._faults += map(str, quality.blocked(self._bind, slot.name, build.build_id, slot.quality))

    def _recorded(self, record: ArtifactRecord) -> tuple[str, str]:
        """Where an artifact is to be, and the nested catalog that it became there; "" if it never was published."""
        artifact = record.artifact
        where = destination_of(self._slot, self.build, artifact)
        return where, records.recorded_nested_hash(self._bind, self._slot.repository, where, artifact.sha256) or ""

    def _fault(self, record: ArtifactRecord) -> str | None:
        artifact = record.artifact
        where, recorded = self._recorded(record)
        tries = self._published.get(record.id, [])
        if not recorded:
            return f"{tries[0].state.value}: {tries[0].reason}" if tries else "no run has published it"
        self._wanted[artifact.project, artifact.platform] = (where, recorded)
        if not any(publication.nested_hash == recorded and publication.verified_at for publication in tries):
            return "published, and not read back yet"
        return None


def _stands(tree: Revision, where: str, recorded: str) -> bool:
    held = standing(tree, where)
    return held is not None and held.hash == recorded
