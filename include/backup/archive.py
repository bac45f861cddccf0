"""The file of a backup: a tar of a manifest with sums, and the parts that it names; its keys are encrypted.

Keys are encrypted to a passphrase or to a public key (docs/formats.md, backups).
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import secrets
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import IO, Annotated, Any, cast

import zstandard
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from pydantic import Field, TypeAdapter, ValidationError

from include.backup.errors import BACKUP_DAMAGED, BACKUP_NEWER, BACKUP_UNKNOWN, KEYS_LOCKED
from include.cvmfs.format.keys import KeyFile
from include.json_values import first_fault
from include.ledger.migrate import versions
from include.storage.errors import NotFound
from include.storage.store import Store

PASSPHRASE, RECIPIENT = "passphrase", "recipient"
SHORTEST_PASSPHRASE = 12
"""Characters."""
SHORTEST_RSA_BITS = 3072
_SCRYPT_N, _SCRYPT_R, _SCRYPT_P = 1 << 17, 8, 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,250}")
_OAEP = padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), label=None)
_ABOUT = b"nightshift backup keys 1"


@dataclass(frozen=True, slots=True)
class SealTo:
    """Recipient of keys: exactly one of the two. `public_key`: PEM text of an RSA key."""

    passphrase: str | None = field(default=None, repr=False)
    public_key: bytes | None = None

    @property
    def kind(self) -> str:
        """Kind of recipient, as the manifest names it."""
        return RECIPIENT if self.passphrase is None else PASSPHRASE


@dataclass(frozen=True, slots=True)
class Opener:
    """Means to open keys. `private_key`: PEM text; `key_passphrase`: of that text, where it has one."""

    passphrase: str | None = field(default=None, repr=False)
    private_key: bytes | None = field(default=None, repr=False)
    key_passphrase: str | None = field(default=None, repr=False)


def key_files(folder: Path, *, master: bool) -> dict[str, bytes]:
    """Return the key files of a folder by name. `master`: with those that sign whitelists."""
    endings = {kind.value for kind in KeyFile if master or kind is not KeyFile.MASTER}
    present = folder.iterdir() if folder.is_dir() else ()
    return {
        path.name: path.read_bytes() for path in sorted(present)
        if path.suffix in endings and path.is_file() and _NAME.fullmatch(path.name)
    }  # fmt: skip


def fault_of(to: SealTo) -> str | None:
    """Return why keys cannot be encrypted so; None: they can."""
    if to.passphrase is not None:
        short = len(to.passphrase) < SHORTEST_PASSPHRASE
        return f"the passphrase has fewer than {SHORTEST_PASSPHRASE} characters" if short else None
    try:
        key = serialization.load_pem_public_key(to.public_key or b"")
    except ValueError:
        return "the recipient's file is no public key in PEM form"
    if not isinstance(key, rsa.RSAPublicKey) or key.key_size < SHORTEST_RSA_BITS:
        return f"the recipient's key is no RSA key of at least {SHORTEST_RSA_BITS} bits"
    return None


def seal(files: Mapping[str, bytes], to: SealTo) -> bytes:
    """Encrypt key files. `to` must have no fault."""
    secret = secrets.token_bytes(32)
    head: dict[str, Any]
    if to.passphrase is not None:
        salt = secrets.token_bytes(16)
        secret = _derived(to.passphrase, salt, _SCRYPT_N, _SCRYPT_R, _SCRYPT_P)
        head = {"to": PASSPHRASE, "salt": _text(salt), "n": _SCRYPT_N, "r": _SCRYPT_R, "p": _SCRYPT_P}
    else:
        key = cast("rsa.RSAPublicKey", serialization.load_pem_public_key(to.public_key or b""))
        head = {"to": RECIPIENT, "key": _text(key.encrypt(secret, _OAEP))}
    nonce = secrets.token_bytes(12)
    plain = json.dumps({name: _text(content) for name, content in files.items()}).encode()
    sealed = AESGCM(secret).encrypt(nonce, plain, _ABOUT)
    return json.dumps({**head, "nonce": _text(nonce), "sealed": _text(sealed)}).encode()


def unseal(name: str, data: bytes, opener: Opener) -> dict[str, bytes]:
    """Return the key files of backup `name`. Raises BackupError: KEYS_LOCKED, BACKUP_DAMAGED."""
    try:
        head = json.loads(data)
        to, nonce, sealed = head["to"], _bytes(head["nonce"]), _bytes(head["sealed"])
        parameters = (head["n"], head["r"], head["p"]) if to == PASSPHRASE else ()
        salt, wrapped = (_bytes(head.get(field_name, "")) for field_name in ("salt", "key"))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BACKUP_DAMAGED(name, "its keys cannot be read") from None
    if to == PASSPHRASE:
        if opener.passphrase is None:
            raise KEYS_LOCKED(name, "its keys are encrypted to a passphrase, and none was given")
        # of a file that was changed: another cost could take all memory
        if parameters != (_SCRYPT_N, _SCRYPT_R, _SCRYPT_P):
            raise BACKUP_DAMAGED(name, "its keys cannot be read")
        secret = _derived(opener.passphrase, salt, *parameters)
    elif to == RECIPIENT:
        secret = _unwrapped(name, wrapped, opener)
    else:
        raise BACKUP_DAMAGED(name, "its keys cannot be read")
    try:
        packed = json.loads(AESGCM(secret).decrypt(nonce, sealed, _ABOUT))
        files = {str(file): _bytes(content) for file, content in packed.items()}
    except InvalidTag:
        raise KEYS_LOCKED(name, f"its keys are encrypted to another {to} than was given, or were changed") from None
    except (ValueError, TypeError, AttributeError):
        raise BACKUP_DAMAGED(name, "its keys cannot be read") from None
    endings = {kind.value for kind in KeyFile}
    for file in files:
        if not _NAME.fullmatch(file) or Path(file).suffix not in endings:
            raise BACKUP_DAMAGED(name, f"it has a key file of the name {file[:64]!r}")
    return files


def _unwrapped(name: str, wrapped: bytes, opener: Opener) -> bytes:
    if opener.private_key is None:
        raise KEYS_LOCKED(name, "its keys are encrypted to a recipient, and no private key was given")
    password = opener.key_passphrase.encode() if opener.key_passphrase is not None else None
    try:
        key = serialization.load_pem_private_key(opener.private_key, password)
    except (ValueError, TypeError):
        raise KEYS_LOCKED(name, "the private key is not in PEM form, or its own passphrase is another one") from None
    if not isinstance(key, rsa.RSAPrivateKey):
        raise KEYS_LOCKED(name, "the private key is no RSA key")
    try:
        return key.decrypt(wrapped, _OAEP)
    except ValueError:
        raise KEYS_LOCKED(name, "its keys are encrypted to another recipient") from None


def _derived(passphrase: str, salt: bytes, cost: int, block: int, lanes: int) -> bytes:
    return Scrypt(salt, 32, cost, block, lanes).derive(passphrase.encode())


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


FORMAT = 1
MANIFEST, SUM = "manifest.json", "manifest.sha256"
HEAD_BYTES = 1 << 18
"""Bytes of a file that are read for its manifest, which may be as long as half of it."""
SMALL_BYTES = 20 << 20
"""Bytes of a file that are read for settings and keys."""
NAME = re.compile(r"nightshift-\d{8}T\d{6}\.\d{6}Z-[0-9a-f]{8}\.backup")
BLOCK = 1 << 20
_TEXT = Annotated[str, Field(max_length=1024)]
_SHA256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
_COUNT = Annotated[int, Field(ge=0, lt=1 << 63, strict=True)]


class BackupPart(Enum):
    """A part of a backup, by its name in the file; the parts are in this order."""

    SETTINGS = "settings.yaml"
    KEYS = "keys.json"
    GATEWAY = "gateway.db.zst"
    LEDGER = "ledger.db.zst"
    LEDGER_DUMP = "ledger.sql.zst"


@dataclass(frozen=True, slots=True)
class PartSum:
    """Size in bytes and SHA-256 of a part, as it is in the file and unpacked."""

    stored_bytes: _COUNT
    sha256: _SHA256
    content_bytes: _COUNT
    content_sha256: _SHA256


@dataclass(frozen=True, slots=True)
class BackupManifest:
    """Manifest of a backup.

    Attributes:
        name: Name of the file.
        created: Time of the copies; what came later is not in them.
        nightshift: Version that wrote it.
        ledger: Version of the ledger's tables.
        repositories: Repositories of the site, each with its revision at that time; None: it was not readable.
        sites: Storage sites of its configuration.
        parts: Sums of its parts.
        keys: Names of its key files.
        sealed_to: Protection of its keys; None: it has no keys.
        notes: Parts that the machine did not have.
    """

    name: Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
    created: datetime
    nightshift: _TEXT
    ledger: _TEXT
    repositories: Mapping[_TEXT, int | None]
    sites: Sequence[_TEXT]
    parts: Mapping[BackupPart, PartSum]
    keys: Sequence[_TEXT] = ()
    sealed_to: _TEXT | None = None
    notes: Sequence[_TEXT] = ()

    @property
    def ledger_part(self) -> BackupPart:
        """The part that has the ledger."""
        return BackupPart.LEDGER if BackupPart.LEDGER in self.parts else BackupPart.LEDGER_DUMP

    @property
    def size(self) -> int:
        """Size of all parts in bytes."""
        return sum(part.stored_bytes for part in self.parts.values())

    def format(self) -> bytes:
        """The manifest as JSON."""
        fields = asdict(self) | {"parts": {part.value: asdict(of_part) for part, of_part in self.parts.items()}}
        return json.dumps({"format": FORMAT, **fields, "created": self.created.isoformat()}, indent=1).encode()

    @classmethod
    def parse(cls, name: str, data: bytes) -> BackupManifest:
        """Read `format`. Raises BackupError: BACKUP_NEWER, BACKUP_DAMAGED."""
        try:
            fields = json.loads(data)
            version = fields.pop("format")
        except (ValueError, KeyError, AttributeError, RecursionError):
            raise BACKUP_DAMAGED(name, "its manifest cannot be read") from None
        if type(version) is not int or version > FORMAT:
            written = str(fields.get("nightshift"))[:32]
            raise BACKUP_NEWER(name, f"it has format {str(version)[:16]}, of Nightshift {written}; this reads {FORMAT}")
        try:
            manifest = _READER.validate_python(fields)
        except ValidationError as error:
            fault = first_fault(error)
            raise BACKUP_DAMAGED(name, f"its manifest cannot be read: {fault.where} {fault.what}") from None
        ledgers = {BackupPart.LEDGER, BackupPart.LEDGER_DUMP} & manifest.parts.keys()
        if manifest.created.tzinfo is None or len(ledgers) != 1:
            raise BACKUP_DAMAGED(name, "its manifest has no time zone, or not exactly one ledger")
        small = {BackupPart.SETTINGS, BackupPart.KEYS} & manifest.parts.keys()
        if any(manifest.parts[part].content_bytes > SMALL_BYTES for part in small):
            raise BACKUP_DAMAGED(name, f"its settings or keys have more than {SMALL_BYTES >> 20} MiB")
        return manifest

    def require_readable(self) -> None:
        """Raise BackupError: BACKUP_NEWER for a ledger of a version that this code does not know."""
        if self.ledger not in versions():
            what = (
                f"its ledger has version {self.ledger}, of Nightshift {self.nightshift}, which this one does not know"
            )
            raise BACKUP_NEWER(self.name, what)

    def is_of(self, repositories: Sequence[str], sites: Sequence[str]) -> bool:
        """Tell whether it is of the site with these repositories and storage sites: they have one in common.

        A site without any is every site's.
        """
        ours = {*repositories, *sites}
        return not ours or not (self.repositories or self.sites) or bool(ours & {*self.repositories, *self.sites})


_READER = TypeAdapter(BackupManifest)
_UNPACKER = zstandard.ZstdDecompressor()


def new_name(created: datetime, number: str) -> str:
    """Return the name of a backup. `number`: eight hexadecimal digits by chance."""
    return f"nightshift-{created.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}-{number}.backup"


# -- writing


def packed(source: IO[bytes], target: Path, *, compressed: bool = True) -> PartSum:
    """Write a part to a file, compressed or as it is; its sums."""
    content, stored = hashlib.sha256(), hashlib.sha256()
    count = 0
    packer = zstandard.ZstdCompressor(level=3, threads=-1).compressobj() if compressed else None
    with target.open("wb") as file:

        def write(piece: bytes) -> None:
            stored.update(piece)
            file.write(piece)

        while piece := source.read(BLOCK):
            content.update(piece)
            count += len(piece)
            write(packer.compress(piece) if packer else piece)
        if packer:
            write(packer.flush())
        size = file.tell()
    return PartSum(size, stored.hexdigest(), count, content.hexdigest())


def write_archive(file: Path, manifest: BackupManifest, parts: Mapping[BackupPart, Path]) -> None:
    """Write the file of a backup, readable by this account alone, and have it on the disk."""
    text = manifest.format()
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
            seconds = int(manifest.created.timestamp())
            for name, content in ((MANIFEST, text), (SUM, hashlib.sha256(text).hexdigest().encode())):
                archive.addfile(_member(name, len(content), seconds), io.BytesIO(content))
            for part in BackupPart:
                if part in parts:
                    with parts[part].open("rb") as source:
                        archive.addfile(_member(part.value, manifest.parts[part].stored_bytes, seconds), source)
        out.flush()
        os.fsync(out.fileno())


def _member(name: str, size: int, seconds: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o600, seconds
    return member


# -- reading


def read_manifest(store: Store, name: str) -> BackupManifest:
    """Read the manifest of a backup in a store. Raises BackupError, StoreError."""
    try:
        head = store.get_range(name, 0, HEAD_BYTES)
    except NotFound:
        raise BACKUP_UNKNOWN(name, f"it is not in {store.url}") from None
    return _manifest_of(name, io.BytesIO(head))


def read_small_part(store: Store, name: str, part: BackupPart) -> bytes:
    """Read settings or keys of a backup in a store, without the rest. Raises BackupError, StoreError."""
    try:
        content = io.BytesIO(store.get_range(name, 0, SMALL_BYTES))
    except NotFound:
        raise BACKUP_UNKNOWN(name, f"it is not in {store.url}") from None
    return b"".join(OpenedBackup(name, content).pieces(part))


@contextmanager
def opened(file: Path, name: str = "") -> Iterator[OpenedBackup]:
    """Open a backup's file; its manifest is verified. Raises BackupError."""
    try:
        with file.open("rb") as content:
            yield OpenedBackup(name or file.name, content)
    except (FileNotFoundError, IsADirectoryError):
        raise BACKUP_UNKNOWN(name or file.name, f"there is no file {file}") from None
    except PermissionError:
        raise BACKUP_UNKNOWN(name or file.name, f"this account may not read {file}") from None


