"""Items that cannot be resent are stored, marked, listed and never replayed; causes are named.

White box: the cause and the code of an error, and the columns of the table.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from tests.cli.dlq_help import Cli, keep, keep_in_file, module, record
from tests.http.http_help import reply, serving
from tests.letters.test_every_item import ask, cli, dead_letters, outcomes

from sluicegate import DeadLetter, PermanentError, WriteResult, stack
from sluicegate._core.classify import cause_name, code_of
from sluicegate.files import FileSink
from sluicegate.http import ElasticsearchSink
from sluicegate.postgres.letters.table import COLUMNS
from sluicegate.sinks import DeadLetterRecord

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate import Batch
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

__all__ = ["cli"]


class Unshown:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def cyclic() -> dict[str, Any]:
    made: dict[str, Any] = {"id": 1}
    made["self"] = made
    return made


def deep() -> list[Any]:
    made: list[Any] = []
    for _ in range(2 * sys.getrecursionlimit()):
        made = [made]
    return made


SENDABLE: list[Any] = [
    {"id": 1, "raw": b"\xff\0"},
    float("nan"),
    "lone \ud800 and NUL \0",
    {1: "one", "1": "text"},
    -(10**5000),
    {("a", 1): {"$repr": "his own"}},
    b"bytes",
]
LOST: list[Any] = [
    object(),
    Unshown(),
    {"id": 2, "lock": threading.Lock()},
    cyclic(),
    deep(),
    (each for each in "abc"),
    ValueError("an exception"),
    Unshown,
]
SINK = """
async def sink(batch):
    with open("sent", "a") as file:
        for item in batch:
            print(hex(item) if isinstance(item, int) else repr(item), file=file)
"""


async def refuse(batch: Batch[Any]) -> WriteResult:
    return WriteResult.failed(batch, {n: PermanentError("no") for n in range(len(batch))})


@pytest.mark.parametrize("kept_in", ["file", "table"])
def test_every_item_is_kept_and_only_whole_ones_are_sent_again(
    cli: Cli,
    tmp_path: Path,
    embedded_postgres: EmbeddedPostgres,
    kept_in: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR, "sluicegate")
    dsn = embedded_postgres.dsn
    ask(dsn, "DROP TABLE IF EXISTS dead_letters", "SELECT 1")
    place, target = dead_letters(cli, tmp_path, dsn, kept_in)
    given = [*SENDABLE, *LOST]
    assert asyncio.run(outcomes(stack(refuse, DeadLetter(target)), given)) == {"dead_lettered"}
    assert caplog.text == ""
    forms = [letter["item_form"] for letter in cli.letters(place)]
    assert forms == ["marked"] * len(SENDABLE) + ["repr"] * len(LOST)
    assert sum("  item=repr  " in line for line in cli("list", place)) == len(LOST)
    module(tmp_path, f"last_{kept_in}", SINK)
    to = f"last_{kept_in}:sink"
    cli("replay", place, "--to", to, code=1)
    assert cli.err == (
        f"replayed: {len(SENDABLE)} delivered, {len(LOST)} repr-only\n"
        f"not sent: {len(LOST)} whose item is partly known only by its repr; `sluicegate dlq list` "
        "shows them as item=repr. Repair them by hand, then purge them\n"
    )
    sent = (tmp_path / "sent").read_text().splitlines()
    assert sent == [hex(item) if isinstance(item, int) else repr(item) for item in SENDABLE]
    assert len(cli("list", place)) == len(LOST)


def test_a_letter_known_only_by_its_repr_holds_back_its_key(cli: Cli, tmp_path: Path) -> None:
    letters = [
        record(1, item_key="a", item=object()),
        record(2, item_key="a"),
        record(3, item_key="b"),
    ]
    store = keep_in_file(tmp_path / "dead", letters)
    module(tmp_path, "keyed", SINK)
    cli("replay", store, "--to", "keyed:sink", code=1)
    assert cli.err.startswith("replayed: 1 delivered, 1 repr-only, 1 held back\n")
    assert "known only by its repr" in cli.err.splitlines()[-1]
    assert cli.keys(store) == [1, 2]


@pytest.mark.parametrize("kept_in", ["file", "table"])
def test_a_replay_that_fails_again_replaces_the_cause(
    cli: Cli, tmp_path: Path, embedded_postgres: EmbeddedPostgres, kept_in: str
) -> None:
    dsn = embedded_postgres.dsn
    ask(dsn, "DROP TABLE IF EXISTS dead_letters", "SELECT 1")
    place, target = dead_letters(cli, tmp_path, dsn, kept_in)
    keep(target, [record(1, cause_type="KeyError", code="23505")])
    module(
        tmp_path,
        f"again_{kept_in}",
        "from sluicegate import PermanentError\n"
        "async def sink(batch): raise PermanentError('no') from OSError('gone')",
    )
    assert cli.keys(place, "--error-type", "KeyError", "--code", "23505") == [1]
    cli("replay", place, "--to", f"again_{kept_in}:sink", code=1)
    assert cli.keys(place, "--error-type", "KeyError") == []
    assert cli.keys(place, "--code", "23505") == []
    assert cli.keys(place, "--error-type", "OSError") == [1]
    assert cli.keys(place, "--error-type", "PermanentError") == [1]


def test_the_columns_of_a_record_are_those_of_its_table() -> None:
    assert set(DeadLetterRecord.COLUMNS) == {*COLUMNS} - {"number", "state", "replay", "outcome"}


async def test_an_item_refused_by_elasticsearch_names_its_status(
    tmp_path: Path, real_clock: LoopClock
) -> None:
    path = tmp_path / "dead"
    refused = {"index": {"status": 400, "error": {"type": "mapper_parsing_exception"}}}
    async with serving() as server:
        server.default = reply(body={"errors": True, "items": [refused]})
        sink = stack(ElasticsearchSink(server.url, index="i"), DeadLetter(FileSink(path)))
        assert await outcomes(sink, [{"a": 1}]) == {"dead_lettered"}
    letter = json.loads(path.read_text())
    assert (letter["code"], letter["cause_type"]) == ("400", "HttpStatusError")


class Detailed(Exception):
    sqlstate = "23502"


class Broken(Exception):
    @property
    def sqlstate(self) -> str:
        raise KeyError("no")


class Answered(Exception):
    def __init__(self) -> None:
        super().__init__()
        self.response = type("Response", (), {"status_code": 503})()


def chain(*errors: Exception) -> Exception:
    for error, cause in pairwise(errors):
        error.__cause__ = cause
    return errors[0]


@pytest.mark.parametrize(
    ("error", "name", "code"),
    [
        (PermanentError("no"), "", ""),
        (KeyError("no"), "", ""),
        (chain(PermanentError("no"), Detailed()), "Detailed", "23502"),
        (chain(PermanentError("a"), PermanentError("b"), Detailed(), OSError()), "Detailed", "23502"),
        (chain(RuntimeError(), Answered()), "Answered", "503"),
        (chain(PermanentError("a"), Broken()), "Broken", ""),
        (Detailed(), "", "23502"),
    ],
)  # fmt: skip
def test_the_cause_and_the_code_of_an_error(error: Exception, name: str, code: str) -> None:
    assert (cause_name(error), code_of(error)) == (name, code)
