"""Keys and certificates of a repository, their files, and signatures by them (docs/formats.md, keys and signed
letters)."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Protocol

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.asymmetric.utils import NoDigestInfo
from cryptography.x509.oid import NameOID

from include.cvmfs.errors import FormatError, KeyFileError
from include.cvmfs.format.hashes import SHA1, Algorithm, ObjectHash, hash_bytes

_END = b"\n--\n"
_PADDING_BYTES = 11  # the least that PKCS#1 allows
_SHA1_DIGEST_INFO = bytes.fromhex("3021300906052b0e03021a05000414")


class Scheme(Enum):
    """Way in which the ASCII text of a letter's hash is signed."""

    SHA1_DIGEST_INFO = "manifest"  # PKCS#1 v1.5 with SHA-1
    NO_DIGEST_INFO = "whitelist"  # PKCS#1 v1.5 padding of the text itself

    def payload(self, text: bytes) -> bytes:
        """Return what goes into the padding. SHA-1 is done here, so that no policy of the machine's OpenSSL can forbid
        it."""
        if self is Scheme.NO_DIGEST_INFO:
            return text
        return _SHA1_DIGEST_INFO + hashlib.sha1(text, usedforsecurity=False).digest()


@dataclass(frozen=True, slots=True)
class SignedLetter:
    """The letter with its last newline, the hash that its file states, and the signature over that hash's text."""

    letter: bytes
    hash: ObjectHash
    signature: bytes

    @classmethod
    def parse(cls, data: bytes, what: str) -> SignedLetter:
        """Take a whole file apart, checking nothing but its shape. Raises FormatError."""
        letter, end, rest = data.partition(_END)
        text, newline, signature = rest.partition(b"\n")
        if not end or not newline or not signature:
            raise FormatError(what, "truncated: it has no line '--' followed by a hash and a signature")
        try:
            stated = ObjectHash.parse(text.decode("ascii"))
        except UnicodeDecodeError:
            raise FormatError(what, "its hash line is not text") from None
        if stated.suffix:
            raise FormatError(what, f"its hash line ends in the letter {stated.suffix}")
        return cls(letter + b"\n", stated, signature)

    @property
    def is_intact(self) -> bool:
        """Tell whether the letter has the hash that its file states."""
        return hash_bytes(self.letter, self.hash.algorithm).digest == self.hash.digest

    def is_signed_by(self, keys: Iterable[RSAPublicKey], scheme: Scheme) -> bool:
        payload = scheme.payload(str(self.hash).encode())
        return any(_holds(key, self.signature, payload) for key in keys)


def sign_letter(letter: bytes, key: RSAPrivateKey, scheme: Scheme, algorithm: Algorithm = SHA1) -> bytes:
    """The whole file: letter, separator, hash text, signature. ``algorithm`` is that of the hash over the letter."""
    text = str(hash_bytes(letter, algorithm)).encode()
    signature = key.sign(scheme.payload(text), PKCS1v15(), NoDigestInfo())
    return letter + _END[1:] + text + b"\n" + signature


def _holds(key: RSAPublicKey, signature: bytes, payload: bytes) -> bool:
    # The padding is built and compared as a whole: nothing of it is read, so nothing of it can be forged.
    numbers = key.public_numbers()
    length = (key.key_size + 7) // 8
    if len(signature) != length or len(payload) > length - _PADDING_BYTES:
        return False
    expected = b"\x00\x01" + b"\xff" * (length - len(payload) - 3) + b"\x00" + payload
    opened = pow(int.from_bytes(signature), numbers.e, numbers.n).to_bytes(length)
    return hmac.compare_digest(opened, expected)


Certificate = x509.Certificate
KEY_BITS = 2048
CERTIFICATE_LIFETIME = timedelta(days=365)  # stated in the certificate; no reader checks it
_NAME_LENGTH = 64  # the longest common name that X.509 allows
_PUBLIC_BLOCK = re.compile(rb"-----BEGIN [A-Z ]*PUBLIC KEY-----.*?-----END [A-Z ]*PUBLIC KEY-----", re.DOTALL)
_PUBLIC_MODE, _SECRET_MODE = 0o644, 0o600


class KeyFile(Enum):
    """The files of a repository's keys: ``<fqrn>`` and this ending."""

    MASTER = ".masterkey"
    PUBLIC = ".pub"
    REPOSITORY = ".key"
    CERTIFICATE = ".crt"
    GATEWAY = ".gw"

    def path(self, folder: Path, fqrn: str) -> Path:
        return folder / f"{fqrn}{self.value}"

    @property
    def mode(self) -> int:
        return _PUBLIC_MODE if self in {KeyFile.PUBLIC, KeyFile.CERTIFICATE} else _SECRET_MODE


class ManifestSigner(Protocol):
    """Signs the manifests of one repository. ``certificate_pem``: PEM text of the certificate that readers check with.

    ``reflog_checksum``: where stock tools of this machine keep the hash of the reflog: written after each switch.
    """

    @property
    def certificate_pem(self) -> bytes: ...

    @property
    def reflog_checksum(self) -> Path | None: ...

    def sign(self, letter: bytes, algorithm: Algorithm) -> bytes:
        """The whole file for a manifest's letter; ``algorithm`` is that of the hash over it."""
        ...


