"""Genuine servers of files at the far end of a link: nginx, Apache, and XRootD by HTTP and xroot, of one folder."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp
from typing import Self

from bench.distance.link import LinkEnd
from lab.ports import free_port
from lab.servers.process import ServerProcess, find_program

USER, GROUP = "daemon", "daemon"
_NGINX = """
daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx-error.log; worker_processes 1; user {user} {group};
events {{ worker_connections 1024; }}
http {{ sendfile on; keepalive_requests 1000000; access_log off;
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  server {{ listen {address}:{nginx}; root {data}; }}
}}
"""
_APACHE = """
ServerRoot /usr/lib/apache2
ServerName {address}
DefaultRuntimeDir {folder}
PidFile {folder}/apache.pid
Listen {address}:{apache}
LoadModule mpm_event_module modules/mod_mpm_event.so
LoadModule authz_core_module modules/mod_authz_core.so
Mutex file:{folder}
User {user}
Group {group}
ErrorLog {folder}/apache-error.log
DocumentRoot {data}
KeepAlive On
MaxKeepAliveRequests 0
KeepAliveTimeout 60
<Directory {data}>
  Require all granted
</Directory>
"""
_XROOTD = """
all.export /
oss.localroot {data}
all.adminpath {folder}/admin
all.pidpath {folder}/admin
xrd.port {xroot}
xrd.network nodnr norpipa
xrd.protocol http:{xrdhttp} libXrdHttp.so
http.desthttps no
xrootd.chksum max 64 adler32 crc32c md5
"""
_PROGRAMS = {
    "nginx": ("nginx", _NGINX, ("-c", "{config}")),
    "apache": ("apache2", _APACHE, ("-f", "{config}", "-DFOREGROUND")),
    "xroot": ("xrootd", _XROOTD, ("-c", "{config}", "-R", USER, "-I", "v4", "-n", "distant")),
}
_LISTENS = "0A"


class DistantServers:
    """The servers whose programs are installed, while a context lasts; none runs as root."""

    def __init__(self, end: LinkEnd, data: Path) -> None:
        self._end, self._data = end, data
        self._ports = {name: free_port() for name in ("nginx", "apache", "xrdhttp", "xroot")}
        self.processes: dict[str, ServerProcess] = {}
        self._stack = ExitStack()

    @property
    def missing(self) -> list[str]:
        """The programs that are not installed."""
        return [program for program, _, _ in _PROGRAMS.values() if find_program(program) is None]

    def urls(self, name: str) -> dict[str, str]:
        """The URLs of a file by server."""
        places = {server: f"{self._end.address}:{port}/{name}" for server, port in self._ports.items()}
        by = {"nginx": "nginx", "apache": "apache", "xrdhttp": "xroot", "xroot": "xroot"}
        return {
            server: f"root://{place.replace('/', '//', 1)}" if server == "xroot" else f"http://{place}"
            for server, place in places.items()
            if by[server] in self.processes
        }

    def __enter__(self) -> Self:
        folder = Path(mkdtemp(prefix="nightshift-distant-"))
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        (folder / "admin").mkdir()
        for place in (folder, folder / "admin"):
            shutil.chown(place, USER, GROUP)
        values = {"folder": folder, "data": self._data, "address": self._end.address, "user": USER, "group": GROUP}
        try:
            for name, (program, text, words) in _PROGRAMS.items():
                path = find_program(program)
                if path is not None:
                    config = folder / f"{name}.conf"
                    config.write_text(text.format(**values, **self._ports))
                    command = (path, *(word.format(config=config) for word in words))
                    self.processes[name] = self._stack.enter_context(self.server(name, command, self._ports[name]))
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def server(self, name: str, command: tuple[str, ...], port: int) -> ServerProcess:
        """A server at this end, ready when it listens."""
        log = self._data.parent / f"{name}.log"
        process = ServerProcess(name, command, log=log, ready=lambda: _listens(process.pid, port))
        return self._end.server(process)


def _listens(process: int, port: int) -> bool:
    """Tell whether something listens on a port in the network namespace of a process."""
    try:
        lines = Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return False
    return any(words[1].endswith(f":{port:04X}") and words[3] == _LISTENS for words in map(str.split, lines))
