"""Object storage servers on loopback.

| class | server | survives `kill` |
|---|---|---|
| `S3Server` | moto | nothing |
| `MinioServer` | MinIO, if `minio` is in the path | each confirmed object |
| `AzuriteServer` | Azurite, Microsoft's emulator of Azure's blobs | objects older than some seconds |
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import socket
import sys
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import pytest
from tests.debian_packages import cached, run

from sluicegate.testing import EmbeddedUnavailable
from sluicegate.testing.servers.program import START_SECONDS, ServerProgram, free_port
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Generator, Iterator, Mapping, Sequence
    from pathlib import Path

LOOK_EVERY = 0.02
SECRET = "s3-SECRET-key"
AZURITE = "3.37.0"
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""Azurite's own, as its documentation has it."""


class ObjectServer(ABC):
    """A server, whose port stays the same across restarts."""

    scheme = "s3"
    environment: Mapping[str, str]
    """The variables that name it and its credentials."""

    def __init__(self, name: str) -> None:
        self.port = free_port()
        self._server = ServerProgram(name, self._is_ready)
        try:
            self._server.configure(self._command(self._server.home))
        except EmbeddedUnavailable:
            self.close()
            raise

    @abstractmethod
    def _command(self, home: Path) -> Sequence[str]:
        """Return the program and its arguments. Raises `EmbeddedUnavailable`."""

    @abstractmethod
    def config(self, endpoint: str | None = None) -> dict[str, str]:
        """The options for a sink; `endpoint` is the address of a proxy."""

    @abstractmethod
    def bucket(self, name: str) -> None:
        """Create a bucket."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a bucket and its objects."""

    @abstractmethod
    def contents(self, name: str) -> dict[str, bytes]:
        """The objects of a bucket, read with the vendor's own client."""

    @abstractmethod
    def uploads(self, name: str) -> Sequence[Any]:
        """The invisible parts of uploads that have neither ended nor been aborted."""

    def place(self, bucket: str) -> str:
        """The URL of a bucket."""
        return f"{self.scheme}://{bucket}"

    @property
    def url(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.port}"

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


