"""Messages to chat and mail services by Apprise: https://appriseit.com/services/."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from include.care.notify.errors import NotifyError
from include.care.notify.message import Message
from include.settings.errors import BadConnection
from include.settings.secrets import ConnectionSecrets, connection_variable

if TYPE_CHECKING:
    from apprise import Apprise


def send_chat(connection: ConnectionSecrets, message: Message, *, timeout_s: float) -> None:
    """Send one message to the service of a connection. Raises NotifyError, BadConnection.

    Args:
        connection: Its password is the Apprise URL.
        message: What is sent, as plain text.
        timeout_s: How long the service may take.
    """
    from apprise import NotifyFormat, NotifyType

    kinds = {"error": NotifyType.FAILURE, "warning": NotifyType.WARNING}
    result = service_of(connection).notify(
        message.plain(),
        title=f"{message.severity}: {message.title}",
        notify_type=kinds.get(message.severity, NotifyType.INFO),
        body_format=NotifyFormat.TEXT,
        timeout=timeout_s,
    )
    if not result:
        what = f"connection {connection.id!r}: its service did not take the message ({result.status.name.lower()})"
        raise NotifyError(f"{what}. Check its Apprise URL: apprise -vv -b test '<URL>'.")


def service_of(connection: ConnectionSecrets) -> Apprise:
    """The service that a connection names; sends nothing. Raises BadConnection, which does not quote the URL."""
    from apprise import Apprise, AppriseAsset

    # Apprise writes URLs, which are secrets, into its log
    logging.getLogger("apprise").addFilter(_nothing)
    asset = AppriseAsset(
        async_mode=False, http_redirects=False, allow_templates=False, storage_mode="memory", app_id="Nightshift"
    )
    service = Apprise(asset=asset)
    if not connection.password or not service.add(connection.password):
        variable = connection_variable(connection.id)
        raise BadConnection(
            connection.id, variable, "has no Apprise URL as its password, such as slack://… or ntfy://…"
        )
    return service


def _nothing(record: logging.LogRecord) -> bool:  # noqa: ARG001 - logging's signature
    return False
