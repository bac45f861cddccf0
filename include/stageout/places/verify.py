"""Decides whether copies are what they have to be, from the requests and from what both sites report.

Where two sums are of different algorithms, or a site reports none, the decision names what has to be asked first:
what a site reports comes before what has to be read. `judge_copies` asks the sites, of many files with few calls; all
else is pure.
"""

from __future__ import annotations

import errno
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from include.errors import NightshiftError
from include.fts.states import FailureReason, FailureScope
from include.settings.sites import ChecksumMode, RemoteSite
from include.stageout.places.facts import FileAnswer, FileFacts, SitePlace
from include.stageout.requests import TransferAtFts

READ_IN_PASS = 64 << 20
"""Bytes of a file that a pass reads: at half a megabyte a second it is read before the pass has to end."""


class CopyVerdict(Enum):
    """The result of a comparison."""

    VERIFIED = "verified"
    DIFFERS = "differs"
    MISSING = "missing"
    LOOK = "look"
    """Not decided: `CopyDecision.look` names what is asked next."""
    CANNOT_TELL = "cannot-tell"
    """A storage could not be asked, or nothing can be compared; later it may be."""


@dataclass(frozen=True, slots=True)
class CopyEvidence:
    """The request, and the answers about a copy so far.

    `size`: bytes, as requested; None if unknown. `checksum`: as requested, `adler32:0a1b2c3d` or crc32c; None if
    unknown. `destination`: what the destination answered, by the mode of the question, in the order of the questions.
    `source`: the same of the source.
    """

    size: int | None
    checksum: str | None
    destination: Mapping[ChecksumMode, FileAnswer] = field(default_factory=dict)
    source: Mapping[ChecksumMode, FileAnswer] = field(default_factory=dict)

    def with_answer(self, look: CopyLook, answer: FileAnswer) -> CopyEvidence:
        """The evidence after a look."""
        if look.end is FailureScope.SOURCE:
            return replace(self, source={**self.source, look.mode: answer})
        return replace(self, destination={**self.destination, look.mode: answer})


@dataclass(frozen=True, slots=True)
class CopyLook:
    """A question: at which end, SOURCE or DESTINATION, and in which mode."""

    end: FailureScope
    mode: ChecksumMode


@dataclass(frozen=True, slots=True)
class CopyDecision:
    """A verdict, and its reason.

    `reason`: in the form of FTS, so that a failure has its class; for a verified copy, what was compared. `size`: of a
    verified copy, to be recorded. `checksum`: the same; None where only sizes were compared. `proof`: whether the
    source may be removed, as far as the copy is concerned. `look`: what is asked next.
    """

    verdict: CopyVerdict
    reason: FailureReason
    size: int | None = None
    checksum: str | None = None
    proof: bool = False
    look: CopyLook | None = None


_SOURCE, _DESTINATION = FailureScope.SOURCE, FailureScope.DESTINATION


def verify(site: RemoteSite, evidence: CopyEvidence) -> CopyDecision:
    """Judge a copy by what is known of it; with LOOK, again with the answer (`CopyEvidence.with_answer`).

    No look is asked for twice, so this ends. Two sums of one algorithm decide; the size is always compared, too. A copy
    that differs from the request is compared with the source: FTS copies a source that is another file than the request
    says, as often as it is asked to.

    `site`: the destination: its `checksum` and `clean_on_size` are the rule. `evidence`: begins without answers.
    """
    if not evidence.destination:
        return _look(_DESTINATION, site.checksum)
    failure = next((answer for answer in evidence.destination.values() if isinstance(answer, FailureReason)), None)
    if failure is not None:
        return CopyDecision(CopyVerdict.CANNOT_TELL, replace(failure, scope=_DESTINATION))
    if None in evidence.destination.values():
        return _decision(CopyVerdict.MISSING, _DESTINATION, errno.ENOENT, "the copy does not exist at the destination")
    sizes = _sizes(evidence)
    if sizes is not None and sizes.verdict is not CopyVerdict.VERIFIED:
        return sizes
    if site.checksum is not ChecksumMode.NONE:
        return _by_checksum(evidence)
    if sizes is not None:
        return replace(sizes, proof=site.clean_on_size)
    if not evidence.source:
        return _look(_SOURCE, ChecksumMode.NONE)
    return _cannot_tell(evidence, "neither the request nor the source has a size to compare with")


def verified_on_proof(site: RemoteSite) -> bool:
    """Tell whether every copy that was verified at this site is proof enough to remove the source."""
    return site.checksum is not ChecksumMode.NONE or site.clean_on_size


