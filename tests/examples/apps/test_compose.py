"""The Compose file fits the FastAPI sample."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pytest
import yaml
from tests.children import child
from tests.examples.apps.service import APPS, PLAIN, UNHURRIED, query, service
from tests.examples.example import load

if TYPE_CHECKING:
    from collections import Counter
    from pathlib import Path

MARGIN = 3.0  # seconds for the interpreter's exit and Docker
FILE = yaml.safe_load((APPS / "compose.yaml").read_text())
EVENTS, DATABASE = FILE["services"]["events"], FILE["services"]["db"]
ENV = EVENTS["environment"]
ALONE = ("unshare", "--pid", "--fork", "--kill-child")  # in its own process namespace


def seconds(duration: str) -> float:
    assert duration.endswith("s")
    return float(duration[:-1])


def option(name: str) -> float:
    command = EVENTS["command"]
    return float(command[command.index(name) + 1])


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """The secret in place of Docker's, with the line end that an editor adds."""
    path = tmp_path / "database_url"
    path.write_text("postgresql://app:secret@127.0.0.1:1/app\n")
    return path


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch, secret: Path) -> Any:
    """The application with the environment of the file."""
    monkeypatch.delenv("DATABASE_URL", raising=False)
    for name, value in {**ENV, "DATABASE_URL_FILE": str(secret)}.items():
        monkeypatch.setenv(name, value)
    return load("apps/fastapi_app")


def test_the_drain_fits_into_the_grace_period(app: Any) -> None:
    """The last phases of a container end before SIGKILL."""
    server = option("--timeout-graceful-shutdown")
    grace = seconds(EVENTS["stop_grace_period"])
    assert server + app.SHUTDOWN_DEADLINE + MARGIN < grace
    assert app.make_batcher().setup.shutdown_deadline == app.SHUTDOWN_DEADLINE
    assert server > app.STORED_WITHIN  # otherwise the server cuts waiting requests
    assert EVENTS["init"] is True
    assert EVENTS["command"][:2] == ["uvicorn", "fastapi_app:app"]  # no shell


def test_the_app_has_what_the_file_names(app: Any) -> None:
    """Variables, the secret, the port and the table."""
    source = (APPS / "fastapi_app.py").read_text()
    read = set(re.findall(r'environ(?:\.get\(|\[)"(\w+)"', source))
    assert read - {"DATABASE_URL"} == set(ENV)
    assert app.DATABASE_URL == "postgresql://app:secret@127.0.0.1:1/app"
    port = int(option("--port"))
    assert EVENTS["ports"] == [f"{port}:{port}"]
    program = EVENTS["healthcheck"]["test"][3]
    ((url, within),) = re.findall(r"urlopen\('(\S+)', timeout=(\d+)\)", program)
    assert url == f"http://127.0.0.1:{port}/ready"
    assert "/ready" in {route.path for route in app.app.routes}
    assert float(within) < seconds(EVENTS["healthcheck"]["timeout"])
    tables = [volume.split(":")[0] for volume in DATABASE["volumes"] if ".sql" in volume]
    assert all((APPS / name).exists() for name in tables)


def test_the_parts_of_the_file_fit() -> None:
    """Secrets, the database that the app waits for, and its healthcheck."""
    for part in (EVENTS, DATABASE):
        (name,) = part["secrets"]
        assert name in FILE["secrets"]
        files = {value for key, value in part["environment"].items() if key.endswith("_FILE")}
        assert files == {f"/run/secrets/{name}"}
        assert part["restart"] == "unless-stopped"
    assert EVENTS["depends_on"] == {"db": {"condition": "service_healthy"}}
    user, base = (DATABASE["environment"][f"POSTGRES_{name}"] for name in ("USER", "DB"))
    assert DATABASE["healthcheck"]["test"][-2:] == [f"--username={user}", f"--dbname={base}"]


def served() -> list[str]:
    """The file's command, on a free loopback port."""
    command = [sys.executable, "-m", *EVENTS["command"]]
    command[command.index("--port") + 1] = "0"
    command[command.index("--host") + 1] = "127.0.0.1"
    return command


async def is_healthy(url: str) -> bool:
    """Whether the healthcheck command of the file exits with 0."""
    program = EVENTS["healthcheck"]["test"][3]
    here = program.replace(f"http://127.0.0.1:{int(option('--port'))}", url)
    async with child(sys.executable, "-c", here, stderr=asyncio.subprocess.DEVNULL) as process:
        return await process.wait() == 0


async def stored(url: str, event: int) -> None:
    """Send the event until it is in the table."""
    async with httpx.AsyncClient(base_url=url, timeout=20.0, verify=PLAIN) as client:
        answer = None
        while answer is None or answer.status_code != 201:
            answer = await client.post("/events/stored", json={"id": event, "action": "login"})


async def health(secret: Path, is_up: bool) -> bool:
    """The health of a new service; with a running database, after its first write."""
    environment = {**ENV, "DATABASE_URL_FILE": str(secret), "DATABASE_URL": ""}
    async with service(*served(), env=environment) as running:
        url = await running.url()
        if is_up:
            await stored(url, 1)
        return await is_healthy(url)


@pytest.mark.long
def test_the_healthcheck(secret: Path, database: str) -> None:
    """Its command, with the app in front of the table of `events.sql`."""
    asyncio.run(query(database, (APPS / "events.sql").read_text()))
    assert asyncio.run(health(secret, is_up=False)) is False
    secret.write_text(f"{database}\n")
    assert asyncio.run(health(secret, is_up=True)) is True


async def drained_as_process_1(secret: Path) -> tuple[Counter[str], int]:
    environment = {**ENV, **UNHURRIED, "DATABASE_URL_FILE": str(secret), "DATABASE_URL": ""}
    async with service(*ALONE, *served(), env=environment) as running:
        url = await running.url()
        async with httpx.AsyncClient(base_url=url, timeout=20.0, verify=PLAIN) as client:
            answer = await client.post("/events", json={"id": 1, "action": "login"})
            assert answer.status_code == 202
        (first,) = psutil.Process(running.process.pid).children()
        first.terminate()
        assert running.process.stderr is not None
        running.lines += (await running.process.stderr.read()).decode().splitlines()
        code = await running.process.wait()
    (report,) = running.reports()
    return report, code


@pytest.mark.long
def test_it_drains_as_process_1(secret: Path, database: str) -> None:
    """As in a container without `init`, where SIGTERM has no effect by default."""
    may = subprocess.run([*ALONE, "true"], check=False, capture_output=True, text=True)
    if may.returncode:
        pytest.skip(f"no namespace of processes can be made: {may.stderr.strip()}")
    asyncio.run(query(database, (APPS / "events.sql").read_text()))
    secret.write_text(database)
    report, code = asyncio.run(drained_as_process_1(secret))
    assert (report, code) == ({"accepted": 1, "delivered": 1}, 0)
    assert asyncio.run(query(database, "SELECT id FROM events")) == [1]
