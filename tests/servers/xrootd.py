"""XRootD as a site's storage, by HTTP with third-party copy and checksums: from Debian's packages, in a folder."""

from __future__ import annotations

import os
import pwd
import re
import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import mkdtemp
from typing import Self

import requests

from lab.ports import free_port
from lab.servers.process import ServerProcess
from tests.fakes.certificates import Authority

_CONFIGURATION = """\
all.export /
oss.localroot {folder}/data
all.adminpath {folder}/admin
all.pidpath {folder}/admin
xrd.port {port}
xrd.protocol http:{http_port} libXrdHttp.so
xrd.tls {certificate} {key}
xrd.tlsca certfile {authorities}
http.exthandler xrdtpc libXrdHttpTPC.so
http.desthttps no
tpc.trace info
xrootd.chksum max 64 adler32 crc32c md5
"""

_PULLED = re.compile(r"event=TRANSFER_SUCCESS, local=([^,]+),")


class XrootdServer:
    """A storage of its own ``host``: to FTS, storages of one host are one, so give each another address of loopback.

    It refuses to run as root, and then runs as `nobody`; its folder is therefore not below that of the test.
    """

    def __init__(self, program: str, host: str) -> None:
        self._folder = Path(mkdtemp(prefix="nightshift-xrootd-"))
        port, root_port = free_port(), free_port()
        self.url, self.root_url = f"http://{host}:{port}", f"root://{host}:{root_port}/"
        self.data = self._folder / "data"
        for folder in (self.data, self._folder / "admin"):
            folder.mkdir()
        authority = Authority(datetime.now(UTC))
        files = authority.files(self._folder, "host", timedelta(days=2))
        Path(str(files.key)).chmod(0o600)
        text = _CONFIGURATION.format(
            folder=self._folder, port=root_port, http_port=port, certificate=files.certificate, key=files.key,
            authorities=authority.bundle(self._folder),
        )  # fmt: skip
        (self._folder / "xrootd.cf").write_text(text)
        options = ["-c", str(self._folder / "xrootd.cf"), "-n", f"at{port}", "-I", "v4"]
        if os.geteuid() == 0:
            options += ["-R", "nobody"]
            user = pwd.getpwnam("nobody")
            for path in (self._folder, *self._folder.rglob("*")):
                os.chown(path, user.pw_uid, user.pw_gid)
        self.process = ServerProcess(
            "xrootd", [program, *options], log=self._folder / "xrootd.log", ready=self._answers, cwd=self._folder
        )

    def path(self, name: str) -> str:
        """The URL of a file."""
        return f"{self.url}/store/{name}"

    def put(self, name: str, content: bytes) -> str:
        """Create a file; its URL."""
        requests.put(self.path(name), data=content, timeout=20).raise_for_status()
        return self.path(name)

    def get(self, name: str) -> bytes | None:
        """The content of a file; None if it does not exist."""
        reply = requests.get(self.path(name), timeout=20)
        return None if reply.status_code == 404 else reply.content

    def pulled(self) -> Counter[str]:
        """The paths of the files that it copied from another storage by itself, as often as it did."""
        return Counter(_PULLED.findall(self.process.log.read_text(errors="replace")))

    def __enter__(self) -> Self:
        try:
            self.process.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            return requests.head(f"{self.url}/", timeout=3).status_code < 500
        except requests.RequestException:
            return False
