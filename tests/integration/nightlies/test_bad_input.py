"""Bad builds through the steps of a night: the bad artifact is named with its cure, the others go on, and nothing of
it stays."""

from __future__ import annotations

import gzip
import re
from dataclasses import dataclass, replace
from datetime import date
from functools import cache

import pytest

from include.nightlies.errors import BadIndex, GateClosed, UnknownChoice
from include.nightlies.rules.publication import State
from include.nightlies.steps.plan import Plan, plan_night
from include.nightlies.steps.values import Night
from include.nightlies.steps.verify import tidy_run, verify_run
from tests.fakes.archives import Member, archive, file, folder, hardlink, symlink
from tests.fakes.attempts import attempt
from tests.fakes.builds import Build, packed, tree
from tests.fakes.refused import refused
from tests.nights import Nights

NIGHT = Night("night/1", "main", date(2026, 11, 1), "test")
GOOD = tree({"lib/good.so": b"good" * 100})
BELOW_LIB, LONGEST = "x" * 255, "lib/" + "x" * 256
PACK_WITHOUT, PACK_AGAIN = "pack the tree again without it", "pack the tree again"
PACK_RELATIVE, PACK_ONE = f"{PACK_AGAIN} with relative names", f"{PACK_AGAIN} with one of them"
RENAME = f"rename it and {PACK_AGAIN}"
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


@cache
def bad_ones() -> dict[str, Bad]:
    """By project; made when they are needed."""
    return {
        "Missing": Bad(GOOD, r"there is no \S+/b20261101/Missing-x86_64.tar.gz", "Upload it again"),
        "Truncated": Bad(
            GOOD[:-20],
            f"has {len(GOOD) - 20} bytes, in the index {len(GOOD)}; truncated",
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
        "Absolute": Bad(packed([file("/etc/passwd", b"x")]), "has an absolute name", PACK_RELATIVE, "/etc/passwd"),
        "Climbs": Bad(packed([file("../../outside", b"x")]), r"has '\.\.' in its name", PACK_WITHOUT, "../../outside"),
        "HardLink": Bad(
            packed([file("a", b"x"), hardlink("b", "../../etc/passwd")]),
            r"is a hard link to '\.\./\.\./etc/passwd', which is outside the tree",
            PACK_WITHOUT,
            "b",
        ),
        "Empty": Bad(packed([Member(b"", b"x")]), "has an empty name", PACK_WITHOUT, "(empty name)"),
        "NotUtf8": Bad(packed([Member(b"caf\xe9", b"x")]), "has a name that is not UTF-8", RENAME, r"caf\xe9"),
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
            packed([folder("lib"), file("lib/a", b"1"), file("lib/a", b"2")]), "is there twice", PACK_ONE, "lib/a"
        ),
        "FileAndFolder": Bad(packed([file("a", b"1"), folder("a")]), "is there twice", PACK_ONE, "a"),
    }  # fmt: skip


# in the index they follow the good ones and the bad ones, and have no name there where theirs cannot be used
REJECTED = {
    "Evil": ({"project": "../Evil"}, r"artifacts\[\d+\] is rejected: `project` '\.\./Evil' is not .*Rename it"),
    "Blank": ({"platform": "x86 64"}, r"artifacts\[\d+\] is rejected: `platform` 'x86 64' is not .*Rename it"),
    "Elsewhere": (
        {"url": "https://example.org/x.tar.gz"},
        r"Elsewhere/x86_64 is rejected: `url` 'https://example\.org/x\.tar\.gz' lies outside the store .*Move the file",
    ),
}


def planned(nights: Nights, build: Build, night: Night = NIGHT) -> Plan:
    build.store_in(nights.site.store("cvmfs"))
    return nights.plan_of(night)


def test_each_bad_artifact_fails_alone_with_its_reason_and_leaves_nothing_to_be_seen(nights: Nights) -> None:
    nights.with_options(limits={"members": 2000, "bytes": "50MiB", "file_size": "10MiB"})
    bad, build = bad_ones(), Build("2026-11-01").add("Good", "x86_64", GOOD)
    build.add("Longest", "x86_64", packed([folder("lib"), *long_name(f"lib/{BELOW_LIB}")]))
    for project, one in bad.items():
        build.add(project, "x86_64", one.data, **dict(one.change))
    for project, (change, _) in REJECTED.items():
        build.add(project, "x86_64", GOOD)
        build.artifacts[f"{project}/x86_64"].update(change)
    plan = planned(nights, build.lose("Missing", "x86_64"))
    (batch,) = plan.batches
    for project, (_, words) in REJECTED.items():
        assert re.search(words, "\n".join(plan.notes)), (project, words)
    failed = {f"{project}/x86_64" for project in bad}
    assert nights.prepare(batch).failures.keys() == failed
    published = nights.publish(batch)
    assert {f"{one.project}/x86_64" for one in published.done} == {"Good/x86_64", "Longest/x86_64"}
    assert published.failures.keys() == failed
    for project, one in bad.items():
        reason = nights.reason(batch, f"{project}/x86_64")
        assert re.match(one.says(f"{project}/x86_64"), reason), (project, reason)
    tidy_run(nights.site, attempt(), plan.batches)
    verify_run(nights.site, attempt(NIGHT.run))
    with pytest.raises(GateClosed) as closed:
        nights.gate(NIGHT)
    assert len(closed.value.missing) == len(bad) + len(REJECTED)
    head = nights.head()
    assert head.revision.read(f"{build.destination('Good', 'x86_64')}/lib/good.so") == b"good" * 100
    assert head.revision.lookup(f"{build.destination('Longest', 'x86_64')}/lib/{BELOW_LIB}") is not None
    listed = [entry.name for entry in head.revision.listing("/nightlies/main/b20261101")]
    assert listed == [".cvmfscatalog", "Good", "Longest"]
    assert nights.client().leases() == []


