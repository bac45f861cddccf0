"""Keys of a backup: packed, and encrypted to a passphrase or to a public key (docs/formats.md, backups)."""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from include.backup.errors import BACKUP_DAMAGED, KEYS_LOCKED
from include.cvmfs.format.keys import KeyFile

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
