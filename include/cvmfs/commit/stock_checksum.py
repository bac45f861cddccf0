"""The file in which the stock tools of this machine keep the hash of the reflog (docs/formats.md, reflog).

``/var/spool/cvmfs/<fqrn>/reflog.chksum``. They refuse to publish, tag, check and collect where it differs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import stat
from pathlib import Path

from include.cvmfs.format.hashes import ObjectHash

STOCK_SPOOL = Path("/var/spool/cvmfs")
NAME = "reflog.chksum"

log = logging.getLogger(__name__)


def keep_checksum(file: Path, reflog: ObjectHash) -> bool:
    """Write the hash of the reflog that the manifest names, whole or not at all; whether the file has it now.

    Mode and, where this user may, owner stay as they were. A failure is logged and not raised: the switch is done, and
    the next one writes the file again.
    """
    text = str(reflog).encode()
    staged = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        with contextlib.suppress(FileNotFoundError):
            if file.read_bytes() == text:
                return True
        try:
            before = file.stat()
        except FileNotFoundError:
            before = None
        try:
            staged.write_bytes(text)
            staged.chmod(0o644 if before is None else stat.S_IMODE(before.st_mode))
            if before is not None and (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                with contextlib.suppress(PermissionError):
                    os.chown(staged, before.st_uid, before.st_gid)
            staged.replace(file)
        finally:
            staged.unlink(missing_ok=True)
    except OSError as error:
        log.warning(
            "%s is not written: %s; let this user write the folder, or write %s into it, or cvmfs_server refuses "
            "to work on this repository", file, error.strerror or error, text.decode()
        )  # fmt: skip
        return False
    return True


def stale_checksum(fqrn: str, reflog: ObjectHash) -> str | None:
    """The warning if stock tools of this machine know another reflog, with the hint; None if none do."""
    file = STOCK_SPOOL / fqrn / NAME
    try:
        known = file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    if known == str(reflog):
        return None
    return (
        f"cvmfs_server of this machine knows another reflog and will refuse to work: write {reflog} into {file}, or "
        f"let Nightshift keep it with `reflog_checksum: {file}` in the repository's settings"
    )
