"""One part of the soak for a bounded time: `make soak`, PART=gateway SOAK_S=1200.

`gateway`: the state machine of the gateway with fresh draws. `collection`: that of collections beside publications.
`stageout`: twice the load of its source with an outage of FTS in the middle, then its state machine. `engine`: the
property tests of the repository format with fresh draws, and damaged input to all readers. `airflow`: the drills of
tests/soak/airflow on a whole deployment. `cache`: readers of a shared cache beside warmers and trimmers that are
killed. `restore`: the drill of a restore, and restores that are killed at each step and at drawn moments. `cases`: the
tests that are marked `thorough`, which `make test` leaves out.

A part makes at least one round, and another one if there is time for it. It ends with code 1 at the first round that
fails; a failing example then becomes an explicit one of the tests. The result goes into bench/results/soak.json.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.soak.results import ROOT, Result, commit, write

EXAMPLES, STEPS = 10, 60
OUTAGE_RATE = 28
"""Files a second: twice the 1.2 million a day at which the source's queues grew."""
OUTAGE_MINUTES, OUTAGE_SOAK_S = 30, 1200
"""So long for that soak, a sixth of it without FTS; others in proportion."""
FUZZ_S = 60
DRILL_S = 60


def gateway() -> bool:
    from tests.faults.test_gateway_machine import GatewayAgainstModel

    return machine(GatewayAgainstModel)


def collection() -> bool:
    from tests.faults.test_collection_machine import CollectionsBesidePublications

    return machine(CollectionsBesidePublications)


def stageout() -> bool:
    from tests.faults.test_stageout_machine import StageoutBesideTrouble

    return machine(StageoutBesideTrouble)


def outage(seconds: float) -> bool:
    """Whether stage-out loses nothing in an outage, and recovers; the figures go into bench/results."""
    minutes = OUTAGE_MINUTES * seconds / OUTAGE_SOAK_S
    length = ("--minutes", f"{minutes:.2f}", "--outage", f"{minutes / 6:.2f}", "--rate", str(OUTAGE_RATE))
    return python("bench.stageout", *length, "--random-rate", "0", "--name", "stageout-outage", "--kills", "0")


def machine(kind: type[RuleBasedStateMachine]) -> bool:
    """Whether some fresh examples of a state machine pass."""
    fresh = settings(
        max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, derandomize=False, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    try:
        run_state_machine_as_test(kind, settings=fresh)
    except Exception:  # noqa: BLE001 - any error is a finding
        traceback.print_exc(file=sys.stdout)
        return False
    return True


def engine() -> bool:
    seed = random.randrange(2**32)
    properties = ("tests/unit/cvmfs", "-m", "hypothesis", "-q", "-n", "auto", f"--hypothesis-seed={seed}")
    return python("pytest", *properties) and python("tests.fuzz.run", "--seconds", str(FUZZ_S))


def airflow() -> bool:
    return python("pytest", "tests/soak/airflow", "-v", CI="true")  # a drill that is skipped has shown nothing


def cache() -> bool:
    """Tell whether a shared cache stays right while its warmers and trimmers are killed."""
    from tests.fakes import cachedrill

    with tempfile.TemporaryDirectory(prefix="nightshift-cache-drill-") as folder:
        outcome = cachedrill.run(Path(folder), DRILL_S)
    print(outcome, flush=True)
    return not (outcome.errors or outcome.wrong or outcome.faults)


def restore() -> bool:
    """Tell whether restores that are killed again and again, and the drill of a restore, lose and double nothing."""
    tests = ("tests/faults/test_restore_dies.py", "tests/integration/backup/test_drill.py")
    return python("pytest", *tests, "-m", "thorough or not thorough", "-q", CI="true")


def cases() -> bool:
    return python("pytest", "tests", "-m", "thorough", "-q", "-n", "2", "--dist", "loadfile", CI="true")


PARTS: dict[str, Callable[[], bool]] = {
    "gateway": gateway, "collection": collection, "stageout": stageout, "engine": engine, "airflow": airflow,
    "cache": cache, "restore": restore, "cases": cases,
}  # fmt: skip


BEGINS: dict[str, Callable[[float], bool]] = {"stageout": outage}
"""What a part does once, before its rounds; it takes the seconds of the soak."""


def python(module: str, *arguments: str, **environment: str) -> bool:
    """Tell if a module ends with code 0. It ends when this process is interrupted, and ends what it began."""
    others = {name: text for name, text in os.environ.items() if name != "CI"}  # with it, nothing is drawn afresh
    process = subprocess.Popen(
        (sys.executable, "-m", module, *arguments), cwd=ROOT, env={**others, **environment}, process_group=0
    )
    try:
        return process.wait() == 0
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def main() -> int:
    options = _options()
    tried, began = commit(), datetime.now(UTC)
    rounds, took_s = 0, 0.0
    passed = BEGINS[options.part](options.seconds) if options.part in BEGINS else True
    start = time.monotonic()
    while passed and (not rounds or time.monotonic() - start + took_s / rounds < options.seconds):
        passed = PARTS[options.part]()
        took_s = time.monotonic() - start
        rounds += passed
    write(options.part, Result(tried, began, round(took_s), rounds, passed))
    print(f"{options.part}: {rounds} rounds passed in {took_s:.0f} s, {'no' if passed else 'then a'} failure")
    return 0 if passed else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, default="gateway")
    parser.add_argument("--seconds", type=float, default=1200)
    return parser.parse_args()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main())
