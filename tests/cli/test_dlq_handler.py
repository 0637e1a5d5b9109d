"""The dead letters of a consumer are passed to its handler again.

White box: the item that is made of a consumer's record.
"""

from __future__ import annotations

import itertools
import json
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.cli.dlq_help import Cli, keep_in_file, module, process, record

from sluicegate import Consumer, Message, Terminate
from sluicegate.consumer import MemoryLog, MemorySource, Poison, Record
from sluicegate.files import FileSink
from sluicegate.letters.items import item_of_record

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate.sinks import DeadLetterRecord
    from sluicegate.testing import FakeClock

_NAMES = (f"handlers_{number}" for number in itertools.count())

HEAD = """
import asyncio, json, os, sys
from sluicegate import *
from sluicegate.consumer import *

def log(message):
    with open("log", "a") as file:
        print(json.dumps([message.offset, message.attempt, repr(message.order_key)]), file=file)

"""


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return Cli(capsys)


def handler_of(folder: Path, text: str, name: str = "handle") -> str:
    """A module with a handler, and the handler's name."""
    made = next(_NAMES)
    module(folder, made, HEAD + text)
    return f"{made}:{name}"


def letter(number: int, key: str | None = "a", **changes: Any) -> DeadLetterRecord[Any]:
    """The letter of a consumer for the record at this offset."""
    made = Record("orders", 3, number, b"\xff", b"\x00%d" % number, [("h", b"\xfe")], 1_700)
    usual = {"item": item_of_record(made), "batcher": "billing", "item_key": key}
    return record(number, **{**usual, **changes})


def handled(folder: Path) -> list[int]:
    """The offsets that the handler has logged, in order."""
    path = folder / "log"
    return [json.loads(line)[0] for line in path.read_text().splitlines()] if path.exists() else []


def states(cli: Cli, store: str) -> dict[int, str]:
    found = cli.letters(store, "--state", "all")
    return {int(each["key"].removeprefix("key-")): each["state"] for each in found}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("async def handle(message): see(message)", "handle"),
        ("def handle(message): see(message)", "handle"),
        ("def handle(message):\n    see(message)\n    return Ack()", "handle"),
        (
            "class Handler:\n    async def __call__(self, message):\n        see(message)\n"
            "        return Skip()\nhandler = Handler()",
            "handler",
        ),
        (
            "async def settle(message):\n    await asyncio.sleep(0.01)\n    message.settle(Ack())\n"
            "async def handle(message):\n    see(message)\n    message.in_progress()\n"
            "    assert not message.settle(Ack())\n"
            "    handle.task = asyncio.ensure_future(settle(message))\n    return Manual()",
            "handle",
        ),
        (
            "def step(message): message.decoded(bytes(message.value))\n"
            "async def inner(message): see(message)\nhandle = with_steps(inner, step)",
            "handle",
        ),
    ],
    ids=["async", "plain", "Ack", "object", "Manual", "steps"],
)
def test_a_handler_gets_each_record_as_it_was_and_for_the_first_time(
    cli: Cli, tmp_path: Path, text: str, name: str
) -> None:
    """consumer/O25: the same handler, attempts reset, and `Ack` removes the letter."""
    store = keep_in_file(tmp_path / "dead", [letter(number) for number in (4, 2, 7)])
    see = (
        "def see(message):\n"
        "    assert (message.topic, message.partition, message.key) == ('orders', 3, b'\\xff')\n"
        "    assert message.value == b'\\x00%d' % message.offset\n"
        "    assert message.headers == [('h', b'\\xfe')] and message.timestamp == 1_700\n"
        "    assert message.attempt == 1 and message.order_key == 'a'\n"
        "    log(message)\n"
    )
    cli("replay", store, "--handler", handler_of(tmp_path, see + text, name))
    assert cli.err == "replayed: 3 delivered\n"
    assert handled(tmp_path) == [4, 2, 7]
    assert {*states(cli, store).values()} == {"replayed"}
    cli("replay", store, "--handler", handler_of(tmp_path, see + text, name))
    assert handled(tmp_path) == [4, 2, 7]


