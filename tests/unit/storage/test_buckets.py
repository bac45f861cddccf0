"""Policies by role: complete, apart from each other, and beside the rules of others."""

from __future__ import annotations

import json
from itertools import combinations

import pytest

from include.storage.buckets import GRANTS, SID, PolicyServer, Role, bucket_policy, user_policy
from include.storage.errors import StoreError
from tests.fakes.refused import refused

URL, FQRN = "s3://nights/site", "n.example.org"
USERS = {role: PolicyServer.RADOSGW.principal(role.value) for role in Role if role is not Role.READER}
FOREIGN = {"Sid": "Backup", "Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::x"}


def test_every_statement_is_about_the_repositories_named_and_one_principal() -> None:
    policy = bucket_policy(URL, [FQRN, "m.example.org"], USERS)
    for statement in policy["Statement"]:
        assert len(statement["Principal"]["AWS"]) == 1
        for resource in statement["Resource"]:
            below = resource.removeprefix("arn:aws:s3:::nights")
            assert below == "" or below.startswith((f"/site/{FQRN}/", "/site/m.example.org/"))
    assert len({statement["Sid"] for statement in policy["Statement"]}) == len(policy["Statement"])
    json.dumps(policy)


def test_only_readers_need_no_user_and_a_role_without_user_gets_nothing() -> None:
    (only,) = bucket_policy(URL, [FQRN], {})["Statement"]
    assert (only["Principal"], only["Action"]) == ({"AWS": ["*"]}, ["s3:GetObject"])


def test_rules_of_others_stay_and_ours_are_replaced() -> None:
    first = bucket_policy(URL, ["old.example.org"], USERS, others={"Statement": [FOREIGN]})
    again = bucket_policy(URL, [FQRN], USERS, others=first)
    assert again["Statement"][0] == FOREIGN
    assert "old.example.org" not in json.dumps(again)
    assert again == bucket_policy(URL, [FQRN], USERS, others=again)
    assert all(one["Sid"].startswith(SID) for one in again["Statement"][1:])


def test_the_work_of_each_role_is_its_own() -> None:
    def rights(role: Role) -> set[tuple[str, str]]:
        return {
            (action, key)
            for grant in GRANTS[role]
            if grant.name not in ("Get", "List", "Probe", "Abort")
            for action in grant.actions
            for key in grant.below or ("",)
        }

    assert rights(Role.READER) == set()
    assert rights(Role.PUBLISHER) < rights(Role.GATEWAY)  # it merges catalogs: what is its own are the manifests
    for one, other in combinations((Role.GATEWAY, Role.COLLECTOR), 2):
        assert not rights(one) & rights(other)


def test_a_users_policy_says_the_same_without_a_principal() -> None:
    for role in USERS:
        statements = user_policy(URL, [FQRN], role)["Statement"]
        ours = bucket_policy(URL, [FQRN], {role: USERS[role]})["Statement"]
        assert statements == [
            {key: value for key, value in one.items() if key != "Principal"}
            for one in ours
            if one["Sid"].startswith(f"{SID}{role.value.capitalize()}")
        ]


def test_servers_name_users_in_their_own_way() -> None:
    assert PolicyServer.RADOSGW.principal("a") == "arn:aws:iam:::user/a"
    assert PolicyServer.RADOSGW.principal("a", "tenant") == "arn:aws:iam::tenant:user/a"
    assert PolicyServer.SEAWEEDFS.principal("a") == "arn:aws:iam::000000000000:user/a"
    assert PolicyServer.AWS.principal("a", "123456789012") == "arn:aws:iam::123456789012:user/a"
    with refused(StoreError):
        PolicyServer.AWS.principal("a")


@pytest.mark.parametrize("url", ["file:///srv/store", "http://127.0.0.1:80/nights", "s3://"])
def test_what_is_not_an_s3_store_has_no_policies(url: str) -> None:
    with pytest.raises(StoreError):
        bucket_policy(url, [FQRN], {})
