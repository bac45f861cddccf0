"""Messages by Apprise: one for one cause, and nothing that goes wrong on the way stops anybody."""

from __future__ import annotations

import email
import email.policy
import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine

from include.ledger.engine import open_ledger
from include.ledger.migrate import migrate
from include.notify import DeliveryOutcome, Message, Notifier, NotifyError, NotifyEvent, send, service_of
from include.settings.errors import BadConnection
from include.settings.model import SiteSettings
from include.settings.secrets import ConnectionSecrets, EnvSecrets
from include.settings.services import Notify, Services
from include.site.site import Site
from tests.fakes.alerts import alerts_since
from tests.fakes.refused import refused
from tests.integration.cli.conftest import nightshift
from tests.integration.notify.conftest import HookServer, MailServer

NOW = datetime(2026, 11, 21, 4, tzinfo=UTC)
SECRET = "path-that-is-a-token"
MESSAGE = Message(
    "run-failed:main",
    NotifyEvent.RUN_FAILED,
    "error",
    "night of main failed",
    "2 missing",
    "clear the run",
    {"log": "http://x/1"},
)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Engine]:
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    migrate(engine)
    yield engine
    engine.dispose()


def hook_url(server: HookServer) -> str:
    return f"json://{server.address}/{SECRET}"


def mail_url(server: MailServer) -> str:
    return (
        f"mailto://127.0.0.1:{server.server_address[1]}"
        "?from=night@example.org&to=shift@example.org,ops@example.org&mode=insecure"
    )


def connection(url: str | None) -> ConnectionSecrets:
    return ConnectionSecrets("chat", password=url)


def environ(**urls: str) -> dict[str, str]:
    return {
        f"AIRFLOW_CONN_{name.upper()}": json.dumps({"conn_type": "generic", "password": url})
        for name, url in urls.items()
    }


def notifier(ledger: Engine, *unknown: str, **urls: str) -> Notifier:
    services = Services(connections=(*unknown, *urls)) if unknown or urls else None
    site = Site(SiteSettings(notify=Notify(apprise=services)), EnvSecrets(environ(**urls)))
    site.ledger = ledger
    return Notifier.of(site)


def test_a_cause_is_told_once_by_every_service_and_again_after_the_window(
    ledger: Engine, mail_server: MailServer, hook_server: HookServer
) -> None:
    told = notifier(ledger, mail=mail_url(mail_server), hook=hook_url(hook_server))
    assert told.tell(MESSAGE, now=NOW) is DeliveryOutcome.TOLD
    assert told.tell(MESSAGE, now=NOW + timedelta(hours=11)) is DeliveryOutcome.KNOWN
    assert (len({data for *_, data in mail_server.mails}), len(hook_server.calls)) == (2, 1), "a mail for each address"
    assert told.tell(MESSAGE, now=NOW + timedelta(hours=13)) is DeliveryOutcome.TOLD
    (alert,) = alerts_since(ledger, NOW)
    assert (alert.times, alert.told_at, alert.key) == (3, NOW + timedelta(hours=13), MESSAGE.key)


def test_a_mail_has_severity_text_and_hint_and_the_html_of_its_message(mail_server: MailServer) -> None:
    send(connection(mail_url(mail_server)), MESSAGE, timeout_s=20)
    send(connection(mail_url(mail_server)), replace(MESSAGE, html="<p>two <b>missing</b></p>"), timeout_s=20)
    plain, html = (
        email.message_from_bytes(data, policy=email.policy.default)
        for _, to, data in mail_server.mails
        if "shift" in to[0]
    )
    assert "night@example.org" in plain["From"]
    assert plain["Subject"] == "error: night of main failed"
    assert "What to do: clear the run" in plain.get_body(("plain",)).get_content()
    assert "<b>missing</b>" in html.get_body(("html",)).get_content()


def test_a_service_gets_title_text_hint_and_severity(hook_server: HookServer) -> None:
    send(connection(hook_url(hook_server)), replace(MESSAGE, html="<p>for mail only</p>"), timeout_s=20)
    (call,) = hook_server.calls
    sent = json.loads(call.body)
    assert (sent["title"], sent["type"]) == ("error: night of main failed", "failure")
    assert sent["message"].strip() == MESSAGE.plain().strip()
    # text that looks like a template or an escape is sent as it is
    odd = Message("k", NotifyEvent.FAILED, "warning", "t", "${HOME} {{app_id}} \\n <b>&amp; *x*")
    send(connection(hook_url(hook_server)), odd, timeout_s=20)
    sent = json.loads(hook_server.calls[1].body)
    assert (sent["message"].strip(), sent["type"]) == (odd.text, "warning")


