"""Dead letters of a key are replayed in order, and none overtakes one that stays.

White box: a replay over a store that fails, without a command.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.cli.dlq_help import NOON, Cli, keep, keep_in_file, module, process, record
from tests.cli.test_dlq_postgres import Letters

from sluicegate import (
    BlockingBatcher,
    Capabilities,
    DeadLetter,
    Limits,
    Outcome,
    PermanentError,
    UnavailableError,
    WriteResult,
    stack,
)
from sluicegate.cli.dlq.replay import LEFT, Replay, ReplayRules, item_of
from sluicegate.cli.named import named_sink
from sluicegate.errors import TimedOutError
from sluicegate.files import FileSink
from sluicegate.letters.letter import INTERRUPTED, REPLAYED, Letter, Selection
from sluicegate.letters.store import Unreadable
from sluicegate.postgres.letters.table import creation
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from sluicegate import Batch
    from sluicegate.letters.store import Ending
    from sluicegate.testing import EmbeddedPostgres

SINK = """
import json, os, pathlib, signal
from sluicegate import *

class Log:
    def __init__(self, safe): self.capabilities = Capabilities(key_prefix_safe=safe)
    async def write(self, batch):
        bad = json.loads(pathlib.Path("bad.json").read_text()) if os.path.exists("bad.json") else []
        errors, failed, done = {}, set(), []
        for index, item in enumerate(batch):
            key = batch.keys[index] if batch.keys else index
            if item["n"] in bad or (self.capabilities.key_prefix_safe and key in failed):
                errors[index] = PermanentError(f"{item['n']} is bad still")
                failed.add(key)
            else:
                done.append(item["n"])
        with open("log", "a") as file:
            print(json.dumps(done), file=file)
        if os.environ.get("KILL_AT") and int(os.environ["KILL_AT"]) in done:
            os.kill(os.getpid(), signal.SIGKILL)
        return WriteResult.failed(batch, errors)

bare = Log(True)
safe, unsafe = stack(Log(True), DeadLetter(Log(True))), stack(Log(False), Retry(), DeadLetter(Log(False)))
"""


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return Cli(capsys)


@pytest.fixture(params=["file", "table"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Sequence[Any]], str]:
    """Store records, and return where."""

    def in_table(records: Sequence[Any]) -> str:
        server: EmbeddedPostgres = request.getfixturevalue("embedded_postgres")
        letters = Letters(server.dsn)
        letters.ask("DROP TABLE IF EXISTS dead_letters", creation("dead_letters"), "SELECT 1")
        keep(letters.sink(), records)
        return server.dsn

    return (
        in_table
        if request.param == "table"
        else lambda records: keep_in_file(tmp_path / "dead", records)
    )


@pytest.fixture(params=["safe", "unsafe"])
def to(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A sink that records the items it has applied and refuses bad ones; `safe` for prefixes of
    keys or not.
    """
    name = f"keyed_{tmp_path.name}_{request.param}".replace("-", "_")
    module(tmp_path, name, SINK)
    return f"{name}:{request.param}"


def applied(folder: Path) -> list[int]:
    path = folder / "log"
    return (
        [number for line in path.read_text().splitlines() for number in json.loads(line)]
        if path.exists()
        else []
    )


def bad(folder: Path, *numbers: int) -> None:
    (folder / "bad.json").write_text(json.dumps(numbers))


def of_key(key: str, *numbers: int, **changes: Any) -> list[Any]:
    """A failed item and those behind it, which all became dead letters at the same time."""
    times = {"first_at": NOON, "last_at": NOON}
    return [
        record(number, item_key=key, parked_behind=number != numbers[0], **times, **changes)
        for number in numbers
    ]


