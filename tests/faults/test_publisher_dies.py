"""A publisher is killed or stopped at each of its steps: the next one finishes its work, and nothing is done twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.fakes.faultproxy import Fault, FaultProxy
from tests.fakes.site import DESTINATIONS, ProcessSite, drop

DESTINATION = DESTINATIONS[0]
FILES = {"bin/run": b"#!/bin/sh\n", "lib/a": b"a" * 50_000, "lib/b": b"b" * 50_000, "share/c": b"c"}
LEASES, ONE_LEASE = r"/leases$", r"/leases/.+"
MANIFEST, REFLOG = r"/\.cvmfspublished$", r"/\.cvmfsreflog$"


@dataclass(frozen=True)
class Ways:
    """The proxies: publisher to store, publisher to gateway, gateway to store."""

    to_store: FaultProxy
    to_gateway: FaultProxy
    behind: FaultProxy

    def hold_after_lease(self, method: str, path: str) -> Fault:
        """Hold the first such request to the store that follows the grant of the lease."""
        return self._hold_after(LEASES, method, path)

    def hold_after_commit(self, method: str, path: str) -> Fault:
        """Hold the first such request to the store that follows the commit."""
        return self._hold_after(ONE_LEASE, method, path)

    def _hold_after(self, call: str, method: str, path: str) -> Fault:
        answered = self.to_gateway.hold(method="POST", path=call, after_forwarding=True)
        answered.wait()
        held = self.to_store.hold(method=method, path=path)
        answered.release()
        return held


@pytest.fixture
def ways(to_store: FaultProxy, to_gateway: FaultProxy, behind: FaultProxy) -> Ways:
    return Ways(to_store, to_gateway, behind)


Point = Callable[[Ways], Fault]

# where a publisher stands still: before its lease, with it, and after its work was accepted
BEFORE: dict[str, Point] = {
    "in the middle of its uploads": lambda ways: ways.to_store.hold(method="PUT", path="/data/"),
    "when everything is prepared": lambda ways: ways.to_store.hold(method="GET", path=r"/data/../\w+C$"),
}
LEASED: dict[str, Point] = {
    "while its lease is granted": lambda ways: ways.to_gateway.hold(method="POST", path=LEASES, after_forwarding=True),
    "while it reads the manifest under its lease": lambda ways: ways.hold_after_lease("GET", MANIFEST),
    "while it stores catalogs under its lease": lambda ways: ways.hold_after_lease("PUT", r"/data/../\w+C$"),
    "before its commit arrives": lambda ways: ways.to_gateway.hold(method="POST", path=ONE_LEASE),
}
ACCEPTED: dict[str, Point] = {
    "while the gateway commits": lambda ways: ways.behind.hold(method="PUT", path=REFLOG),
    "before it hears of its commit": lambda ways: ways.to_gateway.hold(
        method="POST", path=ONE_LEASE, after_forwarding=True
    ),
    "before it looks at its work": lambda ways: ways.hold_after_commit("GET", MANIFEST),
}


MIDDLE = {
    "while it reads the manifest under its lease", "while it stores catalogs under its lease",
    "before it looks at its work",
}  # fmt: skip
"""Points that show what those before and after them show too."""


def points(named: dict[str, Point]) -> pytest.MarkDecorator:
    cases = [
        pytest.param(point, marks=pytest.mark.thorough if name in MIDDLE else (), id=name)
        for name, point in named.items()
    ]
    return pytest.mark.parametrize("point", cases)


def killed(site: ProcessSite, ways: Ways, point: Point, **order: object) -> str:
    """A publisher that died at a point; the path of the tree that it was to publish."""
    tree = str(site.tree("tree", FILES))
    # hold_after_lease waits for the publisher, so it must run already
    first = site.start("publish", tree=tree, destination=DESTINATION, **order)
    held = point(ways)
    held.wait()
    first.kill()
    if point in ACCEPTED.values():
        held.release()  # the gateway goes on by itself
    else:
        drop(held)
    return tree


def published_once(site: ProcessSite, tree: str, **order: object) -> dict:
    """A fresh process publishes the tree, when the old lease has expired; exactly one revision brought it."""
    again = site.start("publish", holder="second try", tree=tree, destination=DESTINATION, patience_s=60, **order)
    waited = "busy" in again.wait_for("busy", "revision", "error")
    if waited:
        site.after_expiry()
    done = again.outcome()
    assert "revision" in done, again.said
    history = [str(one) for one in site.contents_over_time(DESTINATION)]
    assert history[0] == "None"
    assert history[2:] == [again.said[0]["prepared"]]
    assert site.head().manifest.revision == done["revision"] == 2
    return {**done, "waited": waited}


@points(BEFORE)
def test_killed_without_a_lease_it_leaves_nothing_to_be_seen(site: ProcessSite, ways: Ways, point: Point) -> None:
    before = site.files()
    tree = killed(site, ways, point)
    assert site.files() == before
    site.assert_sound()
    done = published_once(site, tree)
    assert (done["unchanged"], done["waited"]) == (False, False)
    site.goes_on()


@points(LEASED)
def test_killed_under_its_lease_it_is_waited_for_and_then_replaced(site: ProcessSite, ways: Ways, point: Point) -> None:
    before = site.files()
    tree = killed(site, ways, point)
    assert site.files() == before
    assert [lease.hostname for lease in site.client().leases()] == ["first try"]
    done = published_once(site, tree)
    assert (done["unchanged"], done["waited"]) == (False, True)
    site.goes_on()


def test_while_a_dead_publishers_lease_lasts_the_others_go_on_and_nothing_is_leased_longer(
    site: ProcessSite, ways: Ways
) -> None:
    killed(site, ways, LEASED["while its lease is granted"])
    [left] = site.client().leases()
    other = site.start("publish", tree=str(site.tree("other", FILES)), destination=DESTINATIONS[1], holder="other")
    assert other.outcome()["revision"] == 2
    assert not any("busy" in line for line in other.said)
    assert [(lease.path, lease.expires) for lease in site.client().leases()] == [(DESTINATION, left.expires)]
    site.after_expiry()
    assert site.client().leases() == []
    site.goes_on()


def test_killed_before_it_drops_the_lease_of_work_that_stood_already_it_blocks_until_expiry_only(
    site: ProcessSite, ways: Ways
) -> None:
    tree = str(site.tree("tree", FILES))
    assert site.start("publish", tree=tree, destination=DESTINATION).outcome()["revision"] == 2
    before = site.files()
    first = site.start("publish", tree=tree, destination=DESTINATION)
    held = ways.to_gateway.hold(method="DELETE", path=ONE_LEASE)
    held.wait()
    first.kill()
    drop(held)
    assert [lease.hostname for lease in site.client().leases()] == ["first try"]
    done = published_once(site, tree)
    assert (done["unchanged"], done["waited"]) == (True, True)
    assert site.files() == before
    site.goes_on()


@points(ACCEPTED)
@pytest.mark.parametrize("tag", [pytest.param("", marks=pytest.mark.thorough, id=""), pytest.param("b1", id="tagged")])
def test_killed_after_its_commit_was_accepted_its_work_is_found_done(
    site: ProcessSite, ways: Ways, point: Point, tag: str
) -> None:
    tree = killed(site, ways, point, tag=tag)
    done = published_once(site, tree, tag=tag)
    assert done["unchanged"] is True
    history = site.readers().history()
    assert history is not None
    assert (history.tag("b1") is not None) == bool(tag)
    site.goes_on()


@pytest.mark.thorough
def test_a_request_for_a_lease_that_arrives_after_its_senders_death_blocks_until_it_expires_only(
    site: ProcessSite, ways: Ways
) -> None:
    tree = str(site.tree("tree", FILES))
    first = site.start("publish", tree=tree, destination=DESTINATION)
    asked = ways.to_gateway.hold(method="POST", path=LEASES)
    asked.wait()
    first.kill()
    asked.release()
    published_once(site, tree)
    site.goes_on()


@pytest.mark.thorough
def test_a_commit_that_arrives_after_its_senders_death_counts_and_is_found_done(site: ProcessSite, ways: Ways) -> None:
    tree = str(site.tree("tree", FILES))
    first = site.start("publish", tree=tree, destination=DESTINATION)
    sent = ways.to_gateway.hold(method="POST", path=ONE_LEASE)
    sent.wait()
    first.kill()
    sent.release()
    sent.done.wait(20)
    assert published_once(site, tree)["unchanged"] is True
    site.goes_on()


# -- stopped, not dead: an old process that comes back when others have long gone on

LATE: dict[str, Point] = {**BEFORE, **LEASED}
TRIED = {
    True: {"in the middle of its uploads", "while its lease is granted", "before its commit arrives"},
    False: {"before its commit arrives"},
}
"""By whether it meets a newer artifact, which shows at each point the same and more than the work of its own retry."""
WOKEN = [
    pytest.param(
        point, newer, id=f"{'a newer artifact' if newer else 'its retry'}-{name}",
        marks=() if name in TRIED[newer] else pytest.mark.thorough,
    )
    for name, point in LATE.items()
    for newer in (False, True)
]  # fmt: skip


@pytest.mark.parametrize(("point", "newer"), WOKEN)
def test_an_old_process_that_wakes_up_after_others_published_reverts_and_doubles_nothing(
    site: ProcessSite, ways: Ways, point: Point, newer: bool
) -> None:
    tree = str(site.tree("tree", FILES))
    old = site.start("publish", tree=tree, destination=DESTINATION)
    held = point(ways)
    held.wait()
    old.pause()
    in_flight = point is LEASED["before its commit arrives"]
    if not in_flight:
        held.release()
    other = str(site.tree("newer", {**FILES, "bin/run": b"newer"})) if newer else tree
    done = published_once(site, other)
    after = site.files()

    held.release()
    old.go_on()
    outcome = old.outcome()
    assert site.files() == after, outcome
    if "error" in outcome:
        assert outcome["error"] in {"lease-lost", "base-changed"}
        assert outcome["retryable"] is True
    else:
        assert not newer
        assert (outcome["unchanged"], outcome["revision"]) == (True, done["revision"])
    site.goes_on()


def test_a_process_that_wakes_up_after_its_commit_was_replaced_reverts_nothing(site: ProcessSite, ways: Ways) -> None:
    old = site.start("publish", tree=str(site.tree("tree", FILES)), destination=DESTINATION)
    held = ways.to_gateway.hold(method="POST", path=ONE_LEASE, after_forwarding=True)
    held.wait()
    old.pause()
    held.release()
    newer = str(site.tree("newer", {"bin/run": b"newer"}))
    replaced = site.start("publish", tree=newer, destination=DESTINATION, holder="newer", patience_s=60).outcome()
    assert replaced.get("revision") == 3, replaced
    after = site.files()
    old.go_on()
    told = old.outcome()
    assert (told.get("revision"), told.get("unchanged")) == (2, False), "it was published, though it no longer stands"
    assert site.files() == after
    site.goes_on()


def test_two_processes_that_reserve_one_build_at_the_same_time_make_it_once(site: ProcessSite, ways: Ways) -> None:
    build = "/nightlies/main/b2"
    destinations = [f"{build}/{project}/x86_64" for project in ("alpha", "beta")]
    order = {"destinations": destinations, "nested": ["/nightlies/main", build], "patience_s": 60}
    first = site.start("reserve", **order)
    held = ways.behind.hold(method="PUT", path=MANIFEST)
    held.wait()
    # a publication elsewhere and the same reservation, both while the first one is being committed
    second = site.start("reserve", **order, holder="second")
    publication = site.start("publish", tree=str(site.tree("tree", FILES)), destination=DESTINATION, holder="third")
    second.wait_for("busy")
    publication.wait_for("prepared")
    held.release()
    assert first.outcome() == {"revision": 2, "created": [build, *_with_parents(build, destinations)]}
    assert second.outcome()["created"] == []
    assert publication.outcome()["revision"] == 3
    assert len(site.contents_over_time(build)) == 2
    assert site.head().manifest.revision == 3
    site.goes_on()


def _with_parents(build: str, destinations: list[str]) -> list[str]:
    return [path for one in destinations for path in (one.rpartition("/")[0], one) if path != build]