class OpenedBackup:
    """A backup whose manifest was verified. No part is trusted before all of it was read.

    Args:
        name: The name for messages.
        content: The file, which can be read from any place.
    """

    def __init__(self, name: str, content: IO[bytes]) -> None:
        self.manifest = _manifest_of(name, content)
        self._content = content

    def check(self) -> None:
        """Read all parts, and compare their sums. Raises BackupError: BACKUP_DAMAGED."""
        for part in self.manifest.parts:
            for _ in self.pieces(part):
                pass

    def pieces(self, part: BackupPart) -> Iterator[bytes]:
        """Unpack a part piece by piece. Raises BackupError: BACKUP_DAMAGED, at the end where a sum differs."""
        expected, content, count = self.manifest.parts[part], hashlib.sha256(), 0
        self._content.seek(0)
        try:
            with tarfile.open(fileobj=self._content, mode="r:") as archive, closing(_source(archive, part)) as source:
                stored = _Summed(source)
                # piece by piece: a part that was made to grow fills neither memory nor disk
                unpacked = _UNPACKER.stream_reader(cast("IO[bytes]", stored)) if part.value.endswith(".zst") else stored
                while count <= expected.content_bytes and (piece := unpacked.read(BLOCK)):
                    count += len(piece)
                    content.update(piece)
                    yield piece
                while stored.read(BLOCK):
                    pass
                sums = PartSum(stored.count, stored.digest.hexdigest(), count, content.hexdigest())
        except (tarfile.TarError, EOFError, OSError, ValueError, OverflowError, zstandard.ZstdError):
            raise self._damaged(part) from None
        if sums != expected:
            raise self._damaged(part)

    def _damaged(self, part: BackupPart) -> Exception:
        return BACKUP_DAMAGED(self.manifest.name, f"{part.value} is cut, or was changed")