@pytest.mark.parametrize(
    ("result", "error_type", "error_class", "message"),
    [
        ("return Nak()", "TransientError", "transient", "did not acknowledge"),
        ("return Nak(error=PermanentError('x'))", "PermanentError", "permanent", "x"),
        ("raise ValueError('x')", "ValueError", "unlisted", "x"),
        ("raise TimeoutError('x')", "TimeoutError", "transient", "x"),
        ("return ToDeadLetter('why')", "PoisonError", "permanent", "why"),
        ("return Terminate('why')", "PoisonError", "permanent", "why"),
        ("return Terminate(error=KeyError('k'))", "KeyError", "unlisted", "k"),
        ("return 1", "ResultTypeError", "permanent", "returned a int"),
        ("raise asyncio.CancelledError", "TransientError", "transient", "CancelledError"),
    ],
)
def test_a_letter_that_is_not_acknowledged_stays_with_its_new_error(
    cli: Cli, tmp_path: Path, result: str, error_type: str, error_class: str, message: str
) -> None:
    """consumer/O25: Nak and Term keep the letter; later letters of its key wait, others
    continue.
    """
    letters = [letter(number, key) for number, key in enumerate(["a", "b", "a", None])]
    store = keep_in_file(tmp_path / "dead", letters)
    text = f"async def handle(message):\n    log(message)\n    if message.offset == 0: {result}"
    cli("replay", store, "--handler", handler_of(tmp_path, text), code=1)
    assert cli.err.splitlines()[0] == "replayed: 2 delivered, 1 rejected, 1 held back"
    assert cli.err.splitlines()[1].startswith("key a stops at letter key-0000, 1 held back")
    assert handled(tmp_path) == [0, 1, 3]
    assert states(cli, store) == {0: "pending", 1: "replayed", 2: "pending", 3: "replayed"}
    first, behind = cli.letters(store)
    assert (first["error_type"], first["error_class"]) == (error_type, error_class)
    assert message in first["message"]
    assert first["attempts"] == 4
    assert behind["attempts"] == 3
    assert first["item"] == cli.letters(store, "--letter", "key-0000")[0]["item"]
    again = handler_of(tmp_path, "def handle(message): log(message)")
    cli("replay", store, "--handler", again)
    assert handled(tmp_path) == [0, 1, 3, 0, 2]


def test_letters_that_are_parked_or_hold_no_record_are_refused(cli: Cli, tmp_path: Path) -> None:
    """consumer/C:N4: `unpark` handles the records behind a parked one in order; a replay does
    not.
    """
    letters = [
        letter(0, "parked", error_class="parked"),
        letter(1, "behind", parked_behind=True),
        letter(2, "batched", item={"n": 2}),
        letter(3, None, item={"n": 3}),
        letter(4, "batched"),
        letter(5, "good"),
        letter(6, None, error_class="parked"),
        letter(7, "repr", item={"value": object()}),
    ]
    store = keep_in_file(tmp_path / "dead", letters)
    name = handler_of(tmp_path, "def handle(message): log(message)")
    no_record = "it holds no record of a source; send it with --to (no topic, partition, offset, "
    no_record += "key, value, headers, timestamp)"
    parked = "its key is parked: unpark(key), on the consumer that parked it, handles the records"
    cli("replay", store, "--handler", name, code=1)
    assert cli.err.splitlines()[0].startswith("replayed: 1 delivered, ")
    assert no_record in cli.err
    assert parked in cli.err
    assert handled(tmp_path) == [5]
    assert [number for number, state in states(cli, store).items() if state == "replayed"] == [5]


def test_what_is_refused_is_counted_with_its_reason(cli: Cli, tmp_path: Path) -> None:
    letters = [letter(number, None, item=number) for number in range(2)]
    store = keep_in_file(tmp_path / "dead", letters)
    name = handler_of(tmp_path, "def handle(message): log(message)")
    cli("replay", store, "--handler", name, code=1)
    assert cli.err.splitlines() == [
        "replayed: 2 refused",
        "2 refused: it holds no record of a source; send it with --to (no mapping)",
    ]


def test_a_handler_whose_database_is_down_ends_the_replay_and_costs_no_attempt(
    cli: Cli, tmp_path: Path
) -> None:
    store = keep_in_file(tmp_path / "dead", [letter(number, None) for number in range(3)])
    text = "def handle(message):\n    log(message)\n    if message.offset: raise UnavailableError('down')"
    cli("replay", store, "--handler", handler_of(tmp_path, text), code=1)
    assert "stopped, the destination accepts nothing now: UnavailableError: down" in cli.err
    assert handled(tmp_path) == [0, 1]
    assert states(cli, store) == {0: "replayed", 1: "pending", 2: "pending"}
    assert {each["attempts"] for each in cli.letters(store)} == {3}


def test_messages_of_different_keys_are_handled_at_once_if_told_so(
    cli: Cli, tmp_path: Path
) -> None:
    """Two handlers wait for each other, and the third message is behind the first."""
    store = keep_in_file(tmp_path / "dead", [letter(0, "a"), letter(1, "b"), letter(2, "a")])
    text = """
came = []
async def handle(message):
    came.append(message.offset)
    log(message)
    while len(came) < 2:
        await asyncio.sleep(0)
    if message.offset == 1:
        raise ValueError
"""
    name = handler_of(tmp_path, text)
    cli("replay", store, "--handler", name, "--batch-size", "5", code=1)
    assert cli.err.splitlines()[0] == "replayed: 2 delivered, 1 rejected"
    assert states(cli, store) == {0: "replayed", 1: "pending", 2: "replayed"}


