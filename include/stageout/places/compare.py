"""Copies and what they are made of, compared at the sites: many files with few calls."""

from __future__ import annotations

import errno
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from include.errors import NightshiftError
from include.fts.states import FailureReason, FailureScope
from include.settings.sites import ChecksumMode, RemoteSite
from include.stageout.places.facts import FileFacts, SitePlace
from include.stageout.places.verify import CopyDecision, CopyEvidence, CopyLook, CopyVerdict, verify
from include.stageout.transfers import TransferAtFts

READ_IN_PASS = 64 << 20
"""Bytes of a file that a pass reads: at half a megabyte a second it is read before the pass has to end."""


def judge_copies(
    site: RemoteSite,
    files: Sequence[TransferAtFts],
    *,
    destination: SitePlace,
    source: Callable[[int], SitePlace],
    most: int | None = READ_IN_PASS,
) -> dict[int, CopyDecision]:
    """A decision for each file, by id. What a site refuses is CANNOT_TELL, not an error.

    LOOK is decided only of a file that would have to be read here, and has more than `most` bytes.

    `site`: the destination of all of them. `files`: transfers of any users from any sites. `source`: opens the storage
    that the source of a file is at, by the file's id; only called where the destination and the request do not decide.
    `most`: None: files of any size are read. Raises NightshiftError: what a `SitePlace` raises. A source that cannot be
    opened could not be asked.
    """
    evidence = {file.id: CopyEvidence(file.size, file.checksum) for file in files}
    by_id = {file.id: file for file in files}
    decided: dict[int, CopyDecision] = {}
    while evidence:
        asked: defaultdict[CopyLook, list[int]] = defaultdict(list)
        for number, known in list(evidence.items()):
            decision = verify(site, known)
            look = _asked(decision, known, most)
            if look is not None:
                asked[look].append(number)
            else:
                decided[number] = decision
                del evidence[number]
        for look, numbers in asked.items():
            at_source = look.end is FailureScope.SOURCE
            # users may have files of the same name at different sites: names are asked of one storage at a time
            at_storage: defaultdict[int, dict[int, str]] = defaultdict(dict)
            storages: dict[int, SitePlace] = {}
            for number in numbers:
                try:
                    storage = source(number) if at_source else destination
                except NightshiftError as error:
                    # others have sources that can be opened, or need none
                    refused = FailureReason(None, errno.EACCES, str(error))
                    evidence[number] = evidence[number].with_answer(look, refused)
                    continue
                storages[id(storage)] = storage
                name = by_id[number].source_name if at_source else by_id[number].destination_name
                at_storage[id(storage)][number] = name
            for key, names in at_storage.items():
                answers = storages[key].look(list(names.values()), checksum=look.mode)
                for number, name in names.items():
                    evidence[number] = evidence[number].with_answer(look, answers[name])
    return decided


def _asked(decision: CopyDecision, evidence: CopyEvidence, most: int | None) -> CopyLook | None:
    """Return what is asked next, the size before a file is read; None: nothing more."""
    look = decision.look if decision.verdict is CopyVerdict.LOOK else None
    if look is None or look.mode is not ChecksumMode.READ_BACK or most is None:
        return look
    answers = evidence.source if look.end is FailureScope.SOURCE else evidence.destination
    sizes = [answer.size for answer in answers.values() if isinstance(answer, FileFacts)]
    if not sizes and ChecksumMode.NONE not in answers:
        return replace(look, mode=ChecksumMode.NONE)
    return None if sizes and max(sizes) > most else look
