"""A backup that is cut, changed, of a newer version or no backup at all is refused with the reason."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import zstandard

from include.backup.archive import (
    MANIFEST,
    SUM,
    BackupManifest,
    BackupPart,
    PartSum,
    new_name,
    opened,
    packed,
    read_manifest,
    write_archive,
)
from include.backup.errors import BACKUP_DAMAGED, BACKUP_NEWER, BACKUP_UNKNOWN
from include.storage.file import FileStore
from tests.fakes.refused import refused

AT = datetime(2026, 11, 28, 10, 30, tzinfo=UTC)
NAME = new_name(AT, "0123abcd")
LEDGER = b"SQLite" + bytes(range(256)) * 5000


def manifest(sums: dict[BackupPart, PartSum], **fields: Any) -> BackupManifest:
    plain: dict[str, Any] = {
        "name": NAME, "created": AT, "nightshift": "0.2.0", "ledger": "v0005",
        "repositories": {"r.example.org": 41, "s.example.org": None}, "sites": ["pisa"], "parts": sums,
    }  # fmt: skip
    return BackupManifest(**plain | fields)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A backup of a ledger and a configuration."""
    files = {part: tmp_path / part.value for part in (BackupPart.SETTINGS, BackupPart.LEDGER)}
    sums = {
        BackupPart.SETTINGS: packed(io.BytesIO(b"ledger: x\n"), files[BackupPart.SETTINGS], compressed=False),
        BackupPart.LEDGER: packed(io.BytesIO(LEDGER), files[BackupPart.LEDGER]),
    }
    written = tmp_path / "backups" / NAME
    written.parent.mkdir()
    write_archive(written, manifest(sums), files)
    return written


def rewritten(file: Path, text: bytes) -> None:
    """Replace the manifest, its sum with it."""
    out = io.BytesIO()
    with tarfile.open(file) as archive, tarfile.open(fileobj=out, mode="w") as changed:
        for name, content in ((MANIFEST, text), (SUM, hashlib.sha256(text).hexdigest().encode())):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            changed.addfile(member, io.BytesIO(content))
        for member in archive.getmembers()[2:]:
            changed.addfile(member, archive.extractfile(member))
    file.write_bytes(out.getvalue())


def test_what_was_written_is_read(file: Path) -> None:
    with opened(file) as backup:
        backup.check()
        assert b"".join(backup.pieces(BackupPart.LEDGER)) == LEDGER
        assert b"".join(backup.pieces(BackupPart.SETTINGS)) == b"ledger: x\n"
        assert BackupManifest.parse(NAME, backup.manifest.format()) == backup.manifest
    assert read_manifest(FileStore(file.parent), NAME) == backup.manifest
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.stat().st_size < len(LEDGER) / 10


def test_a_backup_that_is_cut_anywhere_is_refused(file: Path) -> None:
    whole = file.read_bytes()
    end = whole.rstrip(b"\0")
    for length in sorted({0, 1, 511, 512, 1500, 2000, 4096, len(end) // 2, len(end) - 1}):
        file.write_bytes(whole[:length])
        with refused(BACKUP_DAMAGED, name=NAME), opened(file) as backup:
            backup.check()


def test_a_backup_of_which_a_byte_was_changed_is_refused(file: Path) -> None:
    whole = file.read_bytes()
    with tarfile.open(file) as archive:
        places = [member.offset_data + member.size // 2 for member in archive.getmembers()]
    for place in places:
        changed = bytearray(whole)
        changed[place] ^= 0x40
        file.write_bytes(changed)
        with refused(BACKUP_DAMAGED, name=NAME), opened(file) as backup:
            backup.check()


def test_a_part_that_grows_is_given_up_where_it_is_longer_than_its_sum(file: Path) -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 28))
    fields = json.loads((read_manifest(FileStore(file.parent), NAME)).format())
    fields["parts"]["ledger.db.zst"] |= {"stored_bytes": len(bomb), "sha256": hashlib.sha256(bomb).hexdigest()}
    text = json.dumps(fields).encode()
    with tarfile.open(file, "w") as archive:
        for name, content in (
            (MANIFEST, text), (SUM, hashlib.sha256(text).hexdigest().encode()), ("ledger.db.zst", bomb)
        ):  # fmt: skip
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    with refused(BACKUP_DAMAGED), opened(file) as backup:
        assert sum(map(len, backup.pieces(BackupPart.LEDGER))) < len(LEDGER) + (2 << 20)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../../etc/passwd"},
        {"created": "yesterday"},
        {"created": "2026-11-28T10:30:00"},  # no zone
        {"parts": {}},
        {"parts": {"ledger.db.zst": {"stored_bytes": -1, "sha256": "0", "content_bytes": 1, "content_sha256": "0"}}},
        {"parts": {"/etc/passwd": {}}},
        {"repositories": []},
        {"ledger": None},
    ],
)
def test_a_manifest_that_cannot_be_is_refused(file: Path, change: dict[str, object]) -> None:
    fields = json.loads(read_manifest(FileStore(file.parent), NAME).format())
    rewritten(file, json.dumps(fields | change).encode())
    with refused(BACKUP_DAMAGED, name=NAME), opened(file):
        pass


def test_a_backup_of_a_newer_version_is_refused_with_that_version(file: Path) -> None:
    fields = json.loads(read_manifest(FileStore(file.parent), NAME).format())
    rewritten(file, json.dumps(fields | {"format": 2, "nightshift": "9.9", "more": {}}).encode())
    with refused(BACKUP_NEWER) as caught, opened(file):
        pass
    assert "9.9" in str(caught.value)
    rewritten(file, json.dumps(fields | {"ledger": "v9999"}).encode())
    with opened(file) as backup, refused(BACKUP_NEWER, name=NAME):
        backup.manifest.require_readable()


def test_what_is_no_backup_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"not a tar", bytes(10240)):
        (tmp_path / NAME).write_bytes(content)
        with refused(BACKUP_DAMAGED), opened(tmp_path / NAME):
            pass
    with refused(BACKUP_UNKNOWN), opened(tmp_path / "missing"):
        pass
    with refused(BACKUP_UNKNOWN):
        read_manifest(FileStore(tmp_path), new_name(AT, "ffffffff"))


def test_a_site_knows_its_backups_by_a_repository_or_a_storage_site_of_its_own() -> None:
    sums = {BackupPart.LEDGER: PartSum(1, "0" * 64, 1, "0" * 64)}
    ours = manifest(sums)
    assert ours.is_of(["r.example.org", "new.example.org"], [])
    assert ours.is_of([], ["pisa", "bari"])
    assert not ours.is_of(["other.example.org"], ["bari"])
    assert ours.is_of([], [])
