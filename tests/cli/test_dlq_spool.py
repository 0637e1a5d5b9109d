"""The parked items of a spool."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from tests.cli.dlq_help import Cli, module

from sluicegate import Batch, Batcher, Limits, PermanentError
from sluicegate.flow import Spool

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("real_clock")


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    module(tmp_path, "spool_sinks", "async def sink(batch): ...\n")
    return Cli(capsys)


def test_parked_items_of_a_spool_are_listed_and_shown(cli: Cli, tmp_path: Path) -> None:
    """The spool sends them itself: a replay names the command."""

    async def write(batch: Batch[object]) -> None:
        raise PermanentError("refused")

    async def park() -> None:
        limits = Limits(max_items=10, max_delay=0.01)
        async with Batcher(write, spool=Spool(tmp_path / "spool"), limits=limits) as batcher:
            await batcher.add({"n": 7})
            await batcher.flush()

    asyncio.run(park())
    store = str(tmp_path / "spool")
    (letter,) = cli.letters(store)
    assert (letter["item"], letter["error_type"]) == ({"n": 7}, "PermanentError")
    assert json.loads("\n".join(cli("show", store, letter["key"])))["message"] == "refused"
    cli("replay", store, "--to", "spool_sinks:sink", code=2)
    assert "`sluicegate spool replay" in cli.err
    cli("purge", store, "--state", "all", "--yes", code=2)
    assert "`sluicegate spool replay" in cli.err