@pytest.mark.parametrize("status", [500, 403, 302])
def test_a_service_that_refuses_is_an_error_that_shows_no_url(
    hook_server: HookServer, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    hook_server.answers = [status] * 9
    caplog.set_level(1, logger="apprise")
    with pytest.raises(NotifyError) as failed:
        send(connection(hook_url(hook_server)), MESSAGE, timeout_s=20)
    assert len(hook_server.calls) == 1
    assert SECRET not in str(failed.value)
    assert not [record for record in caplog.records if record.name.startswith("apprise")]


@pytest.mark.parametrize(
    "password",
    [
        None,
        "",
        "what",
        f"nothing://{SECRET}",
        f"slack://{SECRET}/short",
        f"mailto://me:{SECRET}@127.0.0.1?mode=insecure",
    ],
)
def test_a_password_that_is_no_usable_url_is_refused_without_being_shown(
    password: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with refused(BadConnection, connection_id="chat") as failed:
        service_of(connection(password))
    assert SECRET not in str(failed.value) + caplog.text


def test_of_many_who_see_a_cause_at_once_one_tells(ledger: Engine, hook_server: HookServer) -> None:
    told, start, said = notifier(ledger, hook=hook_url(hook_server)), threading.Barrier(6), []

    def see() -> None:
        start.wait()
        said.append(told.tell(MESSAGE, now=NOW))

    threads = [threading.Thread(target=see) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcome.name for outcome in said) == ["KNOWN"] * 5 + ["TOLD"]
    assert len(hook_server.calls) == 1


def test_one_service_that_fails_stops_no_other_and_shows_no_url(
    ledger: Engine, mail_server: MailServer, hook_server: HookServer, caplog: pytest.LogCaptureFixture
) -> None:
    mail_server.answer = "550 no such user"
    away = f"json://127.0.0.1:1/{SECRET}"
    told = notifier(ledger, "not_there", away=away, mail=mail_url(mail_server), hook=hook_url(hook_server))
    assert told.tell(MESSAGE, now=NOW) is DeliveryOutcome.TOLD
    assert len(hook_server.calls) == 1
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 3
    assert SECRET not in caplog.text


def test_if_nobody_can_be_told_the_next_who_sees_it_tries_again(ledger: Engine, mail_server: MailServer) -> None:
    mail_server.answer = "451 later"
    told = notifier(ledger, mail=mail_url(mail_server))
    assert told.tell(MESSAGE, now=NOW) is DeliveryOutcome.FAILED
    assert alerts_since(ledger, NOW)[0].fault is not None
    mail_server.answer = "250 ok"
    assert told.tell(MESSAGE, now=NOW + timedelta(minutes=1)) is DeliveryOutcome.TOLD


def test_without_a_service_an_alert_is_in_the_ledger_unsent_and_one_that_is_added_later_sends_it(
    ledger: Engine, hook_server: HookServer
) -> None:
    assert notifier(ledger).tell(MESSAGE, now=NOW) is DeliveryOutcome.NOBODY
    (alert,) = alerts_since(ledger, NOW)
    assert (alert.title, alert.told_at, alert.fault) == (MESSAGE.title, None, None)
    later = NOW + timedelta(minutes=15)
    assert notifier(ledger).tell(MESSAGE, now=later) is DeliveryOutcome.NOBODY
    assert notifier(ledger, hook=hook_url(hook_server)).tell(MESSAGE, now=later) is DeliveryOutcome.TOLD
    assert len(hook_server.calls) == 1


def test_the_command_tests_each_service_and_says_which_failed_without_secrets(
    tmp_path: Path, mail_server: MailServer, hook_server: HookServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "site.yaml"
    file.write_text(f"paths: {{var: {tmp_path}/var}}\nledger: sqlite:///{tmp_path}/ledger.db\n")
    monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(file))
    assert "no one is notified" in nightshift("notify", "test", code=1).stderr

    file.write_text(file.read_text() + "notify: {apprise: {connections: [mail, chat, oncall]}}\n")
    for name, value in environ(mail=mail_url(mail_server), chat=hook_url(hook_server)).items():
        monkeypatch.setenv(name, value)
    mail_server.answer = "550 no such user"
    done = nightshift("notify", "test", code=1)
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert said["apprise chat"] == "ok"
    assert said["apprise mail"].startswith("failed: connection 'mail'")
    assert "AIRFLOW_CONN_ONCALL" in said["apprise oncall"]
    assert SECRET not in done.output

    mail_server.answer = "250 ok"
    monkeypatch.setenv("AIRFLOW_CONN_ONCALL", environ(oncall=hook_url(hook_server))["AIRFLOW_CONN_ONCALL"])
    assert nightshift("notify", "test").stdout.count(": ok") == 3
