"""Administration of S3 buckets over boto3: rare, and not on the hot path."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from include.storage.errors import (
    BY_CODE,
    BY_STATUS,
    DROPPED,
    Forbidden,
    ParsedFailure,
    Refusal,
    RequestRejected,
    StoreError,
    Unavailable,
)
from include.storage.kinds import Credentials, StoreOptions
from include.storage.roles import Role, bucket_policy
from include.storage.store import Unfinished
from include.storage.urls import DEFAULTS, split_s3_url

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


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
            raise Forbidden(f"bucket {bucket}: it belongs to another account; choose another name", key="") from None
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
        raise _unreachable(error, bucket) from None


def _translate(error: Any, bucket: str) -> StoreError:
    code = error.response["Error"].get("Code", "")
    status = error.response["ResponseMetadata"]["HTTPStatusCode"]
    if code == "InvalidBucketName":
        return StoreError(f"bucket {bucket}: the store does not take this name; choose another", key="")
    refusal = BY_CODE.get(code) or BY_STATUS.get(status)
    if refusal is None:
        leaf = Unavailable if status >= 500 else RequestRejected
        refusal = Refusal(leaf, "the store refused", str(status))
    return ParsedFailure(refusal, status, code, error.response["Error"].get("Message", "")).error(
        "", f"bucket {bucket}"
    )


def _unreachable(error: Exception, bucket: str) -> StoreError:
    return ParsedFailure(DROPPED, None, None, str(error)[:200]).error("", f"bucket {bucket}")
