"""The store of a run with a key for each role: who publishes, who switches, who collects."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.publishing.places import Place
from bench.publishing.repositories import FQRN
from include.storage.buckets import Role, allow_roles, ensure_bucket
from include.storage.kinds import FILE, kind_of
from include.storage.open import Credentials
from lab.servers.radosgw import RadosgwServer
from lab.servers.weed import WeedServer

BUCKET = "bench"
FLOOR = "floor.nightshift.test"
"""A second repository of the same policy; its objects are what the floor deletes."""
_OWNER = Credentials("benchkey", "benchsecret")
_USERS = {role.value: Credentials(role.value, f"{role.value}-secret") for role in Role if role is not Role.READER}


@dataclass(frozen=True, slots=True)
class RolePlaces:
    """The folder of all repositories as the owner of the bucket and each role open it."""

    owner: Place
    users: bool

    def of(self, role: Role, fqrn: str = FQRN) -> Place:
        """A repository as a role opens it; in a folder of files all are the same user."""
        place = self.owner.below(fqrn)
        if not self.users:
            return place
        keys = _USERS[role.value]
        return dataclasses.replace(place, access_key=keys.access_key, secret_key=keys.secret_key)


@contextmanager
def opened(kind: str, folder: Path, connections: int) -> Iterator[RolePlaces]:
    """``weed``, ``radosgw`` (both with keys by role), ``file`` (below ``folder``), or any ``file:///`` URL."""
    if kind == "file" or (":" in kind and kind_of(kind) is FILE):
        root = (folder if kind == "file" else Path(kind.removeprefix("file://"))) / f"nightshift-gc-{folder.name}"
        try:
            yield RolePlaces(Place(root.as_uri(), connections=connections), users=False)
        finally:
            shutil.rmtree(root, ignore_errors=True)
        return
    with _server(kind, folder) as server:
        if isinstance(server, RadosgwServer):
            for name, keys in _USERS.items():
                server.add_user(name, keys)
        url = f"s3://{BUCKET}"
        ensure_bucket(url, _OWNER, server.options())
        principals: dict[Role, str] = {
            role: server.kind.principal(role.value) for role in Role if role is not Role.READER
        }
        allow_roles(url, _OWNER, server.options(), repositories=[FQRN, FLOOR], principals=principals)
        owner = Place(url, server.endpoint, _OWNER.access_key, _OWNER.secret_key, connections)
        yield RolePlaces(owner, users=True)


def _server(kind: str, folder: Path) -> WeedServer | RadosgwServer:
    match kind:
        case "weed":
            return WeedServer(folder / "weed", credentials=_OWNER, users=_USERS)
        case "radosgw":
            return RadosgwServer(folder / "ceph", credentials=_OWNER)
    sys.exit(f"STORE={kind}: use weed, radosgw, file, or file:///folder")
