"""What can fail in calls to an FTS server, as one tree, and the table that maps its replies to classes and rows.

FtsError
├── FtsUnreachable         no connection, nothing was sent                                   retryable
├── FtsReplyLost           sent, but no whole reply came                                     retryable
│   └── SubmitUnclear      the same for a submission: the job may exist                      retryable
├── FtsForbidden           403: no permission, now                                           retryable
│   ├── StorageBanned      source or destination is banned
│   └── UserBanned         the server takes no call of ours
├── CredentialNeeded       419, expiry, a refused token: a new credential or delegation is needed
├── JobUnknown             404: no job of that id; it may be in the archive
└── JobExists              409: a job of that id exists

``retryable``: whether the same call may succeed later. A failed file is no error of a call: `include.fts.states`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from include.errors import Concern, ErrorRow, NightshiftError

_SECRETS = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), "<key>"),
    (re.compile(r"\b(Bearer)\s+[^\s\"'<>,]+", re.IGNORECASE), r"\1 <token>"),
    (re.compile(r"\beyJ[\w-]{5,}(?:\.[\w-]*){0,4}"), "<token>"),
    (re.compile(r"(?<=//)[^/@\s]*@"), "***@"),
    (re.compile(r"(://[^\s?\"'<>]*)\?[^\s\"'<>]*"), r"\1?***"),
    (re.compile(r"[\x00-\x1f\x7f-\x9f]+"), " "),
)


def redact(text: str) -> str:
    """``text`` on one line, without tokens, private keys, and what URLs hide in user names and queries."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


class FtsError(NightshiftError):
    """A call to an FTS server that did not do what was asked.

    `job_id`: the job that it is about, if it is about one; for a submission, if the id was known before. `status`: the
    HTTP status of the reply, or of the job's part of it. `reason`: the server's own text, without secrets.
    """

    code = "fts-error"
    concern = Concern.FTS
    hint = "see the log of the FTS server"

    def __init__(
        self, message: str, *, job_id: str | None = None, status: int | None = None, reason: str | None = None
    ) -> None:
        super().__init__(redact(message))
        self.job_id = job_id
        self.status = status
        self.reason = None if reason is None else redact(reason)


class FtsUnreachable(FtsError):
    code = "fts-unreachable"
    retryable = True
    outage = True
    hint = "start the FTS server, or correct host and port of the connection"


class FtsReplyLost(FtsError):
    code = "fts-reply-lost"
    retryable = True
    outage = True
    hint = "run it again; the server may have done what was asked"


class SubmitUnclear(FtsReplyLost):
    """``job_id`` is the id to look for; None for a job whose id the server chooses."""

    code = "fts-submit-unclear"
    outage = False  # the next try looks at once whether the job exists
    hint = "ask for the job by its id before it is submitted again"


class FtsForbidden(FtsError):
    code = "fts-forbidden"
    retryable = True
    concern = Concern.ARTIFACT
    hint = "check the identity's roles at the FTS server, and who owns the job"


class StorageBanned(FtsForbidden):
    code = "fts-storage-banned"
    hint = "wait until an administrator of the FTS server ends the ban"


class UserBanned(FtsForbidden):
    code = "fts-user-banned"
    hint = "ask an administrator of the FTS server to end the ban of this identity"


class CredentialNeeded(FtsError):
    code = "fts-credential-needed"
    concern = Concern.ARTIFACT
    hint = "renew the credential, and delegate it to the FTS server"


class JobUnknown(FtsError):
    code = "fts-job-unknown"
    concern = Concern.ARTIFACT
    hint = "look in the server's archive, then at the destination, before it is submitted again"


class JobExists(FtsError):
    code = "fts-job-exists"
    concern = Concern.ARTIFACT
    hint = "ask for the job by its id: an earlier submission arrived"


ANONYMOUS = ErrorRow(
    CredentialNeeded, "fts-anonymous", "give the connection a token as password, or a certificate over https"
)
"""The server takes us for anonymous."""
DELEGATION_MISSING = ErrorRow(CredentialNeeded, "fts-delegation-missing", "delegate the proxy to the FTS server")
DELEGATION_EXPIRED = ErrorRow(
    CredentialNeeded, "fts-delegation-expired", "delegate a proxy that lasts for more than one hour"
)
PROXY_EXPIRED = ErrorRow(CredentialNeeded, "fts-proxy-expired", "renew the proxy or certificate on the worker")
TOKEN_REFUSED = ErrorRow(CredentialNeeded, "fts-token-refused", "use a new bearer token, of an issuer that FTS knows")
CREDENTIAL_UNREADABLE = ErrorRow(
    CredentialNeeded,
    "fts-credential-unreadable",
    "name PEM files that the worker can read, with a key without password",
)
TOKEN_UNPROTECTED = ErrorRow(
    CredentialNeeded, "fts-token-unprotected", "use https: a bearer token is sent without TLS to this machine only"
)

