"""Buckets of S3: roles with policies such that none can do another's work, and rare administration over boto3.

One bucket policy grants all rights: its users have none of their own. Why so: docs/decisions, 13.
"""

from __future__ import annotations

import contextlib
import enum
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from include.storage import errors
from include.storage.kinds import S3, Credentials, StoreOptions, kind_of
from include.storage.open import DEFAULTS, split_s3_url
from include.storage.store import Unfinished

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


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
                raise errors.StoreError("an AWS principal needs the account's twelve digits: give --account", key="")
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
        raise errors.StoreError(f"{url}: policies are for s3:// stores; a folder is guarded by its permissions", key="")
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


def ensure_bucket(url: str, credentials: Credentials, options: StoreOptions = DEFAULTS) -> bool:
    """Create the bucket of a store, with an administrator's key, unless it is there. Returns whether it was created.

    Raises StoreError if the server refuses it.
    """
    bucket, _ = split_s3_url(url)
    client = admin_client(credentials, options)
    # The type of the parameter lists Amazon's own regions only.
    location: Any = {"LocationConstraint": options.region}
    elsewhere = {} if options.region == "us-east-1" else {"CreateBucketConfiguration": location}
    with _in_our_words(bucket):
        if _bucket_exists(client, bucket):
            return False
        try:
            client.create_bucket(Bucket=bucket, **elsewhere)
        except client.exceptions.BucketAlreadyOwnedByYou:
            return False
        except client.exceptions.BucketAlreadyExists:
            raise errors.Forbidden(
                f"bucket {bucket}: it belongs to another account; choose another name", key=""
            ) from None
    return True


def bucket_exists(url: str, credentials: Credentials, options: StoreOptions = DEFAULTS) -> bool:
    """Tell whether the bucket of a store is there. Raises StoreError: the server refuses the key or does not answer."""
    bucket, _ = split_s3_url(url)
    with _in_our_words(bucket):
        return _bucket_exists(admin_client(credentials, options), bucket)


def allow_public_read(
    url: str, credentials: Credentials, options: StoreOptions = DEFAULTS, prefix: str | None = None
) -> None:
    """Let anyone GET objects below ``prefix`` (None: the URL's own), but not list them; other rules of the bucket stay.

    Takes an administrator's key. Raises StoreError if the server refuses it.
    """
    bucket, own_prefix = split_s3_url(url)
    below = own_prefix if prefix is None else prefix.strip("/")
    client = admin_client(credentials, options)
    with _in_our_words(bucket):
        policy = with_public_read(_policy_of(client, bucket), bucket, below)
        client.put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))


def allow_roles(
    url: str,
    credentials: Credentials,
    options: StoreOptions,
    *,
    repositories: Iterable[str],
    principals: Mapping[Role, str],
) -> None:
    """Give each role its rights in repositories; rules that are not ours stay (`include.storage.probe`).

    Takes an administrator's key. ``principals``: each role's user, as `PolicyServer.principal` names it. Raises
    StoreError if the server refuses it.
    """
    bucket, _ = split_s3_url(url)
    client = admin_client(credentials, options)
    with _in_our_words(bucket):
        policy = bucket_policy(url, repositories, principals, others=_policy_of(client, bucket))
        client.put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))


def multipart_uploads(
    bucket: str, prefix: str, credentials: Credentials, options: StoreOptions
) -> Iterator[Unfinished]:
    """The uploads of keys with ``prefix`` that were neither completed nor aborted, named by their keys without it."""
    with _in_our_words(bucket):
        for upload, _ in _uploads(admin_client(credentials, options), bucket, prefix):
            yield upload


