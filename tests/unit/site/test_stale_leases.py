"""Leases are judged by their holder, and only those of dead tasks of ours are ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from include.gateway.client.leases import LeaseInfo
from include.gateway.errors import AdminKeyNeeded, GatewayUnreachable
from include.gateway.protocol import TaskName
from include.site.stale_leases import EndedLease, LeaseFinding, LeaseOwnership, end_dead, hit_by, judge, look

FQRN, KEY = "nights.example.org", "our-key"
EXPIRES = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)
DEAD_TASK, LIVE_TASK = "night/run-1/publish[2] try 1", "night/run-1/publish[3] try 1"
STATES = {DEAD_TASK: "failed", LIVE_TASK: "running"}


def lease(path: str, hostname: str = DEAD_TASK, *, key: str = KEY, repository: str = FQRN) -> LeaseInfo:
    return LeaseInfo(repository, path, key, EXPIRES, hostname)


def state_of(states: Mapping[str, str] = STATES) -> Any:
    return lambda task: states.get(task.format())


@dataclass
class Gateways:
    """Connections to one gateway whose leases are a list."""

    held: list[LeaseInfo]
    admin: bool = True
    away: bool = False
    ended: list[str] = field(default_factory=list)
    settings: Any = field(default_factory=lambda: SimpleNamespace(repositories={FQRN: SimpleNamespace(server=None)}))
    key_id: str = KEY

    def gateway(self, _: str) -> Gateways:
        return self

    gateway_admin = gateway

    def __enter__(self) -> Gateways:
        return self

    def __exit__(self, *_: object) -> None: ...

    def leases(self) -> list[LeaseInfo]:
        if self.away:
            raise GatewayUnreachable("no answer")
        return list(self.held)

    def drop_by_path(self, repository: str, path: str) -> None:
        if not self.admin:
            raise AdminKeyNeeded("no_admin_key")
        self.ended.append(path)
        self.held = [one for one in self.held if one not in hit_by(path, self.held)]


def ended(
    gateways: Gateways, findings: list[LeaseFinding] | None = None, states: Mapping[str, str] = STATES
) -> list[EndedLease]:
    found = findings if findings is not None else list(look(gateways, state_of()).findings)  # type: ignore[arg-type]
    return end_dead(gateways, found, state_of(states))  # type: ignore[arg-type]


@pytest.mark.parametrize("state", ["success", "failed", "skipped", "upstream_failed", "removed", "up_for_retry"])
def test_a_task_that_ended_or_waits_for_its_next_try_is_dead(state: str) -> None:
    assert judge(lease("/a"), KEY, lambda _: state).whose is LeaseOwnership.DEAD


@pytest.mark.parametrize(
    "state", ["running", "queued", "scheduled", "deferred", "restarting", "up_for_reschedule", "awaiting_input", "x"]
)
def test_a_task_in_any_other_state_is_alive(state: str) -> None:
    assert judge(lease("/a"), KEY, lambda _: state).whose is LeaseOwnership.ALIVE


def test_other_keys_and_unknown_holders_differ() -> None:
    def never(_: TaskName) -> str:
        raise AssertionError("Airflow is not asked about others")

    assert judge(lease("/a", key="their-key"), KEY, never).whose is LeaseOwnership.FOREIGN
    assert judge(lease("/a", "a.user@node"), KEY, never).whose is LeaseOwnership.UNKNOWN
    assert judge(lease("/a", "gone/run/task try 1"), KEY, state_of()).whose is LeaseOwnership.UNKNOWN


def test_only_the_leases_of_dead_tasks_of_ours_are_ended() -> None:
    gateways = Gateways(
        [lease("/dead"), lease("/live", LIVE_TASK), lease("/theirs", key="their-key"), lease("/hand", "me@node")]
    )
    assert [(one.finding.path, one.ended) for one in ended(gateways)] == [("/dead", True)]
    assert [one.path for one in gateways.held] == ["/live", "/theirs", "/hand"]


@pytest.mark.parametrize("beside", ["/a/b/below", "/a/bc", "/a/B", "/a/b"])
def test_nothing_is_ended_by_which_another_lease_would_end_too(beside: str) -> None:
    gateways = Gateways([lease("/a/b"), lease(beside, LIVE_TASK)])
    (one,) = ended(gateways)
    assert (one.ended, gateways.ended) == (False, [])
    assert "running" in one.reason


def test_signs_that_stock_gateways_take_for_patterns_are_reckoned_with() -> None:
    held = [lease("/a_b"), lease("/axb"), lease("/c%d"), lease("/c/anything/d"), lease("/e")]
    assert [one.path for one in hit_by("/a_b", held)] == ["/a_b", "/axb"]
    assert [one.path for one in hit_by("/c%d", held)] == ["/c%d", "/c/anything/d"]
    assert hit_by("", held) == held


def test_a_task_that_runs_again_by_the_time_of_ending_keeps_its_lease() -> None:
    gateways = Gateways([lease("/a")])
    findings = list(look(gateways, state_of()).findings)  # type: ignore[arg-type]
    (one,) = ended(gateways, findings, {DEAD_TASK: "running"})
    assert (one.ended, gateways.ended) == (False, [])


def test_a_path_that_another_took_meanwhile_is_left_alone() -> None:
    gateways = Gateways([lease("/a")])
    findings = list(look(gateways, state_of()).findings)  # type: ignore[arg-type]
    gateways.held = [LeaseInfo(FQRN, "/a", KEY, EXPIRES.replace(hour=4), DEAD_TASK)]
    (one,) = ended(gateways, findings)
    assert (one.ended, one.fault, gateways.ended) == (False, False, [])


def test_without_an_administrators_key_the_cure_is_named() -> None:
    (one,) = ended(Gateways([lease("/a")], admin=False))
    assert (one.ended, one.fault) == (False, True)
    assert "gateway_admin" in one.reason


def test_a_gateway_that_is_away_is_named_and_hides_nothing_else() -> None:
    looked = look(Gateways([], away=True), state_of())  # type: ignore[arg-type]
    assert looked.findings == ()
    assert looked.silent == ((FQRN, "no answer"),)


def test_a_finding_comes_back_from_json() -> None:
    finding = judge(lease("/a"), KEY, state_of())
    assert LeaseFinding.from_json(finding.to_json()) == finding
    assert finding.is_of(lease("/a"))
    assert not finding.is_of(lease("/b"))


def test_a_repository_without_a_gateway_is_not_asked_for_leases() -> None:
    alone = SimpleNamespace(server=SimpleNamespace(behind="none"))
    gateways = Gateways([lease("/a")])
    gateways.settings.repositories[FQRN] = alone
    assert look(gateways, state_of()).findings == ()  # type: ignore[arg-type]
