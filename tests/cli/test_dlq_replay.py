"""Dead letters are replayed through a stack of sinks, once, whatever happens meanwhile."""

from __future__ import annotations

import itertools
import json
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.cli.dlq_help import Cli, keep_in_file, module, process, record

if TYPE_CHECKING:
    from pathlib import Path

_NAMES = (f"stack_{number}" for number in itertools.count())

HEAD = """
import asyncio, json, os, signal, tenacity
from sluicegate import *
from sluicegate.files import FileSink

def log(batch):
    with open("log", "a") as file:
        print(json.dumps({"id": batch.id, "key": batch.write_key, "name": batch.name, "items": list(batch), "maybe": sorted(batch.maybe_applied)}), file=file)

"""


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return Cli(capsys)


def stack_of(folder: Path, text: str, name: str = "sink") -> str:
    """A module with a sink, and the sink's name."""
    made = next(_NAMES)
    module(folder, made, HEAD + text)
    return f"{made}:{name}"


def logged(folder: Path) -> list[dict[str, Any]]:
    path = folder / "log"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def sent(folder: Path) -> list[int]:
    return [item["n"] for call in logged(folder) for item in call["items"]]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("async def sink(batch): log(batch)", "sink"),
        ("def sink(batch): log(batch)", "sink"),
        (
            "class Log:\n    async def write(self, batch): log(batch)\nsink = stack(Log(), "
            "Timeout(5.0), Retry())",
            "sink",
        ),
        (
            "class Held:\n    @staticmethod\n    def make():\n        async def write(batch): "
            "log(batch)\n        return write",
            "Held.make",
        ),
    ],
)
def test_letters_are_sent_oldest_first_and_once(
    cli: Cli, tmp_path: Path, text: str, name: str
) -> None:
    """batcher/4a.7, batcher/B56: the second run has nothing left."""
    store = keep_in_file(tmp_path / "dead", [record(number) for number in range(5)])
    to = stack_of(tmp_path, text, name)
    cli("replay", store, "--to", to, "--batch-size", "2")
    assert cli.err == "replayed: 5 delivered\n"
    assert [[item["n"] for item in call["items"]] for call in logged(tmp_path)] == [
        [0, 1],
        [2, 3],
        [4],
    ]
    assert {call["name"] for call in logged(tmp_path)} == {"audit"}
    assert cli.keys(store) == []
    assert {letter["outcome"] for letter in cli.letters(store, "--state", "replayed")} == {
        "delivered"
    }
    cli("replay", store, "--to", to)
    assert cli.err.startswith("replayed: nothing\n")
    assert len(sent(tmp_path)) == 5


def test_only_those_that_are_meant_are_sent(cli: Cli, tmp_path: Path) -> None:
    store = keep_in_file(
        tmp_path / "dead", [record(number, tenant="ab"[number % 2]) for number in range(10)]
    )
    to = stack_of(tmp_path, "async def sink(batch): log(batch)")
    cli("replay", store, "--to", to, "--tenant", "a", "--limit", "3")
    assert sent(tmp_path) == [0, 2, 4]
    cli("replay", store, "--to", to, "--letter", "key-0007")
    assert sent(tmp_path) == [0, 2, 4, 7]
    assert cli.keys(store) == [1, 3, 5, 6, 8, 9]


def test_no_batch_mixes_tenants_or_batchers(cli: Cli, tmp_path: Path) -> None:
    """B-T28."""
    letters = [
        record(1, tenant="a"),
        record(2, tenant="a"),
        record(3, tenant="b"),
        record(4, tenant="b", batcher="x"),
        record(5),
    ]
    store = keep_in_file(tmp_path / "dead", letters)
    cli("replay", store, "--to", stack_of(tmp_path, "async def sink(batch): log(batch)"))
    assert [[item["n"] for item in call["items"]] for call in logged(tmp_path)] == [
        [1, 2],
        [3],
        [4],
        [5],
    ]


