"""What the service refuses, with the HTTP status and the message that FTS3 has for it."""

from __future__ import annotations

from http import HTTPStatus

from include.errors import NightshiftError


class FtsServiceError(NightshiftError):
    """The service cannot start or go on: its settings, port or state file are unusable."""

    code = "fts-service-error"


class FtsRequestRefused(FtsServiceError):
    """A request was understood and rejected; nothing changed.

    `status`: of the reply. `message`: FTS's own text for it.
    """

    code = "fts-service-refused"

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message

    @property
    def title(self) -> str:
        """`404 Not Found`, as it is in the body."""
        return status_title(self.status)


def status_title(status: int) -> str:
    """The number and its name, with the two that HTTP does not have and FTS does."""
    names = {200: "Ok", 419: "Authentication Timeout"}
    return f"{status} {names.get(status) or HTTPStatus(status).phrase}"


def broken() -> FtsRequestRefused:
    """FTS's reply to what its database cannot hold, as often as it is sent."""
    text = (
        "The server encountered an internal error and was unable to complete your request. "
        "Either the server is overloaded or there is an error in the application."
    )
    return FtsRequestRefused(500, text)


def bad_request(message: str) -> FtsRequestRefused:
    return FtsRequestRefused(400, message)