class S3Server(ObjectServer):
    """moto. Its content is lost when it is killed."""

    access_key = "test"

    def __init__(self, name: str = "S3") -> None:
        super().__init__(name)
        self.environment = {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def _command(self, home: Path) -> Sequence[str]:
        if importlib.util.find_spec("moto") is None:
            raise EmbeddedUnavailable("moto is not installed")
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]

    def config(self, endpoint: str | None = None) -> dict[str, str]:
        """See `ObjectServer`."""
        return {
            "endpoint": endpoint or self.url,
            "region": "us-east-1",
            "access_key_id": self.access_key,
            "secret_access_key": SECRET,
        }

    def client(self) -> Any:
        """Amazon's own client."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=self.access_key,
            aws_secret_access_key=SECRET,
        )

    def bucket(self, name: str) -> None:
        """See `ObjectServer`."""
        self.client().create_bucket(Bucket=name)

    def remove(self, name: str) -> None:
        """See `ObjectServer`."""
        client = self.client()
        for key in self.contents(name):
            client.delete_object(Bucket=name, Key=key)
        client.delete_bucket(Bucket=name)

    def contents(self, name: str) -> dict[str, bytes]:
        """See `ObjectServer`."""
        client = self.client()
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=name)
        keys = [each["Key"] for page in pages for each in page.get("Contents", [])]
        return {key: client.get_object(Bucket=name, Key=key)["Body"].read() for key in keys}

    def uploads(self, name: str) -> Sequence[Any]:
        """See `ObjectServer`."""
        listed: list[Any] = self.client().list_multipart_uploads(Bucket=name).get("Uploads", [])
        return listed


class MinioServer(S3Server):
    """MinIO, which checks signatures."""

    access_key = "minio-user"

    def __init__(self) -> None:
        super().__init__("MinIO")

    def _command(self, home: Path) -> Sequence[str]:
        found = shutil.which("minio")
        if found is None:
            raise EmbeddedUnavailable("minio is not in the path")
        user = (f"MINIO_ROOT_USER={self.access_key}", f"MINIO_ROOT_PASSWORD={SECRET}")
        address = f"127.0.0.1:{self.port}"
        return ["env", *user, found, "server", str(home / "data"), "--address", address, "--quiet"]

    def _is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        """It listens before it serves objects."""
        import httpx

        until = time.monotonic() + START_SECONDS
        while process.poll() is None and time.monotonic() < until:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/minio/health/cluster").is_success:
                    return True
            time.sleep(LOOK_EVERY)
        return False


class AzuriteServer(ObjectServer):
    """Azurite. A bucket is a container."""

    scheme = "az"

    def __init__(self) -> None:
        super().__init__("Azurite")
        self.environment = {
            "AZURE_STORAGE_ENDPOINT": f"{self.url}/{ACCOUNT}",
            "AZURE_ALLOW_HTTP": "true",
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY,
        }

    def _command(self, home: Path) -> Sequence[str]:
        node, npm = shutil.which("node"), shutil.which("npm")
        if node is None or npm is None:
            raise EmbeddedUnavailable("Azurite needs node and npm")

        def fetch(aside: Path) -> Path:
            made = aside / "made"
            options = ("--no-audit", "--no-fund", "--ignore-scripts", f"azurite@{AZURITE}")
            run([npm, "install", "--prefix", str(made), *options], aside)
            return made

        folder = cached(f"azurite-{AZURITE}", fetch)
        program = folder / "node_modules/azurite/dist/src/blob/main.js"
        options = ("--silent", "--disableTelemetry", "--skipApiVersionCheck")
        return [node, str(program), "--blobPort", str(self.port), "--location", str(home), *options]

    def config(self, endpoint: str | None = None) -> dict[str, str]:
        """See `ObjectServer`."""
        return {
            "endpoint": f"{endpoint or self.url}/{ACCOUNT}",
            "account_name": ACCOUNT,
            "account_key": ACCOUNT_KEY,
        }

    def client(self) -> Any:
        """Microsoft's own client."""
        from azure.storage.blob import BlobServiceClient

        return BlobServiceClient(f"{self.url}/{ACCOUNT}", credential=ACCOUNT_KEY)

    def bucket(self, name: str) -> None:
        """See `ObjectServer`."""
        self.client().create_container(name)

    def remove(self, name: str) -> None:
        """See `ObjectServer`."""
        self.client().delete_container(name)

    def contents(self, name: str) -> dict[str, bytes]:
        """See `ObjectServer`."""
        container = self.client().get_container_client(name)
        return {key: container.download_blob(key).readall() for key in container.list_blob_names()}

    def uploads(self, name: str) -> Sequence[Any]:
        """See `ObjectServer`. Azure removes uncommitted blocks after a week; none can be aborted."""
        return []


SERVERS = {"s3": S3Server, "azurite": AzuriteServer, "minio": MinioServer}
"""By their names in `SLUICEGATE_REQUIRE`."""


@contextlib.contextmanager
def object_server(name: str) -> Generator[Any]:
    """A server; killed and removed when the context ends. Raises `EmbeddedUnavailable`."""
    server = SERVERS[name]()
    try:
        server.start()
        yield server
    finally:
        server.close()


def _fixture(name: str) -> Any:
    """One server for all tests. Skips without it, unless `SLUICEGATE_REQUIRE` names it."""

    @pytest.fixture(scope="session", name=name)
    def started() -> Iterator[Any]:
        with there_or_skip(name, object_server(name)) as server:
            yield server

    return started


s3, azurite, minio = map(_fixture, SERVERS)


@pytest.fixture(params=SERVERS)
def object_store(request: pytest.FixtureRequest) -> Any:
    """Each of the servers."""
    return request.getfixturevalue(request.param)
