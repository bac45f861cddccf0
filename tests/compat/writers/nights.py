"""What builds, nights and approvals are written as: indices, values that cross XCom, digests that an answer binds."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable
from datetime import date, timedelta
from typing import Any

from include.cvmfs.format.catalog import NestedRef
from include.gateway.holders import TaskName
from include.nightlies.rules.approval import (
    Bound,
    QuestionKind,
    WantedApproval,
    link_digest,
    question_digest,
    tree_digest,
    undo_digest,
)
from include.nightlies.rules.build import ArtifactRecord, BuildRecord
from include.nightlies.rules.index import Artifact, BuildIndex, ParentBuild, RejectedArtifact
from include.nightlies.rules.links import LinkDecision, LinkState
from include.nightlies.rules.passes import Pass
from include.nightlies.rules.publication import Publication
from include.nightlies.rules.signatures import public_key, require_signature
from include.nightlies.rules.states import Phase, State
from include.nightlies.steps.gate import Passed
from include.nightlies.steps.links import Linked
from include.nightlies.steps.values import Batch, BatchOutcome, Item, Night
from include.nightlies.undo.approval import digest_of
from include.nightlies.undo.links_to_build import MovedLink
from include.nightlies.undo.plan import Predecessor, UndoneDestination, UndoPlan, Wish
from include.site.stale_leases import LeaseFinding, Whose
from tests.compat.corpus import Document, compact, keys_folder, newest, shape
from tests.compat.keys import BUILDER, FQRN, builder
from tests.compat.writers.store import AT, OLDER, PLACE, ROOT, WHOLE

DAY = date(2026, 11, 21)
RUN = "nightly_install_main/scheduled__2026-11-21T00:30:00+00:00"
SUM = "a1" * 32
GAUDI = Artifact("Gaudi", "x86_64-el9-gcc13-opt", "Gaudi.tar.zst", 123456, SUM, ("LCG", "Boost"), 10)
LHCB = Artifact("LHCb", "armv8-el9-gcc13-opt", "s3://builds/main/LHCb.tar", 7, "b2" * 32)
INDEX = BuildIndex("main", "b1", DAY, True, (GAUDI, LHCB))
PARTIAL = BuildIndex(
    "main", "b2", DAY, False, (LHCB,), base=ParentBuild("b1", date(2026, 11, 20)), serial=7, created=AT
)  # fmt: skip
NIGHT = Night(RUN, "main", DAY, "the run's logical date", ("Gaudi",), (), number=3, earlier=(f"{RUN}__1",), last=False)
TURN = Pass("scheduled__2026-11-21T00:30:00+00:00", 3, AT + timedelta(hours=6), AT)
ITEM = Item("Gaudi/x86_64-el9-gcc13-opt", PLACE, "s3://builds/main/2026-11-21/Gaudi.tar.zst", SUM, 123456, ("LCG/x",),
            store="builds")  # fmt: skip
TAKEN_OVER = Item(
    "LHCb/armv8", "/nightlies/main/b1/LHCb/armv8", "", inherits="/nightlies/main/b0/LHCb/armv8", linked=True
)
BATCH = Batch(RUN, FQRN, (ITEM, TAKEN_OVER), ("/nightlies/main", "/nightlies/main/b1"), tag="été")
FINDING = LeaseFinding(FQRN, "/nightlies", "worker", f"{RUN}/artifacts.publish[3] try 2", AT.isoformat(), Whose.DEAD,
                  "its task is failed")  # fmt: skip


def publication(**changes: Any) -> Publication:
    """A row of the ledger with every column filled."""
    fields: dict[str, Any] = {
        "id": 11, "run_id": RUN, "repository": FQRN, "destination": PLACE, "artifact": 5, "artifact_sha256": SUM,
        "changeset": "5e" * 32, "state": State.PUBLISHED, "reason": "in revision 7", "error_class": None,
        "phase": Phase.PUBLISH, "try_number": 1, "plan_try": 1, "prepare_try": 1, "publish_try": 1,
        "revision_before": 6, "revision_after": 7, "root_hash": str(ROOT), "nested_hash": str(OLDER), "files": 9,
        "bytes": 99, "objects_new": 3, "objects_reused": 4, "bytes_uploaded": 50,
        "seconds": {"prepare": 1.25, "publish": 0.5}, "lease_held_s": 0.125, "created_at": AT, "updated_at": AT,
        "ended_at": AT + timedelta(minutes=2), "verified_at": None, "slot": "main", "build_id": "b1",
        "project": "Gaudi", "platform": "x86_64-el9-gcc13-opt",
    }  # fmt: skip
    return Publication(**{**fields, **changes})


def build(*artifacts: Artifact, rejected: tuple[RejectedArtifact, ...] = (), complete: bool = True) -> BuildRecord:
    records = tuple(ArtifactRecord(5 + place, 1, one, AT, AT) for place, one in enumerate(artifacts))
    return BuildRecord(1, "main", "b1", DAY, complete, "s3://builds/index.json", rejected, AT, AT, records)


def undo_plan() -> UndoPlan:
    made = build(GAUDI, LHCB)
    before = Predecessor("b0", "/nightlies/main/b0/Gaudi", NestedRef("/nightlies/main/b0/Gaudi", ROOT, 9), SUM)
    taken = (
        UndoneDestination(made.artifacts[0], PLACE, str(ROOT), 9, 99, before),
        UndoneDestination(made.artifacts[1], "/nightlies/main/b1/LHCb/armv8-el9-gcc13-opt", "", 0, 0),
    )
    links = (MovedLink("/nightlies/main/latest", "/nightlies/main/b1", made, "/nightlies/main/b0"),)
    wish = Wish("main", "b1", "crashes", ("Gaudi",))
    return UndoPlan(wish, FQRN, 7, made, taken, links, ("one note",), ("refused so",))


def wanted() -> WantedApproval:
    bound = (
        Bound("Gaudi/x86_64", PLACE, tree_digest(FQRN, PLACE, source_sha256=SUM, root=str(ROOT)), "9 files"),
        Bound("LHCb/armv8", "/l", link_digest(FQRN, "/l", target="/nightlies/main/b0", root=str(OLDER)), "a link"),
    )
    lines = (f"2 artifacts of slot main for {FQRN}",)
    return WantedApproval(
        QuestionKind.PUBLICATION, FQRN, "Publish 2 artifacts?", lines, bound, 240, WHOLE + timedelta(hours=23)
    )


def digests() -> dict[str, str]:
    """What an answer binds: a digest that changed would take back what people have approved."""
    lines = [("/b", "tree", "goes"), ("/a", "link", "été")]
    return {
        "tree": tree_digest(FQRN, PLACE, source_sha256=SUM, root=str(ROOT)),
        "link": link_digest(FQRN, PLACE, target="/nightlies/main/b0", root=str(ROOT)),
        "undo": undo_digest(FQRN, "b1", lines),
        "question": question_digest(wanted().bound),
        "undo plan": digest_of(undo_plan()),
    }


HOLDERS = (
    TaskName("publication", "manual__2026-11-21T02:03:04+00:00", "publish", -1, 1),
    TaskName("nightly_install_main", "scheduled__2026-11-21T00:30:00+00:00", "artifact.publish", 17, 3),
    TaskName("nightly_install_main", "night__2026-11-21__0030__pass2", "inherited", -1, 12),
)
INDEX_VALUES = (
    Linked((LinkDecision("/nightlies/main/latest", "/nightlies/main/b1", LinkState.MOVED, "new"),),
           LinkDecision("main-b1", "", LinkState.STAYED, "there"), 7),
    Passed(RUN, (FQRN,), 7, {"published": 2, "unchanged": 1}, lacking=("LHCb/armv8: failed",)),
)  # fmt: skip


def sign_index(index: BuildIndex) -> bytes:
    """The signature that lies beside an index, in base64."""
    return base64.b64encode(builder().sign(index.format())) + b"\n"


def read_signed_index(signature: bytes) -> BuildIndex:
    data = (newest("documents") / "index.json").read_bytes()
    require_signature(data, signature, public_key(keys_folder() / f"{BUILDER}.pem"), file="index.json")
    return read_index(data)


def read_index(data: bytes) -> BuildIndex:
    return BuildIndex.parse(data, slot="main", store="s3://builds")


def _values(values: Iterable[Any]) -> bytes:
    return b"".join(compact(one.to_json()) for one in values)


def _reading(parse: Callable[[Any], Any]) -> Callable[[bytes], list[Any]]:
    return lambda data: [parse(json.loads(line)) for line in data.splitlines()]


def documents() -> dict[str, Document]:
    """By the name of the file in the corpus; of values that cross XCom each line is one."""
    holders = "\n".join(one.format() for one in HOLDERS)
    return {
        "index.json": Document(INDEX, BuildIndex.format, read_index),
        "index.json.sig": Document(INDEX, sign_index, read_signed_index),
        "index-partial.json": Document(PARTIAL, BuildIndex.format, read_index),
        "xcom-nights.jsonl": Document([NIGHT, Night(RUN, "main", DAY, "by hand", dry_run=True)], _values,
                                      _reading(Night.from_json)),
        "xcom-passes.jsonl": Document([TURN, Pass("manual__1")], _values, _reading(Pass.from_json)),
        "xcom-batches.jsonl": Document([BATCH, Batch(RUN, FQRN, (ITEM,), replace=False, dry_run=True)], _values,
                                       _reading(Batch.from_json)),
        "xcom-leases.jsonl": Document([FINDING], _values, _reading(LeaseFinding.from_json)),
        "xcom-linked-passed.jsonl": Document(INDEX_VALUES, _values),
        "xcom-outcome.json": Document(
            BatchOutcome([publication(), publication(state=State.UNCHANGED, changeset=None, revision_after=None)]),
            lambda value: compact(value.to_json()),
        ),
        "xcom-undo-plan.json": Document(undo_plan(), lambda value: compact(shape(value.to_json()))),
        "pass-run-ids.json": Document(run_ids(), compact, json.loads),
        "approval-digests.json": Document(digests(), compact, json.loads),
        "holders.txt": Document(
            list(HOLDERS), lambda _: f"{holders}\n".encode(),
            lambda data: [TaskName.parse(line) for line in data.decode().splitlines()],
        ),
    }  # fmt: skip


def run_ids() -> dict[str, str]:
    """The ids of later passes follow from the first: a night that is open goes on under the same ones."""
    firsts = ("scheduled__2026-11-21T00:30:00+00:00", "night__2026-11-21__first", "manual__2026-11-21T02:03:04+00:00")
    return {first: Pass(first).run_id(DAY, 2) for first in firsts}
