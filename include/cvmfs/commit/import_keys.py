"""Takes over the keys of a repository that stock tools made: found, matched with each other and with the repository.

The files are named as everywhere (docs/formats.md, keys); nothing is overwritten, and what is there already is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from include.cvmfs.errors import KeyFileError
from include.cvmfs.format.keys import (
    KeyFile,
    load_gateway_key,
    load_master,
    load_signer,
    parse_certificate,
    parse_public_keys,
    save_key_file,
)
from include.cvmfs.revision.repository import Repository
from include.storage.store import Store

STOCK_FOLDER = Path("/etc/cvmfs/keys")


@dataclass(frozen=True, slots=True)
class Imported:
    """Outcome: the files that were copied, those that were there already, and those that the folder does not have."""

    copied: tuple[KeyFile, ...]
    present: tuple[KeyFile, ...]
    absent: tuple[KeyFile, ...]
    revision: int


def import_keys(
    store: Store | str, fqrn: str, source: Path, target: Path, *, now: datetime, dry_run: bool = False
) -> Imported:
    """Copy ``<fqrn>.*`` from ``source`` to ``target`` once they are seen to be those of the repository in ``store``.

    The public key must verify the repository as clients do, the certificate must be the one that the manifest names,
    the private keys must belong to them. Raises KeyFileError, and what opening a repository raises.
    """
    found = {kind: kind.path(source, fqrn) for kind in KeyFile if kind.path(source, fqrn).exists()}
    if KeyFile.PUBLIC not in found:
        path = KeyFile.PUBLIC.path(source, fqrn)
        raise KeyFileError(str(path), "does not exist; without it nothing can be verified: name the folder that has it")
    public = found[KeyFile.PUBLIC].read_bytes()
    repository = Repository.open(store, fqrn=fqrn, public_keys=[public], now=now)
    _require_match(found, repository, source)
    copied, present = [], []
    for kind, path in found.items():
        data, place = path.read_bytes(), kind.path(target, fqrn)
        if place.exists() and place.read_bytes() == data:
            present.append(kind)
            continue
        if place.exists():
            raise KeyFileError(str(place), f"exists and is another than {path}; move it away if it is no longer used")
        copied.append(kind)
    if not dry_run:
        for kind in copied:
            save_key_file(target, fqrn, kind, found[kind].read_bytes())
    absent = tuple(kind for kind in KeyFile if kind not in found)
    return Imported(tuple(copied), tuple(present), absent, repository.manifest.revision)


def _require_match(found: dict[KeyFile, Path], repository: Repository, source: Path) -> None:
    fqrn = repository.fqrn
    if KeyFile.CERTIFICATE in found:
        path = found[KeyFile.CERTIFICATE]
        if parse_certificate(path.read_bytes()) != repository.trusted.certificate:
            raise KeyFileError(
                str(path), f"is not the certificate that the manifest of {fqrn} names; get the right one"
            )
    if KeyFile.REPOSITORY in found:
        load_signer(source, fqrn)
    if KeyFile.MASTER in found:
        path = found[KeyFile.MASTER]
        public = load_master(source, fqrn).public_key().public_numbers()
        known = parse_public_keys(found[KeyFile.PUBLIC].read_bytes())
        if public not in [key.public_numbers() for key in known]:
            raise KeyFileError(str(path), f"does not belong to {found[KeyFile.PUBLIC].name}; get the right pair")
    if KeyFile.GATEWAY in found:
        load_gateway_key(found[KeyFile.GATEWAY])
