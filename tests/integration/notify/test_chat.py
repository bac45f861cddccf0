"""Chat services by Apprise, with Apprise's own `json://` against a web service of ours."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from include.care.notify.chat import send_chat, service_of
from include.care.notify.errors import NotifyError
from include.care.notify.message import Message, NotifyEvent
from include.care.notify.notifier import Notifier, Said
from include.ledger.engine import open_ledger
from include.ledger.migrate import migrate
from include.settings.errors import BadConnection
from include.settings.model import SiteSettings
from include.settings.notify import Chat, Notify
from include.settings.secrets import ConnectionSecrets, EnvSecrets
from include.site.site import Site
from tests.fakes.refused import refused
from tests.integration.notify.conftest import HookServer
from tests.integration.notify.test_notifier import MESSAGE, NOW

SECRET = "path-that-is-a-token"


def url(server: HookServer) -> str:
    return f"json://127.0.0.1:{server.server_port}/{SECRET}"


def connection(password: str | None) -> ConnectionSecrets:
    return ConnectionSecrets("chat", password=password)


def test_a_service_gets_title_text_hint_and_severity(hook_server: HookServer) -> None:
    send_chat(connection(url(hook_server)), MESSAGE, timeout_s=20)
    ((_, body),) = hook_server.calls
    sent = json.loads(body)
    assert (sent["title"], sent["type"]) == ("error: night of main failed", "failure")
    assert sent["message"].strip() == MESSAGE.plain().strip()


def test_what_looks_like_a_template_or_an_escape_is_sent_as_it_is(hook_server: HookServer) -> None:
    odd = Message("k", NotifyEvent.FAILED, "warning", "t", "${HOME} {{app_id}} \\n <b>&amp; *x*")
    send_chat(connection(url(hook_server)), odd, timeout_s=20)
    ((_, body),) = hook_server.calls
    assert json.loads(body)["message"].strip() == odd.text
    assert json.loads(body)["type"] == "warning"


@pytest.mark.parametrize("status", [500, 403, 302])
def test_a_service_that_refuses_is_an_error_that_shows_no_url(
    hook_server: HookServer, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    hook_server.answers = [status] * 9
    caplog.set_level(1, logger="apprise")
    with pytest.raises(NotifyError) as failed:
        send_chat(connection(url(hook_server)), MESSAGE, timeout_s=20)
    assert len(hook_server.calls) == 1
    assert SECRET not in str(failed.value)
    assert not [one for one in caplog.records if one.name.startswith("apprise")]


@pytest.mark.parametrize("password", [None, "", "what", f"nothing://{SECRET}", f"slack://{SECRET}/short"])
def test_a_password_that_is_no_url_of_a_service_is_refused_without_being_shown(
    password: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with refused(BadConnection, connection_id="chat") as failed:
        service_of(connection(password))
    assert SECRET not in str(failed.value) + caplog.text


def test_each_connection_is_a_way_of_its_own_and_one_that_fails_stops_no_other(
    tmp_path: Path, hook_server: HookServer, caplog: pytest.LogCaptureFixture
) -> None:
    environ: dict[str, Any] = {"AWAY": f"json://127.0.0.1:1/{SECRET}", "CHAT": url(hook_server)}
    secrets = EnvSecrets(
        {f"AIRFLOW_CONN_{name}": json.dumps({"conn_type": "generic", "password": one}) for name, one in environ.items()}
    )
    site = Site(SiteSettings(notify=Notify(apprise=Chat(connections=("away", "not_there", "chat")))), secrets)
    site.ledger = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    migrate(site.ledger)
    assert Notifier.of(site).tell(MESSAGE, now=NOW) is Said.TOLD
    site.ledger.dispose()
    assert len(hook_server.calls) == 1
    told = [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]
    assert len(told) == 2
    assert SECRET not in caplog.text