def test_a_key_comes_back_alone_and_in_its_order(
    cli: Cli, kept: Any, to: str, tmp_path: Path
) -> None:
    """consumer/C:N4: the failed one first, then those parked behind it, although only their order
    in the store shows it.
    """
    letters = [
        *of_key("acme/42", 5, 12, 3, 11, 2, 10),
        *of_key(":42", 20, 21),
        *of_key("42", 30),
        record(40),
    ]
    store = kept(letters)
    cli("replay", store, "--to", to, "--key", "acme/42")
    assert applied(tmp_path) == [5, 12, 3, 11, 2, 10]
    assert cli.err == "replayed: 6 delivered\n"
    cli("replay", store, "--to", to, "--key", "acme/42")
    assert cli.err.startswith("replayed: nothing\n")
    cli("replay", store, "--to", to, "--key", ":42", "--key", "42")
    assert applied(tmp_path)[6:] == [20, 21, 30]
    assert cli.keys(store) == [40]


def test_what_is_behind_a_letter_that_fails_again_stays(
    cli: Cli, kept: Any, to: str, tmp_path: Path
) -> None:
    """Its attempts are not counted, because it was not tried. After the repair the same command
    continues where it stopped.
    """
    store = kept([*of_key("a", *range(1, 30))])
    bad(tmp_path, 1)
    cli("replay", store, "--to", to, "--key", "a", code=1)
    assert applied(tmp_path) == []
    told = (
        "replayed: 1 rejected, 28 held back\nkey a stops at letter key-0001, 28 held back "
        "behind it: PermanentError: 1 is bad still\n"
    )
    assert cli.err == told
    assert [letter["attempts"] for letter in cli.letters(store)] == [4, *[3] * 28]
    assert {letter["message"] for letter in cli.letters(store)} == {
        "1 is bad still",
        *(f"no {number}" for number in range(2, 30)),
    }
    bad(tmp_path, 20)
    cli("replay", store, "--to", to, "--key", "a", "--batch-size", "4", code=1)
    assert applied(tmp_path) == [*range(1, 20)]
    assert cli.keys(store) == [*range(20, 30)]
    bad(tmp_path)
    cli("replay", store, "--to", to, "--key", "a", "--limit", "3")
    cli("replay", store, "--to", to, "--key", "a")
    assert applied(tmp_path) == [*range(1, 30)]
    assert cli.keys(store) == []


def test_without_a_key_other_keys_go_on(cli: Cli, kept: Any, to: str, tmp_path: Path) -> None:
    """The same key of two tenants or of two batchers is two keys; each letter without a key is
    independent.
    """
    letters = [
        *of_key("a", 1, 2, 3),
        *of_key("b", 11, 12),
        *of_key("a", 21, 22, tenant="ann"),
        *of_key("a", 31, 32, batcher="other"),
        *(record(number) for number in (41, 42, 43)),
        *of_key("a", 4),
        *of_key("b", 13),
    ]
    store = kept(letters)
    bad(tmp_path, 2, 21, 41)
    cli("replay", store, "--to", to, code=1)
    assert sorted(applied(tmp_path)) == [1, 11, 12, 13, 31, 32, 42, 43]
    assert "replayed: 8 delivered, 3 rejected, 3 held back\n" in cli.err
    assert "key a stops at letter key-0002, 2 held back behind it" in cli.err
    assert 'key a of tenant "ann" stops at letter key-0021, 1 held back' in cli.err
    assert sorted(cli.keys(store)) == [2, 3, 4, 21, 22, 41]
    bad(tmp_path)
    cli("replay", store, "--to", to, "--key", "a", "--tenant", "ann")
    assert applied(tmp_path)[8:] == [21, 22]


@pytest.mark.parametrize("to", ["unsafe"], indirect=True)
def test_what_is_not_meant_is_not_overtaken(cli: Cli, kept: Any, to: str, tmp_path: Path) -> None:
    store = kept([*of_key("a", 1, 2, 3), *of_key("b", 11, 12), *of_key("c", 21)])
    choice = (
        "--to",
        to,
        "--letter",
        "key-0002",
        "--letter",
        "key-0003",
        "--letter",
        "key-0011",
        "--letter",
        "key-0012",
    )
    told = "key a stops at letter key-0001, 2 held back behind it: it is earlier, and is not selected\n"
    cli("replay", store, *choice, code=1)
    assert cli.err == f"replayed: 2 delivered, 2 held back\n{told}"
    assert applied(tmp_path) == [11, 12]
    cli("replay", store, *choice, "--any-order")
    assert applied(tmp_path) == [11, 12, 2, 3]
    bad(tmp_path, 1)
    cli("replay", store, "--to", to, "--any-order", code=1)
    assert cli.err == (
        "replayed: 1 delivered, 1 rejected\n1 rejected: PermanentError: 1 is bad still\n"
    )


