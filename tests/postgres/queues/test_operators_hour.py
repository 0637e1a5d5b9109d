"""A queue that broke down is repaired by commands only."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.queues import hour_help as hour

from sluicegate.cli import main

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

pytestmark = pytest.mark.usefixtures("real_clock")


async def test_an_operators_hour_by_commands(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    async def queue(command: str, *arguments: str) -> str:
        """The output of a command."""
        args = ["queue", command, log.dsn, hour.QUEUE, *arguments, "--schema", log.schema]
        capsys.readouterr()
        assert await asyncio.to_thread(main, args) == 0
        found = capsys.readouterr()
        return found.out or found.err

    async def asked(command: str, *arguments: str) -> Any:
        return json.loads(await queue(command, *arguments, "--json"))

    async with hour.broken_down(log):
        # found
        (lag,) = (await asked("lag")).values()
        assert (lag["jobs"], lag["dead"], lag["parked"]) == (100_000, hour.DEAD, 40)  # and more
        dead = ("--state", "dead", "--limit", "1")
        assert (await asked("jobs", *dead))["errors"] == hour.ERRORS
        (first,) = (await asked("jobs", *dead, "--error", "BadAddress"))["jobs"]
        assert (first["error"], first["reason"]) == ("BadAddress", "no answer")
        lanes = (await asked("explain"))["lanes"]
        parked = [lane["key"] for lane in lanes if lane["state"] == "parked"]
        assert sorted(parked) == sorted(hour.PARKED)
        leased = (await asked("jobs", "--state", "leased"))["jobs"]
        assert {job["owner"] for job in leased} == {*hour.LEASES}
        # explained
        text = await queue("explain")
        assert re.search("parked 7 .* parked for .* no answer; `sluicegate queue unpark`", text)
        assert "no consumer is registered" in text
        for key, why in hour.WHY.items():
            assert re.search(why, await queue("explain", "--key", key))
        # repaired
        for key in hour.PARKED:
            assert "continues" in await queue("unpark", key)
        assert f"{hour.DEAD} jobs were enqueued again" in await queue("redrive")
        await hour.handle_all(log)
        (lag,) = (await asked("lag")).values()
        assert (lag["jobs"], lag["dead"], lag["parked"]) == (0, 0, 0)
