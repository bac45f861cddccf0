"""Transfers in the REST API, and changes of them: to owners and operators, and to no other user."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert, update

from include.federation.records import reports_since
from include.ledger.engine import writing
from include.site.site import Site
from include.stageout.archive import archive_transfers, history
from include.stageout.moves import TransferMove, move_transfers
from include.stageout.requests import record_request
from include.stageout.states import StageoutComponent, TransferState
from include.stageout.tables import stageout_analytics, stageout_transfers
from tests.fakes.places import put_in
from tests.fakes.transfers import NOW, recorded, request_of, states
from tests.integration.rest.conftest import ApiUser, file, refusal, wanted


def killed(site: Site, numbers: list[int]) -> None:
    moves = [TransferMove(number, TransferState.NEW, TransferState.KILLED, "no use") for number in numbers]
    move_transfers(site.ledger, moves, StageoutComponent.PERSON, now=NOW)


def numbers(answer: Any) -> list[int]:
    assert answer.status_code == 200, answer.text
    return [row["id"] for row in answer.json()["rows"]]


def test_users_see_their_own_and_operators_all(ann: ApiUser, bob: ApiUser, olga: ApiUser, site: Site) -> None:
    of_ann, of_bob = recorded(site.ledger, 2, owner="ann"), recorded(site.ledger, 1, owner="bob")
    assert numbers(ann.get("/transfers")) == of_ann[::-1]
    assert numbers(olga.get("/transfers")) == [*of_bob, *of_ann[::-1]]
    assert numbers(olga.get("/transfers", user="bob")) == of_bob
    assert ann.get("/transfers", user="bob").status_code == 403
    assert ann.get("/summary", user="bob").status_code == 403
    assert ann.get("/workflows", user="bob").status_code == 403
    assert ann.get("/workflows/workflow", user="bob").status_code == 403
    assert ann.get(f"/transfers/{of_bob[0]}").json()["code"] == "stageout-unknown"
    assert ann.get("/transfers/999").json() == {
        **bob.get(f"/transfers/{of_ann[0]}").json(), "message": "transfer 999: you have none with this number."
    }  # fmt: skip
    assert bob.get(f"/transfers/{of_bob[0]}").status_code == olga.get(f"/transfers/{of_bob[0]}").status_code == 200


def test_the_list_is_narrowed_and_goes_on(ann: ApiUser, site: Site) -> None:
    found = recorded(site.ledger, 5, owner="ann")
    other = recorded(site.ledger, 1, owner="ann", source="bari", destination="pisa", user_job="7")
    killed(site, found[:2])
    assert numbers(ann.get("/transfers", state="killed")) == found[:2][::-1]
    assert numbers(ann.get("/transfers", source="bari")) == other
    assert numbers(ann.get("/transfers", workflow="workflow", job="7")) == other
    pages, after = [], None
    while True:
        answer = ann.get("/transfers", state=["new"], limit=2, **({"after": after} if after else {}))
        pages.append(numbers(answer))
        after = answer.json()["after"]
        if after is None:
            break
    assert pages == [[other[0], found[4]], [found[3], found[2]]]


def test_a_list_of_copies_is_for_the_next_job(ann: ApiUser, bob: ApiUser, olga: ApiUser, site: Site) -> None:
    [done, new] = recorded(site.ledger, 2, owner="ann", dataset="/A/b/USER")
    put_in(site.ledger, [done], TransferState.CLEANED, NOW)
    rows = {row["id"]: row for row in ann.get("/copies", workflow="workflow").json()}
    assert rows[new]["url"] is None
    assert rows[done]["registered"] is True
    url = rows[done]["url"]
    assert url.endswith(rows[done]["name"].removeprefix("/store"))
    plain = ann.get("/copies", workflow="workflow", format="urls")
    assert (plain.text, plain.headers["content-type"]) == (f"{url}\n", "text/plain; charset=utf-8")
    assert bob.get("/copies", workflow="workflow").json() == []
    assert bob.get("/copies", workflow="workflow", user="ann").status_code == 403
    assert olga.get("/copies", workflow="workflow", user="ann", format="urls").text == plain.text
    assert ann.get("/copies").status_code == 400


@pytest.mark.parametrize("archived", [False, True])
def test_a_transfer_has_its_whole_history_with_reasons(ann: ApiUser, site: Site, archived: bool) -> None:
    (number,) = recorded(site.ledger, 1, owner="ann")
    killed(site, [number])
    if archived:
        archive_transfers(site.ledger, TransferState.KILLED, before=NOW + timedelta(days=1), limit=9)
    document = ann.get(f"/transfers/{number}").json()
    assert document["transfer"]["state"] == "killed"
    assert document["transfer"]["archived"] is archived
    assert (document["copy"]["url"], document["copy"]["registered"]) == (None, False)
    (move,) = document["moves"]
    assert (move["before"], move["state"], move["component"], move["reason"]) == ("new", "killed", "person", "no use")


def test_counts_are_by_state_and_by_what_is_asked(ann: ApiUser, olga: ApiUser, site: Site) -> None:
    killed(site, recorded(site.ledger, 2, owner="ann"))
    recorded(site.ledger, 3, owner="ann")
    recorded(site.ledger, 1, owner="bob", source="bari", destination="pisa")
    assert [(row["state"], row["files"]) for row in ann.get("/summary").json()["rows"]] == [("killed", 2), ("new", 3)]
    rows = olga.get("/summary", by="link", state="new").json()["rows"]
    assert [(row["name"], row["files"]) for row in rows] == [("bari pisa", 1), ("pisa bari", 3)]


def test_a_workflow_may_have_slashes_in_its_name(ann: ApiUser, site: Site) -> None:
    request = request_of(2, owner="ann")
    record_request(site.ledger, type(request)("ann", "k", "a/b c", request.files), now=NOW)
    document = ann.get("/workflows/a%2Fb%20c").json()
    assert (document["workflow"]["files"], document["states"]) == (2, {"new": 2})
    assert [one["name"] for one in ann.get("/workflows").json()] == ["a/b c"]
    assert ann.get("/workflows/none").status_code == 404


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/transfers", {"limit": 0}), ("/transfers", {"limit": 10**6}), ("/transfers", {"state": "lost"}),
        ("/transfers", {"after": -1}), ("/transfers", {"user": "x" * 2000}), ("/transfers", {"name": "/a/b"}),
        ("/transfers", {"failure": "quota"}), ("/summary", {"by": "name"}), ("/transfers/0", {}), ("/transfers/x", {}),
        ("/transfers/99999999999999999999999", {}),
    ],
)  # fmt: skip
def test_parameters_that_cannot_be_are_refused(ann: ApiUser, path: str, query: dict[str, Any]) -> None:
    answer = ann.get(path, **query)
    assert (answer.status_code, answer.json()["code"]) == (400, "stageout-query-invalid")


NEW, KILLED = TransferState.NEW, TransferState.KILLED
NOON = datetime(2026, 11, 2, 12, tzinfo=UTC)


def answered(answer: Any) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_reports_of_readers_count_for_their_sites(ann: ApiUser, site: Site) -> None:
    report = {"failed": False, "sites": ["pisa"], "failures": {"bari cut": 2}, "received": 9, "waited_s": 0.5}
    reports = [report | {"requests": 3, "retries": 1}] * 2
    assert answered(ann.post("/readings", {"readings": reports})) == {"read": 2, "failed": 2}
    sums = sorted((result.site, result.good, result.failed) for result in reports_since(site.ledger, NOON))
    assert sums == [("bari", 0, 2), ("pisa", 2, 0)]
    listed = report | {"requests": 1, "retries": 0, "failures": ["bari cut"] * 100_000}
    for wrong in ([listed], [{}], [report | {"requests": -1, "retries": 0}], [5], [{}] * 1001):
        answer = ann.post("/readings", {"readings": wrong})
        assert answer.status_code == 400, answer.text


def test_users_kill_and_resubmit_their_own(ann: ApiUser, site: Site) -> None:
    own, others = recorded(site.ledger, 2, owner="ann"), recorded(site.ledger, 1, owner="bob")
    everything = {"ids": [*own, *others, 999]}
    assert answered(ann.post("/transfers/kill", everything)) == {"killed": 2, "killing": 0}
    assert states(site.ledger) == {**dict.fromkeys(own, KILLED), others[0]: NEW}
    assert history(site.ledger, own[0])[-1].reason == "killed by ann"
    assert answered(ann.post("/transfers/kill", everything)) == {"killed": 0, "killing": 0}
    assert answered(ann.post("/transfers/resubmit", {"ids": own[:1]})) == {"resubmitted": 1}
    assert states(site.ledger)[own[0]] is NEW


def test_users_keep_the_sources_of_their_own(ann: ApiUser, bob: ApiUser, site: Site) -> None:
    own = recorded(site.ledger, 2, owner="ann")
    put_in(site.ledger, own[:1], TransferState.CLEANED, NOW)
    assert answered(bob.post("/transfers/keep", {"ids": own})) == {"kept": 0}
    assert answered(ann.post("/transfers/keep", {"workflow": "workflow"})) == {"kept": 1}
    assert answered(ann.post("/transfers/keep", {"ids": own})) == {"kept": 1}


def test_what_fts_has_is_killed_later(ann: ApiUser, site: Site) -> None:
    ids = recorded(site.ledger, 1, owner="ann")
    values = {"state": "active"}
    writing(site.ledger, lambda connection: connection.execute(update(stageout_transfers).values(values)))
    assert answered(ann.post("/transfers/kill", {"ids": ids})) == {"killed": 0, "killing": 1}


def test_operators_change_what_belongs_to_others(olga: ApiUser, site: Site) -> None:
    ids = recorded(site.ledger, 2, owner="bob")
    recorded(site.ledger, 1, owner="olga")
    assert answered(olga.post("/transfers/kill", {"ids": ids[:1]})) == {"killed": 1, "killing": 0}
    assert answered(olga.post("/transfers/kill", {"workflow": "workflow", "user": "bob"})) == {
        "killed": 1,
        "killing": 0,
    }
    assert answered(olga.post("/transfers/resubmit", {"workflow": "workflow", "user": "bob"})) == {"resubmitted": 2}
    # without a user it is the operator's own
    assert answered(olga.post("/transfers/kill", {"workflow": "workflow"})) == {"killed": 1, "killing": 0}


@pytest.mark.parametrize(
    ("document", "status"),
    [
        ({}, 400), ({"user": "ann"}, 400), ({"ids": [1], "workflow": "w"}, 400), ({"ids": ["1"]}, 400),
        ({"ids": [1.5]}, 400), ({"ids": [1] * 10_001}, 400), ({"workflow": "w", "user": "bob"}, 403),
        ({"ids": [1], "user": "bob"}, 403), ({"ids": [2**80]}, 400), ([], 400),
    ],
)  # fmt: skip
def test_a_choice_that_cannot_be_is_refused(ann: ApiUser, site: Site, document: Any, status: int) -> None:
    recorded(site.ledger, 1, owner="bob")
    for path in ("/transfers/kill", "/transfers/resubmit", "/transfers/keep"):
        assert refusal(ann.post(path, document))[0] == status
    assert set(states(site.ledger).values()) == {NEW}


def test_a_closed_workflow_gets_no_further_files(ann: ApiUser, bob: ApiUser, olga: ApiUser) -> None:
    ann.post("/requests", wanted(workflow="a/b"))
    assert refusal(bob.post("/workflows/a%2Fb/close")) == (404, "stageout-workflow-unknown")
    assert bob.post("/workflows/a%2Fb/close?user=ann").status_code == 403
    assert answered(ann.post("/workflows/a%2Fb/close")) == {"changed": True}
    assert answered(olga.post("/workflows/a%2Fb/close?user=ann")) == {"changed": False}
    assert refusal(ann.post("/requests", wanted(file(7), workflow="a/b", key="k2"))) == (
        409,
        "stageout-workflow-closed",
    )
    assert ann.post("/requests", wanted(workflow="a/b")).status_code == 200
    assert answered(ann.get("/workflows/a%2Fb"))["workflow"]["closed_at"]


def test_a_killed_workflow_is_closed(ann: ApiUser, site: Site) -> None:
    recorded(site.ledger, 3, owner="ann")
    assert answered(ann.post("/workflows/workflow/kill")) == {"killed": 3, "killing": 0}
    found = answered(ann.get("/workflows/workflow"))
    assert found["states"] == {"killed": 3}
    assert found["workflow"]["closed_at"] == found["workflow"]["killed_at"]
    again = answered(ann.post("/workflows/workflow/kill"))
    assert again == {"killed": 0, "killing": 0}
    assert answered(ann.get("/workflows/workflow"))["workflow"]["killed_at"] == found["workflow"]["killed_at"]


def test_sums_are_exported_to_their_owner(ann: ApiUser, olga: ApiUser, site: Site) -> None:
    sums = {
        "workflow": "w", "source": "pisa", "destination": "bari", "state": "cleaned", "files": 3, "bytes": 10,
        "retries": 0, "waited_s": 0, "copied_s": 0, "verified_s": 0, "ended_s": 0,
        "day": NOW.replace(hour=0, minute=0, second=0, microsecond=0),
    }  # fmt: skip
    rows = [{**sums, "digest": owner, "owner": owner} for owner in ("ann", "bob")]
    writing(site.ledger, lambda connection: connection.execute(insert(stageout_analytics), rows))
    period = {"since": "2026-11-20", "until": "2026-11-24"}
    answer = ann.get("/analytics.csv", **period)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/csv; charset=utf-8")
    assert [line.split(",")[1] for line in answer.text.splitlines()] == ["owner", "ann"]
    assert len(olga.get("/analytics.csv", **period).text.splitlines()) == 3
    assert ann.get("/analytics.csv", user="bob").status_code == 403
    for wrong in ({"since": "2020-01-01"}, {"since": "2026-11-24", "until": "2026-11-20"}, {"until": "0001-01-02"}):
        assert refusal(ann.get("/analytics.csv", **wrong)) == (400, "stageout-query-invalid")
