"""The quality gate in whole runs: a bad index publishes nothing, a bad build moves no link, a person may accept it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from types import SimpleNamespace

import pytest

from include.cvmfs.format.paths import link_target
from include.nightlies.records import builds, links as linked, publications as records, quality
from include.nightlies.records.quality import QualityVerdict
from include.nightlies.rules.index import Artifact, BuildIndex
from include.nightlies.rules.publication import Figures, Move, Phase, Planned, PublicationKey, State
from include.quality.results import folder_of_run
from include.settings.prepare import Suite
from include.site.site import Site
from operators.links import QualityLink
from tests.dags.conftest import FQRN, MiniSite, Run, reconfigured
from tests.fakes.archives import file, folder
from tests.fakes.builds import Build, packed

pytestmark = pytest.mark.server("weed")
SLOT = f"""
  judged:
    repository: {FQRN}
    store: builds
    retries: 0
    links: {{weekdays: false}}
    quality: {{night: block}}
"""
FOLDER = "/nightlies/judged"
DAG_ID = "nightly_install_judged"
FILES = 100


@pytest.fixture(scope="module")
def judged(site: MiniSite) -> Iterator[MiniSite]:
    """The same site with one more slot, whose builds are judged, and six nights of it in the ledger."""
    with reconfigured(site, (site.folder / "site.yaml").read_text() + SLOT, "nightly_install") as made:
        for day in range(2, 8):
            _remember(made.opened, day)
        yield made


@pytest.fixture(autouse=True)
def _environment_of_the_slot(judged: MiniSite, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in judged.environment.items():
        monkeypatch.setenv(name, value)


def _remember(site: Site, day: int) -> None:
    """A night of two artifacts as the ledger has it once it is over."""
    now, build_id = datetime(2026, 11, day, 4, tzinfo=UTC), f"b202611{day:02}"
    listed = tuple(Artifact(name, "x86_64", f"{name}.tar.gz", 1000, f"{day:x}" * 64) for name in ("A", "B"))
    index = BuildIndex("judged", build_id, date(2026, 11, day), complete=True, artifacts=listed)
    known = builds.record_build(site.ledger, index, index_url="s3://builds/index.json", now=now)
    for one in known.artifacts:
        name = one.artifact
        where = f"{FOLDER}/{build_id}/{name.project}/{name.platform}"
        key = PublicationKey(FQRN, where, f"night/{build_id}")
        records.plan(site.ledger, key, Planned(one.id, name.sha256), try_number=1, now=now)
        figures = Figures(files=FILES + 1, bytes=FILES)
        done = Move(State.UNCHANGED, Phase.PLAN, "held already", figures)
        records.move(site.ledger, key, done, try_number=1, now=now)


def _build(day: int, *projects: str, files: int = FILES, library: bytes = b"code") -> Build:
    build = Build(f"2026-11-{day:02}", slot="judged")
    for project in projects:
        members = [folder("lib"), file("lib/libA.so", library)]
        build.add(project, "x86_64", packed([*members, *(file(f"data{n}", b"%d" % day) for n in range(files))]))
    return build


def _night(site: MiniSite, build: Build, **form: object) -> Run:
    site.drop(build)
    return site.run(DAG_ID, build_date=build.date, **form)


def _latest(site: MiniSite) -> str:
    entry = site.opened.head(FQRN).revision.lookup(f"{FOLDER}/latest")
    return link_target(f"{FOLDER}/latest", entry.symlink) if entry else ""


def test_a_bad_build_moves_no_link_until_a_person_accepts_it(judged: MiniSite) -> None:
    good = _night(judged, _build(9, "A", "B"))
    assert good.state == "success", good
    assert _latest(judged) == f"{FOLDER}/b20261109"
    verdicts = {suite: one.verdict for suite, one in quality.of_run(judged.opened.ledger, good.name).items()}
    assert verdicts == dict.fromkeys(Suite, QualityVerdict.PASSED)

    bad = _build(10, "A", "B", files=FILES * 6 // 10, library=b"")
    stopped = _night(judged, bad)
    assert stopped.state == "failed"
    assert (stopped.tasks["check_index"], stopped.tasks["check_build"]) == ("success", "failed")
    assert (stopped.tasks["gate"], stopped.tasks["links"]) == ("failed", "upstream_failed")
    assert stopped.states() == {"A/x86_64": "published", "B/x86_64": "published"}
    assert _latest(judged) == f"{FOLDER}/b20261109"
    found = quality.of_run(judged.opened.ledger, stopped.name)
    assert found[Suite.PUBLISHED].reason == "A/x86_64: 1 empty libraries: lib/libA.so"
    assert found[Suite.NIGHT].reason == (
        "the whole night: 124 files, the median of the last 7 nights is 202; expected 141 to 263"
    )
    (kept,) = linked.history(judged.opened.ledger, FQRN, f"{FOLDER}/latest", limit=1)
    assert (kept.state, kept.build_id) == ("stayed", "b20261110")
    assert "A/x86_64: 1 empty libraries: lib/libA.so" in kept.reason
    docs = folder_of_run(judged.folder, "judged", stopped.name)
    task = SimpleNamespace(night={"slot": "judged"})
    key = SimpleNamespace(dag_id=DAG_ID, run_id=stopped.name.partition("/")[2])
    link = QualityLink().get_link(task, ti_key=key)
    assert link.endswith(f"/nightshift/quality/judged/{docs.name}/index.html")
    assert {one.name for one in docs.iterdir()} == {f"{name}.html" for name in ("index", *(one.value for one in Suite))}

    accepted = _night(judged, bad, accept_quality="A was split; its files are in C now")
    assert accepted.state == "success", accepted
    assert _latest(judged) == f"{FOLDER}/b20261110"
    found = quality.of_run(judged.opened.ledger, accepted.name)
    assert found[Suite.PUBLISHED].verdict is QualityVerdict.ACCEPTED
    assert found[Suite.PUBLISHED].accepted == "A was split; its files are in C now"


def test_an_index_that_lost_a_project_publishes_nothing(judged: MiniSite) -> None:
    before = judged.revision()
    run = _night(judged, _build(11, "A"))
    assert run.state == "failed"
    assert (run.tasks["check_index"], run.tasks["plan"]) == ("failed", "upstream_failed")
    assert (run.tasks["check_build"], run.tasks["gate"]) == ("skipped", "failed")
    assert judged.revision() == before
    (found,) = quality.of_run(judged.opened.ledger, run.name).values()
    assert (found.verdict, found.faults) == (QualityVerdict.BLOCKED, 1)
    assert found.reason == "B/x86_64: build b20261110 of 2026-11-10 had it and the index does not list it"