def test_links_out_of_the_tree_are_kept_and_setuid_bits_are_stripped_and_that_is_said(nights: Nights) -> None:
    members = [
        symlink("out", "../../../../etc/passwd"),
        file("bin", b"#!", mode=0o4755),
        file("both", b"#!", mode=0o6711),
    ]
    build = Build("2026-11-01").add("Odd", "x86_64", packed(members)).add("Good", "x86_64", GOOD)
    (batch,) = planned(nights, build).batches
    assert not nights.prepare(batch).failures
    assert not nights.publish(batch).failures
    head, path = nights.head(), build.destination("Odd", "x86_64")
    link, program = head.revision.lookup(f"{path}/out"), head.revision.lookup(f"{path}/bin")
    assert link is not None
    assert (link.is_symlink, link.symlink) == (True, "../../../../etc/passwd")
    assert program is not None
    assert program.mode & 0o7777 == 0o755
    said = r"in revision \d+; set-uid, set-gid and sticky bits stripped from 2 entries"
    assert re.fullmatch(said, nights.reason(batch, "Odd/x86_64"))
    assert "stripped" not in nights.reason(batch, "Good/x86_64")


def test_an_index_that_cannot_be_used_plans_nothing(nights: Nights) -> None:
    nights.site.store("cvmfs").put("main/2026-11-01/index.json", b"{not json")
    with refused(BadIndex):
        plan_night(nights.site, attempt(), NIGHT)
    assert nights.publications(NIGHT.run) == ()


def test_chosen_projects_and_platforms_are_taken_alone_and_unknown_ones_name_what_there_is(nights: Nights) -> None:
    build = Build("2026-11-01").add("Good", "x86_64", GOOD).add("Good", "arm", GOOD).add("Other", "x86_64", GOOD)
    (batch,) = planned(nights, build, replace(NIGHT, projects=("Good",), platforms=("x86_64",))).batches
    assert [item.name for item in batch.items] == ["Good/x86_64"]
    for kind, known in {"platform": ("arm", "x86_64"), "project": ("Good", "Other")}.items():
        chosen = replace(NIGHT, **{f"{kind}s": ("riscv",)})  # type: ignore[arg-type]
        with refused(UnknownChoice, kind=kind, names=("riscv",), known=known):
            plan_night(nights.site, attempt(), chosen)


def test_the_next_night_sends_only_what_changed(nights: Nights) -> None:
    same = {f"lib/{number}": b"%d" % number * 500 for number in range(4)}
    nights.night(1, {"Gaudi": same})
    second = nights.night(2, {"Gaudi": {**same, "new": b"a file of the second"}})["Gaudi"]
    assert (second.objects_reused or 0) >= len(same)
    assert second.objects_new == 2  # the file and the catalog
    assert nights.head().revision.read("/nightlies/main/b20261102/Gaudi/x86_64/new") == b"a file of the second"


def test_a_dry_run_of_a_night_names_what_is_in_the_way_of_which_artifact(nights: Nights) -> None:
    nights.by_hand("/nightlies/main/b20261101/Good", tree({"x86_64": b""}))
    before = nights.head().manifest.revision
    build = Build("2026-11-01").add("Good", "x86_64", GOOD).add("Fine", "x86_64", GOOD)
    (batch,) = planned(nights, build, replace(NIGHT, dry_run=True)).batches
    assert nights.prepare(batch).failures.keys() == {"Good/x86_64"}
    assert "x86_64 is a file" in nights.reason(batch, "Good/x86_64")
    assert {one.project: one.state for one in nights.publications(NIGHT.run)} == {
        "Good": State.FAILED,
        "Fine": State.SKIPPED,
    }
    assert nights.missing(replace(NIGHT, dry_run=True)) == ["Good/x86_64"]
    assert nights.head().manifest.revision == before