def abort_multipart_uploads(
    bucket: str, prefix: str, credentials: Credentials, options: StoreOptions, older_than: datetime
) -> list[Unfinished]:
    """Abort those that were begun before; their parts take no room then. ``older_than``: aware."""
    client = admin_client(credentials, options)
    with _in_our_words(bucket):
        old = [(upload, name) for upload, name in _uploads(client, bucket, prefix) if upload.since < older_than]
        for upload, name in old:
            with contextlib.suppress(client.exceptions.NoSuchUpload):  # completed or aborted meanwhile
                client.abort_multipart_upload(Bucket=bucket, Key=prefix + upload.name, UploadId=name)
    return [upload for upload, _ in old]


def keeps_versions(bucket: str, credentials: Credentials, options: StoreOptions) -> bool:
    """Tell whether a bucket keeps old versions of its objects, or those of the time before that was suspended."""
    with _in_our_words(bucket):
        return "Status" in admin_client(credentials, options).get_bucket_versioning(Bucket=bucket)


def _uploads(client: S3Client, bucket: str, prefix: str) -> Iterator[tuple[Unfinished, str]]:
    for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=prefix):
        for upload in page.get("Uploads", []):
            yield Unfinished(upload["Key"].removeprefix(prefix), None, upload["Initiated"]), upload["UploadId"]


def with_public_read(policy: dict[str, Any] | None, bucket: str, prefix: str) -> dict[str, Any]:
    """``policy`` with a statement that lets anyone GET what is below ``prefix``; unchanged if it has it already."""
    resource = f"arn:aws:s3:::{bucket}/{prefix + '/' if prefix else ''}*"
    statement = {"Effect": "Allow", "Principal": {"AWS": ["*"]}, "Action": ["s3:GetObject"], "Resource": [resource]}
    statements = list((policy or {}).get("Statement", []))
    if not any({**other, "Sid": ""} == {**statement, "Sid": ""} for other in statements):
        statements.append(statement)
    return {"Version": "2012-10-17", **(policy or {}), "Statement": statements}


def admin_client(credentials: Credentials, options: StoreOptions) -> S3Client:
    """A boto3 client for requests that are not about objects."""
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=options.endpoint,
        region_name=options.region,
        aws_access_key_id=credentials.access_key,
        aws_secret_access_key=credentials.secret_key,
        config=Config(
            signature_version="s3v4",
            s3={"addressing_style": options.addressing},
            retries={"max_attempts": options.retries, "mode": "standard"},
            connect_timeout=min(options.timeout_s, 10),
            read_timeout=options.timeout_s,
        ),
    )


def _bucket_exists(client: S3Client, bucket: str) -> bool:
    from botocore.exceptions import ClientError

    try:
        client.head_bucket(Bucket=bucket)
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
            return False
        raise
    return True


def _policy_of(client: S3Client, bucket: str) -> dict[str, Any] | None:
    from botocore.exceptions import ClientError

    try:
        policy: dict[str, Any] = json.loads(client.get_bucket_policy(Bucket=bucket)["Policy"])
    except ClientError as error:
        if error.response["Error"].get("Code") == "NoSuchBucketPolicy":
            return None
        raise
    return policy


@contextlib.contextmanager
def _in_our_words(bucket: str) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        raise _translate(error, bucket) from None
    except BotoCoreError as error:
        failure = errors.ParsedFailure(errors.DROPPED, None, None, str(error)[:200])
        raise failure.error("", f"bucket {bucket}") from None


def _translate(error: Any, bucket: str) -> errors.StoreError:
    code = error.response["Error"].get("Code", "")
    status = error.response["ResponseMetadata"]["HTTPStatusCode"]
    if code == "InvalidBucketName":
        return errors.StoreError(f"bucket {bucket}: the store does not take this name; choose another", key="")
    refusal = errors.BY_CODE.get(code) or errors.BY_STATUS.get(status)
    if refusal is None:
        leaf = errors.Unavailable if status >= 500 else errors.RequestRejected
        refusal = errors.Refusal(leaf, "the store refused", str(status))
    return errors.ParsedFailure(refusal, status, code, error.response["Error"].get("Message", "")).error(
        "", f"bucket {bucket}"
    )
