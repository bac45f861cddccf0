"""Credentials by role on real servers: each does its own work, and each other action of another is refused."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
import requests

from include.storage.buckets import PolicyServer, Role, admin_client, allow_public_read, allow_roles, ensure_bucket
from include.storage.errors import Forbidden, StoreError
from include.storage.kinds import Credentials, Traits
from include.storage.open import open_store
from include.storage.probe import may_delete, probe
from include.storage.s3 import MULTIPART_FROM_BYTES
from include.storage.store import Store, Version
from lab.servers.s3 import S3Server
from tests.integration.conftest import USERS

BUCKET, PREFIX, FQRN = "by-role", "site", "nights.example.org"
OWN, CATALOG, MANIFEST, GENERATION = "data/ab/old", "data/ab/oldC", ".cvmfspublished", ".nightshift/generation"
TRUSTED = (MANIFEST, ".cvmfswhitelist", ".cvmfsreflog")
_numbers = itertools.count()
_ready: set[str] = set()


@dataclass
class Guarded:
    """The repository of a bucket with the policy of roles, as its owner and as a role."""

    server: S3Server

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/{PREFIX}"

    @property
    def owner(self) -> Store:
        return self.server.store(BUCKET, f"{PREFIX}/{FQRN}")

    def keys(self, role: Role) -> Credentials | None:
        return USERS.get(role.value)

    def store(self, role: Role, fqrn: str = FQRN) -> Store:
        quotes = Traits(put_if_absent=True, replace=True, bulk_delete=self.bulk, etag_quotes=self.quotes)
        options = self.server.options(retries=0, traits=quotes)
        return open_store(f"{self.url}/{fqrn}", credentials=self.keys(role), options=options)

    @property
    def quotes(self) -> bool:
        return self.server.kind is not PolicyServer.RADOSGW

    @property
    def bulk(self) -> bool:
        """It takes requests for many only of those who have the right on the bucket beside that on the objects."""
        return self.server.kind is not PolicyServer.RADOSGW

    def fill(self) -> dict[str, Version]:
        """Put all objects of the owner into it; what it holds then."""
        for key in (OWN, CATALOG, GENERATION, *TRUSTED):
            self.owner.put(key, f"the owner's {next(_numbers)}".encode())
        return self.listed()

    def listed(self) -> dict[str, Version]:
        return {meta.key: meta.version for meta in self.owner.list()}

    def may(self, role: Role, action: str) -> bool:
        return action in MAY[role]


@pytest.fixture
def guarded(s3_server: S3Server) -> Guarded:
    """Objects of the owner stand in it at the start of each test."""
    found = Guarded(s3_server)
    if s3_server.endpoint not in _ready:
        _ready.add(s3_server.endpoint)
        ensure_bucket(found.url, s3_server.credentials, s3_server.options())
        principals = {role: s3_server.kind.principal(role.value) for role in Role if role is not Role.READER}
        for _ in range(2):  # ours are replaced, not added
            allow_roles(
                found.url, s3_server.credentials, s3_server.options(), repositories=[FQRN], principals=principals
            )
    found.fill()
    return found


def new() -> bytes:
    return f"of a role {next(_numbers)}".encode()


def fresh_key() -> str:
    return f"data/cd/{next(_numbers)}"


def swap(store: Store, key: str) -> None:
    _, version = store.get_versioned(key)
    store.replace(key, new(), expected=version)


def delete_beside(store: Store, refused: str, taken: str) -> None:
    """The request as such may be refused; else each key is judged alone."""
    failed = store.with_traits(Traits(True, True, True)).delete_each([refused, taken])
    if failed:
        assert refused in failed, "what may not be deleted was"
        if taken in failed:
            raise failed[taken]


def change_policy(store: Store, guarded: Guarded, role: Role) -> None:
    keys = guarded.keys(role)
    if keys is None:
        address = f"{guarded.server.endpoint}/{BUCKET}?policy"
        if requests.put(address, data="{}", timeout=10).status_code in (401, 403):
            raise Forbidden("refused", key="")
        return
    allow_public_read(guarded.url, keys, guarded.server.options(retries=0))


def delete_bucket(store: Store, guarded: Guarded, role: Role) -> None:
    from botocore.exceptions import ClientError

    keys = guarded.keys(role) or Credentials("nobody", "nothing")
    try:
        admin_client(keys, guarded.server.options(retries=0)).delete_bucket(Bucket=BUCKET)
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] == 403:
            raise Forbidden("refused", key="") from None
        raise


Action = Callable[[Store, Guarded, Role], object]
ACTIONS: Mapping[str, Action] = {
    "get an object": lambda store, *_: store.get(OWN),
    "get the manifest": lambda store, *_: store.get(MANIFEST),
    "list": lambda store, *_: list(store.list()),
    "put an object": lambda store, *_: store.put(fresh_key(), new()),
    "put an object again": lambda store, *_: store.put(OWN, new()),
    "put an object if absent": lambda store, *_: store.put_if_absent(fresh_key(), new()),
    "put an object in parts": lambda store, *_: store.put(fresh_key(), bytes(MULTIPART_FROM_BYTES)),
    "put the manifest": lambda store, *_: store.put(MANIFEST, new()),
    "put the whitelist": lambda store, *_: store.put(".cvmfswhitelist", new()),
    "put the reflog if absent": lambda store, *_: store.put_if_absent(f".cvmfsreflog{next(_numbers)}", new()),
    "switch the manifest": lambda store, *_: swap(store, MANIFEST),
    "put elsewhere": lambda store, *_: store.put(f"info/{next(_numbers)}", new()),
    "put in another repository": lambda _, guarded, role: guarded.store(role, "other.example.org").put("data/x", b""),
    "delete an object": lambda store, *_: store.with_traits(Traits(True, True, False)).delete([OWN]),
    "delete objects in bulk": lambda store, *_: store.with_traits(Traits(True, True, True)).delete([OWN, CATALOG]),
    "delete the manifest in bulk": lambda store, *_: delete_beside(store, MANIFEST, OWN),
    "delete the manifest": lambda store, *_: store.delete([MANIFEST]),
    "advance the generation": lambda store, *_: swap(store, GENERATION),
    "find out whether it may delete": lambda store, *_: may_delete(store),
    "remove unfinished uploads": lambda store, *_: store.remove_unfinished(datetime.now(UTC)),
    "look whether versions are kept": lambda store, *_: store.versioning(),
    "change the policy": change_policy,
    "delete the bucket": delete_bucket,
}
READ = {"get an object", "get the manifest"}
PUT = {"put an object", "put an object again", "put an object if absent", "put an object in parts"}
SWITCH = {"put the manifest", "put the whitelist", "put the reflog if absent", "switch the manifest"}
DELETE = {"delete an object", "delete objects in bulk"}
COLLECTING = {
    "advance the generation",
    "delete the manifest in bulk",
    "find out whether it may delete",
    "remove unfinished uploads",
    "look whether versions are kept",
}
CHANGING = PUT | SWITCH | DELETE | {"advance the generation", "delete the manifest in bulk"}
MAY: Mapping[Role, set[str]] = {
    Role.PUBLISHER: READ | {"list"} | PUT,
    Role.GATEWAY: READ | {"list"} | PUT | SWITCH,
    Role.COLLECTOR: READ | {"list"} | DELETE | COLLECTING,
    Role.READER: READ
    | {"remove unfinished uploads", "look whether versions are kept"},  # without a key it asks nothing
}


@pytest.mark.parametrize("role", list(Role), ids=lambda role: role.value)
def test_a_role_can_do_its_own_work_and_nothing_else(guarded: Guarded, role: Role) -> None:
    store, before, done, changed = guarded.store(role), guarded.listed(), set(), set()
    for name, action in ACTIONS.items():
        with contextlib.suppress(Forbidden):
            action(store, guarded, role)
            done.add(name)
        if guarded.listed() != before:
            changed.add(name)
            before = guarded.fill()
    assert done == {name for name in ACTIONS if guarded.may(role, name)}
    assert changed == done & CHANGING, "what is refused changes nothing"


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.READER], ids=lambda role: role.value)
def test_whoever_works_there_is_told_that_an_object_is_absent_and_not_that_it_is_forbidden(
    guarded: Guarded, role: Role
) -> None:
    store = guarded.store(role)
    assert store.head("data/ab/absent") is None
    assert not store.exists(".cvmfsnothing")


@pytest.mark.parametrize("role", [Role.PUBLISHER, Role.GATEWAY], ids=lambda role: role.value)
def test_who_relies_on_conditions_can_try_whether_the_store_keeps_them(guarded: Guarded, role: Role) -> None:
    store = guarded.store(role).with_traits(Traits(True, True, True, etag_quotes=guarded.quotes))
    before = {meta.key for meta in store.list()}
    seen = probe(store, public_url=guarded.server.public_url(BUCKET, f"{PREFIX}/{FQRN}"), writers=3)
    assert seen == Traits(True, True, guarded.bulk, anonymous_read=True, etag_quotes=guarded.quotes)
    assert {meta.key for meta in store.list()} == before


def test_what_one_role_stored_the_others_read_and_the_collector_deletes(guarded: Guarded) -> None:
    for writer in (Role.PUBLISHER, Role.GATEWAY):
        key, body = fresh_key(), new()
        guarded.store(writer).put(key, body)
        for reader in Role:
            assert guarded.store(reader).get(key) == body
        guarded.store(Role.COLLECTOR).delete([key])
        assert not guarded.owner.exists(key)


def test_rules_of_others_in_the_bucket_stay(s3_server: S3Server) -> None:
    url = f"s3://rules-of-others-{s3_server.kind.value}"
    ensure_bucket(url, s3_server.credentials, s3_server.options())
    allow_public_read(url, s3_server.credentials, s3_server.options(), prefix="elsewhere")
    allow_roles(url, s3_server.credentials, s3_server.options(), repositories=[FQRN], principals={})
    bucket = url.removeprefix("s3://")
    store = s3_server.store(bucket)
    for key in ("elsewhere/a", f"{FQRN}/a", "private/a"):
        store.put(key, b"1")
    public = open_store(s3_server.public_url(bucket))
    assert public.get("elsewhere/a") == public.get(f"{FQRN}/a") == b"1"
    with pytest.raises(StoreError), contextlib.closing(public.stream("private/a")) as stream:
        next(stream)


def test_what_the_collector_may_not_delete_is_named_and_the_rest_is_deleted(guarded: Guarded) -> None:
    keys = [f"data/ef/{number}" for number in range(60)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda key: guarded.owner.put(key, b""), keys))
    store = guarded.store(Role.COLLECTOR)
    refusals = store.delete_each([*keys, *TRUSTED, "data/ef/absent"])
    assert {key: type(refusal) for key, refusal in refusals.items()} == dict.fromkeys(TRUSTED, Forbidden)
    assert set(guarded.listed()) & {*keys, *TRUSTED} == set(TRUSTED)


def test_the_collector_aborts_uploads_of_others_that_were_begun_before(guarded: Guarded) -> None:
    gateway = admin_client(USERS["gateway"], guarded.server.options())
    key = f"{PREFIX}/{FQRN}/data/ab/half"
    gateway.create_multipart_upload(Bucket=BUCKET, Key=key)
    store, soon = guarded.store(Role.COLLECTOR), datetime.now(UTC) + timedelta(minutes=1)
    assert store.remove_unfinished(soon - timedelta(days=1)) == []
    assert [found.name for found in store.remove_unfinished(soon)] == ["data/ab/half"]
    assert list(store.unfinished()) == []
