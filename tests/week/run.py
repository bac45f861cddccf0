"""The simulated week, `make week`: real services, real Airflow, time compressed; NIGHTS=7 SEED=…

Three slots, two platforms, eight projects; late artifacts, a partial stack every night, two rebuilds, one failed
platform, a build that is never complete, one freeze, one killed scheduler. Meanwhile a reader looks where the links
lead. Ends in a table, a picture and one line of JSON (bench/results/week.svg, week.json), and with code 1 and the
names of what differs if anything is not as planned.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from include.airflow_api import AirflowError
from include.storage.open import open_store
from lab.errors import LabError
from tests.week.expected import WEEKDAYS, Expected, expected
from tests.week.night import Played, Stage
from tests.week.place import WeekFailed, deployment
from tests.week.plan import NIGHTS, SLOTS, Week, week
from tests.week.reader import Reader
from tests.week.seen import Seen, look, problems, wanted
from tests.week.timeline import timeline

ROOT = Path(__file__).parents[2]


def main() -> int:
    options = _options()
    # Ctrl-C and a polite kill alike: what was started is stopped
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    plan = week(options.seed, options.nights)
    comes_to = expected(plan)
    say(f"{options.nights} nights, seed {options.seed}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    try:
        with deployment(say, keep=options.keep) as there:
            say(f"everything is up; Airflow at {there.lab.airflow_url}")
            reader = Reader(open_store(there.public_url), there.public_key, there.fqrn, link_paths(), wanted(comes_to))
            reader.start()
            stage = Stage(there, lambda: reader.now_s, say)
            try:
                for night in plan.nights:
                    say(f"{night.day} begins")
                    stage.play(night)
            finally:
                seconds = reader.now_s
                reader.stop()
            say("the nights are over; looking at what is there")
            seen = look(there, comes_to, reader, stage.played, seconds)
            result = figures(plan, comes_to, stage.played, seen, seconds, time.monotonic() - began)
            write(Path(options.results), plan, stage.played, reader, result)
    except (WeekFailed, LabError, AirflowError) as failed:
        say(f"the week cannot go on: {failed}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; everything is stopped")
        return 130
    print(table(comes_to, seen, stage.played))
    for line in problems(seen.wrong):
        print(f"DIFFERS {line}")
    print(json.dumps(result))
    return 1 if problems(seen.wrong) else 0


def link_paths() -> tuple[str, ...]:
    """Every link that any slot may have."""
    return tuple(f"/nightlies/{slot}/{name}" for slot in SLOTS for name in ("latest", *WEEKDAYS))


def table(comes_to: Expected, seen: Seen, played: Played) -> str:
    """The nights in lines: what their summaries say, and what happened in the middle."""
    lines = [f"\n{'night':11}{'slot':6}{'build':7}{'passes':>6}  {'links':6} what became of its artifacts"]
    for (slot, day), outcome in comes_to.outcomes.items():
        counts = seen.summaries[slot, day]["counts"]
        said = ", ".join(f"{count} {fate}" for fate, count in counts.items() if count)
        passes = sum(one.slot == slot and one.day == day for one in played.runs)
        stood = f"; partial, on {outcome.night.base[0]}" if outcome.night.base else ""
        moved = "moved" if outcome.whole else "stayed"
        lines.append(f"{day!s:11}{slot:6}{outcome.night.build_id:7}{passes:>6}  {moved:6} {said}{stood}")
    lines += [f"{one.began_s:8.1f} s  {one.kind}: {one.said}" for one in played.happenings]
    lines.append("")
    lines += [f"{'ok' if not found else 'DIFFERS':8}{rule}" for rule, found in seen.wrong.items()]
    return "\n".join(lines)


def figures(
    plan: Week, comes_to: Expected, played: Played, seen: Seen, seconds: float, wall_s: float
) -> dict[str, Any]:
    """The week in numbers, all times in seconds."""
    fates = Counter(fate for outcome in comes_to.outcomes.values() for fate in outcome.fates.values())
    return {
        "good": not problems(seen.wrong),
        "nights": len(plan.nights) - 1,
        "seed": plan.seed,
        "slot_nights": len(comes_to.outcomes),
        "passes": len(played.runs),
        "artifacts": dict(fates),
        "revisions": seen.revision,
        "paths": seen.paths,
        "looks": seen.looks,
        "longest_gap_s": round(seen.longest_gap_s, 1),
        "link_moves": seen.link_moves,
        "nights_s": {day.isoformat(): round(ended - began, 1) for day, (began, ended) in played.nights_s.items()},
        "happenings": [f"{one.kind}: {one.said}" for one in played.happenings],
        "week_s": round(seconds, 1),
        "wall_s": round(wall_s, 1),
        "differs": problems(seen.wrong),
    }


def write(folder: Path, plan: Week, played: Played, reader: Reader, result: dict[str, Any]) -> None:
    """The line of JSON and the picture as files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "week.json").write_text(json.dumps(result, indent=1) + "\n")
    title = f"{len(plan.nights) - 1} nights of three slots, seed {plan.seed}: {len(played.runs)} runs"
    began = {day: one for day, (one, _) in played.nights_s.items()}
    picture = timeline(title, played.runs, reader.samples, played.happenings, began)
    (folder / "week.svg").write_text(picture)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--nights", type=int, default=NIGHTS, choices=range(1, NIGHTS + 1), help="how many, from Monday on"
    )
    parser.add_argument("--seed", type=int, default=1, help="what comes late, and how late")
    parser.add_argument("--results", default=str(ROOT / "bench" / "results"))
    parser.add_argument("--keep", action="store_true", help="leave logs and state in the throw-away folder")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
