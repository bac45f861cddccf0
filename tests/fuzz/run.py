"""The readers of `readers.py`, given damaged examples by chance for a bounded time: `python -m tests.fuzz.run`.

Each reader has its turn, so that fast and slow ones get as much time. They run in a process of its own, which may
crash, use too much memory or go on for ever: all of these are findings, and are repeated by their seed. Ends in a line
of summary, and with code 1 if there were findings.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from typing import Any

from tests.fuzz.mutations import drawn
from tests.fuzz.readers import READERS, attempt

CASE_CPU_S = 10
MEMORY_BYTES = 3 << 30
TURN_S = 2.0
SILENT_S = 120
ENOUGH = 5


class EndlessLoopError(Exception):
    """A reader used more processor time than any input is worth."""


def case(name: str, seed: int) -> bool:
    """Try an input that is made of the seed alone, and tell if it was refused."""
    source = random.Random(f"{name} {seed}")
    return attempt(name, source.randrange(64), source.randrange(64), drawn(source))


def main() -> int:
    options = _options()
    if options.again:
        name, _, seed = options.again.rpartition(":")
        with _bounded():
            print("refused" if case(name, int(seed)) else "read")
        return 0
    names = [name for name in READERS if options.only in name]
    began = time.monotonic()
    inputs: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    findings: dict[str, str] = {}
    print(f"{len(names)} readers for {options.seconds} s, seeds from {options.seed}", flush=True)
    seed = options.seed
    while (left := options.seconds - (time.monotonic() - began)) > 0 and len(findings) < ENOUGH:
        for done in _lives(names, seed, left):
            kind, name, seed, text = done
            if kind == "turn":
                read, turned_down = text
                inputs[name] += read
                refused[name] += turned_down
            else:
                findings.setdefault(_place(name, text), f"{name}:{seed}'\n{text}")
        seed += 1
    for name in names:
        print(f"  {name:15} {inputs[name]:>9,} inputs, {refused[name] / max(1, inputs[name]):4.0%} refused")
    for finding in findings.values():
        print(f"FINDING, repeat with --again '{finding}")
    total, spent = inputs.total(), time.monotonic() - began
    share, found = refused.total() / max(1, total), len(findings)
    print(f"fuzz: {total:,} inputs to {len(names)} readers in {spent:.0f} s, {share:.0%} refused, {found} findings")
    return 1 if findings else 0


def _place(name: str, text: str) -> str:
    """Name of a finding, the same each time: kind of error, and the line of ours that it came from."""
    ours = [line for line in text.splitlines() if line.lstrip().startswith("File") and "/include/" in line]
    return f"{text.strip().splitlines()[-1].partition(':')[0]} {ours[-1] if ours else name}"


def _lives(names: list[str], seed: int, seconds: float) -> Iterator[tuple[str, str, int, Any]]:
    """Messages of a process until the time is over or it dies; its last case is then the finding."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    at = multiprocessing.Value("q", seed)
    turn = multiprocessing.Value("q", 0)
    process = multiprocessing.Process(target=_work, args=(names, seed, seconds, theirs, at, turn), daemon=True)
    process.start()
    theirs.close()
    try:
        while ours.poll(SILENT_S):
            yield ours.recv()
        yield "finding", names[turn.value], at.value, f"no sign of life for {SILENT_S} s"
    except EOFError:
        process.join()
        if process.exitcode:
            yield "finding", names[turn.value], at.value, f"the process ended with code {process.exitcode}"
    finally:
        process.kill()
        process.join()


def _work(
    names: list[str], seed: int, seconds: float, told: Connection, at: Synchronized[int], turn: Synchronized[int]
) -> None:
    ends = time.monotonic() + seconds
    while True:
        for number, name in enumerate(names):
            turn.value = number
            turn_ends = min(ends, time.monotonic() + TURN_S)
            read = refused = 0
            while time.monotonic() < turn_ends:
                seed += 1
                at.value = seed
                try:
                    with _bounded():
                        refused += case(name, seed)
                except BaseException:  # noqa: BLE001 - whatever comes out is what is looked for
                    told.send(("finding", name, seed, traceback.format_exc()))
                read += 1
            told.send(("turn", name, seed, (read, refused)))
            if time.monotonic() >= ends:
                return


@contextmanager
def _bounded() -> Iterator[None]:
    """Memory for this process, and processor time for one case."""

    def stop(*_: object) -> None:
        raise EndlessLoopError(f"more than {CASE_CPU_S} s of processor time")

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, CASE_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**9, help="the first; default: from the clock")
    parser.add_argument("--only", default="", help="readers with this in their name")
    parser.add_argument("--again", metavar="READER:SEED", help="one case once more")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
