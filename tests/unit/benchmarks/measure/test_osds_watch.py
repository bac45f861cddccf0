"""A step ends early when the cluster or production suffers for some time, and not for what passes."""

from __future__ import annotations

import threading

import pytest

from include.benchmarks.errors import RUNNER_FAILED, TARGET_UNUSABLE
from include.benchmarks.measure import osds as watching
from include.benchmarks.measure.ceph import CephHealth, ClusterClient
from include.benchmarks.measure.osds import READS, ClusterWatch
from include.benchmarks.measure.programs import BenchmarkProgram, StopSignal, run_program
from include.settings.benchmarks import ClusterBlock

WELL = CephHealth((), 0)
SLOW = CephHealth(("SLOW_OPS: 3 slow ops",), 0)
SETTINGS = ClusterBlock.model_validate({"pool": "p", "production": {"pool": "p", "object": "o", "limit_ms": 100}})


class ReportedCluster(ClusterClient):
    """Reports one state after the other, and then the last."""

    def __init__(self, *states, production_ms=5.0):
        super().__init__(SETTINGS, "t")
        self.states = list(states)
        self.read_ms = production_ms
        self.all_seen = threading.Event()

    def health(self, *, limit_s=0):
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if len(self.states) == 1:
            self.all_seen.set()
        if isinstance(state, Exception):
            raise state
        return state

    def production_ms(self):
        return self.read_ms


def watch(cluster, **changes):
    made = ClusterWatch(cluster, **{"stopped": 0, "stop": StopSignal(), **changes})
    made._began = 0
    return made


@pytest.mark.parametrize(
    ("state", "stopped", "reasons"),
    [
        (WELL, 0, 0),
        (SLOW, 0, 1),
        (CephHealth((), 8, osds_down=1), 1, 0),
        (CephHealth((), 8, osds_down=2), 1, 1),
        (TARGET_UNUSABLE("t", "no answer"), 0, 1),
    ],
)
def test_what_the_campaign_has_not_stopped_itself_is_a_reason(state, stopped, reasons):
    assert len(watch(ReportedCluster(state), stopped=stopped).look()) == reasons


def test_production_that_is_slow_is_a_reason_when_most_reads_are():
    slow = watch(ReportedCluster(WELL, production_ms=500.0))
    assert [len(slow.look()) for _ in range(READS)] == [0] * (READS - 1) + [1]
    assert {sample.production_ms for sample in slow.samples} == {500.0}


def test_timers_are_renewed_at_each_look_and_one_that_ended_is_a_reason():
    def renew():
        raise RUNNER_FAILED("s1", "the timer has ended")

    assert watch(ReportedCluster(WELL), renew=renew).look()


def test_a_reason_that_lasts_kills_the_program_and_one_that_passes_does_not(monkeypatch):
    monkeypatch.setattr(watching, "EVERY_S", 0.001)
    passing = ReportedCluster(SLOW, SLOW, WELL)
    with watch(passing) as seen:
        passing.all_seen.wait(30)
    assert seen.aborted is None
    monkeypatch.setattr(watching, "HOLD_S", 0.0)
    stop = StopSignal()
    with watch(ReportedCluster(WELL, SLOW), stop=stop) as seen:
        done = run_program(BenchmarkProgram("sleep", "coreutils"), ["600"], subject="step", limit_s=60, stop=stop)
    assert (done.code, seen.aborted) == (-9, "SLOW_OPS: 3 slow ops")
