"""What the REST API says of transfers: to their owners and to operators, and to no other user."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from include.site.site import Site
from include.stageout.archive import archive_transfers
from include.stageout.moves import TransferMove, move_transfers
from include.stageout.requests import record_request
from include.stageout.states import StageoutComponent, TransferState
from tests.fakes.transfers import NOW, recorded, request_of
from tests.integration.rest.conftest import ApiUser


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


@pytest.mark.parametrize("archived", [False, True])
def test_a_transfer_has_its_whole_history_with_reasons(ann: ApiUser, site: Site, archived: bool) -> None:
    (number,) = recorded(site.ledger, 1, owner="ann")
    killed(site, [number])
    if archived:
        archive_transfers(site.ledger, TransferState.KILLED, before=NOW + timedelta(days=1), limit=9)
    document = ann.get(f"/transfers/{number}").json()
    assert document["transfer"]["state"] == "killed"
    assert document["transfer"]["archived"] is archived
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