def test_what_fails_again_stays_with_all_its_attempts(cli: Cli, tmp_path: Path) -> None:
    """Its new error is reported, the old attempts are kept, and the others are completed."""
    store = keep_in_file(tmp_path / "dead", [record(number) for number in range(4)])
    to = stack_of(
        tmp_path,
        """
async def write(batch):
    log(batch)
    return WriteResult.failed(batch, {i: TransientError("odd still") for i, item in enumerate(batch) if item["n"] % 2})
sink = stack(write, Retry(attempts=2, backoff=tenacity.wait_none()))
""",
    )
    cli("replay", store, "--to", to, code=1)
    assert cli.err == "replayed: 2 delivered, 2 rejected\n2 rejected: TransientError: odd still\n"
    assert sent(tmp_path) == [0, 1, 2, 3, 1, 3]
    left = cli.letters(store)
    assert [letter["key"] for letter in left] == ["key-0001", "key-0003"]
    told = {
        (
            letter["attempts"],
            letter["error_type"],
            letter["error_class"],
            letter["message"],
            letter["state"],
        )
        for letter in left
    }
    assert told == {(5, "TransientError", "transient", "odd still", "pending")}
    assert all(letter["first_at"] < letter["last_at"] for letter in left)
    cli("replay", store, "--to", to, code=1)
    assert {letter["attempts"] for letter in cli.letters(store)} == {7}


def test_what_fails_again_stays_though_the_stack_has_dead_letters_of_its_own(
    cli: Cli, tmp_path: Path
) -> None:
    """B-T19: it keeps its place and its key, continues its count, and exists once; a limit on dead
    letters does not stop the replay.
    """
    store = keep_in_file(tmp_path / "dead", [record(number) for number in range(1, 4)])
    to = stack_of(
        tmp_path,
        """
async def write(batch):
    log(batch)
    return WriteResult.failed(batch, {i: PermanentError("never") for i, item in enumerate(batch) if item["n"] != 2})
sink = stack(write, DeadLetter(FileSink("dead"), max_consecutive=1))
""",
    )
    cli("replay", store, "--to", to, code=1)
    assert cli.err == "replayed: 1 delivered, 2 rejected\n2 rejected: PermanentError: never\n"
    assert [
        (letter["key"], letter["attempts"], letter["message"])
        for letter in cli.letters(store, "--state", "all")
    ] == [
        ("key-0001", 4, "never"),
        ("key-0002", 3, "no 2"),
        ("key-0003", 4, "never"),
    ]


def test_a_destination_that_is_not_there_ends_the_replay_and_costs_no_attempt(
    cli: Cli, tmp_path: Path
) -> None:
    """B-T42: an outage produces no dead letters."""
    store = keep_in_file(tmp_path / "dead", [record(number) for number in range(6)])
    text = (
        "async def sink(batch):\n    log(batch)\n    if batch[0]['n'] == 2: raise "
        "UnavailableError('closed for lunch')"
    )
    cli("replay", store, "--to", stack_of(tmp_path, text), "--batch-size", "2", code=1)
    assert "replayed: 2 delivered, 2 unsent" in cli.err
    assert "closed for lunch; run the same command again to continue" in cli.err
    assert sent(tmp_path) == [0, 1, 2, 3]
    assert {(letter["attempts"], letter["message"][:2]) for letter in cli.letters(store)} == {
        (3, "no")
    }
    assert cli.keys(store) == [2, 3, 4, 5]


def test_what_may_be_there_is_marked_for_the_sink_unless_told_otherwise(
    cli: Cli, tmp_path: Path
) -> None:
    """batcher/4b.11: only this mark lets a sink report a conflict as a duplicate."""
    letters = [record(1), record(2, maybe_delivered=True), record(3, maybe_delivered=True)]
    to = stack_of(tmp_path, "async def sink(batch): log(batch)")
    cli("replay", keep_in_file(tmp_path / "dead", letters), "--to", to)
    cli("replay", keep_in_file(tmp_path / "other", letters), "--to", to, "--at-least-once")
    assert [(len(call["items"]), call["maybe"]) for call in logged(tmp_path)] == [
        (1, []),
        (2, [0, 1]),
        (1, []),
        (2, []),
    ]


def test_an_item_is_made_as_the_user_says_and_what_cannot_be_made_stays(
    cli: Cli, tmp_path: Path
) -> None:
    store = keep_in_file(tmp_path / "dead", [record(number) for number in range(3)])
    to = stack_of(
        tmp_path,
        "async def sink(batch): log(batch)\ndef decode(item): return {'n': 100 // item['n']}",
    )
    cli("replay", store, "--to", to, "--decode", to.replace(":sink", ":decode"), code=1)
    assert sent(tmp_path) == [100, 50]
    assert "1 undecodable" in cli.err
    assert cli.keys(store) == [0]


