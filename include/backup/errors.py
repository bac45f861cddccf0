"""Errors of backups and upgrades. No message carries a key or a passphrase.

BackupError
├── BACKUP_DAMAGED        the file is cut, was changed, or is no backup
├── BACKUP_NEWER          a newer Nightshift wrote it
├── BACKUP_OF_ANOTHER     it is of another site than the configuration's
├── BACKUP_UNKNOWN        there is no such backup
├── BACKUP_NO_ROOM        a disk has no room
├── KEYS_LOCKED           its keys cannot be opened with what was given
└── RESTORE_IN_USE        the place of what is to be restored is taken
UpgradeRefused            this version cannot have the site as it is; nothing was changed
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from include.errors import ErrorRow, NightshiftError


class BackupError(NightshiftError):
    """Base of everything in this file; `name` is the backup's."""

    code = "backup-error"

    def __init__(self, name: str, detail: str) -> None:
        self.name = name
        self.detail = detail
        super().__init__(f"backup {name}: {detail}; {self.hint}" if self.hint else f"backup {name}: {detail}")


BACKUP_DAMAGED = ErrorRow(BackupError, "backup-damaged", "use another one: nightshift backup list")
BACKUP_NEWER = ErrorRow(BackupError, "backup-newer", "install that version, then restore with it")
BACKUP_OF_ANOTHER = ErrorRow(BackupError, "backup-of-another-site", "use a backup of this site, or its configuration")
BACKUP_UNKNOWN = ErrorRow(BackupError, "backup-unknown", "see: nightshift backup list")
BACKUP_NO_ROOM = ErrorRow(BackupError, "backup-no-room", "make room there, then run it again")
KEYS_LOCKED = ErrorRow(
    BackupError, "backup-keys-locked", "give what they were encrypted to, or restore without them: --no-keys"
)
RESTORE_IN_USE = ErrorRow(BackupError, "restore-in-use", "stop all services and move it away, then run it again")


class UpgradeRefused(NightshiftError):
    """The message names the file and has the hint."""

    code = "upgrade-refused"


@contextmanager
def of_files(name: str, folder: Path) -> Iterator[None]:
    """Raise BackupError for a file that cannot be read or written: BACKUP_NO_ROOM where a disk is full.

    `name`: of the backup; `folder`: the place that is named where the system names none.
    """
    try:
        yield
    except OSError as error:
        place = error.filename or folder
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise BACKUP_NO_ROOM(name, f"the disk of {place} is full") from None
        why = error.strerror or error
        raise BackupError(name, f"{place}: {why}; correct that, then run it again") from None
