"""Users whose transfers wait for a credential are named once, with their links."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import update

from include.notify.notifier import Notifier, Said
from include.stageout.files import FileToTransfer, StageoutRequest
from include.stageout.passes import remind, reminder, waiting_for_credentials
from include.stageout.requests import record_request
from include.stageout.states import TransferState
from include.stageout.tables import stageout_transfers
from tests.fakes.plainsite import plain_site

NOW = datetime(2026, 11, 23, tzinfo=UTC)


def test_each_user_is_named_once_with_the_files_of_each_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = plain_site(tmp_path)
    assert list(remind(site, now=NOW)) == []
    for owner, sites in (("ada", ("pisa", "bari")), ("ada", ("bari", "pisa")), ("ben", ("pisa", "bari"))):
        files = tuple(
            FileToTransfer(sites[0], f"/a/{name}", sites[1], f"/b/{owner}/{'-'.join(sites)}/{name}") for name in "xy"
        )
        record_request(site.ledger, StageoutRequest(owner, f"{owner} {sites[0]}", "w", files), now=NOW)
    with site.ledger.begin() as connection:
        needy = update(stageout_transfers).where(stageout_transfers.c.id < 6)
        connection.execute(needy.values(state=TransferState.NEEDS_CREDENTIAL.value))
    expected = {"ada": {("pisa", "bari"): 2, ("bari", "pisa"): 2}, "ben": {("pisa", "bari"): 1}}
    assert waiting_for_credentials(site.ledger) == expected
    assert dict(remind(site, now=NOW)) == {"ada": Said.NOBODY, "ben": Said.NOBODY}
    with_a_way = Notifier(site.settings.notify, site.ledger, {"fake": lambda *_: None})
    monkeypatch.setattr(Notifier, "of", classmethod(lambda *_: with_a_way))
    assert dict(remind(site, now=NOW)) == {"ada": Said.TOLD, "ben": Said.TOLD}
    assert dict(remind(site, now=NOW)) == {"ada": Said.KNOWN, "ben": Said.KNOWN}


def test_a_message_names_some_links_and_the_number_of_the_others() -> None:
    message = reminder("ada", {(f"site{number}", "bari"): 1 for number in range(7)})
    assert (message.key, message.event.value) == ("credential:ada", "credential")
    assert message.text.count(" to bari") == 5
    assert message.text.endswith("; and 2 more links.")
