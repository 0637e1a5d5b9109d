"""Mistakes with pipes, and what they are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from piping import Destination, piped, records

from penstock import ClosedError
from penstock.sources.memory import MemoryLog

if TYPE_CHECKING:
    from penstock.testing import FakeClock


@pytest.mark.parametrize("name", ["stop", "stats", "explain"])
async def test_a_pipe_that_does_not_run_yet_says_how_to_run_it(
    fake_clock: FakeClock, name: str
) -> None:
    pipe = piped(MemoryLog(records("a")), Destination(), fake_clock)
    with pytest.raises(ClosedError, match=r"pipe is not open; use `await pipe.run\(\)`"):
        getattr(pipe, name)()
