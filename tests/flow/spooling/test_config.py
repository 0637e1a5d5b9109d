"""Bad arguments of a spool, and of a batcher with one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sluicegate import Batcher, BlockingBatcher, ConfigError
from sluicegate.batcher import Adaptive, Tenants
from sluicegate.flow import Spool
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from pathlib import Path

SPOOL: list[tuple[dict[str, Any], str]] = [
    ({"path": 5}, "path=5: must be the path of a folder"),
    ({"path": ""}, "path=''"),
    ({"path": b"spool"}, "path="),
    ({"max_bytes": "2 giga"}, "must be a number of bytes, or text such as"),
    ({"max_bytes": "GiB"}, "max_bytes='GiB'"),
    ({"max_bytes": "-1GiB"}, "max_bytes='-1GiB'"),
    ({"max_bytes": "1KiB"}, "max_bytes=1024"),
    ({"max_bytes": 0}, "max_bytes=0"),
    ({"max_bytes": True}, "max_bytes=True"),
    ({"max_bytes": 1e9}, "max_bytes=1000000000.0"),
    ({"max_bytes": "64KiB"}, "at least two segments"),
    ({"max_bytes": "1GiB", "segment_bytes": "1GiB"}, "at least two segments"),
    ({"segment_bytes": 1000}, "segment_bytes=1000"),
    ({"segment_bytes": "many"}, "segment_bytes='many'"),
    ({"max_items": 0}, "max_items=0"),
    ({"max_items": 1.5}, "max_items=1.5"),
    ({"max_age": 0}, "max_age=0"),
    ({"max_age": "1d"}, "max_age='1d'"),
    ({"sync_delay": -1}, "sync_delay=-1"),
    ({"durability": "fsync"}, "durability='fsync'"),
    ({"spill": "never"}, "spill='never'"),
    ({"wait": "network"}, "wait='network'"),
    ({"wait": "memory", "spill": "when_full"}, "wait='memory'"),
    ({"encode": "json"}, "encode='json'"),
    ({"decode": "json"}, "decode='json'"),
    ({"poison": "skip"}, "poison='skip'"),
]


@pytest.mark.parametrize(("given", "message"), SPOOL, ids=str)
def test_a_bad_argument_is_named_with_its_value(given: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"path": "spool", **given}
    with pytest.raises(ConfigError) as error:
        Spool(**arguments)
    assert message in str(error.value)


BATCHER: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"overflow": "drop_oldest"}, "overflow='drop_oldest'"),
    ({}, {"last_resort": MemorySink()}, "last_resort="),
    ({}, {"key": str, "on_key_failure": "pause"}, "on_key_failure='pause'"),
    ({}, {"tenant": str, "tenants": Tenants(max_pending_items=5)}, "tenants="),
    ({"spill": "when_full"}, {"adaptive": Adaptive()}, "adaptive="),
]


@pytest.mark.parametrize("owner", [Batcher, BlockingBatcher])
@pytest.mark.parametrize(("spool", "options", "message"), BATCHER, ids=str)
def test_an_option_that_does_not_go_with_a_spool_is_refused(
    tmp_path: Path, owner: Any, spool: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        owner(MemorySink(), spool=Spool(tmp_path, **spool), **options)
    assert message in str(error.value)


@pytest.mark.parametrize("spool", ["spool/audit", Spool, 5])
def test_a_spool_that_is_none_is_refused(spool: Any) -> None:
    with pytest.raises(ConfigError, match=r"must be a Spool\(path\)"):
        Batcher(MemorySink(), spool=spool)


@pytest.mark.parametrize("user", ["batcher", "sink", "source"])
def test_a_spool_has_one_user(tmp_path: Path, user: str) -> None:
    spool = Spool(tmp_path)
    if user == "batcher":
        Batcher(MemorySink(), spool=spool)
    elif user == "sink":
        spool.sink()
    else:
        spool.source()
    with pytest.raises(ConfigError, match="make a separate Spool for each"):
        Batcher(MemorySink(), spool=spool)


def test_a_refused_option_leaves_the_spool_to_another_batcher(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    with pytest.raises(ConfigError):
        Batcher(MemorySink(), spool=spool, last_resort=MemorySink())
    Batcher(MemorySink(), spool=spool)
    assert list(tmp_path.iterdir()) == []
