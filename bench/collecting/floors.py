"""Plain parallel deletions by the client library, or unlinks, without the project: what a sweep is compared with.

``python -m collecting.floors``: a job as JSON on standard input, seconds as JSON on standard output. What the key may
do decides: where a request for many is refused, each key is deleted by a request of its own.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.publishing.machine import clocked
from bench.publishing.places import Place

MANY = 1000
MANY_AT_ONCE = 8
SINGLES_AT_ONCE = 64
FILES_AT_ONCE = 8


def delete(job: dict[str, Any]) -> dict[str, Any]:
    """Delete the keys of a list; seconds, and how many went by one request."""
    place, keys = Place(**job["place"]), Path(job["keys"]).read_text().split()
    if place.is_file:
        root = place.url.removeprefix("file://")
        batches = [keys[at::FILES_AT_ONCE] for at in range(FILES_AT_ONCE)]
        return {"seconds": clocked(lambda batch: _unlink(root, batch), batches, FILES_AT_ONCE), "batch": 1}
    bucket, _, prefix = place.url.removeprefix("s3://").partition("/")
    paths = [f"{prefix}/{key}" for key in keys]
    many = _client(place, bucket, bulk=True)
    try:
        _delete(many, [f"{prefix}/data/00/{'0' * 38}", f"{prefix}/data/00/{'1' * 38}"])
    except Exception:  # noqa: BLE001 - this key may not
        single = _client(place, bucket, bulk=False)
        batches = [[path] for path in paths]
        return {"seconds": clocked(lambda batch: _delete(single, batch), batches, SINGLES_AT_ONCE), "batch": 1}
    batches = [paths[at : at + MANY] for at in range(0, len(paths), MANY)]
    return {"seconds": clocked(lambda batch: _delete(many, batch), batches, MANY_AT_ONCE), "batch": MANY}


def _unlink(root: str, keys: Sequence[str]) -> None:
    for key in keys:
        os.unlink(f"{root}/{key}")  # noqa: PTH108


def _delete(client: Any, paths: Sequence[str]) -> None:
    import obstore

    obstore.delete(client, list(paths))


def _client(place: Place, bucket: str, *, bulk: bool) -> Any:
    from obstore.store import S3Store

    return S3Store(
        bucket, endpoint=place.endpoint, region="us-east-1", access_key_id=place.access_key,
        secret_access_key=place.secret_key, virtual_hosted_style_request=False, disable_bulk_delete=not bulk,
        client_options={"allow_http": True, "pool_max_idle_per_host": str(place.connections)},
    )  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(delete(json.loads(sys.stdin.readline()))))
