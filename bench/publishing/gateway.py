"""The real gateway service as a process of its own: a job as JSON on standard input, its URL on standard output."""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench.publishing.places import Place
from bench.publishing.repositories import FQRN, SILENT
from include.cvmfs.format.keys import load_signer
from include.gateway.service.config import AcceptedKey, RepositoryConfig, ServiceConfig
from include.gateway.service.http.server import serve
from include.storage.open import Credentials, StoreOptions, open_store
from include.storage.store import Store

KEY_ID, SECRET = "bench", "bench-secret"


def main() -> None:
    stop = threading.Event()
    from bench.publishing import gateway  # by this name the process that commits finds it, too

    read_config = partial(gateway.configuration, sys.stdin.readline())
    threading.Thread(target=_stop_at_end_of_input, args=(stop,), daemon=True).start()
    serve(read_config, ready=lambda url: print(url, flush=True), stop=stop)


def configuration(text: str) -> ServiceConfig:
    """What a job says, as the service wants it. ``silent``: where the store of a second repository never answers."""
    job = json.loads(text)
    keys, place = Path(job["keys"]), Place(**job["place"])
    repository = RepositoryConfig(place.open, lambda: load_signer(keys, FQRN), (AcceptedKey(KEY_ID, SECRET),))
    repositories = {FQRN: repository}
    if job.get("silent"):
        repositories[SILENT] = replace(repository, store=lambda: _silent(job["silent"]))
    return ServiceConfig(Path(job["state"]), repositories, port=0, max_lease_time_s=120)


def _silent(endpoint: str) -> Store:
    options = StoreOptions(endpoint=endpoint, retries=0)
    return open_store("s3://silent/store", credentials=Credentials(KEY_ID, SECRET), options=options)


def _stop_at_end_of_input(stop: threading.Event) -> None:
    sys.stdin.read()
    stop.set()


if __name__ == "__main__":
    main()
