"""The service takes a pack of any size within the same memory: its process is watched while it does."""

from __future__ import annotations

import hashlib
import http.client
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from include.cvmfs.format.hashes import ObjectHash
from include.gateway.protocol import authorization
from include.gateway.service.commits.intake import PackHeader, PackObject
from include.storage.file import FileStore
from tests.fakes.orders import KEY_ID, SECRET
from tests.fakes.site import FQRN, ProcessSite
from tests.fakes.stockpublisher import StockWire, payload_message

MIB = 1 << 20
MOST_MIB = 100  # eight readers' budgets are not at work here: one is, with its threads


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ProcessSite]:
    store = FileStore(tmp_path / "store")
    site = ProcessSite(tmp_path, store, store.url, storage={"store": store.url})
    site.create()
    site.start_gateway()
    yield site
    site.close()


def block(number: int) -> bytes:
    return number.to_bytes(8, "big") * (MIB // 8)


def peak_mib(pid: int) -> int:
    """The most anonymous and mapped memory that a process had so far."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) // 1024


def test_a_pack_of_many_times_the_memory_is_stored_whole(site: ProcessSite) -> None:
    wire = StockWire(site.url, KEY_ID, SECRET)
    token = wire.acquire(f"{FQRN}/a")["session_token"]
    numbers = range(256)
    objects, start = [], 0
    for mib in [1] * 128 + [64] * 2:
        digest = hashlib.sha1(usedforsecurity=False)
        for number in numbers[start : start + mib]:
            digest.update(block(number))
        objects.append(PackObject(ObjectHash(digest.digest()), mib * MIB))
        start += mib
    header = PackHeader(tuple(objects))
    text = header.format()
    head = payload_message(token, hashlib.sha1(text, usedforsecurity=False).hexdigest(), len(text))
    assert site.gateway is not None
    assert site.gateway.process.pid is not None
    before = peak_mib(site.gateway.process.pid)

    def body() -> Iterator[bytes]:
        yield head + text
        yield from (block(number) for number in numbers)

    address = urlsplit(site.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=120)
    connection.request(
        "POST",
        "/api/v1/payloads",
        body(),
        {
            "Authorization": authorization(KEY_ID, SECRET, head),
            "Message-Size": str(len(head)),
            "Content-Length": str(len(head) + len(text) + header.total),
        },
    )
    assert connection.getresponse().read() == b'{"status":"ok"}'
    connection.close()
    grown = peak_mib(site.gateway.process.pid) - before
    assert grown < MOST_MIB + 64, f"{grown} MiB for a pack of {len(numbers)} MiB, whose largest object has 64"
    assert all(site.store.exists(one.hash.key) for one in objects)
