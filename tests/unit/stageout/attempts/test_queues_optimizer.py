"""Which decision of an FTS server's optimizer is about which link between sites."""

from __future__ import annotations

from datetime import UTC, datetime

from include.fts.client.jobs import OptimizerDecision
from include.fts.errors import FtsUnreachable
from include.settings.sites import RemoteSite
from include.stageout.attempts.queues import decisions_by_link, server_of

LINK = ("pisa", "bari")


def site(name: str, *urls: str) -> RemoteSite:
    rules = [{"prefix": f"/store/{number}", "url": url} for number, url in enumerate(urls)]
    return RemoteSite.model_validate({"name": name, "third_party": rules})


def decision(source: str, destination: str, active: int = 7) -> OptimizerDecision:
    at = datetime(2026, 11, 23, tzinfo=UTC)
    row = {"source_se": source, "dest_se": destination, "active": active, "datetime": at}
    return OptimizerDecision.model_validate(row)


SITES = {
    "pisa": site("pisa", "root://pisa.example.org/cms", "davs://Pisa.example.org:8443/cms"),
    "bari": site("bari", "davs://bari.example.org/cms", "davs://other.example.org/cms"),
    "rome": site("rome", "s3://rome.example.org/cms"),
}


def test_a_link_has_the_decision_of_the_storages_that_fts_copies_between() -> None:
    ours = decision("davs://pisa.example.org", "davs://bari.example.org")
    others = [decision("root://pisa.example.org", "davs://bari.example.org"), decision("davs://x.org", "davs://y.org")]
    found = decisions_by_link([LINK, ("pisa", "rome"), ("pisa", "gone")], SITES, {"fts": [*others, ours]})
    assert found == {LINK: ours}


def test_of_several_decisions_the_newest_counts() -> None:
    newest, oldest = (decision("davs://pisa.example.org", "davs://bari.example.org", active) for active in (9, 3))
    assert decisions_by_link([LINK], SITES, {"fts": [newest, oldest]}) == {LINK: newest}


def test_only_the_server_of_the_link_counts() -> None:
    ours = decision("davs://pisa.example.org", "davs://bari.example.org")
    known = server_of(LINK, ["a", "b"])
    assert decisions_by_link([LINK], SITES, {name: [ours] if name == known else [] for name in "ab"}) == {LINK: ours}
    down = FtsUnreachable("it is down")
    assert decisions_by_link([LINK], SITES, {name: down if name == known else [ours] for name in "ab"}) == {}


def test_folders_have_the_host_that_they_are_submitted_with() -> None:
    sites = {name: site(name, f"file:///data/{name}") for name in LINK}
    ours = decision("file://localhost", "file://localhost")
    assert decisions_by_link([LINK], sites, {"fts": [ours]}) == {LINK: ours}