def _sizes(evidence: CopyEvidence) -> CopyDecision | None:
    """Compare the sizes; the source is asked before they count as different. None: there is nothing to compare."""
    copy, source = _facts(evidence.destination)[-1].size, [facts.size for facts in _facts(evidence.source)[-1:]]
    wanted = source if evidence.size is None else [evidence.size]
    if not wanted:
        return None
    if copy == wanted[0]:
        what = f"{copy} bytes, as {'requested' if evidence.size is not None else 'the source has'}"
        return CopyDecision(CopyVerdict.VERIFIED, FailureReason(None, None, what), copy)
    if not evidence.source:
        return _look(_SOURCE, ChecksumMode.NONE)
    if source and source != wanted:
        return _source_differs("size", f"{source[0]} bytes", f"{wanted[0]}")
    return _decision(CopyVerdict.DIFFERS, _DESTINATION, errno.EIO, f"size mismatch ({wanted[0]} != {copy})")


def _by_checksum(evidence: CopyEvidence) -> CopyDecision:
    copy, source = _sums(evidence.destination), _sums(evidence.source)
    wanted = _by_algorithm([evidence.checksum])
    for algorithm, known in {**wanted, **source, **wanted}.items():
        if algorithm in copy:
            return _compared(evidence, known, copy[algorithm], source.get(algorithm))
    for look in _looks(copy, wanted):
        answers = evidence.source if look.end is _SOURCE else evidence.destination
        known_sums = source if look.end is _SOURCE else copy
        useless = look.mode is ChecksumMode.READ_BACK and ChecksumMode.ADLER32.value in known_sums
        gone = look.end is _SOURCE and None in answers.values()
        if look.mode not in answers and not useless and not gone:
            return CopyDecision(CopyVerdict.LOOK, _text("there are no two sums of one algorithm"), look=look)
    return _cannot_tell(evidence, "there are no two sums of one algorithm to compare")


def _looks(copy: Mapping[str, str], wanted: Mapping[str, str]) -> Iterator[CopyLook]:
    """Yield what may bring two sums of one algorithm, the cheapest first."""
    if not copy:
        yield CopyLook(_DESTINATION, ChecksumMode.READ_BACK)
        return
    yield from (CopyLook(_SOURCE, ChecksumMode(algorithm)) for algorithm in copy)
    yield from (CopyLook(_DESTINATION, ChecksumMode(algorithm)) for algorithm in wanted)
    yield CopyLook(_DESTINATION, ChecksumMode.READ_BACK)
    yield CopyLook(_SOURCE, ChecksumMode.READ_BACK)


def _compared(evidence: CopyEvidence, known: str, copy: str, source: str | None) -> CopyDecision:
    if known == copy:
        size = _facts(evidence.destination)[-1].size
        what = _text(f"{copy}, as {'requested' if known == evidence.checksum else 'the source has'}")
        return CopyDecision(CopyVerdict.VERIFIED, what, size, copy, proof=True)
    if source is None:
        # what the source reports is asked; it is not read for this
        look = CopyLook(_SOURCE, ChecksumMode(known.partition(":")[0]))
        if look.mode not in evidence.source and None not in evidence.source.values():
            return CopyDecision(CopyVerdict.LOOK, _text("the source was not asked yet"), look=look)
    elif source != known:
        return _source_differs("checksum", source, known)
    return _decision(CopyVerdict.DIFFERS, _DESTINATION, errno.EIO, f"checksum mismatch ({known} != {copy})")


def _source_differs(what: str, source: str, requested: str) -> CopyDecision:
    text = f"{what} mismatch: the source has {source}, and the request says {requested}"
    return _decision(CopyVerdict.DIFFERS, _SOURCE, errno.EIO, text)


def _cannot_tell(evidence: CopyEvidence, otherwise: str) -> CopyDecision:
    """With what the source failed with, if it did: that may pass. A source that is gone will never be compared."""
    failure = next((answer for answer in evidence.source.values() if isinstance(answer, FailureReason)), None)
    if failure is not None:
        return CopyDecision(CopyVerdict.CANNOT_TELL, replace(failure, scope=_SOURCE))
    if None in evidence.source.values():
        text = "the copy cannot be compared: the source does not exist, and the request has too little"
        return _decision(CopyVerdict.MISSING, _SOURCE, errno.ENOENT, text)
    return _decision(CopyVerdict.CANNOT_TELL, FailureScope.GENERAL_FAILURE, errno.ENODATA, otherwise)


def _look(end: FailureScope, mode: ChecksumMode) -> CopyDecision:
    return CopyDecision(CopyVerdict.LOOK, _text(f"the {end.value.lower()} was not asked yet"), look=CopyLook(end, mode))


def _decision(verdict: CopyVerdict, scope: FailureScope, number: int, text: str) -> CopyDecision:
    return CopyDecision(verdict, FailureReason(scope, number, text))


def _text(text: str) -> FailureReason:
    return FailureReason(None, None, text)


def _facts(answers: Mapping[ChecksumMode, FileAnswer]) -> list[FileFacts]:
    return [answer for answer in answers.values() if isinstance(answer, FileFacts)]


def _sums(answers: Mapping[ChecksumMode, FileAnswer]) -> dict[str, str]:
    return _by_algorithm([facts.checksum for facts in _facts(answers)])


def _by_algorithm(checksums: list[str | None]) -> dict[str, str]:
    return {checksum.partition(":")[0]: checksum for checksum in checksums if checksum is not None}


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