@dataclass(frozen=True, slots=True)
class Signer:
    """A ``ManifestSigner`` that holds the repository's private key."""

    private_key: rsa.RSAPrivateKey = field(repr=False)
    certificate_pem: bytes = field(repr=False)
    reflog_checksum: Path | None = field(default=None, repr=False)

    def sign(self, letter: bytes, algorithm: Algorithm) -> bytes:
        return sign_letter(letter, self.private_key, Scheme.SHA1_DIGEST_INFO, algorithm)

    @property
    def certificate(self) -> Certificate:
        return parse_certificate(self.certificate_pem)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Hash of a certificate's DER form, as a whitelist lists it; the comment is for people."""

    hash: ObjectHash
    comment: str = ""

    @classmethod
    def parse(cls, text: str) -> Fingerprint:
        """Read ``AA:BB:…[-ALGORITHM][ # comment]``, in any case. Raises FormatError."""
        name, _, comment = text.partition("#")
        word = name.split(maxsplit=1)[0] if name.strip() else ""
        plain = word.replace(":", "").lower()
        return cls(ObjectHash.parse(plain, suffix=""), comment.strip())

    def __str__(self) -> str:
        """Without the comment: ``AA:BB:…[-ALGORITHM]``."""
        return self.hash.digest.hex(":").upper() + self.hash.algorithm.value.upper()


@dataclass(frozen=True, slots=True)
class GatewayKey:
    """Key by which a publisher proves to a gateway that it may lease paths."""

    key_id: str
    secret: str = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> GatewayKey:
        """Read ``plain_text <id> <secret>``. Raises FormatError, which never repeats the secret."""
        words = text.split()
        if len(words) != 3 or words[0] != "plain_text":
            raise FormatError("gateway key", "is not one line 'plain_text <id> <secret>'")
        return cls(words[1], words[2])

    def format(self) -> str:
        for word in (self.key_id, self.secret):
            if word.split() != [word]:
                raise FormatError("gateway key", "id and secret must be words without blanks")
        return f"plain_text {self.key_id} {self.secret}\n"


# -- making keys


def generate_master() -> rsa.RSAPrivateKey:
    """The key that signs whitelists. It belongs on no machine that publishes."""
    return rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)


def generate_repository_key(fqrn: str, now: datetime, key: rsa.RSAPrivateKey | None = None) -> Signer:
    """A new key pair, or the given key, with a self-signed certificate, valid from ``now`` (aware) for a year."""
    key = key or generate_master()
    text = f"{fqrn} CernVM-FS Release Managers"[:_NAME_LENGTH]
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
    builder = x509.CertificateBuilder(name, name, key.public_key(), secrets.randbits(64) or 1)
    builder = builder.not_valid_before(now).not_valid_after(now + CERTIFICATE_LIFETIME)
    certificate = builder.sign(key, hashes.SHA256())
    return Signer(key, certificate.public_bytes(serialization.Encoding.PEM))


# -- certificates and public keys as bytes


def parse_certificate(pem: bytes) -> Certificate:
    """Read PEM text, as it is in a ``.crt`` file and in the certificate object. Raises FormatError."""
    try:
        return x509.load_pem_x509_certificate(pem)
    except (ValueError, x509.InvalidVersion) as fault:
        raise FormatError("certificate", f"not an X.509 certificate in PEM form ({_short(fault)})") from fault


def as_certificate(certificate: Certificate | bytes) -> Certificate:
    return parse_certificate(certificate) if isinstance(certificate, bytes) else certificate


def public_key_of(certificate: Certificate) -> rsa.RSAPublicKey:
    try:
        key = certificate.public_key()
    except (ValueError, UnsupportedAlgorithm) as fault:
        raise FormatError("certificate", f"its public key cannot be read ({_short(fault)})") from fault
    if not isinstance(key, rsa.RSAPublicKey):
        raise FormatError("certificate", "its key is not an RSA key")
    return key


def fingerprint(certificate: Certificate | bytes, algorithm: Algorithm = SHA1, comment: str = "") -> Fingerprint:
    der = as_certificate(certificate).public_bytes(serialization.Encoding.DER)
    return Fingerprint(hash_bytes(der, algorithm), comment)


def parse_public_keys(pem: bytes) -> list[rsa.RSAPublicKey]:
    """Read one or more PEM public keys, one after the other. Raises FormatError."""
    blocks = _PUBLIC_BLOCK.findall(pem)
    if not blocks:
        raise FormatError("public key", "holds no PEM block 'PUBLIC KEY'")
    return [_public_key(block) for block in blocks]


