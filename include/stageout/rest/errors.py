"""What is refused of a request to the REST API, besides what is wrong with its files. Rows of StageoutError."""

from __future__ import annotations

from include.errors import ErrorRow
from include.stageout.errors import StageoutError
from include.stageout.rest.users import EDITED_DAG

BODY_TOO_LARGE = ErrorRow(StageoutError, "stageout-body-too-large", "send the files in several requests")
"""The body has more bytes than the limit; the rest of it is not read."""
BODY_INVALID = ErrorRow(
    StageoutError, "stageout-body-invalid", "send a JSON document of the form that `openapi.json` has"
)
"""The body is not JSON, is nested too deep, or has other fields than the form."""
QUERY_INVALID = ErrorRow(StageoutError, "stageout-query-invalid", "`openapi.json` has the parameters of each path")
"""A parameter of the URL has a value that it cannot have."""
TOO_MANY_CALLS = ErrorRow(
    StageoutError, "stageout-too-many-calls", "wait a second, and ask for many files in one call", retryable=True
)
"""The user's calls came faster than the limit."""
UNKNOWN = ErrorRow(StageoutError, "stageout-unknown", "users find only what is their own")
"""There is no such transfer or workflow, or it belongs to another user."""
OPERATORS_ONLY = ErrorRow(
    StageoutError, "stageout-operators-only", "leave the user out, or have an operator do it: one that may edit pools"
)
"""A user asked for transfers of another user."""
VIEWERS_LOOK = ErrorRow(
    StageoutError,
    "stageout-viewers-look",
    f"ask an administrator of Airflow for the role User, or for a role with *can edit* on the DAG `{EDITED_DAG}`",
)
"""A user who may only look asked for a change."""
