"""Two ClickHouse servers on loopback: the one of Debian's packages, from 2018, and a current
embedded engine behind an HTTP front.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from tests.debian_packages import command, unpacked

from sluicegate.testing import EmbeddedUnavailable
from sluicegate.testing.servers.program import START_SECONDS, ServerProgram, free_port

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Generator

PACKAGES = ("clickhouse-server", "clickhouse-common")
LIBRARIES = (
    *(
        f"libpoco{each}80"
        for each in (
            *("foundation", "net", "netssl", "util", "xml", "json", "crypto", "data", "dataodbc"),
            "mongodb",
        )
    ),
    *("libre2-9", "libjemalloc2", "libboost-filesystem1.74.0", "libboost-program-options1.74.0"),
    *("libcapnp-0.9.2", "libcctz2", "libcpuinfo0", "libdouble-conversion3", "libfarmhash0"),
    *(
        "libicu72",
        "libmariadb3",
        "libmetrohash1",
        "librdkafka1",
        "libpcre3",
        "libodbc2",
        "libltdl7",
    ),
)
PROGRAM = "usr/sbin/clickhouse-server"
UNKNOWN_OPTION = 78
"""The exit code of a server that gets an unknown option."""
LOOK_EVERY = 0.01
CONFIG = """\
<yandex>
<logger><level>warning</level><console>1</console></logger>
<http_port>{port}</http_port><listen_host>127.0.0.1</listen_host>
<path>{home}/data/</path><tmp_path>{home}/tmp/</tmp_path>
<users_config>users.xml</users_config>
<default_profile>default</default_profile><default_database>default</default_database>
<mark_cache_size>5368709120</mark_cache_size>
</yandex>
"""
USERS = """\
<yandex>
<profiles><default></default><reads><readonly>2</readonly></reads></profiles>
<users>
{users}
</users>
<quotas><default></default></quotas>
</yandex>
"""
USER = """\
<{name}><password>{password}</password><networks><ip>::/0</ip></networks>
<profile>{profile}</profile><quota>default</quota>
<allow_databases><database>{database}</database></allow_databases></{name}>
"""


class ClickHouseServer:
    """A server, whose data survive `kill` and `start`."""

    def __init__(self, name: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.program = ServerProgram(name, self._is_ready)
        self._client = httpx.Client(verify=False, timeout=30)

    def run(self, statement: str) -> str:
        """Run a statement; return its result as tab-separated values."""
        answer = self._client.post(self.url, content=statement.encode())
        if answer.status_code != 200:
            raise RuntimeError(answer.text)
        return answer.text

    def rows(self, query: str) -> list[tuple[str, ...]]:
        """The rows of a query, as text."""
        return [tuple(line.split("\t")) for line in self.run(query).splitlines()]

    def post(self, insert: str, settings: dict[str, str], body: bytes) -> int:
        """Send the body of an INSERT; return the status of the response."""
        asked = {"query": insert, **settings}
        return self._client.post(self.url, params=asked, content=body).status_code

    def close(self) -> None:
        """Kill it, and remove its data."""
        self._client.close()
        self.program.close()

    def _is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        until = time.monotonic() + START_SECONDS
        while process.poll() is None and time.monotonic() < until:
            with contextlib.suppress(httpx.HTTPError):
                if self.run("SELECT 1") == "1\n":
                    return True
            time.sleep(LOOK_EVERY)
        return False


class OldServer(ClickHouseServer):
    """The server of Debian's packages: 18.16, without Arrow, tokens and asynchronous inserts.

    Its users besides `default`: `reader` may not write, and `elsewhere` has no access to the
    database `default`. Their password is `secret`.
    """

    def __init__(self) -> None:
        folder = unpacked("clickhouse", PACKAGES, LIBRARIES, PROGRAM, UNKNOWN_OPTION)
        super().__init__("ClickHouse")
        home = self.program.home
        users = [
            ("default", "", "default", "default"),
            ("reader", "secret", "reads", "default"),
            ("elsewhere", "secret", "default", "system"),
        ]
        names = ("name", "password", "profile", "database")
        told = "".join(USER.format(**dict(zip(names, each, strict=True))) for each in users)
        (home / "users.xml").write_text(USERS.format(users=told))
        (home / "config.xml").write_text(CONFIG.format(port=self.port, home=home))
        self.program.configure([*command(folder, PROGRAM), f"--config-file={home / 'config.xml'}"])


class EngineServer(ClickHouseServer):
    """The embedded engine: a current ClickHouse, without users."""

    def __init__(self) -> None:
        if importlib.util.find_spec("chdb") is None:
            raise EmbeddedUnavailable("chdb is not installed; pip install chdb-core-lite")
        super().__init__("ClickHouseEngine")
        program = Path(__file__).with_name("engine_program.py")
        data = self.program.home / "data"
        self.program.configure([sys.executable, str(program), str(self.port), str(data)])


@contextlib.contextmanager
def running(kind: type[Any]) -> Generator[Any]:
    """A server; killed and removed when the context ends. Raises `EmbeddedUnavailable`."""
    server: ClickHouseServer = kind()
    try:
        server.program.start()
        yield server
    finally:
        server.close()
