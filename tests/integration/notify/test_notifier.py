"""One message for one cause, by mail and by webhook, and nothing that goes wrong on the way stops anybody."""

from __future__ import annotations

import email
import email.policy
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from include.care.notify import webhook
from include.care.notify.errors import NotifyError
from include.care.notify.mail import send_mail
from include.care.notify.message import Message, NotifyEvent
from include.care.notify.notifier import Notifier, Said
from include.care.notify.records import alerts_since
from include.ledger.engine import open_ledger
from include.ledger.migrate import migrate
from include.settings.errors import BadConnection
from include.settings.model import SiteSettings
from include.settings.notify import Mail, Notify, Webhook
from include.settings.secrets import ConnectionSecrets, EnvSecrets
from include.site.site import Site
from tests.integration.cli.test_interventions import nightshift
from tests.integration.notify.conftest import HookServer, MailServer

NOW = datetime(2026, 11, 21, 4, tzinfo=UTC)
SECRET = "the key of the hook"
MESSAGE = Message(
    "run-failed:main",
    NotifyEvent.RUN_FAILED,
    "error",
    "night of main failed",
    "2 missing",
    "clear the run",
    {"log": "http://x/1"},
)
MAIL = Mail(connection="smtp", sender="night@example.org", to=("shift@example.org", "ops@example.org"))
HOOK = Webhook(connection="hook", retries=2, timeout_s=5)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Engine]:
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    migrate(engine)
    yield engine
    engine.dispose()


def notifier(ledger: Engine, mail: MailServer | None = None, hook: HookServer | None = None) -> Notifier:
    told: dict[str, dict[str, Any]] = {}
    if mail:
        told["SMTP"] = {"host": "127.0.0.1", "port": mail.server_address[1]}
    if hook:
        told["HOOK"] = {"host": hook.url, "password": SECRET}
    environ = {f"AIRFLOW_CONN_{name}": json.dumps({"conn_type": "x", **value}) for name, value in told.items()}
    settings = Notify(mail=MAIL if mail else None, webhook=HOOK if hook else None)
    on_site = Site(SiteSettings(notify=settings), EnvSecrets(environ))
    on_site.ledger = ledger
    return Notifier.of(on_site)


def test_a_cause_is_told_once_by_every_way_and_again_after_the_window(
    ledger: Engine, mail_server: MailServer, hook_server: HookServer
) -> None:
    told = notifier(ledger, mail_server, hook_server)
    assert told.tell(MESSAGE, now=NOW) is Said.TOLD
    assert told.tell(MESSAGE, now=NOW + timedelta(hours=11)) is Said.KNOWN
    assert (len(mail_server.mails), len(hook_server.calls)) == (1, 1)
    assert told.tell(MESSAGE, now=NOW + timedelta(hours=13)) is Said.TOLD
    (alert,) = alerts_since(ledger, NOW)
    assert (alert.times, alert.told_at, alert.key) == (3, NOW + timedelta(hours=13), MESSAGE.key)

    sender, to, data = mail_server.mails[0]
    mail = email.message_from_bytes(data, policy=email.policy.default)
    assert "night@example.org" in sender
    assert len(to) == 2
    assert mail["Subject"] == "[nightshift] error: night of main failed"
    assert "What to do: clear the run" in mail.get_content()
    headers, body = hook_server.calls[0]
    assert json.loads(body) == MESSAGE.to_json()
    wanted = webhook.signature(SECRET, int(headers[webhook.TIME_HEADER]), body)
    assert headers[webhook.SIGNATURE_HEADER] == wanted
    assert headers[webhook.TIME_HEADER] == str(int(NOW.timestamp()))


def test_of_many_who_see_a_cause_at_once_one_tells(ledger: Engine, hook_server: HookServer) -> None:
    told, start, said = notifier(ledger, hook=hook_server), threading.Barrier(6), []

    def see() -> None:
        start.wait()
        said.append(told.tell(MESSAGE, now=NOW))

    threads = [threading.Thread(target=see) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.name for one in said) == ["KNOWN"] * 5 + ["TOLD"]
    assert len(hook_server.calls) == 1


def test_a_service_that_is_ill_for_a_moment_is_called_again(hook_server: HookServer) -> None:
    hook_server.answers = [503, 429]
    pauses: list[float] = []
    connection = ConnectionSecrets("hook", host=hook_server.url, password=SECRET)
    webhook.post(HOOK, connection, MESSAGE, now_s=1, sleep=pauses.append)
    assert (len(hook_server.calls), pauses) == (3, [1.0, 2.0])


