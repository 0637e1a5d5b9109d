"""`sluicegate serve` with real processes; the programs are in `served.py`.

White box: the guard of processes, the rule of the restarts, the check of the object, and the probes
of a process that is down.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
from asyncio.subprocess import PIPE
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.children import child

from sluicegate.cli import main
from sluicegate.cli.console import UseError
from sluicegate.cli.serve.gathered import GatheredProbes
from sluicegate.cli.serve.member import call
from sluicegate.cli.serve.supervise import Restarts, Supervisor
from sluicegate.testing.servers import guard

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncGenerator

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="refused there"),
    pytest.mark.usefixtures("real_clock"),
]
PACKAGES = os.pathsep.join([str(Path("src").resolve()), str(Path.cwd())])


class Served:
    """A running command."""

    def __init__(self, process: Process) -> None:
        self.process = process

    async def lines(self, count: int, pattern: str = "") -> list[list[str]]:
        """The words of the next lines of the processes that match."""
        assert self.process.stdout is not None
        found: list[list[str]] = []
        while len(found) < count:
            line = (await self.process.stdout.readline()).decode()
            assert line, (await self.errors(), found)
            if re.match(pattern, line):
                found.append(line.split())
        return sorted(found)

    async def told(self, pattern: str) -> re.Match[str]:
        """Read the command's messages until one matches."""
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            if found := re.search(pattern, line.decode()):
                return found
        raise AssertionError(f"no message {pattern!r}")

    async def errors(self) -> str:
        assert self.process.stderr is not None
        return (await self.process.stderr.read()).decode()


@asynccontextmanager
async def serving(
    folder: Path, name: str, *options: str, module: str = "served"
) -> AsyncGenerator[Served]:
    """Run two processes of a program of `served.py`."""
    shutil.copy(Path(__file__).with_name("served.py"), folder)
    command = (sys.executable, "-m", "sluicegate.cli", "serve", f"{module}:{name}")
    async with child(
        *(*command, "--processes", "2", *options),
        stdout=PIPE,
        stderr=PIPE,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": PACKAGES},
        start_new_session=True,
    ) as process:
        try:
            yield Served(process)
        finally:  # its processes hold the pipes open
            guard.kill_all_in(folder, 30)


def done(folder: Path) -> list[str]:
    return sorted((folder / "done.txt").read_text().split())


def make_gates(folder: Path) -> list[Path]:
    gates = [folder / "gate0", folder / "gate1"]
    for gate in gates:
        os.mkfifo(gate)
    return gates


@pytest.mark.parametrize("is_from_terminal", [False, True], ids=["SIGTERM", "Ctrl-C"])
async def test_a_signal_drains_all_processes(tmp_path: Path, *, is_from_terminal: bool) -> None:
    """Ctrl-C is a signal to the whole process group; a second signal would end the drains."""
    gates = make_gates(tmp_path)
    async with serving(tmp_path, "gated") as served:
        await served.lines(2, "handling")
        if is_from_terminal:
            os.killpg(served.process.pid, signal.SIGINT)
        else:
            served.process.terminate()
        assert await served.lines(2, "draining") == [["draining", "0"], ["draining", "1"]]
        for gate in gates:
            await asyncio.to_thread(gate.write_text, "open")
        assert await served.process.wait() == 0
    assert done(tmp_path) == ["0", "1"]


async def test_a_signal_during_the_import_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import os, time\nos.write(1, b'importing\\n')\ntime.sleep(60)"
    )
    async with serving(tmp_path, "unused", module="slow") as served:
        await served.lines(2, "importing")
        served.process.terminate()
        assert await served.process.wait() == 0


async def test_a_second_signal_ends_the_drains(tmp_path: Path) -> None:
    async with serving(tmp_path, "endless") as served:
        await served.lines(2, "handling")
        served.process.terminate()
        await served.lines(2, "draining")
        served.process.terminate()
        assert await served.lines(2, "cut") == [["cut", "0"], ["cut", "1"]]
        assert await served.process.wait() == 1, "as after DrainTimeout"


async def test_a_third_signal_kills_processes_that_are_deaf(tmp_path: Path) -> None:
    async with serving(tmp_path, "deaf") as served:
        await served.lines(2, "deaf")
        for step in ("draining", "ending the drains", "killing"):
            served.process.terminate()
            await served.told(f"SIGTERM: {step}")
        assert await served.process.wait() == 137


