"""Opening the ledger: what is accepted, what is refused, and that no password is shown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, strategies as st
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from include.ledger.engine import ATTEMPTS, open_ledger, reading, shown, writing
from include.ledger.errors import LedgerError, LedgerUnavailable
from include.ledger.metadata import UtcTime
from include.ledger.migrate import migrate, version
from tests.fakes.refused import refused


@pytest.fixture
def engine(tmp_path):
    engine = open_ledger(f"sqlite:///{tmp_path}/deep/er/ledger.db")
    yield engine
    engine.dispose()


def test_a_ledger_on_sqlite_is_durable_and_checks_its_references(engine):
    with reading(engine) as connection:
        assert connection.scalar(text("PRAGMA journal_mode")) == "wal"
        assert connection.scalar(text("PRAGMA foreign_keys")) == 1
        assert connection.scalar(text("PRAGMA busy_timeout")) == 60_000


@pytest.mark.parametrize(
    ("url", "says"),
    [
        *((url, "") for url in (
            "sqlite://", "sqlite:///:memory:", "postgresql://u:hunter2@h/d", "mysql://u:hunter2@h/d",
            "mysql+pymysql://u:hunter2@h", "hunter2", "mysql+pymysql://u:hunter2@h:port/d",
        )),
        *((f"mysql+pymysql://u:hunter2@db.example.org/d{query}", "ssl_disabled") for query in (
            "", "?connect_timeout=1", "?ssl_cert=/own.pem",
        )),
    ],
)  # fmt: skip
def test_what_is_no_ledger_or_lacks_tls_is_refused_without_its_password(url, says):
    with refused(LedgerError) as caught:
        open_ledger(url)
    assert says in str(caught.value)
    assert "hunter2" not in repr(caught.value)


@pytest.mark.parametrize("agreed", ["ssl_ca=/ca.pem", "ssl_capath=/certificates", "ssl_disabled=true"])
def test_a_ledger_of_another_machine_is_opened_with_tls_or_a_word_against_it(agreed):
    open_ledger(f"mysql+pymysql://u@db.example.org/d?{agreed}").dispose()


def test_a_server_that_does_not_answer_is_retryable_and_named_without_the_password():
    engine = open_ledger("mysql+pymysql://u@127.0.0.1:1/d?connect_timeout=1", password="hunter2")
    with pytest.raises(LedgerUnavailable) as caught:
        writing(engine, lambda connection: connection.execute(text("SELECT 1")))
    assert caught.value.retryable
    assert "u:***@127.0.0.1:1/d" in str(caught.value)
    assert "hunter2" not in repr(caught.value)
    assert "hunter2" not in shown(engine.url)
    assert "hunter2" not in repr(engine)


def test_a_ledger_of_a_newer_version_is_left_alone(engine):
    migrate(engine)
    writing(engine, lambda connection: connection.execute(text("UPDATE ledger_version SET version_num = '9999'")))
    with refused(LedgerError):
        migrate(engine)
    assert version(engine) == "9999"


def test_a_deadlocked_transaction_is_done_again_after_a_wait_that_grows(engine, monkeypatch):
    calls, waits = [], []
    monkeypatch.setattr("include.ledger.engine.time.sleep", waits.append)
    monkeypatch.setattr("include.ledger.engine.random.random", lambda: 1.0)

    def work(connection):
        calls.append(1)
        if len(calls) < needed:
            raise OperationalError("x", {}, Exception(1213, "Deadlock found"))
        return "done"

    needed = ATTEMPTS
    assert writing(engine, work) == "done"
    assert len(calls) == ATTEMPTS
    assert waits == sorted(waits)
    assert len(set(waits)) == ATTEMPTS - 1
    needed = 2 * ATTEMPTS + 1
    with refused(LedgerUnavailable):
        writing(engine, work)
    assert len(calls) == 2 * ATTEMPTS


def test_a_failed_transaction_leaves_nothing(engine):
    writing(engine, lambda connection: connection.execute(text("CREATE TABLE t (a INTEGER)")))

    def work(connection):
        connection.execute(text("INSERT INTO t VALUES (1)"))
        raise KeyError("on purpose")

    with pytest.raises(KeyError):
        writing(engine, work)
    with reading(engine) as connection:
        assert connection.scalar(text("SELECT count(*) FROM t")) == 0


ZONES = st.integers(-720, 720).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(min_value=datetime(1970, 1, 2), max_value=datetime(2200, 1, 1), timezones=ZONES))  # noqa: DTZ001
def test_an_instant_comes_back_as_the_same_instant(moment):
    dialect = create_engine("sqlite://").dialect
    kept = UtcTime().process_bind_param(moment, dialect)
    found = UtcTime().process_result_value(kept, dialect)
    assert found == moment
    assert found.tzinfo is UTC
    with refused(ValueError):
        UtcTime().process_bind_param(moment.replace(tzinfo=None), dialect)
