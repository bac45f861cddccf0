"""Mail by SMTP."""

from __future__ import annotations

import smtplib
import ssl
from email.message import EmailMessage
from email.utils import formatdate, make_msgid

from include.care.notify.errors import NotifyError
from include.care.notify.message import Message
from include.settings.errors import BadConnection
from include.settings.notify import Mail
from include.settings.secrets import ConnectionSecrets, connection_variable

_PORTS = {"": 25, "smtp": 25, "plain": 25, "starttls": 587, "ssl": 465, "smtps": 465}
MAX_SUBJECT = 200


def send_mail(settings: Mail, connection: ConnectionSecrets, message: Message) -> None:
    """Hand one message to the server. Raises NotifyError, BadConnection."""
    scheme = (connection.schema or "").lower()
    variable = connection_variable(connection.id)
    if scheme not in _PORTS:
        raise BadConnection(connection.id, variable, f"has the scheme {scheme!r}; use ssl, starttls, or none")
    if not connection.host:
        raise BadConnection(connection.id, variable, "names no host")
    if connection.password and _PORTS[scheme] == 25:
        raise BadConnection(connection.id, variable, "would send its password in the clear; use ssl or starttls")
    host, port = connection.host, connection.port or _PORTS[scheme]
    secure = ssl.create_default_context()
    try:
        if _PORTS[scheme] == 465:
            server: smtplib.SMTP = smtplib.SMTP_SSL(host, port, timeout=settings.timeout_s, context=secure)
        else:
            server = smtplib.SMTP(host, port, timeout=settings.timeout_s)
        with server:
            if _PORTS[scheme] == 587:
                server.starttls(context=secure)
            if connection.login and connection.password:
                server.login(connection.login, connection.password)
            server.send_message(composed(settings, message))
    except smtplib.SMTPResponseException as error:
        raise _failed(host, port, f"answers {error.smtp_code}") from None
    except (OSError, smtplib.SMTPException) as error:
        raise _failed(host, port, f"{type(error).__name__}: {error}") from None


def composed(settings: Mail, message: Message) -> EmailMessage:
    """The mail: one line of subject, plain text, and HTML where there is some."""
    mail = EmailMessage()
    subject = " ".join(f"[nightshift] {message.severity}: {message.title}".split())
    mail["Subject"] = subject if len(subject) <= MAX_SUBJECT else subject[: MAX_SUBJECT - 1] + "…"
    mail["From"], mail["To"] = settings.sender, ", ".join(settings.to)
    mail["Date"], mail["Message-ID"] = formatdate(), make_msgid(domain=settings.sender.rpartition("@")[2])
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(message.plain())
    if message.html is not None:
        mail.add_alternative(message.html, subtype="html")
    return mail


def _failed(host: str, port: int, detail: str) -> NotifyError:
    return NotifyError(f"mail server {host}:{port}: {detail}. Check the connection of `notify.mail`.")
