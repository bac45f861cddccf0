"""The order in which queues are submitted from, and what holds one back."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from include.fts.errors import FtsUnreachable
from include.fts.jobs import OptimizerDecision
from include.settings.sites import RemoteSite
from include.stageout.attempts.queues import (
    LOGS_WAIT,
    TransferQueue,
    banned_site,
    decisions_by_link,
    held_for,
    in_turns,
    server_of,
)
from include.stageout.files import FileKind
from tests.fakes.transferloop import mock_site

LOG, OUTPUT = FileKind.LOG, FileKind.OUTPUT


def queue(number, owner="ann", kind=OUTPUT, source="pisa"):
    return TransferQueue(number, owner, source, "bari", kind)


def test_each_user_has_one_turn_in_a_round():
    queues = [queue(1), queue(2, kind=LOG), queue(3), queue(4, "bob"), queue(5, "cleo")]
    for seed in range(20):
        turns = in_turns(queues, random.Random(seed))
        assert sorted(one[0].owner for one in turns) == ["ann", "bob", "cleo"]
        (own,) = (one for one in turns if one[0].owner == "ann")
        assert [each.kind for each in own] == [OUTPUT, OUTPUT, LOG]
    assert {in_turns(queues, random.Random(seed))[0][0].owner for seed in range(20)} >= {"ann", "bob"}, "chance decides"


@pytest.mark.parametrize(
    ("other", "held"),
    [(queue(2), LOGS_WAIT), (queue(2, "bob"), timedelta()), (queue(2, source="rome"), timedelta())],
    ids=["outputs of the link", "of another user", "of another link"],
)
def test_log_files_wait_for_outputs_of_their_user_and_link(other, held):
    log = queue(1, kind=LOG)
    assert (held_for(log, [log, other]), held_for(other, [log, other])) == (held, timedelta())


def test_a_link_has_always_the_same_server_and_links_are_spread():
    servers = ("fts_a", "fts_b", "fts_c")
    links = [(f"site{number}", "bari") for number in range(60)]
    chosen = [server_of(link, servers) for link in links]
    assert chosen == [server_of(link, servers) for link in links]
    assert set(chosen) == set(servers)


@pytest.mark.parametrize(
    ("urls", "banned", "site"),
    [
        (["davs://se.example.org:443/a"], {"davs://se.example.org"}, "pisa"),
        (["davs://[::1]:8443/a"], {"davs://[::1]"}, "pisa"),
        (["davs://se.example.org/a", "root://other.example.org//b"], {"davs://se.example.org"}, None),
        (["davs://se.example.org/a"], {"root://se.example.org"}, None),
    ],
)
def test_a_site_is_banned_with_all_of_its_storages(urls, banned, site):
    rules = [{"prefix": "/", "url": url} for url in urls]
    sites = {"pisa": mock_site("pisa", third_party=rules), "bari": mock_site("bari")}
    assert banned_site(("pisa", "bari"), sites, banned) == site
    assert banned_site(("gone", "bari"), sites, banned) is None


LINK = ("pisa", "bari")


def site_of(name: str, *urls: str) -> RemoteSite:
    rules = [{"prefix": f"/store/{number}", "url": url} for number, url in enumerate(urls)]
    return RemoteSite.model_validate({"name": name, "third_party": rules})


def decision(source: str, destination: str, active: int = 7) -> OptimizerDecision:
    at = datetime(2026, 11, 23, tzinfo=UTC)
    row = {"source_se": source, "dest_se": destination, "active": active, "datetime": at}
    return OptimizerDecision.model_validate(row)


SITES = {
    "pisa": site_of("pisa", "root://pisa.example.org/cms", "davs://Pisa.example.org:8443/cms"),
    "bari": site_of("bari", "davs://bari.example.org/cms", "davs://other.example.org/cms"),
    "rome": site_of("rome", "s3://rome.example.org/cms"),
}


def test_a_link_has_the_decision_of_the_storages_that_fts_copies_between() -> None:
    ours = decision("davs://pisa.example.org", "davs://bari.example.org")
    others = [decision("root://pisa.example.org", "davs://bari.example.org"), decision("davs://x.org", "davs://y.org")]
    found = decisions_by_link([LINK, ("pisa", "rome"), ("pisa", "gone")], SITES, {"fts": [*others, ours]})
    assert found == {LINK: ours}
    newest, oldest = (decision("davs://pisa.example.org", "davs://bari.example.org", active) for active in (9, 3))
    assert decisions_by_link([LINK], SITES, {"fts": [newest, oldest]}) == {LINK: newest}
    folders = {name: site_of(name, f"file:///data/{name}") for name in LINK}
    local = decision("file://localhost", "file://localhost")
    assert decisions_by_link([LINK], folders, {"fts": [local]}) == {LINK: local}


def test_only_the_server_of_the_link_counts() -> None:
    ours = decision("davs://pisa.example.org", "davs://bari.example.org")
    known = server_of(LINK, ["a", "b"])
    assert decisions_by_link([LINK], SITES, {name: [ours] if name == known else [] for name in "ab"}) == {LINK: ours}
    down = FtsUnreachable("it is down")
    assert decisions_by_link([LINK], SITES, {name: down if name == known else [ours] for name in "ab"}) == {}
