"""Programs that are ended by a signal: the first one drains, the second one ends the drain."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

SCRIPT = """
import asyncio, sys
import sluicegate

async def write(batch):
    if sys.argv[1] == "deaf":
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                print("deaf", flush=True)
    print("wrote", len(batch), flush=True)

async def main():
    async with sluicegate.Batcher(write, shutdown_deadline=0.5, limits=sluicegate.Limits(max_delay=3600.0)) as batcher:
        await batcher.add_many(range(7))
        print("ready", flush=True)
        await asyncio.Event().wait()

sluicegate.run(main(), patience=0.1)
"""


@pytest.mark.parametrize("kind", ["plain", "deaf"])
def test_a_script_drains_on_sigterm_and_ends_even_with_a_deaf_sink(kind: str) -> None:
    """B-T49."""
    child = subprocess.Popen(  # this test's own script
        [sys.executable, "-c", textwrap.dedent(SCRIPT), kind],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate(timeout=20)
    if kind == "plain":
        assert out == "wrote 7\n"
        assert child.returncode == 0
    else:
        assert "7 unknown" in err
        assert "left behind" in err
        assert child.returncode == 1


SLOW = """
import asyncio
import sluicegate

async def write(batch):
    print("writing", flush=True)
    await asyncio.sleep(3600)

async def main():
    async with sluicegate.Batcher(write, shutdown_deadline=3600.0, limits=sluicegate.Limits(max_delay=3600.0, flush_timeout=3600.0)) as batcher:
        await batcher.add_many(range(7))
        print("ready", flush=True)
        await asyncio.Event().wait()

print("returned", sluicegate.run(main()), flush=True)
"""


@pytest.mark.parametrize(
    ("first", "second"), [("SIGTERM", "SIGTERM"), ("SIGTERM", "SIGINT"), ("SIGINT", "SIGINT")]
)
def test_a_second_signal_means_now(first: str, second: str) -> None:
    """design 4: the first signal begins a drain, here with an hour of time; the second ends it, and
    the tally is still reported.
    """
    child = subprocess.Popen(  # this test's own script
        [sys.executable, "-c", textwrap.dedent(SLOW)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.Signals[first])
    assert child.stdout.readline() == "writing\n"
    child.send_signal(signal.Signals[second])
    out, err = child.communicate(timeout=20)
    assert (child.returncode, out) == (1, ""), "it does not return as if all were well"
    assert "INCOMPLETE" in err
    assert "7 accepted: 7 unknown" in err.splitlines()[-1]
