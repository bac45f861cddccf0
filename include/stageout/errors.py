"""Errors of transfers, of requests for transfers, and of the moves of both.

StageoutError
"""

from __future__ import annotations

from include.errors import Concern, ErrorRow, NightshiftError
from include.fts.errors import CredentialNeeded


class StageoutError(NightshiftError):
    """`subject` names the file, site, request or move that it is about."""

    code = "stageout-error"

    def __init__(self, subject: str, what: str) -> None:
        self.subject, self.what = subject, what
        super().__init__(f"{subject}: {what}." + (f" Hint: {self.hint}." if self.hint else ""))


FILE_REFUSED = ErrorRow(StageoutError, "stageout-file-refused", "correct the file in the request and send it again")
"""A file of a request that cannot be transferred as it is described."""
OUTSIDE_NAME_SPACE = ErrorRow(
    StageoutError,
    "stageout-outside-name-space",
    "choose a destination below the name space, `name_space` of `stageout:` in the configuration",
)
"""A destination that is not below the user's name space."""
DESTINATION_TAKEN = ErrorRow(
    StageoutError, "stageout-destination-taken", "choose another name, or resubmit the transfer that has it"
)
"""Another transfer has the same destination."""
REQUEST_CHANGED = ErrorRow(
    StageoutError, "stageout-request-changed", "use a new idempotency key for other files, or send the same files"
)
"""An idempotency key was used before, for other files."""
USER_CAPPED = ErrorRow(
    StageoutError,
    "stageout-user-capped",
    "send the rest later, or ask an operator to raise `user_files` or `user_files_per_hour` of `stageout:`",
)
"""A user who has as many files on the way, or asked for as many within an hour, as one user may have."""
TRANSFER_UNKNOWN = ErrorRow(
    StageoutError, "stageout-transfer-unknown", "list transfers with `nightshift stageout status --list`"
)
"""An id that no transfer has, in the tables or the archive."""
WORKFLOW_CLOSED = ErrorRow(
    StageoutError, "stageout-workflow-closed", "use another workflow: one that is closed is not opened again"
)
"""A request for a workflow that gets no further files."""
WORKFLOW_UNKNOWN = ErrorRow(
    StageoutError, "stageout-workflow-unknown", "check owner and name with `nightshift stageout status`"
)
"""A workflow that no request names."""
NO_SITE_URL = ErrorRow(
    StageoutError,
    "stageout-no-url",
    "add a rule for it to `sites:` in the configuration; `read`, `write` and `third_party` are apart",
    concern=Concern.CONFIGURATION,
)
"""The configuration has no URL for a logical name at a site."""
CREDENTIAL_MISSING = ErrorRow(
    CredentialNeeded, "stageout-credential-missing", "renew the user's proxy or token; transfers go on by themselves"
)
"""A site asks for a user's own credential, and there is none that can be used."""
PLACE_UNSUPPORTED = ErrorRow(
    StageoutError,
    "stageout-place-unsupported",
    "add a davs, root, s3 or file rule to `read` and `write` of the site; gsiftp is for FTS only",
    concern=Concern.CONFIGURATION,
)
"""A site whose storage can be reached only by protocols that are not spoken here."""
PLACE_UNLISTED = ErrorRow(
    StageoutError, "stageout-place-unlisted", "check the site's server and the credential, then run it again",
    retryable=True,
)  # fmt: skip
"""A folder of a site that could not be listed, or not to its end."""
XRDFS_MISSING = ErrorRow(
    StageoutError,
    "stageout-xrdfs-missing",
    "install it on the workers (Debian: xrootd-client), or put a davs rule before the root rule of the site",
    concern=Concern.CONFIGURATION,
)
"""The program that root: URLs are reached with does not exist."""
RESTORE_REFUSED = ErrorRow(
    StageoutError, "stageout-restore-refused", "give the time at which the backup was taken, as 2026-11-23T12:00:00Z"
)
"""A restore of the ledger from a backup that cannot have been."""
RETRY_UNKNOWN = ErrorRow(
    StageoutError,
    "stageout-retry-unknown",
    "correct `retry` of `stageout:`, or install the package on every worker (docs/stage-out.md)",
    concern=Concern.CONFIGURATION,
)
"""A retry algorithm that no installed package has."""
CATALOGUE_FAILED = ErrorRow(
    StageoutError,
    "stageout-catalogue-failed",
    "check the Rucio server, its connection, scope and RSE with `nightshift preflight`; the block is registered later",
    retryable=True,
)
"""A catalogue that did not answer, or that has no account, scope or RSE for the files."""
MOVE_REFUSED = ErrorRow(StageoutError, "stageout-move-refused", "see MOVES in include/stageout/states.py")
"""A move that the table of states does not have."""

DIRECT_REFUSED = ErrorRow(
    StageoutError, "stageout-direct-refused", "write each file as {source: …, destination: …, size: …, checksum: …}"
)
"""Files of a task that cannot be transferred as they are described."""
FILES_FAILED = ErrorRow(
    StageoutError, "stageout-files-failed", "run it again: only what is not copied yet is transferred",
    retryable=True, concern=Concern.FTS,
)  # fmt: skip
"""Files of a task that FTS failed to transfer, which may pass."""
FILES_UNTRANSFERABLE = ErrorRow(
    StageoutError, "stageout-files-untransferable", "correct source, destination or credential, and run it again"
)
"""Files of a task that FTS failed to transfer; it would fail again."""
NO_PASS = ErrorRow(
    StageoutError, "stageout-no-pass", "unpause it, then clear the task; it exists where the configuration has `sites:`"
)
"""Transfers of a task wait, and nothing of stage-out is at work."""
STAGEOUT_RUN_REFUSED = ErrorRow(StageoutError, "stageout-run-refused", "trigger one run by hand if one is needed")
"""A run of stage-out that makes no sense, as one of a backfill."""
