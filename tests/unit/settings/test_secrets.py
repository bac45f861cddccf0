"""Connections: read from the environment, never shown."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.settings.errors import BadConnection, MissingConnection
from include.settings.secrets import EnvSecrets, ledger_address


def secrets(text: str) -> EnvSecrets:
    return EnvSecrets({"AIRFLOW_CONN_STORE_MAIN": text})


def test_json_and_uri_say_the_same():
    fields = {"conn_type": "object_store", "login": "me", "password": "p@ss/word", "host": "h.example", "port": 1}
    as_json = secrets(json.dumps({**fields, "schema": "s", "extra": {"a": "b"}})).get("store_main")
    as_uri = secrets("object-store://me:p%40ss%2Fword@h.example:1/s?a=b").get("store_main")
    assert as_json == as_uri
    assert as_json.password == "p@ss/word"


@given(st.text(min_size=1), st.text(min_size=1), st.dictionaries(st.text(min_size=1), st.text()))
def test_any_login_and_password_survive_both_forms(login, password, extra):
    try:
        uri = (
            f"t://{quote(login, safe='')}:{quote(password, safe='')}@h:1/?__extra__={quote(json.dumps(extra), safe='')}"
        )
    except UnicodeEncodeError:
        return
    for text in (uri, json.dumps({"login": login, "password": password, "extra": json.dumps(extra)})):
        found = secrets(text).get("store_main")
        assert (found.login, found.password, found.extra) == (login, password, extra)


def test_a_missing_connection_names_id_variable_and_page():
    with pytest.raises(MissingConnection) as caught:
        EnvSecrets({}).get("store_main")
    for part in ("store_main", "AIRFLOW_CONN_STORE_MAIN", "Admin > Connections"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        '{"password": "hunter2"',
        '{"password": "hunter2", "port": "x"}',
        '{"password": ["hunter2"]}',
        '{"password": "hunter2", "extra": "nope"}',
        "hunter2",
        "t://u:hunter2@h:port/",
        "t://u:hunter2@[h/",
        "t://u:hunter2@h/?__extra__=3",
    ],
)
def test_a_damaged_connection_is_named_and_its_secret_is_not_shown(text):
    with pytest.raises(BadConnection) as caught:
        secrets(text).get("store_main")
    assert "AIRFLOW_CONN_STORE_MAIN" in str(caught.value)
    assert "hunter2" not in repr(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_the_ledger_takes_its_password_from_its_connection_and_no_repr_shows_a_secret(parsed):
    source = secrets('{"login": "me", "password": "hunter2", "extra": {"token": "hunter2"}}')
    assert "hunter2" not in repr(source)
    assert "hunter2" not in repr(source.get("store_main"))
    old = '"sqlite:///${NIGHTSHIFT_VAR:-var}/ledger.db"'
    site = parsed((old, "mysql+pymysql://db/nightshift\nledger_connection: store_main"))
    address = ledger_address(site, secrets('{"login": "me", "password": "hunter2"}'), {})
    assert (address.url, address.login, address.password) == ("mysql+pymysql://db/nightshift", "me", "hunter2")
    assert "hunter2" not in repr(address)
    # the environment may name another ledger
    environ = {"NIGHTSHIFT_LEDGER_URL": "mysql+pymysql://me:hunter2@db/x"}
    address = ledger_address(parsed(), EnvSecrets({}), environ)
    assert address.url.endswith("@db/x")
    assert "hunter2" not in repr(address)