def test_a_letter_that_cannot_be_decoded_holds_back_its_key(
    cli: Cli, tmp_path: Path, to: str
) -> None:
    store = keep_in_file(tmp_path / "dead", [*of_key("a", 1, 2, 3), *of_key("b", 4)])
    module(tmp_path, "decoders", "def decode(item):\n    1 / (item['n'] - 2)\n    return item")
    cli("replay", store, "--to", to, "--decode", "decoders:decode", code=1)
    assert sorted(applied(tmp_path)) == [1, 4]
    assert "replayed: 2 delivered, 1 undecodable, 1 held back\n" in cli.err
    assert (
        "stops at letter key-0002, 1 held back behind it: it cannot be decoded: ZeroDivisionError"
        in cli.err
    )
    assert cli.keys(store) == [2, 3]


def test_a_key_that_no_letter_has_is_told(cli: Cli, tmp_path: Path, to: str) -> None:
    """A typing error must not look like a repaired key."""
    store = keep_in_file(tmp_path / "dead", [*of_key(":42", 1), *of_key("a", 2)])
    assert cli("list", store, "--key", "42") == []
    assert cli.err == "0 dead letters\nnone of 2 dead letters is selected: 2 pending\n"
    cli("replay", store, "--to", to, "--key", "42")
    assert "none of 2 dead letters is selected" in cli.err
    assert applied(tmp_path) == []
    cli("purge", store, "--key", "a", "--state", "all", "--yes")
    assert cli.keys(store) == [1]


@pytest.mark.parametrize(("kept", "to"), [("file", "safe")], indirect=True)
def test_a_replay_of_a_key_that_is_killed_goes_on_in_order(
    cli: Cli, kept: Any, to: str, tmp_path: Path, monkeypatch: Any
) -> None:
    """kill -9 when letters have arrived and this is not recorded: they are sent again, and no
    letter overtakes them.
    """
    store = kept([*of_key("a", *range(1, 10)), *of_key("b", 11)])
    monkeypatch.setenv("KILL_AT", "5")
    with process(
        tmp_path, "replay", store, "--to", to, "--key", "a", "--batch-size", "3"
    ) as killed:
        killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    monkeypatch.delenv("KILL_AT")
    cli("replay", store, "--to", to, "--key", "a", "--batch-size", "4")
    assert applied(tmp_path) == [1, 2, 3, 4, 5, 6, 4, 5, 6, 7, 8, 9]
    assert cli.keys(store) == [11]


@pytest.mark.parametrize("to", ["safe"], indirect=True)
def test_a_key_is_parked_repaired_replayed_and_unparked(
    cli: Cli, kept: Any, to: str, tmp_path: Path
) -> None:
    """batcher/4a.10, consumer/C:N4: while the batcher runs; at the end the destination has every
    item, in order.
    """
    store = kept([])
    letters = Letters(store).sink() if store.startswith("postgresql") else FileSink(store)
    bad(tmp_path, 1)
    options: dict[str, Any] = {
        "key": lambda item: "acme/42",
        "on_key_failure": "park",
        "max_parked_items": 3,
    }
    with BlockingBatcher(
        stack(named_sink(to.replace(":safe", ":bare")), DeadLetter(letters)),
        limits=Limits(max_delay=0.01),
        **options,
    ) as batcher:
        receipts = [batcher.submit({"n": number}) for number in range(1, 16)]
        assert {receipt.settled(30.0) for receipt in receipts[:12]} == {Outcome.DEAD_LETTERED}
        cli("replay", store, "--to", to, "--key", "acme/42", code=1)
        assert applied(tmp_path) == []
        bad(tmp_path)
        cli("replay", store, "--to", to, "--key", "acme/42")
        assert cli.err == "replayed: 12 delivered\n"
        assert batcher.unpark("acme/42") == 3
        assert batcher.flush()
    assert applied(tmp_path) == [*range(1, 16)]


