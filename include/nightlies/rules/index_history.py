"""A build's index beside what was seen of it before: it may grow, and it may not take anything back. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from include.nightlies.errors import BuildMoved
from include.nightlies.rules.build import BuildRecord
from include.nightlies.rules.index import BuildIndex


@dataclass(frozen=True, slots=True)
class Compared:
    """The index to go by, and what is wrong with the one that was read, in words."""

    index: BuildIndex
    notes: tuple[str, ...] = ()


def compared(index: BuildIndex, before: BuildRecord | None) -> Compared:
    """What to go by, given what the ledger has of the build.

    An index that is older than one that was seen (`serial`, else `created`) counts for nothing: the artifacts are those
    that were listed before. One that has neither is taken, and the earlier values still hold for the next. One
    that no longer is complete, or lists less, is reported, and nothing is taken back.
    Raises BuildMoved for a build id that was used on another day.
    """
    if before is None:
        return Compared(index)
    if before.date != index.date:
        raise BuildMoved(index.slot, index.build_id, before.date, index.date)
    own = {record.artifact.name: record.artifact for record in before.artifacts if record.inherited is None}
    if why := older(index, before.serial, before.written_at):
        note = f"the index is older than one that was seen before: {why}; it is left aside, that one counts"
        kept = replace(
            index,
            artifacts=tuple(own.values()),
            rejected=before.rejected,
            complete=before.complete,
            base=before.base,
            serial=before.serial,
            created=before.written_at,
        )
        return Compared(kept, (note,))
    index, notes = _still_told(index, before), []
    if before.complete and not index.complete:
        notes.append("the index was complete before and is not any more; it counts as complete")
        index = replace(index, complete=True)
    listed = {artifact.name for artifact in index.artifacts} | {artifact.name for artifact in index.rejected}
    notes += [
        f"{name} was listed before and is not any more; what is published of it stays" for name in sorted(own)
        if name not in listed
    ]  # fmt: skip
    if before.base is not None and index.base != before.base:
        now = f"on {index.base}" if index.base else "on none"
        notes.append(f"the build was based on {before.base} before and {now} now")
    return Compared(index, tuple(notes))


def older(index: BuildIndex, serial: int | None, created: datetime | None) -> str:
    """Why an index is older than a version with that serial and time; nothing if it is not.

    Serials decide where both have one and they differ: a builder's clock may be set back.
    """
    if index.serial is not None and serial is not None and index.serial != serial:
        return f"serial {index.serial} after {serial}" if index.serial < serial else ""
    if index.created is not None and created is not None and index.created < created:
        return f"created {index.created.isoformat()} after {created.isoformat()}"
    return ""


def _still_told(index: BuildIndex, before: BuildRecord) -> BuildIndex:
    """The index with the highest serial and time that were seen: what once ordered versions goes on doing so."""
    if index.serial is None:
        index = replace(index, serial=before.serial)
    if index.created is None:
        index = replace(index, created=before.written_at)
    return index
