"""Everything that reads what others wrote: valid examples of it, ways to damage them, and what a reader may raise.

A reader does with what it was given all that its users do. It ends, or raises an error of its own subject; whatever
else it raises, a crash, a stop for memory or an endless loop, is a fault of ours.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from include.cvmfs.errors import CvmfsError, MergeError, ObjectError
from include.cvmfs.format import manifest as manifests, whitelist as whitelists
from include.cvmfs.format.keys import parse_public_keys
from include.cvmfs.format.layout import skeleton
from include.cvmfs.format.objects import compress
from include.cvmfs.sources.source import pack_xattrs
from include.cvmfs.sources.tarball import TarSource
from include.cvmfs.sources.zipmembers import ZipSource
from include.nightlies.errors import NightlyError
from tests.fakes.minirepo import public_key, signer
from tests.fuzz import databases, documents, letters, packings
from tests.fuzz.mutations import Damage, Way, in_bytes, in_json, in_rows


@dataclass(frozen=True)
class Reader:
    """``ways``: how its examples are damaged; ``errors``: what it may raise."""

    examples: Callable[[], Sequence[bytes]]
    read: Callable[[bytes], object]
    ways: Sequence[Way] = (in_bytes,)
    errors: tuple[type[Exception], ...] = (CvmfsError,)


def attempt(name: str, example: int, way: int, damage: Damage) -> bool:
    """Let a reader read a damaged example; whether it refused. Raises what it must not raise."""
    reader = READERS[name]
    examples = reader.examples()
    damaged = reader.ways[way % len(reader.ways)](examples[example % len(examples)], damage, examples)
    try:
        reader.read(damaged)
    except reader.errors:
        return True
    return False


def then(way: Way, seal: Callable[[bytes], bytes]) -> Way:
    """The damage, and after it sums and signatures made right again, so that what lies behind them is reached."""
    return lambda data, damage, others: seal(way(data, damage, others))


def once(make: Callable[[], Sequence[bytes]]) -> Callable[[], Sequence[bytes]]:
    return functools.cache(make)


ROWS, JSON = (in_rows, in_bytes), (in_json, in_bytes)


def _catalog(place: str) -> Reader:
    return Reader(lambda: [databases.whole().databases[place]], functools.partial(databases.read_catalog, place), ROWS)


READERS: dict[str, Reader] = {
    "manifest": Reader(
        once(lambda: databases.stored(manifests.KEY)), letters.read_manifest,
        (in_bytes, then(in_bytes, letters.sum_again), then(in_bytes, letters.sign_manifest)),
    ),
    "whitelist": Reader(
        once(lambda: databases.stored(whitelists.KEY)), letters.read_whitelist,
        (in_bytes, then(in_bytes, letters.sum_again), then(in_bytes, letters.sign_whitelist)),
    ),
    "certificate": Reader(once(lambda: [signer().certificate_pem]), letters.read_certificate),
    "public key": Reader(once(lambda: [public_key(), public_key() * 2]), parse_public_keys),
    "private key": Reader(once(letters.private_keys), letters.read_private_key),
    "gateway key": Reader(lambda: [b"plain_text key1 s3cr3t\n"], letters.read_gateway_key),
    "root catalog": _catalog(""),
    "nested catalog": _catalog("/sw/app"),
    "swapped catalog": Reader(
        lambda: [databases.whole().databases["/sw/app"]], databases.read_swapped, ROWS, (MergeError, ObjectError),
    ),
    "history": Reader(once(databases.histories), databases.read_history, ROWS),
    "reflog": Reader(once(databases.reflogs), databases.read_reflog, ROWS),
    "tar": Reader(
        once(packings.tars), functools.partial(packings.read_archive, TarSource),
        (in_bytes, then(in_bytes, packings.sum_headers), packings.packed_again),
    ),
    "zip": Reader(
        once(packings.zips), functools.partial(packings.read_archive, ZipSource), (in_bytes, packings.zip_fields),
    ),
    "changeset": Reader(once(documents.changesets), documents.read_changeset, JSON),
    "generation": Reader(once(documents.generations), documents.read_generation, JSON),
    "freeze": Reader(once(documents.freezes), documents.read_freeze, JSON),
    "collection record": Reader(once(documents.collection_records), documents.read_collection_record, JSON),
    "provenance": Reader(once(documents.provenance_records), documents.read_provenance, JSON),
    "provenance document": Reader(once(documents.provenance_documents), documents.read_provenance_document, JSON),
    "stock status": Reader(lambda: [b'{"last_gc": "Sat Nov 21 04:00:00 UTC 2026"}'], documents.read_status, JSON),
    "condemned list": Reader(once(documents.condemned_lists), documents.read_condemned),
    "sent journal": Reader(
        once(documents.journals), documents.read_journal, (in_bytes, then(in_bytes, documents.sum_records), in_json),
        errors=(),
    ),
    "content index": Reader(once(databases.indices), databases.read_index, ROWS, errors=()),
    "build index": Reader(once(documents.build_indices), documents.read_build_index, JSON, errors=(NightlyError,)),
    "meta info": Reader(lambda: [skeleton()], documents.read_meta_info, JSON),
    "dirtab": Reader(lambda: [b"# rules\n/software/*/*\n! */b?\n/a\\*\n"], documents.read_dirtab),
    "owner map": Reader(lambda: [b"# map\n1 2\n70000 3\n* 0\n"], documents.read_owner_map),
    "object name": Reader(lambda: [b"a" * 40 + b"-shake128C", b"0123456789" * 4], documents.read_hash),
    "object": Reader(once(lambda: [compress(bytes(range(250)) * 20), compress(b"")]), documents.read_object),
    "attributes": Reader(
        once(lambda: [pack_xattrs({b"user.a": b"b", b"user.c": bytes(200)}) or b""]), documents.read_xattrs,
    ),
}  # fmt: skip