# -- at random -------------------------------------------------------------------------------------


class Died(BaseException):
    """The simulated death of the process."""


class Store:
    """Letters in memory; the process may die before it records the end of a batch."""

    unreadable = Unreadable()

    def __init__(self, letters: Sequence[Letter], dies: Callable[[], bool]) -> None:
        self.all = {letter.key: letter for letter in letters}
        self._dies = dies

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    async def letters(self, selection: Selection) -> AsyncGenerator[Letter]:
        for letter in sorted(self.all.values(), key=lambda letter: letter.state != INTERRUPTED):
            if selection.has(letter):
                yield letter

    async def hold(self) -> None: ...

    async def begin(self, replay: str, keys: Sequence[str]) -> None:
        for key in keys:
            self.all[key] = self.all[key].after({"state": INTERRUPTED, "replay": replay})

    async def end(self, replay: str, endings: Sequence[Ending]) -> None:
        if self._dies():
            raise Died
        for ending in endings:
            self.all[ending.key] = self.all[ending.key].after(ending.as_dict())

    async def purge(self, selection: Selection) -> int:
        raise NotImplementedError


class Destination:
    """Refuses, is unavailable, or is cut off, as often as `trouble` says, with or without
    effect.
    """

    def __init__(self, dice: random.Random, *, prefix_safe: bool) -> None:
        self.capabilities = Capabilities(key_prefix_safe=prefix_safe)
        self.trouble = 0.1
        self.seen: list[int] = []
        self._dice = dice

    def has_trouble(self) -> bool:
        return self._dice.random() < self.trouble

    async def write(self, batch: Batch[int]) -> WriteResult:
        keys = range(len(batch)) if batch.keys is None else batch.keys
        assert self.capabilities.key_prefix_safe or len(set(keys)) == len(keys)
        if self.has_trouble():
            raise UnavailableError("away")
        errors: dict[int, BaseException] = {}
        failed: set[object] = set()
        for index, item in enumerate(batch):
            if keys[index] in failed or self.has_trouble():
                errors[index] = PermanentError("bad")
            else:
                self.seen.append(item)
                if self.has_trouble():
                    errors[index] = TimedOutError("no answer")
            if index in errors:
                failed.add(keys[index])
        return WriteResult.failed(batch, errors)


@pytest.mark.parametrize("prefix_safe", [True, False])
def test_no_letter_overtakes_another_of_its_key_whatever_happens(*, prefix_safe: bool) -> None:
    """Random refusals, outages, cuts and deaths: at the end all letters have arrived, and the first
    arrivals of each key are in order.
    """

    async def once(seed: int) -> None:
        dice = random.Random(seed)
        keys = [
            str(dice.randrange(4)) if dice.random() < 0.9 else None
            for _ in range(dice.randrange(1, 40))
        ]
        tenants = [None, "ann"]
        letters = [
            Letter(
                key=f"{number}",
                item=number,
                item_key=key,
                tenant=dice.choice(tenants),
                first_at=NOON,
                last_at=NOON,
            )
            for number, key in enumerate(keys)
        ]
        sink = Destination(dice, prefix_safe=prefix_safe)
        store = Store(letters, sink.has_trouble)
        while any(letter.state != REPLAYED for letter in store.all.values()):
            chosen = replace(
                LEFT, keys=dice.choice([(), ("1", "2")]), tenant=dice.choice([None, "ann"])
            )
            rules = ReplayRules(
                batch_size=dice.randrange(1, 8),
                item_of=partial(item_of, None),
                twice=dice.random() < 0.5,
            )
            with suppress(Died):
                await Replay(store, stack(sink, DeadLetter(MemorySink[Any]())), rules).run(
                    chosen, None
                )
        first = [*dict.fromkeys(sink.seen)]
        assert sorted(first) == [*range(len(letters))], seed
        for lane in {letter.lane for letter in letters} - {None}:
            own = [letter.item for letter in letters if letter.lane == lane]
            assert [item for item in first if item in own] == own, seed

    async def main() -> None:
        for seed in range(30):
            await once(seed)

    asyncio.run(main())