def format_public_key(key: rsa.RSAPublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


# -- files


def save_master(folder: Path, fqrn: str, key: rsa.RSAPrivateKey) -> None:
    """Write ``<fqrn>.masterkey`` and ``<fqrn>.pub``. Raises KeyFileError if one of them is there already."""
    public = format_public_key(key.public_key())
    _write_new({KeyFile.MASTER.path(folder, fqrn): _private_pem(key), KeyFile.PUBLIC.path(folder, fqrn): public})


def load_master(folder: Path, fqrn: str) -> rsa.RSAPrivateKey:
    return load_private_key(KeyFile.MASTER.path(folder, fqrn))


def save_signer(folder: Path, fqrn: str, signer: Signer) -> None:
    """Write ``<fqrn>.key`` and ``<fqrn>.crt``. Raises KeyFileError if one of them is there already."""
    key, certificate = KeyFile.REPOSITORY.path(folder, fqrn), KeyFile.CERTIFICATE.path(folder, fqrn)
    _write_new({key: _private_pem(signer.private_key), certificate: signer.certificate_pem})


def load_signer(folder: Path, fqrn: str, *, reflog_checksum: Path | None = None) -> Signer:
    """Read ``<fqrn>.key`` and ``<fqrn>.crt``, which must belong together. Raises KeyFileError."""
    key = load_private_key(KeyFile.REPOSITORY.path(folder, fqrn))
    path = KeyFile.CERTIFICATE.path(folder, fqrn)
    pem = _read(path)
    with _naming(path, "put the repository's own certificate there"):
        certified = public_key_of(parse_certificate(pem))
    if certified.public_numbers() != key.public_key().public_numbers():
        raise KeyFileError(str(path), f"is not the certificate of {fqrn}{KeyFile.REPOSITORY.value}; restore the pair")
    return Signer(key, pem, reflog_checksum)


def save_gateway_key(folder: Path, fqrn: str, key: GatewayKey) -> None:
    """Write ``<fqrn>.gw``. Raises KeyFileError if it is there already."""
    _write_new({KeyFile.GATEWAY.path(folder, fqrn): key.format().encode()})


def save_key_file(folder: Path, fqrn: str, kind: KeyFile, data: bytes) -> None:
    """Write one of a repository's files as it is. Raises KeyFileError if it is there already."""
    _write_new({kind.path(folder, fqrn): data})


def load_gateway_key(path: Path) -> GatewayKey:
    with _naming(path, "write 'plain_text <id> <secret>' into it, as the gateway's operator gave them"):
        try:
            return GatewayKey.parse(_read(path).decode())
        except UnicodeDecodeError as fault:
            raise FormatError("gateway key", "is not text") from fault


def load_private_key(path: Path) -> rsa.RSAPrivateKey:
    """Read an unencrypted RSA private key in PEM form. Raises KeyFileError."""
    try:
        key = serialization.load_pem_private_key(_read(path), password=None)
    except TypeError:
        raise KeyFileError(
            str(path), "is protected by a password; store it without one, readable by you only"
        ) from None
    except (ValueError, UnsupportedAlgorithm) as fault:
        raise KeyFileError(str(path), f"not a private key in PEM form ({_short(fault)}); restore it") from None
    if not isinstance(key, rsa.RSAPrivateKey):
        raise KeyFileError(str(path), "not an RSA key; the format knows no other")
    return key


@contextlib.contextmanager
def locked_keys(folder: Path) -> Iterator[None]:
    """Make the folder of keys, and let no other process that asks for this change it meanwhile."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as fault:
        raise KeyFileError(str(folder), f"cannot be used: {fault.strerror}; check the folder") from fault
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


# -- private


def _private_pem(key: rsa.RSAPrivateKey) -> bytes:
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(encoding, form, serialization.NoEncryption())


def _public_key(pem: bytes) -> rsa.RSAPublicKey:
    try:
        key = serialization.load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm) as fault:
        raise FormatError("public key", f"not a public key in PEM form ({_short(fault)})") from fault
    if not isinstance(key, rsa.RSAPublicKey):
        raise FormatError("public key", "not an RSA key")
    return key


def _write_new(files: dict[Path, bytes]) -> None:
    """Write all of the files or none."""
    for path in files:
        if path.exists():
            raise KeyFileError(str(path), "exists already and is not overwritten; move it away if it is no longer used")
    written: list[Path] = []
    try:
        for path, data in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_whole(path, data, KeyFile(path.suffix).mode)
            written.append(path)
    except OSError as fault:
        for path in written:
            path.unlink(missing_ok=True)
        raise KeyFileError(str(path), f"cannot be written: {fault.strerror}; check the folder") from fault


def _write_whole(path: Path, data: bytes, mode: int) -> None:
    """A file that is there whole or not at all, whenever the process dies; an existing one stays."""
    staged = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        staged.chmod(mode)  # whatever the umask took away
        os.link(staged, path)
    finally:
        staged.unlink()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise KeyFileError(str(path), "does not exist; create the repository's keys or name the right folder") from None
    except OSError as fault:
        raise KeyFileError(str(path), f"cannot be read: {fault.strerror}; check owner and mode") from fault


@contextlib.contextmanager
def _naming(path: Path, cure: str) -> Iterator[None]:
    try:
        yield
    except FormatError as fault:
        raise KeyFileError(str(path), f"{fault.what}: {fault.detail}; {cure}") from fault


def _short(fault: Exception) -> str:
    return str(fault).split("\n", 1)[0][:120]
