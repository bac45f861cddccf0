"""Everything that reads what others wrote: valid examples of it, ways to damage them, and what a reader may raise.

A reader does with what it was given all that its users do. It ends, or raises an error of its own subject; whatever
else it raises, a crash, a stop for memory or an endless loop, is a fault of ours.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from include.cvmfs.errors import CvmfsError, MergeError, ObjectError
from include.cvmfs.format import manifest as manifests
from include.cvmfs.format import whitelist as whitelists
from include.cvmfs.format.keys import parse_public_keys
from include.cvmfs.format.layout import skeleton
from include.cvmfs.format.objects import compress
from include.cvmfs.sources.source import pack_xattrs
from include.cvmfs.sources.tarball import TarSource
from include.cvmfs.sources.zipmembers import ZipSource
from include.nightlies.errors import NightlyError
from tests.fakes.minirepo import public_key, signer
from tests.fuzz.databases import (
    histories,
    indices,
    read_catalog,
    read_history,
    read_index,
    read_reflog,
    read_swapped,
    reflogs,
    stored,
    whole,
)
from tests.fuzz.documents import (
    _sum_records,
    build_indices,
    changesets,
    collection_records,
    condemned_lists,
    freezes,
    generations,
    journals,
    provenance_documents,
    provenance_records,
    read_build_index,
    read_changeset,
    read_collection_record,
    read_condemned,
    read_dirtab,
    read_freeze,
    read_generation,
    read_hash,
    read_journal,
    read_meta_info,
    read_object,
    read_owner_map,
    read_provenance,
    read_provenance_document,
    read_status,
    read_xattrs,
)
from tests.fuzz.letters import (
    _sign_manifest,
    _sign_whitelist,
    _sum_again,
    private_keys,
    read_certificate,
    read_gateway_key,
    read_manifest,
    read_private_key,
    read_whitelist,
)
from tests.fuzz.mutations import Damage, Way, in_bytes, in_json, in_rows
from tests.fuzz.packings import _packed, _sum_headers, _zip_fields, read_archive, tars, zips


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


def _catalog(place: str) -> Reader:
    return Reader(lambda: [whole().databases[place]], functools.partial(read_catalog, place), (in_rows, in_bytes))


READERS: dict[str, Reader] = {
    "manifest": Reader(
        once(lambda: stored(manifests.KEY)), read_manifest,
        (in_bytes, then(in_bytes, _sum_again), then(in_bytes, _sign_manifest)),
    ),
    "whitelist": Reader(
        once(lambda: stored(whitelists.KEY)), read_whitelist,
        (in_bytes, then(in_bytes, _sum_again), then(in_bytes, _sign_whitelist)),
    ),
    "certificate": Reader(once(lambda: [signer().certificate_pem]), read_certificate),
    "public key": Reader(once(lambda: [public_key(), public_key() * 2]), parse_public_keys),
    "private key": Reader(once(private_keys), read_private_key),
    "gateway key": Reader(lambda: [b"plain_text key1 s3cr3t\n"], read_gateway_key),
    "root catalog": _catalog(""),
    "nested catalog": _catalog("/sw/app"),
    "swapped catalog": Reader(
        lambda: [whole().databases["/sw/app"]], read_swapped, (in_rows, in_bytes), (MergeError, ObjectError)
    ),
    "history": Reader(once(histories), read_history, (in_rows, in_bytes)),
    "reflog": Reader(once(reflogs), read_reflog, (in_rows, in_bytes)),
    "tar": Reader(
        once(tars), functools.partial(read_archive, TarSource), (in_bytes, then(in_bytes, _sum_headers), _packed)
    ),
    "zip": Reader(once(zips), functools.partial(read_archive, ZipSource), (in_bytes, _zip_fields)),
    "changeset": Reader(once(changesets), read_changeset, (in_json, in_bytes)),
    "generation": Reader(once(generations), read_generation, (in_json, in_bytes)),
    "freeze": Reader(once(freezes), read_freeze, (in_json, in_bytes)),
    "collection record": Reader(once(collection_records), read_collection_record, (in_json, in_bytes)),
    "provenance": Reader(once(provenance_records), read_provenance, (in_json, in_bytes)),
    "provenance document": Reader(once(provenance_documents), read_provenance_document, (in_json, in_bytes)),
    "stock status": Reader(lambda: [b'{"last_gc": "Sat Nov 21 04:00:00 UTC 2026"}'], read_status, (in_json, in_bytes)),
    "condemned list": Reader(once(condemned_lists), read_condemned),
    "sent journal": Reader(once(journals), read_journal, (in_bytes, then(in_bytes, _sum_records), in_json), errors=()),
    "content index": Reader(once(indices), read_index, (in_rows, in_bytes), errors=()),
    "build index": Reader(once(build_indices), read_build_index, (in_json, in_bytes), errors=(NightlyError,)),
    "meta info": Reader(lambda: [skeleton()], read_meta_info, (in_json, in_bytes)),
    "dirtab": Reader(lambda: [b"# rules\n/software/*/*\n! */b?\n/a\\*\n"], read_dirtab),
    "owner map": Reader(lambda: [b"# map\n1 2\n70000 3\n* 0\n"], read_owner_map),
    "object name": Reader(lambda: [b"a" * 40 + b"-shake128C", b"0123456789abcdef0123456789abcdef01234567"], read_hash),
    "object": Reader(once(lambda: [compress(bytes(range(250)) * 20), compress(b"")]), read_object),
    "attributes": Reader(once(lambda: [pack_xattrs({b"user.a": b"b", b"user.c": bytes(200)}) or b""]), read_xattrs),
}  # fmt: skip
