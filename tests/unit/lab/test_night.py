"""The account of a night: what counts as good, what is written, and which run is started."""

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from include.airflow_api import AIRFLOW_SILENT, INSTALL_REFUSED, AirflowError
from include.cli.airflow_connections import follow, install, snapshot, start
from include.settings.load import load
from include.settings.model import SiteSettings
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from lab import lifecycle
from lab.commands import demonstration as storage_benchmark
from lab.environment import Lab, LabFolders
from lab.errors import NOT_THE_DEMONSTRATIONS
from lab.night import ArtifactLine, NightReport, demonstration_slot
from lab.ports import Ports
from lab.secrets import load_or_create
from lab.stageout import run_stageout
from tests.fakes.refused import refused

KEYS = {
    *("repository", "url", "public_key", "revision", "root_hash"),
    *("artifacts", "published", "unchanged", "failed", "files", "bytes"),
    *("objects_new", "objects_reused", "lease_held_s_max", "wall_s"),
}


def line(state: str, *, lease_held_s: float = 0.1) -> ArtifactLine:
    return ArtifactLine(
        project="rich", platform="opt", state=state, reason="", files=10, bytes=1000, objects_new=3, objects_reused=7,
        bytes_uploaded=300, seconds=1.5, lease_held_s=lease_held_s,
    )  # fmt: skip


def report(*lines: ArtifactLine, expected: int | None = None, problems: tuple[str, ...] = ()) -> NightReport:
    return NightReport(
        slot="main", date="2026-11-21", run="nightly_install_main/night__2026-11-21__1",
        repository="nightlies.example.org", url="http://127.0.0.1:8433/cvmfs/nightlies.example.org",
        public_key="/keys/nightlies.example.org.pub", revision=3, root_hash="ab" * 20, lines=lines,
        expected=len(lines) if expected is None else expected, problems=problems, wall_s=61.26,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("night", "good"),
    [
        (report(line("published"), line("unchanged")), True),
        (report(line("published"), line("failed")), False),
        (report(line("published"), line("skipped")), False),
        (report(line("published"), line("preparing")), False),
        (report(line("published"), expected=2), False),
        (report(line("published"), problems=("/a: object missing",)), False),
        (report(expected=3), False),
    ],
)
def test_anything_missing_or_damaged_makes_a_night_bad(night: NightReport, good: bool) -> None:
    assert night.good is good


def test_the_written_account_has_its_keys_and_sums(tmp_path: Path) -> None:
    path = tmp_path / "last-night.json"
    report(line("published"), line("unchanged", lease_held_s=0.4), line("failed")).write(path)
    written = json.loads(path.read_text())
    assert not KEYS - written.keys()
    assert (written["artifacts"], written["published"], written["unchanged"], written["failed"]) == (3, 1, 1, 1)
    figures = [written[name] for name in ("files", "objects_new", "lease_held_s_max", "wall_s")]
    assert figures == [30, 9, 0.4, 61.3]
    assert len(written["per_artifact"]) == 3
    assert report(expected=3).failed == 3
    configuration = report().client_configuration().splitlines()
    assert len(configuration) == 5
    assert "CVMFS_SERVER_URL=http://127.0.0.1:8433/cvmfs/nightlies.example.org" in configuration
    assert [file.name for file in tmp_path.iterdir()] == ["last-night.json"]


class Api:
    """Airflow as far as starting a run goes."""

    def __init__(self, runs: list[tuple[str, str]], *, tick: str | None = None, is_paused: bool = False) -> None:
        self.tick, self._is_paused = tick, is_paused
        self.known = [{"dag_run_id": run_id, "state": state} for run_id, state in runs]
        self.calls: list[tuple[Any, ...]] = []

    def wait_for_dag(self, dag_id: str, *, timeout_s: float) -> None:
        self.calls.append(("wait", dag_id))

    def is_paused(self, dag_id: str) -> bool:
        return self._is_paused

    def unpause(self, dag_id: str) -> None:
        self.calls.append(("unpause", dag_id))

    def runs(self, dag_id: str, *, prefix: str) -> list[dict[str, Any]]:
        return [run for run in self.known if run["dag_run_id"].startswith(prefix)]

    def pending_schedule(self, dag_id: str, *, now: datetime) -> str | None:
        return self.tick

    def trigger(self, dag_id: str, run_id: str, conf: dict[str, Any], *, logical_date: str | None) -> None:
        self.calls.append(("trigger", dag_id, run_id, conf, logical_date))


