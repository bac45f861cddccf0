"""State machines with fresh random draws for a bounded time: `make soak`, PART=gateway SOAK_S=1200.

Nothing is derandomized, so every run tries other sequences. Ends with code 1 and the shortest failing sequence, which
then becomes an explicit example of the machine's own tests.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.faults.test_gateway_machine import GatewayAgainstModel

EXAMPLES, STEPS = 10, 60
PARTS: dict[str, Callable[[], RuleBasedStateMachine]] = {"gateway": GatewayAgainstModel}


def main() -> int:
    options = _options()
    fresh = settings(
        max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, derandomize=False, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    began, rounds = time.monotonic(), 0
    while time.monotonic() - began < options.seconds:
        try:
            run_state_machine_as_test(PARTS[options.part], settings=fresh)
        except Exception:  # noqa: BLE001 - whatever it is, it is what was looked for
            traceback.print_exc(file=sys.stdout)
            print(f"{options.part}: failed in round {rounds + 1}, after {time.monotonic() - began:.0f} s")
            return 1
        rounds += 1
    print(f"{options.part}: {rounds} rounds of {EXAMPLES} examples of at most {STEPS} steps, no failure")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, default="gateway")
    parser.add_argument("--seconds", type=float, default=1200)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