@pytest.mark.parametrize(("sent_signal", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_an_interrupted_replay_leaves_one_letter_in_doubt_and_goes_on_with_it(
    cli: Cli, tmp_path: Path, sent_signal: signal.Signals, code: int
) -> None:
    """consumer/O25: the start of its handling is recorded, and its outcome afterwards."""
    store = keep_in_file(tmp_path / "dead", [letter(number) for number in range(4)])
    text = """
async def handle(message):
    log(message)
    if message.offset == 1 and not os.path.exists("again"):
        print("inside", flush=True)
        await asyncio.Event().wait()
"""
    name = handler_of(tmp_path, text)
    with process(tmp_path, "replay", store, "--handler", name) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "inside\n"
        running.send_signal(sent_signal)
        running.communicate()
    assert running.returncode == code
    assert states(cli, store) == {0: "replayed", 1: "interrupted", 2: "pending", 3: "pending"}
    (tmp_path / "again").touch()
    cli("replay", store, "--handler", name)
    assert cli.err == "replayed: 3 delivered\n"
    assert handled(tmp_path) == [0, 1, 1, 2, 3]


def test_what_is_known_when_several_are_interrupted_is_noted(cli: Cli, tmp_path: Path) -> None:
    store = keep_in_file(tmp_path / "dead", [letter(number, str(number)) for number in range(3)])
    text = """
async def handle(message):
    if message.offset == 1:
        print("inside", flush=True)
        await asyncio.Event().wait()
"""
    name = handler_of(tmp_path, text)
    with process(tmp_path, "replay", store, "--handler", name, "--batch-size", "3") as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "inside\n"
        running.send_signal(signal.SIGINT)
        _, said = running.communicate()
    assert (
        said
        == "interrupted; replayed: 2 delivered, 1 unknown; run the same command again to continue\n"
    )
    assert states(cli, store) == {0: "replayed", 1: "interrupted", 2: "replayed"}


def test_an_interrupted_letter_that_fails_again_is_pending_with_its_error(
    cli: Cli, tmp_path: Path
) -> None:
    """A handler receives it like any other: it cannot know the effect of an earlier attempt."""
    store = keep_in_file(tmp_path / "dead", [letter(0, maybe_delivered=True)])
    name = handler_of(tmp_path, "def handle(message): raise ValueError('new')")
    cli("replay", store, "--handler", name, code=1)
    (found,) = cli.letters(store)
    assert (found["state"], found["message"], found["attempts"]) == ("pending", "new", 4)


@pytest.mark.parametrize(
    ("text", "options", "told"),
    [
        ("handle = 3", [], "--handler=3: must be a function of the message"),
        ("class handle: ...", [], "is a class; pass a function of the message"),
        ("def handle(): ...", [], "must take one argument, the message"),
        ("def handle(m): yield", [], "is a generator function"),
        ("def handle(m): ...", ["--decode", "json:loads"], "--decode needs --to"),
        ("def handle(m): ...", ["--at-least-once"], "--at-least-once needs --to"),
    ],
)
def test_what_is_no_handler_is_refused_before_anything_starts(
    cli: Cli, tmp_path: Path, text: str, options: list[str], told: str
) -> None:
    store = keep_in_file(tmp_path / "dead", [letter(0)])
    cli("replay", store, "--handler", handler_of(tmp_path, text), *options, code=2)
    assert told in cli.err
    assert states(cli, store) == {0: "pending"}


@pytest.mark.parametrize("targets", [[], ["--to", "a:b", "--handler", "c:d"]])
def test_letters_go_to_a_sink_or_to_a_handler(
    cli: Cli, capsys: pytest.CaptureFixture[str], targets: list[str]
) -> None:
    with pytest.raises(SystemExit):
        cli("replay", "dead", *targets)
    assert "--handler" in capsys.readouterr().err


async def _poisoned(message: Message) -> Terminate | None:
    return Terminate("no such customer") if message.offset % 2 else None


def test_what_a_consumer_gave_up_is_handled_again(
    cli: Cli, tmp_path: Path, fake_clock: FakeClock
) -> None:
    """consumer/O24, consumer/O25: from the source to the handler's second attempt."""
    log = MemoryLog([Record("t", 0, n, b"k%d" % (n % 4), b"%d" % n) for n in range(8)])
    consumer = Consumer(
        MemorySource(log, ends=True, clock=fake_clock),
        name="billing",
        poison=Poison("skip", dead_letters=FileSink(tmp_path / "dead")),
        clock=fake_clock,
    )
    assert fake_clock.run(consumer.run(_poisoned)).complete
    store = str(tmp_path / "dead")
    listed = cli("list", store, "--batcher", "billing")
    assert len(listed) == 4
    text = (
        "def handle(message):\n    assert message.value == b'%d' % message.offset\n    log(message)"
    )
    name = handler_of(tmp_path, text)
    cli("replay", store, "--handler", name, "--key", ":b'k1'")
    assert handled(tmp_path) == [1, 5]
    cli("replay", store, "--handler", name)
    assert sorted(handled(tmp_path)) == [1, 3, 5, 7]
