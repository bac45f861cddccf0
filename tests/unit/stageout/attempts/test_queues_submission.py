"""Which jobs transfers become, what FTS compares for them, and what the end of a submission means."""

from __future__ import annotations

import inspect
import json
from datetime import timedelta

import pytest

import include.fts.errors
from include.errors import ErrorRow, kinds_in
from include.fts.errors import FtsError
from include.fts.jobs import MOST_JOB_METADATA, VerifyChecksum
from include.stageout.attempts.queues import SubmitOutcome, compared_by_fts, draft_jobs, outcome_of
from include.stageout.errors import FILE_REFUSED, NO_SITE_URL
from tests.fakes.transferloop import ADLER32, mock_site
from tests.fakes.transfers import transfer

PISA, BARI = mock_site("pisa"), mock_site("bari")
V, O = VerifyChecksum, SubmitOutcome  # noqa: E741 - outcomes


def row(number, **fields):
    names = {"source_name": f"/store/temp/{number}", "destination_name": f"/store/{number}"}
    return transfer(id=number, checksum=ADLER32, **names | fields)


def drafted(rows, source=PISA, destination=BARI):
    return draft_jobs(rows, source, destination, workflows={1: "workflow"})


def test_what_may_overwrite_is_not_in_one_job_with_what_may_not():
    drafts = drafted([row(1), row(2, may_overwrite=True), row(3)])
    assert {draft.overwrites: list(draft.files) for draft in drafts.jobs} == {False: [1, 3], True: [2]}


def test_a_file_that_can_be_in_no_job_is_named_with_its_error():
    drafts = drafted([row(1), row(2, source_name="/store/two words"), row(3, destination_name="/store/" + "x" * 1100)])
    assert [list(draft.files) for draft in drafts.jobs] == [[1]]
    assert {number: error.code for number, error in drafts.refused.items()} == dict.fromkeys((2, 3), FILE_REFUSED.code)
    assert drafted([row(1)], source=None).refused[1].code == NO_SITE_URL.code


@pytest.mark.parametrize(
    ("source", "destination", "declared", "expected"),
    [
        ("adler32", "adler32", ADLER32, (V.BOTH, ADLER32)),
        ("adler32", "crc32c", ADLER32, (V.SOURCE, ADLER32)),
        ("read-back", "adler32", ADLER32, (V.TARGET, ADLER32)),
        ("none", "none", ADLER32, (V.NONE, None)),
        ("crc32c", "crc32c", ADLER32, (V.NONE, None)),
        ("adler32", "adler32", None, (V.BOTH, "ADLER32")),
        ("adler32", "crc32c", None, (V.NONE, None)),
        ("none", "none", None, (V.NONE, None)),
    ],
)
def test_fts_compares_what_the_sites_report(source, destination, declared, expected):
    ends = mock_site("pisa", checksum=source), mock_site("bari", checksum=destination)
    assert compared_by_fts(*ends, declared) == expected


def test_the_metadata_of_a_job_fit_whatever_the_names_are():
    rows = [row(number, request=number, user_job=f"{number}é" * 40) for number in range(100)]
    workflows = {number: f"{number}€" * 60 for number in range(100)}
    (draft,) = draft_jobs(rows, PISA, BARI, workflows=workflows).jobs
    job = draft.job(2**60, "ö" * 128, timedelta(hours=5))
    assert len(json.dumps(job.params.metadata).encode()) <= MOST_JOB_METADATA
    assert job.params.metadata["workflows"]
    assert job.params.fault() is None


def test_halves_have_all_files_once():
    (draft,) = drafted([row(number) for number in range(5)]).jobs
    first, second = draft.halves()
    assert (list(first.files), list(second.files)) == ([0, 1], [2, 3, 4])


OUTCOMES = {
    O.ADOPTED: {"fts-job-exists"},
    O.RETRIED: {"fts-forbidden"},
    O.SPLIT: {"fts-request-invalid", "fts-job-invalid", "fts-destination-queued"},
    O.WAITS: {"fts-storage-banned", "fts-user-banned", "fts-unreachable", "fts-tls-failed", "fts-voms-failed"},
    O.NEEDS_CREDENTIAL: {
        "fts-credential-needed", "fts-delegation-missing", "fts-delegation-expired", "fts-proxy-expired",
        "fts-token-refused", "fts-credential-unreadable", "fts-token-unprotected", "fts-anonymous",
    },
    O.UNCLEAR: {
        "fts-error", "fts-job-failed", "fts-reply-lost", "fts-submit-unclear", "fts-job-unknown", "fts-failed",
        "fts-reply-unexpected",
    },
}  # fmt: skip


def test_every_error_of_a_submission_has_its_outcome():
    found = {outcome: set() for outcome in O}
    for code, kind in kinds_in(include.fts.errors).items():
        raised = kind.raised if isinstance(kind, ErrorRow) else kind
        if inspect.isclass(raised) and issubclass(raised, FtsError):
            found[outcome_of(kind("x"))].add(code)
    assert found == OUTCOMES
