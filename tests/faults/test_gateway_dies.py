"""A gateway is killed at every step of a commit, loses its lease, or is not alone: one revision or the other stands."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from include.cvmfs.commit.commit import SwitchStep
from tests.fakes.faultproxy import Fault, FaultProxy
from tests.fakes.site import DESTINATIONS, Job, ProcessSite, drop

DESTINATION = DESTINATIONS[0]
FILES = {"bin/run": b"#!/bin/sh\n", "lib/a": b"a" * 50_000}
MANIFEST, REFLOG = r"/\.cvmfspublished$", r"/\.cvmfsreflog$"


@dataclass(frozen=True)
class Write:
    """The write to the store at which the gateway stands when it has reached a step."""

    path: str
    after_forwarding: bool = False


REACHED = {
    SwitchStep.MERGED: Write(r"/data/../\w+C$"),
    SwitchStep.CATALOGS_STORED: Write(r"/data/../\w+H$"),
    SwitchStep.HISTORY_STORED: Write(REFLOG),
    SwitchStep.REFLOG_WRITTEN: Write(REFLOG, after_forwarding=True),
    SwitchStep.BEFORE_SWITCH: Write(MANIFEST),
    SwitchStep.SWITCHED: Write(MANIFEST, after_forwarding=True),
}
BETWEEN = {SwitchStep.CATALOGS_STORED, SwitchStep.HISTORY_STORED, SwitchStep.BEFORE_SWITCH}
AHEAD = {SwitchStep.REFLOG_WRITTEN, SwitchStep.BEFORE_SWITCH}


def publisher(site: ProcessSite, destination: str = DESTINATION, name: str = "tree", **order: object) -> Job:
    tree = site.folder / "trees" / name
    if not tree.exists():
        site.tree(name, FILES)
    return site.start("publish", tree=str(tree), destination=destination, **order)


def held_at(site: ProcessSite, behind: FaultProxy, write: Write) -> tuple[Job, Fault]:
    """A publisher whose commit stands at a write of the gateway."""
    held = behind.hold(method="PUT", path=write.path, after_forwarding=write.after_forwarding)
    first = publisher(site)
    held.wait()
    return first, held


def killed(site: ProcessSite) -> None:
    assert site.gateway is not None
    site.gateway.kill()


def assert_published_once(site: ProcessSite, first: dict, again: dict) -> None:
    """Whatever the first try was told, there is one revision with its work, and the second try found or made it."""
    assert again.get("revision") == 2, again
    if "error" in first:
        assert (first["error"], first["retryable"]) == ("commit-unclear", True)
    else:
        assert first["revision"] == 2
    history = site.contents_over_time(DESTINATION)
    assert history[0] is None
    assert len(history) == 3
    assert site.head().manifest.revision == 2


STEPS = [pytest.param(step, id=step.value, marks=pytest.mark.thorough if step in BETWEEN else ()) for step in REACHED]


@pytest.mark.parametrize("step", STEPS)
def test_a_gateway_killed_at_any_step_leaves_one_revision_or_the_other_and_its_next_life_goes_on(
    site: ProcessSite, behind: FaultProxy, step: SwitchStep
) -> None:
    before = site.head().manifest.revision
    first, held = held_at(site, behind, REACHED[step])
    killed(site)
    drop(held)
    told = first.outcome()
    assert site.head().manifest.revision == before + (step is SwitchStep.SWITCHED)
    assert site.reflog_is_ahead() == (step in AHEAD)

    site.start_gateway()
    again = publisher(site, holder="second try", patience_s=60)
    again.wait_for("prepared")
    again.wait_for("busy")  # the lease outlived the gateway
    site.after_expiry()
    done = again.outcome()
    assert done.get("unchanged") is (step is SwitchStep.SWITCHED), done
    assert ("error" in told) is (step is not SwitchStep.SWITCHED), told
    assert_published_once(site, told, done)
    assert not site.reflog_is_ahead()
    site.goes_on()


def test_a_manifest_that_arrives_after_its_gateways_death_counts(site: ProcessSite, behind: FaultProxy) -> None:
    first, held = held_at(site, behind, REACHED[SwitchStep.BEFORE_SWITCH])
    killed(site)
    held.release()
    held.done.wait(20)
    told = first.outcome()
    site.start_gateway()
    site.after_expiry()
    done = publisher(site, holder="second try").outcome()
    assert done.get("unchanged") is True, done
    assert_published_once(site, told, done)
    site.goes_on()


def test_a_manifest_that_arrives_after_the_next_revision_reverts_nothing(site: ProcessSite, behind: FaultProxy) -> None:
    first, held = held_at(site, behind, REACHED[SwitchStep.BEFORE_SWITCH])
    killed(site)
    first.outcome()
    site.start_gateway()
    site.after_expiry()
    other = publisher(site, DESTINATIONS[1], "other", holder="other").outcome()
    assert other.get("revision") == 2, other
    after = site.files()
    held.release()
    held.done.wait(20)
    assert site.files() == after
    assert publisher(site, holder="second try").outcome()["revision"] == 3
    site.goes_on()


# -- two gateways on one repository, started by mistake


def test_two_gateways_that_both_lease_one_path_let_one_of_two_publications_through(
    site: ProcessSite, behind: FaultProxy
) -> None:
    other = site.start_gateway("other.db", port=0).said[-1]["url"]
    first, held = held_at(site, behind, REACHED[SwitchStep.BEFORE_SWITCH])
    late = behind.hold(method="PUT", path=REFLOG)
    site.tree("newer", {"bin/run": b"newer"})
    second = publisher(site, name="newer", gateway=other, holder="other")
    late.wait()
    held.release()
    assert first.outcome()["revision"] == 2
    late.release()
    told = second.outcome()
    assert told["error"] == "commit-base-changed", told
    assert len(site.contents_over_time(DESTINATION)) == 3
    site.goes_on()