class SilentApi:
    """Airflow's API, which first fails as listed."""

    def __init__(self, *errors: AirflowError) -> None:
        self._errors = list(errors)

    def run_state(self, dag_id: str, run_id: str) -> str:
        if self._errors:
            raise self._errors.pop(0)
        return "success"

    def task_instances(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        return []


def followed(api: SilentApi, silence_s: float) -> str:
    seen = follow(api, "dag", "run", show=lambda _: None, timeout_s=60, poll_s=0, silence_s=silence_s)  # type: ignore[arg-type]
    return seen.state


def test_a_night_is_followed_on_while_airflow_is_silent_for_a_while() -> None:
    assert followed(SilentApi(AIRFLOW_SILENT("no answer"), AIRFLOW_SILENT("no answer")), silence_s=60) == "success"
    with refused(AIRFLOW_SILENT):
        followed(SilentApi(AIRFLOW_SILENT("no answer")), silence_s=-1)
    with refused(AirflowError):
        followed(SilentApi(AirflowError("refused")), silence_s=60)


def test_each_attempt_at_a_night_gets_the_next_number_and_a_run_under_way_is_joined() -> None:
    slot, day = load().slot("main"), date(2026, 11, 21)
    begins: list[Callable[[Any], str]] = [
        lambda api: start(api, "nightly_install_main", day, print),
        lambda api: install(api, slot, day, now=NOON, say=print),
    ]
    for begin in begins:
        api = Api([(f"night__2026-11-{name}", "success") for name in ("21__1", "21__9", "22__12")])
        assert begin(api) == "night__2026-11-21__10"
        conf = {"build_date": "2026-11-21"}
        assert ("trigger", "nightly_install_main", "night__2026-11-21__10", conf, None) in api.calls
        api = Api([("night__2026-11-21__1", "running")])
        assert begin(api) == "night__2026-11-21__1"
        assert not [call for call in api.calls if call[0] == "trigger"]


def test_a_run_takes_the_place_of_the_one_that_unpausing_would_start() -> None:
    api = Api([], tick="2026-11-21T01:00:00Z")
    start(api, "nightly_install_main", date(2026, 11, 21), print, allow_future=True)
    assert [call[0] for call in api.calls] == ["wait", "trigger", "unpause"]
    assert api.calls[1][3:] == ({"build_date": "2026-11-21", "allow_future": True}, "2026-11-21T01:00:00Z")


NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def test_a_future_date_and_a_paused_dag_are_refused_before_a_run_is_started() -> None:
    slot, tomorrow = load().slot("main"), date(2026, 11, 22)
    api = Api([])
    with refused(INSTALL_REFUSED):
        install(api, slot, tomorrow, now=NOON, say=print)
    assert api.calls == []
    install(api, slot, tomorrow, now=NOON, say=print, allow_future=True)
    assert "trigger" in [call[0] for call in api.calls]
    paused = Api([], is_paused=True)
    with refused(INSTALL_REFUSED) as refusal:
        install(paused, slot, date(2026, 11, 21), now=NOON, say=print)
    assert "nightshift dags on nightly_install_main" in str(refusal.value)
    assert [call[0] for call in paused.calls] == ["wait"]


def site_of(folder: Path, *slots: str) -> SiteSettings:
    """A site with a store and a repository of the demonstration, and others."""
    text = """
paths: {var: "VAR"}
ledger: "sqlite:///VAR/ledger.db"
stores:
  served: {url: "file:VAR/served"}
  own: {url: "file:VAR/own"}
  builds: {url: "file:VAR/builds"}
  below: {url: "file:VAR/own/below"}
repositories:
  own.example.org: &own {store: served, public_url: "file:VAR/served/own", public_key: VAR/key.pub, gateway: gateway}
  site.example.org: *own
slots:
  demo: {demonstration: true, repository: own.example.org, store: own}
"""
    path = folder / "site.yaml"
    path.write_text(text.replace("VAR", str(folder)) + "".join(f"  {slot}\n" for slot in slots))
    return load(path)


def test_the_demonstration_refuses_every_slot_that_is_not_marked(tmp_path: Path) -> None:
    ours = load()
    assert demonstration_slot(ours).name == demonstration_slot(ours, "main").name == "main"
    site = site_of(tmp_path, "head: {repository: site.example.org, store: builds}")
    assert demonstration_slot(site).name == "demo"
    with refused(NOT_THE_DEMONSTRATIONS) as refusal:
        demonstration_slot(site, "head")
    assert "nightshift nightly install --slot head" in str(refusal.value)
    plain = site.model_copy(update={"slots": {"head": site.slot("head")}})
    with refused(NOT_THE_DEMONSTRATIONS):
        demonstration_slot(plain)


@pytest.mark.parametrize(
    ("slot", "shared"),
    [
        ("head: {repository: own.example.org, store: builds}", "repository own.example.org"),
        ("head: {repository: site.example.org, store: own}", "store own"),
        ("head: {repository: site.example.org, store: below}", "store own"),
    ],
)
def test_the_demonstration_refuses_a_store_or_repository_that_another_slot_uses(
    tmp_path: Path, slot: str, shared: str
) -> None:
    with refused(NOT_THE_DEMONSTRATIONS) as refusal:
        demonstration_slot(site_of(tmp_path, slot))
    assert f"{shared} of the demonstration's slot demo is used by slot head" in str(refusal.value)
    with_it = site_of(tmp_path, slot.replace("{", "{demonstration: true, ", 1))
    assert demonstration_slot(with_it).name == "demo"


def test_the_other_demonstrations_refuse_a_configuration_without_what_is_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = site_of(tmp_path)
    monkeypatch.setattr(storage_benchmark, "open_site", lambda: Site(site, EnvSecrets({})))
    monkeypatch.setattr(lifecycle, "up", lambda *_, **__: pytest.fail("something was started"))
    with refused(NOT_THE_DEMONSTRATIONS):
        storage_benchmark.demonstrate()
    place = LabFolders(tmp_path / "var")
    lab = Lab(place, Ports.unused(), load_or_create(place.secrets))
    with refused(NOT_THE_DEMONSTRATIONS):
        run_stageout(lab, site, EnvSecrets({}), files=5, say=print)


def test_a_snapshot_counts_tasks_by_kind_in_the_order_of_their_start() -> None:
    instances = [
        {"task_id": "publish", "state": None, "start_date": None},
        {"task_id": "prepare", "state": "running", "start_date": "2026-11-21T02:00:05Z"},
        {"task_id": "prepare", "state": "failed", "start_date": "2026-11-21T02:00:04Z"},
        {"task_id": "plan", "state": "success", "start_date": "2026-11-21T02:00:01Z"},
    ]
    seen = snapshot("running", instances)
    assert [str(kind) for kind in seen.kinds] == ["plan 1/1", "prepare 1/2", "publish 0/1"]
    assert seen.busy == 1
    assert seen.kinds[1].failed == 1
