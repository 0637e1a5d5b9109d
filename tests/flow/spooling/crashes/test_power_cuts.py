"""Power cuts at any moment of a recorded run, of which a disk loses what was not synced.

White box: a damaged file is kept with an ending of its name.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from spooling.crashes.disk import Disk, Record, records
from spooling.crashes.recorded import KEYS, item_of, key_of

from sluicegate import Batcher, Limits
from sluicegate.flow import Spool
from sluicegate.testing.servers.require import skip_or_fail

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sluicegate import Batch
    from sluicegate.batcher import LoopClock

HERE = Path(__file__).parent
CUTS = 5
MOST = 1_000_000
"""More than the items of one run."""


@pytest.fixture(scope="session")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled recorder. Skips without a C compiler on Linux, unless `SLUICEGATE_REQUIRE` names
    `compiler`.
    """
    built = tmp_path_factory.mktemp("recorder") / "recorder.so"
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        skip_or_fail("compiler", "no C compiler, or not Linux")
    options = ["-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o", str(built)]
    subprocess.run([compiler, *options, str(HERE / "recorder.c"), "-ldl"], check=True)
    return built


@dataclass
class Known:
    """The items that are known to be stored, and those at the destination."""

    stored: set[int] = field(default_factory=set[int])
    arrived: dict[int, str] = field(default_factory=dict[int, str])
    """By item, the `write_key` of the batch in which it arrived first."""
    changed: set[int] = field(default_factory=set[int])
    """Items that arrived again, under another one."""

    def note(self, record: Record) -> None:
        """Note a record of the process itself."""
        if record.kind == "+":
            self.stored.update(map(int, record.data.split()))
        elif record.kind == "=":
            key, *numbers = record.data.decode().split()
            self.arrive(key, map(int, numbers))

    def arrive(self, key: str, numbers: Iterable[int]) -> None:
        """Note a batch at the destination."""
        for n in numbers:
            if self.arrived.setdefault(n, key) != key:
                self.changed.add(n)

    def assert_in_order(self) -> None:
        """Check the first arrivals of each key."""
        for key in range(KEYS):
            own = [n for n in self.arrived if key_of(item_of(n)) == key]
            assert own == sorted(own)

    async def write(self, batch: Batch[dict[str, Any]]) -> None:
        """Take a batch, as the destination of what is left."""
        numbers = [item["n"] for item in batch]
        assert [*batch] == [item_of(n) for n in numbers]
        self.arrive(batch.write_key, numbers)


def run(
    recorder: Path, folder: Path, record: Path, seed: int, number: int, durability: str
) -> None:
    """Run the program on a folder and record it."""
    done = subprocess.run(
        [
            *(sys.executable, str(HERE / "recorded.py"), str(folder), str(record), str(seed)),
            *(str(number * MOST), durability),
        ],
        env={
            **os.environ,
            "RECORDED_FOLDER": str(folder),
            "RECORD": str(record),
            "LD_PRELOAD": str(recorder),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr


async def send_rest(folder: Path, known: Known) -> Known:
    """Send what a spool has, and one more item; return what is known then."""
    sink = deepcopy(known)
    last = 9 * MOST
    limits = Limits(max_items=500, max_delay=0.001)
    async with Batcher(sink, spool=Spool(folder), key=key_of, limits=limits) as batcher:
        await batcher.add(item_of(last))
    assert last in sink.arrived
    assert not [*folder.glob("*.damaged")]  # noqa: ASYNC240
    sink.assert_in_order()
    return sink


async def lost_by_cuts(recorder: Path, folder: Path, seed: int, durability: str) -> int:
    """Record two runs, the second one on what a cut has left; cut them at random moments, and check
    what is sent afterwards. Return the number of stored items that were lost, or of batches that
    were not repeated as they were.
    """
    chance = random.Random(seed)
    base = folder / "base-0"
    base.mkdir()
    known = Known()
    lost = 0
    for number in (1, 2):
        work, record = folder / f"work-{number}", folder / f"record-{number}"
        shutil.copytree(base, work)
        disk = Disk(work)
        run(recorder, work, record, chance.randrange(1000), number, durability)
        found = [*records(record)]
        moments = sorted(chance.sample(range(len(found)), CUTS))
        for at, (last, moment) in enumerate(pairwise((0, *moments))):
            for each in found[last:moment]:
                disk.apply(each)
                known.note(each)
            base = folder / f"base-{number}-{at}"
            state = chance.getstate()
            disk.cut(chance, base)
            chance.setstate(state)
            disk.cut(chance, folder / "cut")
            rest = await send_rest(folder / "cut", known)
            shutil.rmtree(folder / "cut")
            lost += len(rest.stored - rest.arrived.keys()) + len(rest.changed)
        if durability == "os":
            break  # an item that was lost is no item of the next run
    return lost


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 20))]
)
async def test_a_stored_item_outlives_a_power_cut(
    real_clock: LoopClock, recorder: Path, tmp_path: Path, seed: int
) -> None:
    assert not await lost_by_cuts(recorder, tmp_path, seed, "commit")


async def test_with_the_systems_durability_a_power_cut_loses_only_items(
    real_clock: LoopClock, recorder: Path, tmp_path: Path
) -> None:
    """The spool opens, without wrong values or changes of order."""
    assert await lost_by_cuts(recorder, tmp_path, 0, "os")
