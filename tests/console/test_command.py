"""`sluicegate console` as a process: its address, its login, its drain, and what it refuses."""

from __future__ import annotations

import os
import re
import signal
import sys
from asyncio.subprocess import PIPE
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from tests.children import child
from tests.console.console_help import TOKEN

from sluicegate.cli import main

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncGenerator

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it ends by signals")
PACKAGES = os.pathsep.join([str(Path("src").resolve()), str(Path.cwd())])
PROGRAM = """
import asyncio
from sluicegate import Batcher
from sluicegate.sinks import MemorySink

async def main():
    async with Batcher(MemorySink(), name="audit") as batcher:
        await batcher.add(1)
        try:
            await asyncio.Event().wait()
        finally:
            print("draining", flush=True)

async def short():
    pass
"""


@asynccontextmanager
async def serving(folder: Path, *arguments: str) -> AsyncGenerator[tuple[Process, str]]:
    (folder / "served_program.py").write_text(PROGRAM)
    command = (sys.executable, "-m", "sluicegate.cli", "console", *arguments, "--port", "0")
    variables = {**os.environ, "PYTHONPATH": PACKAGES}
    async with child(*command, cwd=folder, env=variables, stdout=PIPE, stderr=PIPE) as process:
        assert process.stderr is not None
        line = (await process.stderr.readline()).decode()
        found = re.fullmatch(r"sluicegate console: (http://\S+)\n", line)
        assert found is not None, line + (await process.stderr.read()).decode()
        yield process, found[1]


@pytest.mark.parametrize(
    "sign", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
@pytest.mark.usefixtures("real_clock")
async def test_it_shows_a_program_and_drains_it_quietly(tmp_path: Path, sign: int) -> None:
    async with serving(tmp_path, "served_program:main") as (process, url):
        async with httpx.AsyncClient(base_url=url) as client:
            page = await client.get("/parts")
            assert page.status_code == 200
            assert "audit" in page.text
        process.send_signal(sign)
        out, errors = await process.communicate()
        assert (out, errors, process.returncode) == (b"draining\n", b"", 0)


@pytest.mark.usefixtures("real_clock")
async def test_it_ends_with_its_program(tmp_path: Path) -> None:
    async with serving(tmp_path, "served_program:short") as (process, _):
        assert await process.wait() == 0


@pytest.mark.usefixtures("real_clock")
async def test_the_token_of_a_file_admits(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    (tmp_path / "token").chmod(0o640)
    arguments = ("--host", "0.0.0.0", "--token-file", "token", "--read-only")
    async with serving(tmp_path, *arguments) as (process, url):
        url = url.replace("0.0.0.0", "localhost")
        async with httpx.AsyncClient(base_url=url, follow_redirects=True) as client:
            page = await client.get("/")
            (csrf,) = re.findall(r'name="csrf" value="([^"]*)"', page.text)
            page = await client.post("/login", data={"csrf": csrf, "token": TOKEN})
            assert page.url.path == "/"
            assert "read-only" in page.text
        process.send_signal(signal.SIGTERM)
        _, errors = await process.communicate()
        assert (errors, process.returncode) == (b"", 0)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--host", "0.0.0.0"], "needs a token"),
        (["--host", "db.example"], "needs a token"),
        (["--port", "65536"], "--port"),
        (["--token-file", "missing"], "missing"),
        (["--token-file", "."], "Is a directory"),
        (["none:main"], "none"),
        (["--postgres", "mysql://u:hunter2@h/d"], "dsn="),
    ],
)
def test_bad_use_is_refused(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["console", *arguments]) == 2
    errors = capsys.readouterr().err
    assert told in errors
    assert "hunter2" not in errors


def test_a_token_that_all_users_can_read_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_bytes(b"\xff")
    (tmp_path / "token").chmod(0o604)
    assert main(["console", "--token-file", str(tmp_path / "token")]) == 2
    told = capsys.readouterr().err
    assert "chmod o=" in told
    assert "at least 16 characters" in told


def test_an_empty_token_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICEGATE_CONSOLE_TOKEN", " ")
    assert main(["console"]) == 2
    assert "the token is empty" in capsys.readouterr().err
