"""Copies are judged by one table: what the request says, what both sites report, and what follows."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, strategies as st

from include.fts.states import FailureReason, FailureScope
from include.settings.sites import ChecksumMode, RemoteSite
from include.stageout.places.facts import FileFacts
from include.stageout.places.verify import CopyEvidence, CopyLook, CopyVerdict, verified_on_proof, verify
from include.stageout.retry import TransferFailureClass, failure_class

V, M = CopyVerdict, ChecksumMode
ADLER32, CRC32C, READ_BACK, NONE = M
SOURCE, DESTINATION = FailureScope.SOURCE, FailureScope.DESTINATION
A, A2, C, C2 = "adler32:0a1b2c3d", "adler32:11111111", "crc32c:0a1b2c3d", "crc32c:22222222"
REFUSED = FailureReason(None, 13, "HEAD: HTTP 403")


def at(size=7, checksum=None):
    return FileFacts(size, checksum)


def site(checksum=ADLER32, **fields):
    return RemoteSite(name="bari", checksum=checksum, **fields)


# rule, requested size and checksum, answers of the destination and of the source: verdict, and its class or next look
CASES = {
    "nothing is known": (ADLER32, 7, A, {}, {}, V.LOOK, (DESTINATION, ADLER32)),
    "the site is read back": (READ_BACK, 7, A, {}, {}, V.LOOK, (DESTINATION, READ_BACK)),
    "the same": (ADLER32, 7, A, {ADLER32: at(7, A)}, {}, V.VERIFIED, A),
    "the same, of unknown size": (ADLER32, None, A, {ADLER32: at(9, A)}, {}, V.VERIFIED, A),
    "the same, read back": (READ_BACK, 7, A, {READ_BACK: at(7, A)}, {}, V.VERIFIED, A),
    "the same crc32c": (CRC32C, 7, C, {CRC32C: at(7, C)}, {}, V.VERIFIED, C),
    "it does not exist": (ADLER32, 7, A, {ADLER32: None}, {}, V.MISSING, TransferFailureClass.OTHER),
    "it vanished between two looks":
        (ADLER32, 7, A, {ADLER32: at(), READ_BACK: None}, {}, V.MISSING, TransferFailureClass.OTHER),
    "it could not be asked": (ADLER32, 7, A, {ADLER32: REFUSED}, {}, V.CANNOT_TELL, TransferFailureClass.PERMISSION),
    "another size": (ADLER32, 8, A, {ADLER32: at(7, A)}, {}, V.LOOK, (SOURCE, NONE)),
    "another size than the source has":
        (ADLER32, 8, A, {ADLER32: at(7, A)}, {NONE: at(8)}, V.DIFFERS, TransferFailureClass.DESTINATION_CHECKSUM),
    "another size, the source is gone":
        (ADLER32, 8, A, {ADLER32: at(7, A)}, {NONE: None}, V.DIFFERS, TransferFailureClass.DESTINATION_CHECKSUM),
    "another size, the source cannot be asked":
        (ADLER32, 8, A, {ADLER32: at(7, A)}, {NONE: REFUSED}, V.DIFFERS, TransferFailureClass.DESTINATION_CHECKSUM),
    "another size, which the source has":
        (NONE, 8, None, {NONE: at(7)}, {NONE: at(7)}, V.DIFFERS, TransferFailureClass.SOURCE_CHECKSUM),
    "a part of a source that is not the one of the request":
        (NONE, 8, None, {NONE: at(5)}, {NONE: at(7)}, V.DIFFERS, TransferFailureClass.SOURCE_CHECKSUM),
    "another checksum": (ADLER32, 7, A, {ADLER32: at(7, A2)}, {}, V.LOOK, (SOURCE, ADLER32)),
    "another checksum than the source has":
        (ADLER32, 7, A, {ADLER32: at(7, A2)}, {ADLER32: at(7, A)}, V.DIFFERS,
         TransferFailureClass.DESTINATION_CHECKSUM),
    "another checksum, the source reports none":
        (ADLER32, 7, A, {ADLER32: at(7, A2)}, {ADLER32: at()}, V.DIFFERS, TransferFailureClass.DESTINATION_CHECKSUM),
    "another checksum, the source is gone":
        (ADLER32, 7, A, {ADLER32: at(7, A2)}, {ADLER32: None}, V.DIFFERS, TransferFailureClass.DESTINATION_CHECKSUM),
    "another checksum, which the source has":
        (ADLER32, 7, A, {ADLER32: at(7, A2)}, {ADLER32: at(7, A2)}, V.DIFFERS, TransferFailureClass.SOURCE_CHECKSUM),
    "no checksum is reported": (ADLER32, 7, A, {ADLER32: at()}, {}, V.LOOK, (DESTINATION, READ_BACK)),
    "no checksum at all":
        (ADLER32, 7, A, {ADLER32: at(), READ_BACK: at()}, {}, V.CANNOT_TELL, TransferFailureClass.OTHER),
    "the site reports crc32c, adler32 was requested":
        (CRC32C, 7, A, {CRC32C: at(7, C)}, {}, V.LOOK, (SOURCE, CRC32C)),
    "the source reports crc32c, too": (CRC32C, 7, A, {CRC32C: at(7, C)}, {CRC32C: at(7, C)}, V.VERIFIED, C),
    "the source reports another crc32c":
        (CRC32C, 7, A, {CRC32C: at(7, C)}, {CRC32C: at(7, C2)}, V.DIFFERS, TransferFailureClass.DESTINATION_CHECKSUM),
    "the source does not report crc32c":
        (CRC32C, 7, A, {CRC32C: at(7, C)}, {CRC32C: at()}, V.LOOK, (DESTINATION, ADLER32)),
    "the destination does not report adler32":
        (CRC32C, 7, A, {CRC32C: at(7, C), ADLER32: at()}, {CRC32C: at()}, V.LOOK, (DESTINATION, READ_BACK)),
    "crc32c and adler32, the other way round": (ADLER32, 7, C, {ADLER32: at(7, A)}, {}, V.LOOK, (SOURCE, ADLER32)),
    "the source has to be read":
        (ADLER32, 7, C, {ADLER32: at(7, A), CRC32C: at()}, {ADLER32: at()}, V.LOOK, (SOURCE, READ_BACK)),
    "the source was read": (ADLER32, 7, C, {ADLER32: at(7, A)}, {READ_BACK: at(7, A)}, V.VERIFIED, A),
    "no checksum was requested": (ADLER32, 7, None, {ADLER32: at(7, A)}, {}, V.LOOK, (SOURCE, ADLER32)),
    "no checksum was requested, the source has the same":
        (ADLER32, None, None, {ADLER32: at(7, A)}, {ADLER32: at(7, A)}, V.VERIFIED, A),
    "no checksum was requested, the source is gone":
        (ADLER32, 7, None, {ADLER32: at(7, A)}, {ADLER32: None}, V.MISSING, TransferFailureClass.SOURCE_MISSING),
    "no checksum was requested, the source cannot be asked":
        (ADLER32, 7, None, {ADLER32: at(7, A)}, {ADLER32: REFUSED, READ_BACK: REFUSED}, V.CANNOT_TELL,
         TransferFailureClass.PERMISSION),
    "the source has another size than requested":
        (ADLER32, 9, None, {ADLER32: at(7, A)}, {ADLER32: at(7, A)}, V.DIFFERS, TransferFailureClass.SOURCE_CHECKSUM),
    "by size": (NONE, 7, A, {NONE: at(7)}, {}, V.VERIFIED, None),
    "by the size of the source": (NONE, None, None, {NONE: at(7)}, {NONE: at(7)}, V.VERIFIED, None),
    "by an unknown size": (NONE, None, None, {NONE: at(7)}, {}, V.LOOK, (SOURCE, NONE)),
    "by an unknown size, the source is gone":
        (NONE, None, None, {NONE: at(7)}, {NONE: None}, V.MISSING, TransferFailureClass.SOURCE_MISSING),
    "an empty file": (ADLER32, 0, "adler32:00000001", {ADLER32: at(0, "adler32:00000001")}, {}, V.VERIFIED,
                      "adler32:00000001"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_copy_is_judged_by_what_is_known(case):
    rule, size, checksum, destination, source, verdict, more = case
    decision = verify(site(rule), CopyEvidence(size, checksum, destination, source))
    assert decision.verdict is verdict
    if verdict is V.LOOK:
        assert decision.look == CopyLook(*more)
    elif verdict is V.VERIFIED:
        assert (decision.size, decision.checksum) == (list(destination.values())[-1].size, more)
    else:
        assert failure_class(decision.reason) is more
        assert decision.reason.scope is not None


def test_a_difference_names_where_it_arose():
    at_source = verify(site(), CopyEvidence(7, A, {ADLER32: at(7, A2)}, {ADLER32: at(7, A2)}))
    on_the_way = verify(site(), CopyEvidence(7, A, {ADLER32: at(7, A2)}, {ADLER32: at(7, A)}))
    assert (at_source.reason.scope, on_the_way.reason.scope) == (SOURCE, DESTINATION)


def test_only_a_checksum_is_proof_unless_the_site_says_that_a_size_is():
    by_sum = verify(site(), CopyEvidence(7, A, {ADLER32: at(7, A)}))
    by_size = [
        verify(site(NONE, clean_on_size=enough), CopyEvidence(7, A, {NONE: at(7)})).proof for enough in (False, True)
    ]
    assert (by_sum.proof, by_size) == (True, [False, True])
    rules = [site(), site(READ_BACK), site(NONE), site(NONE, clean_on_size=True)]
    assert [verified_on_proof(rule) for rule in rules] == [True, True, False, True]


ANSWERS = st.one_of(
    st.none(), st.just(REFUSED), st.builds(FileFacts, st.sampled_from([7, 8]), st.sampled_from([None, A, A2, C, C2]))
)


@given(
    st.sampled_from(M), st.sampled_from([None, 7, 8]), st.sampled_from([None, A, C]),
    st.lists(ANSWERS, min_size=8, max_size=8),
)  # fmt: skip
def test_every_look_is_new_and_what_is_verified_is_the_same(rule, size, checksum, answers):
    evidence, asked = CopyEvidence(size, checksum), []
    for answer in itertools.chain(answers, [None]):
        decision = verify(site(rule), evidence)
        if decision.look is None:
            break
        asked.append(decision.look)
        evidence = evidence.with_answer(decision.look, answer)
    assert decision.verdict is not V.LOOK
    assert len(set(asked)) == len(asked)
    if decision.verdict is V.VERIFIED:
        copies = list(evidence.destination.values())
        assert all(isinstance(copy, FileFacts) for copy in copies)
        assert size in (None, copies[-1].size)
        known = {checksum, *(facts.checksum for facts in evidence.source.values() if isinstance(facts, FileFacts))}
        assert decision.checksum is None if rule is NONE else decision.checksum in known
