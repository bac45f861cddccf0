"""How publication grows with connections (1 to 128) and with publishers at the same time (1 to 3): data and plots.

Writes ``bench/results/publish-<store>.json`` and two SVG plots beside it, and ends in one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from plot import Series, line_plot
from publishing import lab
from publishing.machine import description, run
from publishing.repositories import PAST, Past, Templates
from publishing.rounds import Bench, several
from publishing.trees import Shape, write_tarball

RESULTS = Path(__file__).parent / "results"
CONNECTIONS = (1, 2, 4, 8, 16, 32, 64, 128)
PUBLISHERS = (1, 2, 3)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--folders", type=int, default=5)
    parser.add_argument("--store", default="weed")
    options = parser.parse_args()
    shape = Shape(options.files, options.folders)
    machine = description()
    print(
        f"machine: {machine}\n{shape.files} files of {shape.file_bytes} B in {shape.folders} folders, {options.store}"
    )
    templates = Templates(Path(tempfile.gettempdir()) / "nightshift-bench-repositories", Past())
    base = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    scratch = Path(tempfile.mkdtemp(prefix="nightshift-bench-", dir=base))
    folder = Path(tempfile.mkdtemp(prefix="nightshift-bench-"))
    try:
        with lab.store(options.store, folder, max(CONNECTIONS)) as place:
            bench = Bench(place, shape, templates, scratch, empty=False)
            result = {
                "store": options.store.split(":")[0],
                "machine": machine,
                "files": shape.files,
                "connections": _connections(bench, shape, templates, scratch),
                "publishers": _publishers(bench, shape, templates, scratch),
            }
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
    _write(result)
    print(json.dumps(result))
    return 0


def _connections(bench: Bench, shape: Shape, templates: Templates, scratch: Path) -> list[dict[str, Any]]:
    rows = []
    for number, count in enumerate(CONNECTIONS):
        place = bench.place.with_connections(count)
        tarball, folder = scratch / "tree.tar", scratch / f"connections{count}"
        folder.mkdir()
        write_tarball(tarball, shape, 1000 + number)
        row: dict[str, Any] = {"connections": count}
        if not place.is_file:
            run(
                "publishing.floors", "record", job={"tarball": str(tarball), "folder": str(folder), "destination": "/a"}
            )
            job = {"place": place.below(f"floor{count}").as_json(), "folder": str(folder)}
            row["floor_files_per_s"] = round(shape.files / run("publishing.floors", "put", job=job).outcome, 1)
        repository = place.repository(f"connections{count}")
        templates.copy(PAST, repository.open())
        ran = bench.publish(repository, tarball, f"connections{count}", folder, [])
        row["files_per_s"] = round(shape.files / ran.outcome["seconds"], 1)
        rows.append(row)
        print(row, flush=True)
        shutil.rmtree(folder)
    return rows


def _publishers(bench: Bench, shape: Shape, templates: Templates, scratch: Path) -> list[dict[str, Any]]:
    rows = []
    place = bench.place.with_connections(64)
    repository = place.repository("publishers")
    templates.copy(PAST, repository.open())
    for count in PUBLISHERS:
        tarballs = [scratch / f"tree{number}.tar" for number in range(count)]
        for number, tarball in enumerate(tarballs):
            write_tarball(tarball, shape, 2000 + 10 * count + number)
        _, seconds = several(bench, repository, tarballs, scratch, f"publishers{count}")
        rows.append({"publishers": count, "files_per_s": round(count * shape.files / seconds, 1)})
        print(rows[-1], flush=True)
    return rows


def _write(result: dict[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    name = f"publish-{result['store']}"
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    rows = result["connections"]
    series = [Series("publication", [(row["connections"], row["files_per_s"]) for row in rows])]
    if "floor_files_per_s" in rows[0]:
        series.append(Series("plain PUT", [(row["connections"], row["floor_files_per_s"]) for row in rows]))
    title = f"4 kB files on {result['store']}"
    plot = line_plot(title, "parallel connections", "files/s", series, log_x=True)
    (RESULTS / f"{name}-connections.svg").write_text(plot)
    points = [(row["publishers"], row["files_per_s"]) for row in result["publishers"]]
    plot = line_plot(title, "publishers at the same time", "files/s together", [Series("publication", points)])
    (RESULTS / f"{name}-publishers.svg").write_text(plot)


if __name__ == "__main__":
    sys.exit(main())
