"""Results of the parts of `make soak` (bench/results/soak.json), and the rule by which they still count."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FILE = ROOT / "bench" / "results" / "soak.json"
COUNTS_FOR = timedelta(days=14)


@dataclass(frozen=True, slots=True)
class Result:
    """How one run of a part ended. `began` is in UTC; `rounds` are those that passed."""

    commit: str
    began: datetime
    seconds: int
    rounds: int
    passed: bool

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Result:
        return cls(**{**document, "began": datetime.fromisoformat(document["began"])})

    def format(self) -> dict[str, Any]:
        return {**asdict(self), "began": self.began.isoformat(timespec="seconds")}


def objection(result: Result | None, now: datetime) -> str:
    """Why a part has to be run again; "" if it has not."""
    if result is None:
        return "it has no result"
    if not result.passed:
        return "it failed"
    if now - result.began > COUNTS_FOR:
        return f"its result is older than {COUNTS_FOR.days} days"
    return ""


def read(file: Path = FILE) -> dict[str, Result]:
    """Part -> its last result; nothing if there is no file."""
    if not file.exists():
        return {}
    return {part: Result.parse(document) for part, document in json.loads(file.read_text()).items()}


def write(part: str, result: Result, file: Path = FILE) -> None:
    """Keep the result of a part in place of its last one."""
    results = {**read(file), part: result}
    documents = {name: results[name].format() for name in sorted(results)}
    file.write_text(json.dumps(documents, indent=1) + "\n")


def commit() -> str:
    """The commit that is checked out, with `-dirty` if anything but results differs from it."""
    head = _git("rev-parse", "--short=12", "HEAD")
    return f"{head}-dirty" if _git("status", "--porcelain", "--", ".", ":!bench/results") else head


def _git(*arguments: str) -> str:
    done = subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()
