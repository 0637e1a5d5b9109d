"""An object storage server on loopback with S3 buckets: moto, which keeps its objects in memory."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from sluicegate.testing import EmbeddedUnavailable
from sluicegate.testing.servers.program import START_SECONDS, ServerProgram, free_port
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Generator, Iterator

LOOK_EVERY = 0.02
SECRET = "s3-SECRET-key"


class S3Server:
    """A server. Its content is lost when it is killed."""

    def __init__(self) -> None:
        if importlib.util.find_spec("moto") is None:
            raise EmbeddedUnavailable("moto is not installed")
        self.port = free_port()
        self._server = ServerProgram("S3", self._is_ready)
        args = ["-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self._server.configure([sys.executable, *args])

    @property
    def url(self) -> str:
        """Its URL; stays the same across restarts."""
        return f"http://127.0.0.1:{self.port}"

    def config(self, endpoint: str | None = None) -> dict[str, str]:
        """The options for a sink."""
        return {
            "endpoint": endpoint or self.url,
            "region": "us-east-1",
            "access_key_id": "test",
            "secret_access_key": SECRET,
        }

    def client(self) -> Any:
        """Amazon's own client, to read the objects."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key=SECRET,
        )

    def bucket(self, name: str) -> str:
        """Create a bucket; return its URL."""
        self.client().create_bucket(Bucket=name)
        return f"s3://{name}"

    def start(self) -> None:
        """Start it, and return once it responds."""
        self._server.start()

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._server.kill()

    def pause(self) -> None:
        """Freeze it (SIGSTOP)."""
        self._server.pause()

    def resume(self) -> None:
        """Resume it."""
        self._server.resume()

    def close(self) -> None:
        """Kill it, and remove its folder."""
        self._server.close()

    def _is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        until = time.monotonic() + START_SECONDS
        while process.poll() is None and time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return True
            time.sleep(LOOK_EVERY)
        return False


@contextlib.contextmanager
def s3_server() -> Generator[S3Server]:
    """A server; killed and removed when the context ends. Raises `EmbeddedUnavailable`."""
    server = S3Server()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """One server for all tests. Skips without moto, unless `SLUICEGATE_REQUIRE` names `s3`."""
    with there_or_skip("s3", s3_server()) as server:
        yield server