async def test_a_killed_process_is_started_again_and_its_rows_are_handled(tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    rows.mkdir()
    values = [f'"{name}{row}"' for name in "01" for row in range(5)]
    for name in "01":
        own = [v for v in values if v[1] == name] + ['"held"'] * (name == "1")
        (rows / f"{name}.ndjson").write_text("\n".join(own))
    async with serving(tmp_path, "group") as served:
        ((_, number, pid),) = await served.lines(1, "held")
        os.kill(int(pid), signal.SIGKILL)
        told = await served.told(r"process (\d) ended with 137 \(crash 1 in a row\); it is started")
        assert told[1] == number
        stored = len(done(tmp_path)) if (tmp_path / "done.txt").exists() else 0
        while stored < len(values) + 1:
            await served.lines(1, "stored")
            stored = len({*done(tmp_path)})
        assert await served.process.wait() == 0
    assert {*done(tmp_path)} == {*values, '"held"'}


async def test_a_process_that_alone_is_told_to_drain_is_started_again(tmp_path: Path) -> None:
    gates = make_gates(tmp_path)
    async with serving(tmp_path, "gated") as served:
        (_, number, pid), _ = await served.lines(2, "handling")
        os.kill(int(pid), signal.SIGTERM)
        await served.lines(1, "draining")
        await asyncio.to_thread(gates[int(number)].write_text, "open")
        await served.told(f"process {number} ended with 143")
        assert await served.lines(1, "handling")
        served.process.terminate()
        for gate in gates:
            await asyncio.to_thread(gate.write_text, "open")
        assert await served.process.wait() == 0


async def test_a_crash_loop_is_slowed_down_and_told(tmp_path: Path) -> None:
    async with serving(tmp_path, "crash_twice", "--processes", "1") as served:
        assert (await served.told(r"ended with 7 .*in (\S+) s"))[1] == "0.5"
        assert (await served.told(r"crash 2 in a row.* in (\S+) s"))[1] == "1"
        await served.lines(1, "up")
        served.process.terminate()
        assert await served.process.wait() == 0


async def test_a_signal_during_a_backoff_ends_at_once_with_the_code_of_the_crash(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, "crash_twice", "--processes", "1") as served:
        await served.told("in 1 s")
        served.process.terminate()
        assert await served.process.wait() == 7


async def test_a_configuration_error_ends_the_command(tmp_path: Path) -> None:
    async with serving(tmp_path, "refuse") as served:
        assert await served.process.wait() == 2
        assert await served.errors() == "sluicegate serve: timeout: got -1; must be positive\n"


async def test_an_object_that_cannot_run_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, "handlerless") as served:
        assert await served.process.wait() == 2
        assert (await served.errors()).startswith(
            "sluicegate serve: 'served:handlerless' is a Consumer, whose run() needs its handler"
        )
    with pytest.raises(UseError, match="'app:one' must take no arguments"):
        call("app:one", lambda argument: argument, WeakSet())
    with pytest.raises(UseError, match="'app:none' must be an async function"):
        call("app:none", lambda: None, WeakSet())


async def test_processes_that_finish_end_the_command(tmp_path: Path) -> None:
    async with serving(tmp_path, "pipe") as served:
        assert await served.process.wait() == 0
        assert await served.errors() == ""
    assert [(tmp_path / f"{n}.jsonl").read_text() for n in "01"] == ["0\n", "1\n"]


async def test_processes_drain_if_the_command_is_killed(tmp_path: Path) -> None:
    gates = make_gates(tmp_path)
    async with serving(tmp_path, "gated") as served:
        await served.lines(2, "handling")
        served.process.kill()
        await served.lines(2, "draining")
        for gate in gates:
            await asyncio.to_thread(gate.write_text, "open")
        await served.lines(2, "closed")
    assert done(tmp_path) == ["0", "1"]


async def test_probes_and_metrics_are_those_of_all_processes(tmp_path: Path) -> None:
    _, gate = make_gates(tmp_path)
    async with serving(tmp_path, "late", "--probes", "0") as served:
        address = (await served.told(r"processes at (\S+)"))[1]
        await served.lines(1, "ready 0")
        async with httpx.AsyncClient(base_url=f"http://{address}") as client:
            answer = await client.get("/readyz")
            assert answer.status_code == 503
            assert answer.text.startswith("process 0: late: ready\nprocess 1: ")
            assert (await client.get("/healthz")).status_code == 200
            await asyncio.to_thread(gate.write_text, "open")
            await served.lines(1, "ready 1")
            answer = await client.get("/ready")
            assert (answer.status_code, answer.text) == (
                200,
                "process 0: late: ready\nprocess 1: late: ready\n",
            )
            text = (await client.get("/metrics")).text
            assert (await client.get("/stats")).status_code == 404
        served.process.terminate()
        assert await served.process.wait() == 0
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert len(families) == text.count("# TYPE"), "each family is declared once"
    for name in ("consumer_state", "serve_process_up", "process_open_fds"):
        assert {each.labels["process"] for each in families[name].samples} == {"0", "1"}, name


async def test_a_program_without_consumers_is_ready_with_its_batcher(tmp_path: Path) -> None:
    async with serving(tmp_path, "batching", "--probes", "127.0.0.1:0") as served:
        address = (await served.told(r"processes at (\S+)"))[1]
        await served.lines(2, "open")
        async with httpx.AsyncClient(base_url=f"http://{address}") as client:
            assert (await client.get("/ready")).text == "process 0: ready\nprocess 1: ready\n"
        served.process.terminate()
        assert await served.process.wait() == 0
    assert [(tmp_path / f"{n}.jsonl").read_text() for n in "01"] == ['"0"\n', '"1"\n']


async def test_a_process_that_is_down_fails_both_probes(tmp_path: Path) -> None:
    app = GatheredProbes(Supervisor("app:main", 1, tmp_path, is_probed=True).members)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://probes") as client:
        for path in ("ready", "live"):
            answer = await client.get(f"/{path}")
            assert answer.status_code == 503
            assert answer.text == f"process 0: not {path}: it is down, after 0 crashes\n"


def test_the_backoff_doubles_and_is_reset_by_health() -> None:
    restarts = Restarts()
    delays = [restarts.delay_after(1, 0.1) for _ in range(10)]
    assert delays == [0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert restarts.delay_after(1, 60.0) == 0.5
    assert restarts.delay_after(2, 0.1) is None
    assert restarts.delay_after(2, 60.0) == 0.5


def test_windows_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert main(["serve", "app:main", "--processes", "2"]) == 2
    assert "Windows" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["here", "70000", "127.0.0.1:", "-1"])
def test_a_bad_address_is_refused(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "app:main", "--processes", "2", f"--probes={address}"])
    assert "must be PORT, HOST:PORT or [IPV6]:PORT" in capsys.readouterr().err
