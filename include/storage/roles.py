"""Roles in a repository's bucket: S3 policies by role, such that none can do another's work.

One bucket policy grants all rights: its users have none of their own. Why so: docs/decisions, 13.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from include.storage.errors import StoreError
from include.storage.kinds import S3, kind_of
from include.storage.urls import split_s3_url

SID = "Nightshift"  # what our statements' names begin with
SCRATCH = (".nightshift-probe-*/*", ".nightshift-trial-*")  # where it is tried what a store keeps, and takes


class Role(enum.Enum):
    """A kind of work on a repository's objects, by credentials of its own."""

    PUBLISHER = "publisher"
    """Stores objects, and documents that record who published what. Cannot make them visible, nor delete any."""
    GATEWAY = "gateway"
    """Switches manifests, and stores the catalogs and histories that it merges. Cannot delete objects."""
    COLLECTOR = "collector"
    """Deletes objects, and aborts unfinished uploads of them. Can store none, and cannot touch what is signed."""
    READER = "reader"
    """Anyone: reads objects whose names are known. Needs no credentials."""


class PolicyServer(enum.Enum):
    """Kind of server, by which it names a user in a policy."""

    AWS = "aws"
    RADOSGW = "radosgw"
    SEAWEEDFS = "seaweedfs"

    def principal(self, user: str, account: str = "") -> str:
        """The name of a user. `account`: AWS's twelve digits, or radosgw's tenant."""
        match self:
            case PolicyServer.AWS if len(account) != 12 or not account.isdigit():
                raise StoreError("an AWS principal needs the account's twelve digits: give --account", key="")
            case PolicyServer.SEAWEEDFS:
                account = account or "000000000000"  # that of identities which name none
        return f"arn:aws:iam::{account}:user/{user}"


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights of a role; `below` are keys relative to a repository, or None for the bucket itself.

    `bucket_too`: the statement names the bucket beside them. radosgw requires that before it checks the keys of a
    request that deletes many, and still judges each of them afterwards; on other servers it has no effect.
    """

    name: str
    actions: tuple[str, ...]
    below: tuple[str, ...] | None
    bucket_too: bool = False


# Listing is what makes a store answer "absent" instead of "forbidden" to those who ask for an object that is not there.
_READ = (Grant("Get", ("s3:GetObject",), ("*",)), Grant("List", ("s3:ListBucket",), None))
_PROBE = Grant("Probe", ("s3:PutObject", "s3:DeleteObject"), SCRATCH)
_PUT = ("s3:PutObject", "s3:AbortMultipartUpload")

GRANTS: Mapping[Role, tuple[Grant, ...]] = {
    Role.PUBLISHER: (*_READ, Grant("Put", _PUT, ("data/*", ".nightshift/provenance/*")), _PROBE),
    Role.GATEWAY: (
        *_READ,
        Grant("Put", _PUT, ("data/*", ".cvmfs*", ".nightshift/provenance/*")),
        # whose the repository is, where the store does not keep two gateways apart; and that it is frozen
        Grant("Own", ("s3:PutObject", "s3:DeleteObject"), (".nightshift/gateway", ".nightshift/freeze")),
        _PROBE,
    ),
    Role.COLLECTOR: (
        *_READ,
        Grant("Delete", ("s3:DeleteObject",), ("data/*", ".cvmfsalt-*"), bucket_too=True),
        Grant("Abort", ("s3:AbortMultipartUpload",), ("data/*",)),
        Grant("Look", ("s3:ListBucketMultipartUploads", "s3:GetBucketVersioning"), None),
        # its own records: the generation of collections and the lists of what it condemned
        Grant("Keep", (*_PUT, "s3:DeleteObject"), (".nightshift/*",)),
    ),
    Role.READER: (Grant("Get", ("s3:GetObject",), ("*",)),),
}


def bucket_policy(
    url: str, repositories: Iterable[str], principals: Mapping[Role, str], *, others: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The policy of a bucket with repositories below ``url``, in Amazon's form (IAM policy, 2012-10-17).

    ``principals``: each role's user, as `PolicyServer.principal` names it; a role that is missing gets nothing, and
    readers need none. ``others``: an existing policy, whose statements stay unless they are ours.
    """
    bucket, places = _places(url, repositories)
    named = {**principals, Role.READER: "*"}
    ours = [
        {**_statement(role, grant, bucket, places), "Principal": {"AWS": [named[role]]}}
        for role, grants in GRANTS.items()
        if role in named
        for grant in grants
    ]
    kept = [
        statement
        for statement in (others or {}).get("Statement", [])
        if not str(statement.get("Sid", "")).startswith(SID)
    ]
    return {"Version": "2012-10-17", "Statement": [*kept, *ours]}


def user_policy(url: str, repositories: Iterable[str], role: Role) -> dict[str, Any]:
    """The same as a policy of the user, for servers where users have policies: attach one of the two, not both."""
    bucket, places = _places(url, repositories)
    return {"Version": "2012-10-17", "Statement": [_statement(role, grant, bucket, places) for grant in GRANTS[role]]}


def _places(url: str, repositories: Iterable[str]) -> tuple[str, list[str]]:
    if kind_of(url) is not S3:
        raise StoreError(f"{url}: policies are for s3:// stores; a folder is guarded by its permissions", key="")
    bucket, prefix = split_s3_url(url)
    return bucket, [f"{prefix}/{fqrn}" if prefix else fqrn for fqrn in repositories]


def _statement(role: Role, grant: Grant, bucket: str, places: Sequence[str]) -> dict[str, Any]:
    arn = f"arn:aws:s3:::{bucket}"
    below = [f"{arn}/{place}/{key}" for place in places for key in grant.below or ()]
    if grant.below is None or grant.bucket_too:
        below.insert(0, arn)
    return {
        "Sid": f"{SID}{role.value.capitalize()}{grant.name}",
        "Effect": "Allow",
        "Action": list(grant.actions),
        "Resource": below,
    }