FTS_FAILED = ErrorRow(FtsError, "fts-failed", retryable=True, outage=True)
"""HTTP 5xx, 408 and 429: the server is overloaded or broken."""
FTS_REPLY_UNEXPECTED = ErrorRow(
    FtsError, "fts-reply-unexpected", "check that the URL is the one of an FTS server's REST interface"
)
FTS_TLS_FAILED = ErrorRow(
    FtsError, "fts-tls-failed",
    "name the server's CA certificates as `authorities` in the extra, and check our certificate",
)  # fmt: skip
FTS_REQUEST_INVALID = ErrorRow(FtsError, "fts-request-invalid", "correct the request", concern=Concern.ARTIFACT)
"""The server refused it."""
FTS_JOB_INVALID = ErrorRow(FtsError, "fts-job-invalid", "correct the job", concern=Concern.ARTIFACT)
"""We refused it, before anything was sent."""
FTS_JOB_FAILED = ErrorRow(
    FtsError, "fts-job-failed", "see the reasons of its files at the FTS server", concern=Concern.ARTIFACT
)
"""A job that was waited for ended, and not all of its files are copied."""
DESTINATION_QUEUED = ErrorRow(
    FtsError, "fts-destination-queued", "wait for the transfer to the same destination that FTS already has",
    retryable=True, concern=Concern.ARTIFACT,
)  # fmt: skip
VOMS_FAILED = ErrorRow(
    FtsError, "fts-voms-failed", "check the VOMS servers of the delegation", retryable=True, concern=Concern.ARTIFACT
)

FtsErrorKind = type[FtsError] | ErrorRow[..., FtsError]

# The first fit counts: a status, and what the message has, where one status means several things.
REASONS: tuple[tuple[int, str, FtsErrorKind], ...] = (
    (403, "is banned", StorageBanned),
    (403, "", FtsForbidden),
    (401, "", TOKEN_REFUSED),
    (404, "No job with the id", JobUnknown),
    (404, "", FTS_REPLY_UNEXPECTED),
    # a foreign key of the database, as for tokens of files with a certificate: no file has the destination
    (409, "(1452,", FTS_REQUEST_INVALID),
    (409, "The submission is duplicated", DESTINATION_QUEUED),
    (409, "", JobExists),
    (419, "No delegation found", DELEGATION_MISSING),
    (419, "expired", DELEGATION_EXPIRED),
    (419, "less than one hour left", DELEGATION_EXPIRED),
    (419, "", CredentialNeeded),
    (424, "", VOMS_FAILED),
    (408, "", FTS_FAILED),
    (429, "", FTS_FAILED),
)


def kind_of(status: int, reason: str) -> FtsErrorKind:
    """The kind of error that a status and FTS's own message stand for."""
    for expected, part, kind in REASONS:
        if status == expected and part in reason:
            return kind
    if status >= 500:
        return FTS_FAILED
    return FTS_REQUEST_INVALID if 400 <= status < 500 else FTS_REPLY_UNEXPECTED


FOREIGN: Mapping[int, FtsErrorKind] = {
    400: TOKEN_REFUSED, 401: TOKEN_REFUSED, 403: FtsForbidden, 408: FTS_FAILED, 429: FTS_FAILED,
}  # fmt: skip
"""Statuses that mean something without FTS's own form of a reply: what checks credentials replies with pages."""


def kind_of_foreign(status: int, text: str, *, with_token: bool) -> FtsErrorKind:
    """The kind of error of a reply that is not in FTS's form, as of a proxy or of the server's login."""
    if status == 403 and "user has been banned" in text:
        return UserBanned
    kind = FOREIGN.get(status, FTS_FAILED if status >= 500 else FTS_REPLY_UNEXPECTED)
    return FTS_REPLY_UNEXPECTED if kind is TOKEN_REFUSED and not with_token else kind
