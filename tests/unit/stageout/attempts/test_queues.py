"""The order in which queues are submitted from, and what holds one back."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from include.stageout.attempts.queues import LOGS_WAIT, TransferQueue, banned_site, held_for, in_turns, server_of
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


def test_chance_decides_who_begins():
    queues = [queue(1), queue(2, "bob")]
    assert {in_turns(queues, random.Random(seed))[0][0].owner for seed in range(20)} == {"ann", "bob"}


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
