"""One round: the floor and the publications of one tree, in alternating order, and the tree's second night."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.publishing import lab
from bench.publishing.machine import ROOT, Idle, Ran, run
from bench.publishing.places import Place
from bench.publishing.repositories import EMPTY, PAST, TOP, Templates
from bench.publishing.trees import Shape, write_files, write_tarball
from include.storage.kinds import Fsync


@dataclass(slots=True)
class Round:
    """What was measured: seconds of the floors, and the outcome of each publication by name."""

    floor_s: float = 0.0
    floor_idle: float = 0.0
    second_floor_s: float = 0.0
    published: dict[str, Ran] = field(default_factory=dict)
    second: Ran | None = None
    fsync: dict[str, Ran] = field(default_factory=dict)


class Bench:
    """Runs rounds in a scratch folder; ``scratch`` should be on tmpfs so that disks do not count."""

    def __init__(
        self,
        place: Place,
        shape: Shape,
        templates: Templates,
        scratch: Path,
        *,
        empty: bool,
        fsyncs: Sequence[Fsync] = (),
        compression: str = "stock",
    ) -> None:
        self.place = place
        self.shape = shape
        self._templates = templates
        self._scratch = scratch
        self._arms = [PAST, EMPTY] if empty else [PAST]
        self._fsyncs = fsyncs
        self._compression = compression

    def round(self, number: int) -> Round:
        """One round; odd ones go backwards (A B B A)."""
        done = Round()
        folder = self._scratch / f"round{number}"
        folder.mkdir()
        tarball = folder / "first.tar"
        write_tarball(tarball, self.shape, number)
        places = {arm: self.place.repository(f"round{number}-{arm}") for arm in self._arms}
        for arm, place in places.items():
            self._templates.copy(arm, place.open())
        floor, idle_floor = self._floor(number, folder, tarball)
        steps: list[Callable[[], None]] = []

        def measure_floor() -> None:
            done.floor_s, done.floor_idle = floor(), idle_floor()

        def measure(arm: str) -> None:
            done.published[arm] = self.publish(places[arm], tarball, f"first-{number}", folder, [])

        steps = [measure_floor, *(lambda arm=arm: measure(arm) for arm in self._arms)]
        for step in steps if number % 2 == 0 else reversed(steps):
            step()
        self._second_night(number, folder, places[PAST], done)
        for fsync in self._fsyncs if number % 2 == 0 else reversed(self._fsyncs):
            self._flushed(number, fsync, folder, tarball, done)
        shutil.rmtree(folder)
        self._clear(number)
        return done

    def _flushed(self, number: int, fsync: Fsync, folder: Path, tarball: Path, done: Round) -> None:
        """The tree by another setting of the store; what others wrote is on the disk before, and after it."""
        place = self.place.repository(f"round{number}-fsync-{fsync}").with_fsync(fsync)
        self._templates.copy(EMPTY, place.open())
        os.sync()
        done.fsync[fsync] = self.publish(place, tarball, f"fsync-{number}", folder, [])
        os.sync()

    def publish(self, place: Place, tarball: Path, build: str, folder: Path, earlier: list[str]) -> Ran:
        """One publication by a publisher process through a gateway of its own."""
        with lab.gateway(place, self._templates.keys, folder / f"gateway-{build}-{_folder(place)}.db") as client:
            return run("bench.publishing.publisher", job=self.job(place, tarball, build, earlier, client))

    def job(
        self, place: Place, tarball: Path, build: str, earlier: list[str], client: dict[str, str]
    ) -> dict[str, Any]:
        return {
            **client,
            "place": place.as_json(),
            "public_key": str(self._templates.public_key),
            "tarball": str(tarball),
            "destination": destination(build),
            "earlier": earlier,
            "var": str(self._scratch / "var"),
            "compression": self._compression,
        }

    def _second_night(self, number: int, folder: Path, place: Place, done: Round) -> None:
        tarball = folder / "second.tar"
        write_tarball(tarball, self.shape, number, second_night=True)

        changes = {
            "tarball": str(tarball), "folder": str(folder / "changes"), "destination": destination(f"second-{number}"),
            "without": str(folder), "compressor": self._compression,
        }  # fmt: skip
        run("bench.publishing.floors", "record", job=changes)

        def measure_floor() -> None:
            """Read and hash the archive, then put what changed."""
            read_s = run("bench.publishing.floors", "tar", job={"tarball": str(tarball)}).outcome
            job = {"place": self.place.below(f"floor{number}-changes").as_json(), "folder": changes["folder"]}
            done.second_floor_s = read_s + run("bench.publishing.floors", "put", job=job).outcome

        def measure() -> None:
            earlier = [destination(f"first-{number}")]
            done.second = self.publish(place, tarball, f"second-{number}", folder, earlier)

        for step in (measure_floor, measure) if number % 2 == 0 else (measure, measure_floor):
            step()

    def _floor(self, number: int, folder: Path, tarball: Path) -> tuple[Callable[[], float], Callable[[], float]]:
        """Everything is made ready now; the first function measures, the second gives the idle share of that time."""
        idle = [0.0]
        record = {
            "tarball": str(tarball), "folder": str(folder), "destination": destination(f"first-{number}"),
            "compressor": self._compression,
        }  # fmt: skip
        run("bench.publishing.floors", "record", job=record)
        if self.place.is_file:
            files = write_files(folder / "files", self.shape, number)
            (folder / "list").write_text("\n".join(map(str, files)))

            def measure() -> float:
                seconds, idle[0] = _files_floor(
                    folder, Path(self.place.url.removeprefix("file://")) / f"floor{number}", self._compression
                )
                return seconds
        else:
            job = {"place": self.place.below(f"floor{number}").as_json(), "folder": str(folder)}

            def measure() -> float:
                ran = run("bench.publishing.floors", "put", job=job)
                idle[0] = ran.idle
                return float(ran.outcome)

        return measure, lambda: idle[0]

    def _clear(self, number: int) -> None:
        """Objects of a round are not needed any more; on a disk of an S3 server they may stay."""
        if self.place.is_file:
            root = Path(self.place.url.removeprefix("file://"))
            arms = [*self._arms, *(f"fsync-{fsync}" for fsync in self._fsyncs)]
            for name in (f"floor{number}", f"floor{number}-changes", *(f"round{number}-{arm}" for arm in arms)):
                shutil.rmtree(root / name, ignore_errors=True)


def _folder(place: Place) -> str:
    return Path(place.url).parent.name


def destination(build: str) -> str:
    return f"{TOP}/bench/{build}/project/platform"


def _files_floor(folder: Path, target: Path, compressor: str) -> tuple[float, float]:
    """The slowest worker's seconds, and the idle share meanwhile."""
    count = os.cpu_count() or 1
    workers = []
    for number in range(count):
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.publishing.floors", "files"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdin is not None
        job = {
            "target": str(target), "list": str(folder / "list"), "worker": number, "workers": count,
            "compressor": compressor,
        }  # fmt: skip
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        workers.append(process)
    for process in workers:
        assert process.stdout is not None
        process.stdout.readline()
    idle = Idle()
    for process in workers:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    seconds = []
    for process in workers:
        output, _ = process.communicate()
        if process.returncode:
            raise RuntimeError("a worker of the floor failed")
        seconds.append(float(json.loads(output.splitlines()[-1])))
    return max(seconds), idle.share()
