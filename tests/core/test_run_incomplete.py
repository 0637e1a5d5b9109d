"""`penstock.run` after a signal: exit code 0 only if every batcher drained."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio
import penstock

async def write(batch):
    print("writing", flush=True)
    await asyncio.sleep(3600)

def batcher(name, sink=write):
    limits = penstock.Limits(max_delay=3600.0, flush_timeout=3600.0)
    return penstock.Batcher(sink, name=name, shutdown_deadline=0.05, limits=limits)

async def use(name, sink=write):
    async with batcher(name, sink) as one:
        await one.add_many(range(7))
        print("ready", flush=True)
        await asyncio.Event().wait()

async def in_a_group():
    async with asyncio.TaskGroup() as group:
        group.create_task(use("first"))
        group.create_task(use("second"))

async def swallowed():
    try:
        await use("swallowed")
    except asyncio.CancelledError:
        pass
    return "done"

async def told():
    async with batcher("told") as one:
        await one.add_many(range(7))
        print("ready", flush=True)
        try:
            await asyncio.Event().wait()
        finally:
            print((await one.shutdown()).tally, flush=True)

async def takes(batch):
    pass

async def drained():
    await use("drained", takes)

print("returned", penstock.run({main}), flush=True)
"""


def ended(main: str, *, ready: int = 1) -> tuple[int, str, str]:
    """The exit code and the output of a program that gets SIGTERM."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM.replace("{main}", main)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        for _ in range(ready):
            assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate(timeout=30)
    return child.returncode, out, err


@pytest.mark.parametrize("main", ["use('plain')", "swallowed()"])
def test_an_incomplete_shutdown_ends_the_program_with_code_1_and_the_tally(main: str) -> None:
    code, out, err = ended(main)
    assert (code, out) == (1, "writing\n")
    assert "DrainTimeout" in err.splitlines()[-1]
    assert "7 accepted: 7 unknown" in err.splitlines()[-1]


def test_each_of_several_is_told_though_a_task_group_swallows_their_errors() -> None:
    code, _, err = ended("in_a_group()", ready=2)
    assert code == 1
    assert "7 accepted: 7 unknown" in err.splitlines()[-1], "a note on the error"
    assert "DrainTimeout" in err.splitlines()[-2]


def test_a_complete_shutdown_returns() -> None:
    code, out, _ = ended("drained()")
    assert (code, out) == (0, "returned None\n")


def test_a_program_that_has_taken_the_report_decides_itself() -> None:
    code, out, _ = ended("told()")
    assert code == 0
    assert "7 unknown" in out