def test_a_replay_that_is_killed_goes_on_with_the_same_batch_and_knows_that_it_may_be_there(
    cli: Cli, tmp_path: Path
) -> None:
    """kill -9 when the second batch has arrived and this is not recorded. The write key is the
    same, so a deduplicating server keeps one copy.
    """
    store = keep_in_file(tmp_path / "dead", [record(number) for number in range(7)])
    text = (
        "async def sink(batch):\n    log(batch)\n    if batch[0]['n'] == 3 and not "
        "os.path.exists('again'): os.kill(os.getpid(), signal.SIGKILL)"
    )
    to = stack_of(tmp_path, text)
    with process(tmp_path, "replay", store, "--to", to, "--batch-size", "3") as killed:
        killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    assert cli.keys(store) == [3, 4, 5, 6]
    assert cli.keys(store, "--state", "interrupted") == [3, 4, 5]
    (tmp_path / "again").touch()
    cli("replay", store, "--to", to, "--batch-size", "2")
    assert cli.err == "replayed: 4 delivered\n"
    first, second, again, rest = logged(tmp_path)
    assert [item["n"] for item in first["items"]] == [0, 1, 2]
    assert {**second, "maybe": [0, 1, 2]} == again
    assert [item["n"] for item in rest["items"]] == [6]