@pytest.mark.parametrize(("status", "calls"), [(500, 3), (403, 1), (302, 1)])
def test_a_service_that_refuses_is_an_error_without_its_url(hook_server: HookServer, status: int, calls: int) -> None:
    hook_server.answers = [status] * 9
    connection = ConnectionSecrets("hook", host=hook_server.url, password=SECRET)
    with pytest.raises(NotifyError) as failed:
        webhook.post(HOOK, connection, MESSAGE, now_s=1, sleep=lambda _: None)
    assert len(hook_server.calls) == calls
    assert "not-to-be-shown" not in str(failed.value)
    assert SECRET not in str(failed.value)


def test_one_way_that_fails_stops_no_other(ledger: Engine, mail_server: MailServer, hook_server: HookServer) -> None:
    mail_server.answer = "550 no such user"
    assert notifier(ledger, mail_server, hook_server).tell(MESSAGE, now=NOW) is Said.TOLD
    assert len(hook_server.calls) == 1


def test_if_nobody_can_be_told_the_next_who_sees_it_tries_again(ledger: Engine, mail_server: MailServer) -> None:
    mail_server.answer = "451 later"
    told = notifier(ledger, mail_server)
    assert told.tell(MESSAGE, now=NOW) is Said.FAILED
    assert alerts_since(ledger, NOW)[0].fault is not None
    mail_server.answer = "250 ok"
    assert told.tell(MESSAGE, now=NOW + timedelta(minutes=1)) is Said.TOLD


def test_without_a_way_an_alert_is_in_the_ledger_unsent_and_a_way_that_is_added_later_sends_it(
    ledger: Engine, hook_server: HookServer
) -> None:
    assert notifier(ledger).tell(MESSAGE, now=NOW) is Said.NOBODY
    (alert,) = alerts_since(ledger, NOW)
    assert (alert.title, alert.told_at, alert.fault) == (MESSAGE.title, None, None)
    later = NOW + timedelta(minutes=15)
    assert notifier(ledger).tell(MESSAGE, now=later) is Said.NOBODY
    assert notifier(ledger, hook=hook_server).tell(MESSAGE, now=later) is Said.TOLD
    assert len(hook_server.calls) == 1


def test_the_command_tests_each_way_and_says_which_failed_without_secrets(
    tmp_path: Path, mail_server: MailServer, hook_server: HookServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "site.yaml"
    file.write_text(f"paths: {{var: {tmp_path}/var}}\n")
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(file))
    assert "no one is notified" in nightshift("notify", "test", code=1).stderr

    file.write_text(
        file.read_text()
        + """
notify:
  mail: {connection: smtp, sender: night@example.org, to: [shift@example.org]}
  webhook: {connection: hook, retries: 0}
  apprise: {connections: [chat, oncall]}
"""
    )
    ways = {
        "SMTP": {"host": "127.0.0.1", "port": mail_server.server_address[1]},
        "HOOK": {"host": hook_server.url, "password": SECRET},
        "CHAT": {"password": f"json://127.0.0.1:{hook_server.server_port}/{SECRET.replace(' ', '-')}"},
    }
    for name, way in ways.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps({"conn_type": "x", **way}))
    mail_server.answer = "550 no such user"
    done = nightshift("notify", "test", code=1)
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert (said["webhook"], said["apprise chat"]) == ("ok", "ok")
    assert said["mail"].startswith("failed: mail server")
    assert "AIRFLOW_CONN_ONCALL" in said["apprise oncall"]
    assert json.loads(hook_server.calls[0][1])["event"] == "test"
    assert SECRET not in done.output
    assert "not-to-be-shown" not in done.output

    mail_server.answer = "250 ok"
    monkeypatch.setenv("AIRFLOW_CONN_ONCALL", json.dumps({"conn_type": "x", **ways["CHAT"]}))
    assert nightshift("notify", "test").stdout.count(": ok") == 4
    assert len(mail_server.mails) == 1


def test_a_mail_server_that_is_away_is_an_error_of_the_notification() -> None:
    with pytest.raises(NotifyError):
        send_mail(MAIL, ConnectionSecrets("smtp", host="127.0.0.1", port=1), MESSAGE)


def test_no_password_goes_to_a_mail_server_in_the_clear() -> None:
    with pytest.raises(BadConnection, match="in the clear"):
        send_mail(MAIL, ConnectionSecrets("smtp", host="127.0.0.1", login="me", password=SECRET), MESSAGE)
