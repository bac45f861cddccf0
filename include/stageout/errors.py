"""What can be wrong with a transfer, with a request for transfers, and with the moves of both.

StageoutError
"""

from __future__ import annotations

from include.errors import Concern, ErrorRow, NightshiftError


class StageoutError(NightshiftError):
    """`subject` names the file, site, request or move that it is about."""

    code = "stageout-error"

    def __init__(self, subject: str, what: str) -> None:
        self.subject = subject
        super().__init__(f"{subject}: {what}." + (f" Hint: {self.hint}." if self.hint else ""))


FILE_REFUSED = ErrorRow(StageoutError, "stageout-file-refused", "correct the file in the request and send it again")
"""A file of a request that cannot be transferred as it is described."""
DESTINATION_TAKEN = ErrorRow(
    StageoutError, "stageout-destination-taken", "choose another name, or resubmit the transfer that has it"
)
"""Another transfer has the same destination."""
REQUEST_CHANGED = ErrorRow(
    StageoutError, "stageout-request-changed", "use a new idempotency key for other files, or send the same files"
)
"""An idempotency key was used before, for other files."""
NO_SITE_URL = ErrorRow(
    StageoutError,
    "stageout-no-url",
    "add a rule for it to `sites:` in the configuration; `read`, `write` and `third_party` are apart",
    concern=Concern.CONFIGURATION,
)
"""The configuration has no URL for a logical name at a site."""
MOVE_REFUSED = ErrorRow(StageoutError, "stageout-move-refused", "see MOVES in include/stageout/states.py")
"""A move that the table of states does not have."""