class _Summed:
    """A part as it is in the file, whose bytes are counted and summed as they are read."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self.count = 0
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        piece = self._source.read(size)
        self.count += len(piece)
        self.digest.update(piece)
        return piece


def _source(archive: tarfile.TarFile, part: BackupPart) -> IO[bytes]:
    for member in archive:
        if member.name == part.value and member.isreg() and not member.issparse():
            source = archive.extractfile(member)
            if source is not None:
                return source
    raise EOFError(part.value)


def _manifest_of(name: str, content: IO[bytes]) -> BackupManifest:
    content.seek(0)
    texts = []
    try:
        with tarfile.open(fileobj=content, mode="r:") as archive:
            for expected in (MANIFEST, SUM):
                member = archive.next()
                source = archive.extractfile(member) if member is not None and member.name == expected else None
                if source is None or member is None or member.size > HEAD_BYTES // 2:
                    raise BACKUP_DAMAGED(name, "it is no backup of Nightshift, or its beginning is cut")
                texts.append(source.read())
    except (tarfile.TarError, EOFError, OSError, ValueError, OverflowError):
        raise BACKUP_DAMAGED(name, "it is no backup of Nightshift, or its beginning is cut") from None
    text, digest = texts
    if hashlib.sha256(text).hexdigest().encode() != digest:
        raise BACKUP_DAMAGED(name, "its manifest was changed")
    return BackupManifest.parse(name, text)
