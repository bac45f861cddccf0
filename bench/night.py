"""A night of very many small artifacts under the real Airflow: how much of its time is spent on anything but the work.

Starts a lab of its own in a throw-away folder, runs a small night to warm it up, drops a build of ARTIFACTS tarballs,
and runs the slot's DAG. The wall time is that of the run, from its being queued to its end, the scheduler's part
included. The share spent outside is told twice, both from the same run:

* `outside`: no artifact was being prepared or published. Each one's times are those that the ledger has of the work
  itself, so that starting a task, its imports and its ledger look-ups count as outside.
* `outside_tasks`: no task `prepare` or `publish` was running.

Ends in one line of JSON, which is also written to bench/results/night.json, with a plot beside it; with code 1 if
something was not published, or `outside` is above the target.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from bench.nights.lab import BenchLab, bench_lab, say
from bench.nights.times import WORK, Interval, Ran, at_once, attributed, covered, preparing, publishing, ran, seconds
from bench.plot import Series, line_plot
from bench.publishing.machine import description
from include.nightlies.rules.publication import Publication

TARGET = 0.10
WARM_UP = 4
POINTS = 240


def main() -> int:
    options = _options()
    say(f"machine: {description()}")
    say(f"{options.artifacts} artifacts of {options.files + 2} files each, {WARM_UP} in a night before to warm up")
    with bench_lab() as lab:
        result, plot = _night(lab, options)
    folder = Path(options.results)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "night.json").write_text(json.dumps(result, indent=1) + "\n")
    (folder / "night.svg").write_text(plot)
    print(json.dumps(result))
    return 0 if result["published"] == options.artifacts and result["outside"] <= TARGET else 1


def _night(lab: BenchLab, options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    day = lab.today()
    lab.drop(day - timedelta(days=1), WARM_UP, options.files)
    lab.follow(lab.start(day - timedelta(days=1)), options.seconds)
    say("warm; dropping the build")
    lab.drop(day, options.artifacts, options.files)
    machine = description()
    run_id = lab.start(day)
    state = lab.follow(run_id, options.seconds).state
    run = lab.api.ask("GET", f"/dags/{lab.dag_id}/dagRuns/{run_id}")
    whole = (seconds(run["queued_at"]), seconds(run["end_date"]))
    done = lab.publications(run_id)
    begun = {one.id: at for one in done if (at := lab.prepared_at(one)) is not None}
    tasks = ran(lab.tasks(run_id))
    return {"state": state, **figures(tasks, whole, done, begun), "machine": machine}, _plot(tasks, whole, done, begun)


def figures(
    tasks: Sequence[Ran], whole: Interval, done: Sequence[Publication], begun: Mapping[int, datetime]
) -> dict[str, Any]:
    """What the times of tasks and of artifacts make; `begun`: publication's id -> when its preparation began."""
    wall = whole[1] - whole[0]
    worked = [*preparing(done, begun), *publishing(done)]
    spent = {"prepare": 0.0, "publish": 0.0}
    for one in done:
        for phase, duration in one.seconds.items():
            spent["prepare" if phase == "prepare" else "publish"] += duration
    return {
        "artifacts": len(done),
        "published": sum(one.state.good for one in done),
        "batches": sum(one.task == "artifact.prepare" for one in tasks),
        "wall_s": round(wall, 1),
        "outside": round(1 - covered(worked) / wall, 3),
        "outside_tasks": round(1 - covered(one.interval for one in tasks if one.task in WORK) / wall, 3),
        "target": TARGET,
        "outside_s": {name: round(value, 1) for name, value in attributed(worked, tasks, whole).items()},
        "prepare_s": round(spent["prepare"], 1),
        "publish_s": round(spent["publish"], 1),
    }


def _plot(tasks: Sequence[Ran], whole: Interval, done: Sequence[Publication], begun: Mapping[int, datetime]) -> str:
    """How many artifacts and how many tasks were under way, over the time of the run."""
    moments = [whole[0] + (whole[1] - whole[0]) * number / POINTS for number in range(POINTS + 1)]
    others = [one.interval for one in tasks if one.task not in WORK]
    lines = {"prepared": preparing(done, begun), "published": publishing(done), "other tasks": others}
    series = [
        Series(name, [(at - whole[0], count) for at, count in zip(moments, at_once(line, moments), strict=True)])
        for name, line in lines.items()
    ]
    title = f"a night of {len(done)} artifacts: how many are under way"
    ticks = range(0, int(whole[1] - whole[0]) + 1, 20)
    return line_plot(title, "seconds", "at the same time", series, ticks=list(ticks))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--artifacts", type=int, default=1500)
    parser.add_argument("--files", type=int, default=3, help="files in each artifact that all platforms have alike")
    parser.add_argument("--seconds", type=float, default=900.0, help="how long the run may take")
    parser.add_argument("--results", default=str(Path(__file__).parent / "results"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
