"""Builds of very many small artifacts."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Mapping

from include.nightlies.rules.index import Artifact
from include.storage.store import Store

PLATFORMS = 4


def drop(store: Store, build_id: str, artifacts: int, files: int, own: int = 0) -> tuple[Artifact, ...]:
    """The tarballs of a build in a store: in each `files` that all platforms and builds have alike, and two more.

    `own`: how many further files each has that no other one has.
    """
    made = []
    for number in range(artifacts):
        project, platform = f"P{number // PLATFORMS:04}", f"platform{number % PLATFORMS}"
        alike = {f"file{n}": f"{project} {n}".encode() * 20 for n in range(files)}
        apart = {f"own/{n}": f"{build_id} {project} {platform} {n}".encode() * 20 for n in range(own)}
        data = _tarball({**alike, **apart, "platform": platform.encode(), "build": build_id.encode()})
        url = f"bench/{build_id}/{project}-{platform}.tar.gz"
        store.put(url, data)
        made.append(Artifact(project, platform, url, len(data), hashlib.sha256(data).hexdigest()))
    return tuple(made)


def _tarball(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return gzip.compress(packed.getvalue(), 1, mtime=0)
