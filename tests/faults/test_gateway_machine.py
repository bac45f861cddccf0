"""The whole service against a model: leases, commits in groups, deaths, restarts, collections, foreign writers.

Rules have no preconditions: which commits go together depends on threads, and what is drawn must not.
No two hold overlapping paths, no lease outlives its end, no acknowledged change is lost, each change is wholly there or
wholly absent, every revision passes ``check``, and a repeated commit makes nothing twice. ``make soak`` draws afresh.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import rule

from include.cvmfs.commit.commit import SwitchStep
from include.gateway.service.commits.queue import Point
from tests.faults.machine.machine import GatewayMachine, chosen, numbers
from tests.faults.machine.service import HOLDS, LEASE_S, UNFORESEEN

pytestmark = pytest.mark.timeout(1200)  # 600 steps in one test
HAPPENINGS: dict[str, Callable[[GatewayAgainstModel], None]] = {
    "leases end": lambda machine: machine.clock.advance(LEASE_S),
    "one is dropped": lambda machine: machine.drop_one_that_stands(),
    "somebody wants the path": lambda machine: machine.somebody_wants_the_path(),
    "a foreign revision": lambda machine: machine.foreign(7),
    "a foreign death": lambda machine: machine.a_foreign_writer_publishes(8, SwitchStep.REFLOG_WRITTEN),
    "a step of a collection": lambda machine: machine.collect(1),
    "a collection": lambda machine: machine.collect(5),
    "death": lambda machine: machine.kill(),
}


class GatewayAgainstModel(GatewayMachine):
    @rule(
        first=chosen, point=st.sampled_from(HOLDS), second=chosen, name=numbers, number=numbers,
        happening=st.lists(st.sampled_from(list(HAPPENINGS)), min_size=1, max_size=3),
    )  # fmt: skip
    def much_happens_while_they_stand(
        self, first: list[str], point: Point, second: list[str], name: int, number: int, happening: list[str]
    ) -> None:
        """A group stands at a point of its commit, others queue up, and meanwhile the world goes on."""
        self.let_stand(point)
        self.sent(self.ready(first, name, number))
        self.sent(self.ready(second, name + 1, number + 1))
        for what in happening:
            HAPPENINGS[what](self)
        if self.standing:
            self.go_on()

    def drop_one_that_stands(self) -> None:
        if self.standing:
            self.dropped(self.standing[0].held)

    def somebody_wants_the_path(self) -> None:
        if self.standing:
            self.acquired(self.standing[0].held.path)

    def teardown(self) -> None:
        try:
            if self.standing:
                self.go_on()
            self.observe()
            tags = self.world.tags()
            for name in self.model.tags:
                assert name in tags
            # the next publication works without anybody's help, and nothing is damaged after it
            self.foreign(17)
            assert self.world.problems(contents=True) == []
        finally:
            self.service.stop()
            UNFORESEEN.end()
            shutil.rmtree(self.folder)


GatewayAgainstModel.TestCase.settings = settings(
    max_examples=12, stateful_step_count=50, derandomize=True, suppress_health_check=list(HealthCheck)
)
test_gateway_against_model = GatewayAgainstModel.TestCase


def test_an_outcome_is_remembered_after_a_reboot_between_acquire_and_commit() -> None:
    machine = GatewayAgainstModel()
    try:
        for _ in range(8):
            machine.acquire("")
        machine.end("reboot", 0)
        machine.upload(0, 0, 0, 0)
        machine.commit(0, None)
        machine.repeat(0)
    finally:
        machine.teardown()


def test_a_change_that_another_publisher_made_meanwhile_is_acknowledged_whatever_a_collection_did() -> None:
    machine = GatewayAgainstModel()
    try:
        machine.let_stand(Point.RECORDED)  # the revision is there, and the path is free again
        machine.sent(machine.ready(["/ab"], 1, 2))
        machine.sent(machine.ready(["/ab"], 1, 2))  # the same change, derived from the revision before
        assert len(machine.standing) == 2
        machine.collect(1)
        machine.go_on()
    finally:
        machine.teardown()
