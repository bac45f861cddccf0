"""`python -m tests.soak.status`: the last result of each part. Code 1: a part has to be run; it names the command."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

from tests.soak.results import Result, objection, read
from tests.soak.run import PARTS

FORM = "{:11}{:8}{:21}{:>8}{:>8}  {}"


def main() -> int:
    results = read()
    print(FORM.format("part", "result", "date (UTC)", "seconds", "rounds", "commit"))
    for part in PARTS:
        print(FORM.format(part, *cells(results.get(part))))
    objections = {part: why for part in PARTS if (why := objection(results.get(part), datetime.now(UTC)))}
    for part, why in objections.items():
        print(f"make soak PART={part}  # {why}")
    return 1 if objections else 0


def cells(result: Result | None) -> tuple[str, ...]:
    if result is None:
        return ("none", "", "", "", "")
    verdict = "passed" if result.passed else "failed"
    return verdict, f"{result.began:%Y-%m-%d %H:%M}", str(result.seconds), str(result.rounds), result.commit


if __name__ == "__main__":
    sys.exit(main())
