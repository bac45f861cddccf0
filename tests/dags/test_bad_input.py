"""Bad input through whole runs: the bad artifact is named with its cure, the others go on, and nothing of it stays."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import pytest

from tests.dags.conftest import FQRN, MiniSite, Run
from tests.fakes.archives import Member, archive, file, folder, symlink
from tests.fakes.builds import Build, packed, tree

pytestmark = pytest.mark.server("weed")
GOOD = tree({"lib/good.so": b"good" * 100})


@pytest.fixture(autouse=True)
def _no_lease_remains(site: MiniSite) -> Iterator[None]:
    yield
    assert site.leases() == []


def test_each_bad_artifact_fails_alone_with_its_reason_and_leaves_nothing_to_be_seen(site: MiniSite) -> None:
    build = Build("2026-10-01").add("Good", "x86_64", GOOD)
    bad = {
        "Missing": (GOOD, {}, "Upload it again"),
        "Truncated": (GOOD[:-20], {"size": len(GOOD)}, "bytes, the index says"),
        "WrongSum": (GOOD, {"sha256": "0" * 64}, "has sha256"),
        "NotATar": (b"plain text, no archive at all" * 50, {}, "is not a tar archive"),
        "CutInside": (gzip.compress(archive([file("a", b"x" * 4000)], end=b""))[:-6], {}, "truncated"),
        "Absolute": (packed([file("/etc/passwd", b"x")]), {}, "/etc/passwd"),
        "Climbs": (packed([file("../../outside", b"x")]), {}, "../../outside"),
        "Empty": (packed([Member(b"", b"x")]), {}, "empty name"),
        "NotUtf8": (packed([Member(b"caf\xe9", b"x")]), {}, "not UTF-8"),
        "Device": (packed([Member(b"dev/null", type=b"3", device=(1, 3))]), {}, "device"),
        "TooMany": (packed([file(f"f{number}") for number in range(2100)]), {}, "limit"),
        "Bomb": (packed([file(f"zeros{number}", bytes(9 << 20)) for number in range(6)]), {}, "is beyond the limit of"),
        "Large": (packed([file("image.iso", bytes(11 << 20))]), {}, "image.iso: has 11534336 bytes, more than"),
        "Twice": (packed([file("a", b"1"), folder("a")]), {}, "a"),
    }
    for project, (data, change, _) in bad.items():
        build.add(project, "x86_64", data, **change)
    build.lose("Missing", "x86_64")
    site.drop(build)
    run = site.run("nightly_install_main", build_date="2026-10-01")
    assert run.state == "failed"
    assert run.tasks["gate"] == "failed"
    assert run.states()["Good/x86_64"] == "published"
    reasons = {one.project: one.reason for one in run.publications.values() if one.state.value == "failed"}
    assert set(reasons) == set(bad)
    for project, (_, _, said) in bad.items():
        assert said in reasons[project], (project, reasons[project])
        assert project in reasons[project], reasons[project]
    repository = site.connections.repository(FQRN)
    assert repository.read(f"{build.destination('Good', 'x86_64')}/lib/good.so") == b"good" * 100
    for project in bad:
        assert repository.lookup(build.destination(project, "x86_64")) is None, project
    assert [entry.name for entry in repository.listing("/nightlies/main/b20261001")] == [".cvmfscatalog", "Good"]


def test_links_out_of_the_tree_are_kept_and_setuid_bits_are_stripped(site: MiniSite) -> None:
    members = [symlink("out", "../../../../etc/passwd"), file("bin", b"#!", mode=0o4755)]
    build = Build("2026-10-02").add("Odd", "x86_64", packed(members))
    site.drop(build)
    run = site.run("nightly_install_main", build_date="2026-10-02")
    assert run.state == "success", run
    repository = site.connections.repository(FQRN)
    path = build.destination("Odd", "x86_64")
    link, program = repository.lookup(f"{path}/out"), repository.lookup(f"{path}/bin")
    assert link is not None
    assert link.is_symlink
    assert program is not None
    assert program.mode & 0o7777 == 0o755
    (publication,) = run.publications.values()
    assert publication.state.value == "published"


def test_an_artifact_with_a_bad_name_is_rejected_and_the_others_go_on(site: MiniSite) -> None:
    build = Build("2026-10-03").add("Good", "x86_64", GOOD).add("Evil", "x86_64", GOOD)
    build.artifacts["Evil/x86_64"]["project"] = "../Evil"
    site.drop(build)
    run = site.run("nightly_install_main", build_date="2026-10-03")
    assert run.state == "failed"
    assert run.states() == {"Good/x86_64": "published"}


@pytest.mark.parametrize("document", [b"{not json", b"[]", b'{"format": 1, "slot": "main"}'])
def test_an_index_that_cannot_be_used_fails_the_run_and_publishes_nothing(site: MiniSite, document: bytes) -> None:
    site.connections.store("builds").put("main/2026-10-04/index.json", document)
    before = site.revision()
    run = site.run("nightly_install_main", build_date="2026-10-04")
    assert run.state == "failed"
    assert run.publications == {}
    assert site.revision() == before


def test_a_date_without_a_build_fails_at_once(site: MiniSite) -> None:
    run = site.run("nightly_install_main", build_date="2031-01-01")
    assert run.state == "failed"
    assert run.tasks["find_build"] == "failed"
    assert run.tasks["gate"] == "failed"


def test_an_unknown_platform_fails_the_run(site: MiniSite) -> None:
    site.drop(Build("2026-10-05").add("Good", "x86_64", GOOD))
    run = site.run("nightly_install", slot="main", build_date="2026-10-05", platforms=["riscv"])
    assert run.state == "failed"
    assert run.publications == {}


def test_a_destination_that_is_a_file_fails_its_own_artifact_only(site: MiniSite) -> None:
    # the tree of the first build has a file where the second one wants to put a project
    first = Build("2026-10-06", build_id="clash").add("Good", "x86_64", tree({"file": b"x"}))
    site.drop(first)
    assert site.run("nightly_install_main", build_date="2026-10-06").state == "success"
    run = site.run(
        "publication", repository=FQRN, path="/nightlies/main/clash/Good/x86_64/file/below",
        source=_in_store(site, "tree.tar.gz", GOOD), mode="refuse",
    )  # fmt: skip
    assert run.state == "failed"
    (publication,) = run.publications.values()
    assert "is a file" in publication.reason


def test_what_the_slot_requires_and_the_index_lacks_fails_the_run(site: MiniSite) -> None:
    build = Build("2026-10-07", slot="required").add("Gaudi", "x86_64", GOOD)
    site.drop(build)
    run = site.run("nightly_install_required", build_date="2026-10-07")
    assert run.state == "failed"
    assert run.tasks["gate"] == "failed"
    assert run.states() == {"Gaudi/x86_64": "published"}


def test_a_corrected_build_is_installed_by_the_next_run(site: MiniSite) -> None:
    build = Build("2026-10-08").add("Good", "x86_64", GOOD).add("Late", "x86_64", GOOD)
    build.lose("Late", "x86_64")
    site.drop(build)
    assert _failed(site.run("nightly_install_main", build_date="2026-10-08")) == {"Late/x86_64"}
    build.add("Late", "x86_64", GOOD)
    site.drop(build)
    run = site.run("nightly_install_main", build_date="2026-10-08")
    assert run.state == "success", run
    assert run.states() == {"Good/x86_64": "unchanged", "Late/x86_64": "published"}


def _failed(run: Run) -> set[str]:
    return {name for name, state in run.states().items() if state == "failed"}


def _in_store(site: MiniSite, key: str, data: bytes) -> str:
    store = site.connections.store("builds")
    store.put(key, data)
    return f"{store.url}/{key}"
