"""Bad input through whole runs: the bad artifact is named with its cure, the others go on, and nothing of it stays."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from airflow.sdk.exceptions import ParamValidationError

from include.settings.errors import SettingsError
from tests.dags.conftest import FQRN, MiniSite, Run
from tests.fakes.archives import Member, archive, file, folder, hardlink, symlink
from tests.fakes.builds import Build, packed, tree

pytestmark = pytest.mark.server("weed")
GOOD = tree({"lib/good.so": b"good" * 100})
BELOW_LIB, LONGEST = "x" * 255, "lib/" + "x" * 256
PACK_WITHOUT, PACK_AGAIN = "pack the tree again without it", "pack the tree again"
FETCH_AGAIN = "fetch or pack the artifact again, or correct its index"


@dataclass(frozen=True)
class Bad:
    """A tarball that cannot be taken, what is wrong with which member (or with all of it), and the cure."""

    data: bytes
    fault: str
    cure: str
    member: str = ""
    change: tuple[tuple[str, object], ...] = ()

    def says(self, artifact: str) -> str:
        if self.member:
            return rf"{re.escape(self.member)}: {self.fault}.*{self.cure} \(artifact {artifact}\)"
        return rf"(artifact )?{artifact}: .*{self.fault}.*{self.cure}"


def long_name(name: str) -> list[Member]:
    """The two members that GNU tar makes of a long name."""
    return [Member(b"././@LongLink", name.encode() + b"\0", type=b"L"), file(name[:100], b"x")]


BAD = {
    "Missing": Bad(GOOD, "there is no s3://builds/main/2026-10-01/b20261001/Missing-x86_64.tar.gz", "Upload it again"),
    "Truncated": Bad(
        GOOD[:-20],
        f"has {len(GOOD) - 20} bytes, the index says {len(GOOD)}; truncated",
        "Upload it again, or correct the index",
        change=(("size", len(GOOD)),),
    ),
    "WrongSum": Bad(
        GOOD, "has sha256 [0-9a-f]{64} where 0{64} is expected", FETCH_AGAIN, change=(("sha256", "0" * 64),)
    ),
    "NotATar": Bad(
        b"plain text, no archive at all" * 50, "is not a tar archive", "pack the tree as one of these"
    ),
    "CutInside": Bad(
        gzip.compress(archive([file("a", b"x" * 4000)], end=b""))[:-6], "is truncated: it ends after", FETCH_AGAIN
    ),
    "Absolute": Bad(packed([file("/etc/passwd", b"x")]), "has an absolute name", PACK_WITHOUT, "/etc/passwd"),
    "Climbs": Bad(packed([file("../../outside", b"x")]), r"has '\.\.' in its name", PACK_WITHOUT, "../../outside"),
    "HardLink": Bad(
        packed([file("a", b"x"), hardlink("b", "../../etc/passwd")]),
        r"is a hard link to '\.\./\.\./etc/passwd', which is outside the tree",
        PACK_WITHOUT,
        "b",
    ),
    "Empty": Bad(packed([Member(b"", b"x")]), "has an empty name", PACK_WITHOUT, "(empty name)"),
    "NotUtf8": Bad(packed([Member(b"caf\xe9", b"x")]), "has a name that is not UTF-8", PACK_WITHOUT, r"caf\xe9"),
    "TooLong": Bad(
        packed([folder("lib"), *long_name(LONGEST)]), "has a name longer than 255 bytes", PACK_WITHOUT, LONGEST
    ),
    "Device": Bad(
        packed([folder("dev"), Member(b"dev/null", type=b"3", device=(1, 3))]),
        "is a character device",
        "remove it, or have them kept or left out",
        "dev/null",
    ),
    "TooMany": Bad(
        packed([file(f"f{number}") for number in range(2100)]),
        "is beyond the limit of 2000 members",
        "split the tree or raise the limit",
        "f2000",
    ),
    "Bomb": Bad(
        packed([file(f"zeros{number}", bytes(9 << 20)) for number in range(6)]),
        "is beyond the limit of 52428800 bytes",
        "split the tree or raise the limit",
        "zeros5",
    ),
    "TooBig": Bad(
        packed([file("data", bytes(11 << 20))]),
        "has 11534336 bytes, more than the 10485760 that one file may have",
        "split it, leave it out, or raise the limit",
        "data",
    ),
    "Twice": Bad(
        packed([folder("lib"), file("lib/a", b"1"), file("lib/a", b"2")]), "is there twice", PACK_AGAIN, "lib/a"
    ),
    "FileAndFolder": Bad(packed([file("a", b"1"), folder("a")]), "is there twice", PACK_AGAIN, "a"),
}  # fmt: skip
# in the index they follow the good ones and the bad ones, and have no name there where theirs cannot be used
REJECTED = {
    "Evil": ({"project": "../Evil"}, r"artifacts\[\d+\]: rejected: `project` '\.\./Evil' is not .*Rename it"),
    "Blank": ({"platform": "x86 64"}, r"artifacts\[\d+\]: rejected: `platform` 'x86 64' is not .*Rename it"),
    "Elsewhere": (
        {"url": "https://example.org/x.tar.gz"},
        r"Elsewhere/x86_64: rejected: `url` 'https://example\.org/x\.tar\.gz' lies outside the store .*Move the file",
    ),
}


@pytest.fixture(autouse=True)
def _no_lease_remains(site: MiniSite) -> Iterator[None]:
    yield
    assert site.leases() == []


@pytest.fixture
def said(site: MiniSite, capfd: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """What the tasks of the last run logged, as a reader of their logs sees it."""
    capfd.readouterr()
    return lambda: capfd.readouterr().out


def test_each_bad_artifact_fails_alone_with_its_reason_and_leaves_nothing_to_be_seen(
    site: MiniSite, said: Callable[[], str]
) -> None:
    build = Build("2026-10-01").add("Good", "x86_64", GOOD)
    build.add("Longest", "x86_64", packed([folder("lib"), *long_name(f"lib/{BELOW_LIB}")]))
    for project, bad in BAD.items():
        build.add(project, "x86_64", bad.data, **dict(bad.change))
    for project, (change, _) in REJECTED.items():
        build.add(project, "x86_64", GOOD)
        build.artifacts[f"{project}/x86_64"].update(change)
    build.lose("Missing", "x86_64")
    site.drop(build)
    run = site.run("nightly_install_main", build_date="2026-10-01")
    log = said()
    assert run.state == "failed"
    assert run.tasks["gate"] == "failed"
    good = {name for name, state in run.states().items() if state == "published"}
    assert good == {"Good/x86_64", "Longest/x86_64"}
    assert _failed(run) == {f"{project}/x86_64" for project in BAD}
    reasons = {one.project: one.reason for one in run.publications.values()}
    for project, bad in BAD.items():
        assert re.match(bad.says(f"{project}/x86_64"), reasons[project]), (project, reasons[project])
    for project, (_, words) in REJECTED.items():
        assert re.search(words, log), (project, words)
    assert f"{len(BAD) + len(REJECTED)} missing" in log
    repository = site.connections.repository(FQRN)
    assert repository.read(f"{build.destination('Good', 'x86_64')}/lib/good.so") == b"good" * 100
    assert repository.lookup(f"{build.destination('Longest', 'x86_64')}/lib/{BELOW_LIB}") is not None
    for project in (*BAD, *REJECTED):
        assert repository.lookup(build.destination(project, "x86_64")) is None, project
    listed = [entry.name for entry in repository.listing("/nightlies/main/b20261001")]
    assert listed == [".cvmfscatalog", "Good", "Longest"]


def test_links_out_of_the_tree_are_kept_and_setuid_bits_are_stripped_and_that_is_said(site: MiniSite) -> None:
    members = [
        symlink("out", "../../../../etc/passwd"),
        file("bin", b"#!", mode=0o4755),
        file("both", b"#!", mode=0o6711),
    ]
    build = Build("2026-10-02").add("Odd", "x86_64", packed(members)).add("Good", "x86_64", GOOD)
    site.drop(build)
    run = site.run("nightly_install_main", build_date="2026-10-02")
    assert run.state == "success", run
    repository = site.connections.repository(FQRN)
    path = build.destination("Odd", "x86_64")
    link, program = repository.lookup(f"{path}/out"), repository.lookup(f"{path}/bin")
    assert link is not None
    assert (link.is_symlink, link.symlink) == (True, "../../../../etc/passwd")
    assert program is not None
    assert program.mode & 0o7777 == 0o755
    reasons = {one.project: one.reason for one in run.publications.values()}
    assert re.fullmatch(r"in revision \d+; set-uid, set-gid and sticky bits stripped from 2 entries", reasons["Odd"])
    assert "stripped" not in reasons["Good"]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (b"{not json", r"index s3://builds/main/2026-10-04/index\.json: .*JSON"),
        (b"[]", r"index s3://builds/main/2026-10-04/index\.json: .*object"),
        (b'{"format": 1, "slot": "main"}', r"index s3://builds/main/2026-10-04/index\.json: `build_id` is missing"),
        (b'{"format": 1, "slot": "other", "build_id": "b"}', r"belongs to slot 'other', not 'main'"),
    ],
    ids=["no JSON", "a list", "half of it", "another slot"],
)  # fmt: skip
def test_an_index_that_cannot_be_used_fails_the_run_and_publishes_nothing(
    site: MiniSite, said: Callable[[], str], document: bytes, words: str
) -> None:
    site.connections.store("builds").put("main/2026-10-04/index.json", document)
    before = site.revision()
    run = site.run("nightly_install_main", build_date="2026-10-04")
    assert run.state == "failed"
    assert run.publications == {}
    assert site.revision() == before
    assert re.search(words, said())


def test_a_date_without_a_build_fails_at_once_and_says_where_it_looked(site: MiniSite, said: Callable[[], str]) -> None:
    run = site.run("nightly_install_main", build_date="2031-01-01")
    assert run.state == "failed"
    assert run.tasks["find_build"] == "failed"
    assert run.tasks["gate"] == "failed"
    missing = "slot main has no build for 2031-01-01: nothing at s3://builds/main/2031-01-01/index.json. Check the date"
    assert f"- task find_build failed: {missing}" in said(), "the gate repeats it"


def test_an_unknown_platform_or_project_fails_the_run_and_names_what_there_is(
    site: MiniSite, said: Callable[[], str]
) -> None:
    site.drop(Build("2026-10-05").add("Good", "x86_64", GOOD))
    run = site.run("nightly_install", slot="main", build_date="2026-10-05", platforms=["riscv"])
    assert run.state == "failed"
    assert run.publications == {}
    assert "unknown platform riscv. Choose from: x86_64." in said()
    assert site.run("nightly_install", slot="main", build_date="2026-10-05", projects=["Best"]).state == "failed"
    assert "unknown project Best. Choose from: Good." in said()


def test_an_unknown_slot_or_repository_is_refused_by_name(site: MiniSite) -> None:
    slots = r"\['linked', 'main', 'required'\]"
    with pytest.raises(ParamValidationError, match=f"param slot: 'weekly' is not one of {slots}"):
        site.run("nightly_install", slot="weekly", build_date="2026-10-05")
    with pytest.raises(ParamValidationError, match=rf"param repository: 'none' is not one of \['{FQRN}'\]"):
        site.run("publication", repository="none", path="/a", source="s3://builds/a.tar.gz")
    with pytest.raises(
        SettingsError, match=r"unknown slot 'weekly'; .* has: linked, main, required\. Use one of these"
    ):
        site.connections.site.slot("weekly")
    with pytest.raises(SettingsError, match=rf"unknown repository 'none'; .* has: {FQRN}\. Use one of these"):
        site.connections.repository("none")


def test_a_destination_that_is_a_file_fails_its_own_artifact_only(site: MiniSite) -> None:
    # the tree of the first build has a file where the second one wants to put a project
    first = Build("2026-10-06", build_id="clash").add("Good", "x86_64", tree({"file": b"x"}))
    site.drop(first)
    assert site.run("nightly_install_main", build_date="2026-10-06").state == "success"
    below = "/nightlies/main/clash/Good/x86_64/file/below"
    run = site.run(
        "publication", repository=FQRN, path=below, source=_in_store(site, "tree.tar.gz", GOOD), mode="refuse"
    )
    assert run.state == "failed"
    (publication,) = run.publications.values()
    assert "/nightlies/main/clash/Good/x86_64/file" in publication.reason
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