@pytest.mark.long
@pytest.mark.parametrize(("sent_signal", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("where", ["at the destination", "backing off", "partly done"])
def test_a_replay_that_is_interrupted_notes_what_is_known(
    cli: Cli, tmp_path: Path, sent_signal: signal.Signals, code: int, where: str
) -> None:
    store = keep_in_file(tmp_path / "dead", [record(number) for number in range(4)])
    text = {
        "at the destination": "async def sink(batch):\n    print('inside', flush=True)\n    "
        "await asyncio.Event().wait()",
        "backing off": """
async def write(batch):
    asyncio.get_running_loop().call_soon(print, 'inside')
    raise TransientError('later')
sink = stack(write, Retry(backoff=tenacity.wait_fixed(1000)))
""",
        "partly done": """
async def sink(batch):
    batch.settle([0, 2], Outcome.DELIVERED)
    print('inside', flush=True)
    await asyncio.Event().wait()
""",
    }[where]
    to = stack_of(tmp_path, text.replace("print, 'inside'", "lambda: print('inside', flush=True)"))
    with process(tmp_path, "replay", store, "--to", to) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "inside\n"
        running.send_signal(sent_signal)
        _, said = running.communicate()
    assert running.returncode == code, said
    told, expected = {
        "at the destination": ("4 unknown", ["interrupted"] * 4),
        "backing off": ("4 unsent", ["pending"] * 4),
        "partly done": ("2 delivered, 2 unknown", ["replayed", "interrupted"] * 2),
    }[where]
    assert said == f"interrupted; replayed: {told}; run the same command again to continue\n"
    states = {letter["key"]: letter["state"] for letter in cli.letters(store, "--state", "all")}
    assert [states[key] for key in sorted(states)] == expected


def test_two_replays_at_once_are_refused(cli: Cli, tmp_path: Path) -> None:
    store = keep_in_file(tmp_path / "dead", [record(1)])
    to = stack_of(
        tmp_path,
        "async def sink(batch):\n    print('inside', flush=True)\n    await asyncio.Event().wait()",
    )
    with process(tmp_path, "replay", store, "--to", to) as running:
        assert running.stdout is not None
        assert running.stdout.readline()
        cli("replay", store, "--to", to, code=2)
        assert "another process" in cli.err
        running.kill()


@pytest.mark.parametrize(
    ("to", "told"),
    [
        ("nothing", "must be MODULE:NAME"),
        ("no_such_module_here:sink", "No module named 'no_such_module_here'"),
        ("json:sink", "json has no sink"),
        ("json:decoder.JSONDecoder", "sink="),
        ("json:__name__", "sink='json'"),
    ],
)
def test_a_stack_that_is_none_is_told(cli: Cli, tmp_path: Path, to: str, told: str) -> None:
    cli("replay", keep_in_file(tmp_path / "dead", [record(1)]), "--to", to, code=2)
    assert told in cli.err


def test_purging_takes_what_was_replayed_and_leaves_the_rest_as_it_was(
    cli: Cli, tmp_path: Path
) -> None:
    store = str(tmp_path / "dead.jsonl")
    for number in range(6):
        keep_in_file(tmp_path / "dead.jsonl", [record(number)])
    with (tmp_path / "dead.jsonl").open("ab") as file:
        file.write(b"not ours\n")
    everything = {
        line for path in tmp_path.glob("dead*.jsonl") for line in path.read_bytes().splitlines()
    }
    to = stack_of(
        tmp_path,
        "async def sink(batch):\n    log(batch)\n    if batch[0]['n'] == 2: raise "
        "PermanentError('no')",
    )
    cli("replay", store, "--to", to, "--batch-size", "1", "--limit", "4", code=1)
    cli("purge", store, code=1)
    assert cli.err.startswith("removed 3 dead letters\n")
    left = {
        line for path in tmp_path.glob("dead*.jsonl") for line in path.read_bytes().splitlines()
    }
    assert left < everything
    assert len(left) == 4
    assert b"not ours" in left
    letters = [json.loads(line) for line in cli("list", store, "--state", "all", "--json", code=1)]
    assert [letter["key"] for letter in letters] == ["key-0002", "key-0004", "key-0005"]
    assert letters[0]["attempts"] == 4, "what replays said of those that stay is kept"
    cli("purge", store, "--state", "all", "--yes", code=1)
    assert cli("list", store, "--state", "all", code=1) == []
    assert (tmp_path / "dead.jsonl").read_bytes() == b"not ours\n"


def test_a_file_that_is_being_written_is_not_purged(cli: Cli, tmp_path: Path) -> None:
    store = keep_in_file(tmp_path / "dead", [record(1)])
    to = stack_of(
        tmp_path,
        "async def sink(batch):\n    async with FileSink('dead'):\n        print('inside', "
        "flush=True)\n        await asyncio.Event().wait()",
    )
    with process(
        tmp_path, "replay", keep_in_file(tmp_path / "other", [record(1)]), "--to", to
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline()
        cli("purge", store, "--state", "all", "--yes", code=2)
        assert "another process" in cli.err
        running.kill()
    assert cli.keys(store) == [1]


@pytest.mark.parametrize(
    "around",
    [
        "",
        ", Retry(attempts=2)",
        ", Timeout(5.0), Retry(on_refused='dead_letter'), DeadLetter(FileSink('other'))",
    ],
)
def test_a_full_disk_ends_a_replay_at_once_and_says_what_to_repair(
    cli: Cli, tmp_path: Path, around: str
) -> None:
    """decisions 0.3: no retry waits for an operator here, and no attempt is counted."""
    store = keep_in_file(
        tmp_path / "dead",
        [record(number, item={"n": number, "pad": "x" * 500}) for number in range(6)],
    )
    text = f"""
import resource
class Full(FileSink):
    async def write(self, batch):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, before[1]))
        try:
            return await super().write(batch)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
sink = stack(Full("target.jsonl"){around})
"""
    cli("replay", store, "--to", stack_of(tmp_path, text), "--batch-size", "2", code=1)
    assert cli.err.startswith("replayed: 2 delivered, 2 unsent\n")
    path = "target.jsonl"
    told = (
        f"stopped, the destination refuses everything: {path} cannot be written: File too "
        "large; to repair: raise the limit on the size of files"
    )
    assert told in cli.err
    assert "then run the same command again" in cli.err
    left = cli.letters(store)
    assert [
        (letter["key"], letter["attempts"], letter["message"], letter["state"]) for letter in left
    ] == [(f"key-000{number}", 3, f"no {number}", "pending") for number in range(2, 6)]
    assert len((tmp_path / path).read_text().splitlines()) == 2


def test_a_sink_that_is_refused_at_its_opening_ends_a_replay_before_anything_is_sent(
    cli: Cli, tmp_path: Path
) -> None:
    store = keep_in_file(tmp_path / "dead", [record(1), record(2, maybe_delivered=True)])
    before = cli.letters(store)
    cli(
        "replay",
        store,
        "--to",
        stack_of(tmp_path, "sink = stack(FileSink('no folder/target.jsonl'), Retry())"),
        code=2,
    )
    assert (
        cli.err
        == "no folder/target.jsonl cannot be written: No such file or directory; to repair: "
        "create the folder no folder\n"
    )
    assert cli.letters(store) == before


def test_an_error_of_a_replay_shows_no_values_of_items_and_its_letter_gets_all_of_it(
    cli: Cli, tmp_path: Path
) -> None:
    store = keep_in_file(tmp_path / "dead", [record(1, item_key="k"), record(2)])
    text = r"""
class Detailed(PermanentError):
    sqlstate = "23505"
    def __str__(self): return "duplicate key\nDETAIL:  Key (name)=(secret) already exists. \udcff"
class Unshown(PermanentError):
    def __str__(self): raise ValueError("no text")
async def sink(batch):
    raise Detailed() if batch[0]["n"] == 1 else Unshown()
"""
    cli("replay", store, "--to", stack_of(tmp_path, text), "--batch-size", "1", code=1)
    assert "SQLSTATE 23505" in cli.err
    assert "secret" not in cli.err
    first, second = cli.letters(store)
    assert first["message"] == "duplicate key\nDETAIL:  Key (name)=(secret) already exists. \\udcff"
    assert "cannot be shown" in second["message"]
