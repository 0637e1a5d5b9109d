"""The pages of spools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.console.console_help import browsing
from tests.console.contents import fill_spool

from sluicegate import Batcher, ConfigError
from sluicegate.console import Console
from sluicegate.flow import Spool
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("real_clock")


async def test_items_are_listed_and_the_command_for_parked_ones_is_shown(tmp_path: Path) -> None:
    folder = fill_spool(tmp_path / "spool", parked=60, left=2)
    name = str(folder)
    async with browsing(spools=[folder]) as browser:
        assert f"{folder} no process 2" in await browser.text("spools")
        assert "60 parked items" in await browser.text("spool", spool=name)
        seen = await browser.links("spool-items", "spool-item?", spool=name, parked=1)
        links = await browser.links("spool-items", "spool-items?", spool=name, parked=1)
        (more,) = [each for each in links if "first=" in each]
        seen += await browser.links(more, "spool-item?")
        assert len({*seen}) == len(seen) == 60
        text = await browser.text(seen[0])
        assert "Message no such account" in text
        assert "Maybe delivered no" in text
        assert "&lt;img" not in (await browser.get(seen[0])).text.partition("Payload")[2]
        shown = (await browser.get(f"{seen[0]}&payload=1")).text
        assert "<img" not in shown
        assert "&lt;img src=x" in shown.partition("Payload")[2]
        start = await browser.text("spool-items", spool=name, payload=1)
        assert '{"n":60,' in start
        assert f"sluicegate spool replay {folder}" in await browser.text("spool", spool=name)


async def test_an_open_spool_is_shown(tmp_path: Path) -> None:
    folder = fill_spool(tmp_path / "spool", left=0)
    spool = Spool(folder)
    async with Batcher(MemorySink[Any](), spool=spool), browsing(spools=[folder]) as browser:
        assert "writer: process" in await browser.text("spools")


async def test_a_missing_spool_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    folder = fill_spool(tmp_path / "spool", left=0)
    async with browsing(spools=[tmp_path / "other", folder]) as browser:
        text = await browser.text("spools")
        assert "there is no spool in this folder" in text
        assert f"{folder} no process 0" in text
        assert "no spool in this folder" in await browser.fails(
            409, "spool", spool=str(tmp_path / "other")
        )
        await browser.fails(404, "spool", spool="elsewhere")
        await browser.fails(400, "spool-items", spool=str(folder), first="x")
        await browser.fails(404, "spool-item", spool=str(folder), offset=999, parked=1)


async def test_damage_is_told(tmp_path: Path) -> None:
    folder = fill_spool(tmp_path / "spool")
    (folder / "parked.sqlite").write_bytes(b"SQLite format 3\0" + bytes(5000))
    async with browsing(spools=[folder]) as browser:
        assert "sluicegate spool check" in await browser.text("spools")


def test_spools_are_a_collection() -> None:
    with pytest.raises(ConfigError, match="spools"):
        Console(spools="spool")
