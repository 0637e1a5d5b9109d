"""Malicious letters: their output on a terminal, and the damage they may cause. Also a DSN that
must not be shown.

White box: the text of a value for a terminal.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.cli.dlq_help import Cli, keep_in_file, module, record

from sluicegate.cli import main
from sluicegate.letters.text import as_json

if TYPE_CHECKING:
    from pathlib import Path

ESCAPES = "\x1b[2J\x9b31m\x07\u202egnp.exe\u2066\u200f\x7f\r\n\U000e0041"
SECRET = "hunter2"


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return Cli(capsys)


def hostile(number: int) -> dict[str, Any]:
    texts = ("error_type", "error_class", "message", "batcher", "batch_id", "trace_id", "item_key")
    return {
        **record(number).as_dict(),
        **{name: name + ESCAPES for name in texts},
        "key": f"{number}{ESCAPES}",
        "item": {ESCAPES: [ESCAPES]},
        "tenant": ESCAPES,
    }


def lines(path: Path, *records: Any) -> str:
    with path.open("ab") as file:
        for each in records:
            file.write((each if isinstance(each, bytes) else json.dumps(each).encode()) + b"\n")
    return str(path)


def assert_harmless(text: str) -> None:
    assert all(each == "\n" or each.isprintable() for each in text), ascii(text)


@pytest.mark.parametrize("arguments", [["list"], ["list", "--json"], ["show"]])
def test_nothing_of_a_letter_reaches_the_terminal_as_it_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str]
) -> None:
    store = lines(tmp_path / "a", hostile(1))
    command, *options = arguments
    assert main(["dlq", command, store, *options, *(["1"] if command == "show" else [])]) == 0
    said = capsys.readouterr()
    assert_harmless(said.out)
    assert_harmless(said.err)
    assert "\\x1b[2J" in said.out or "\\u001b[2J" in said.out
    if arguments != ["list"]:
        shown = json.loads(said.out)
        expected = hostile(1)
        assert {name: shown[name] for name in expected if not name.endswith("_at")} == {
            name: value for name, value in expected.items() if not name.endswith("_at")
        }


def test_nothing_of_a_letter_reaches_the_terminal_in_a_replay(
    cli: Cli, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Nor does any part of the sink's own error, or of the given names."""
    store = lines(tmp_path / "a", hostile(1), hostile(2))
    text = (
        "from sluicegate import *\nasync def sink(batch): raise "
        f"PermanentError({ESCAPES!r})\ndef decode(item): raise ValueError({ESCAPES!r})"
    )
    module(tmp_path, "hostile_sink", text)
    for arguments in (
        ["--to", "hostile_sink:sink"],
        ["--to", "hostile_sink:sink", "--decode", "hostile_sink:decode"],
    ):
        cli("replay", store, *arguments, code=1)
        assert "stops at letter" in cli.err
        assert_harmless(cli.err)
    cli("list", store, "--key", ESCAPES)
    assert_harmless(cli.err)
    cli("list", str(tmp_path / "\x1b[31m"), code=2)
    assert_harmless(cli.err)
    with pytest.raises(SystemExit):
        main(["dlq", "list", store, "--state", "\x1b[31m"])
    assert_harmless(capsys.readouterr().err)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", None, "no such encoding"])
def test_json_for_people_reads_back_as_the_same_value(encoding: str | None) -> None:
    value = {"text": ESCAPES + "ü€😀\ud800", "deep": [[{}]]}
    for indent in (None, 2):
        text = as_json(value, encoding=encoding, indent=indent)
        assert json.loads(text) == value
        assert_harmless(text)
        assert encoding == "utf-8" or text.isascii()
        assert encoding != "utf-8" or "ü€😀" in text


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def changed(number: int, **changes: Any) -> dict[str, Any]:
    return {**record(number).as_dict(), **changes}


BAD: dict[str, Any] = {
    "not JSON": b"hello",
    "half": b'{"key": "k"',
    "empty": b"",
    "a list": [],
    "a number": 5,
    "NUL": b"\0\0\0\0",
    "invalid UTF-8": b'{"key": "\xff"}',
    "UTF-16": "{}".encode("utf-16"),
    "too deep": nested(100_000),
    "a huge number": b'{"key": ' + b"9" * 10_000 + b"}",
    "no key": {name: value for name, value in record(1).as_dict().items() if name != "key"},
    "no item": {name: value for name, value in record(1).as_dict().items() if name != "item"},
    "a key that is a list": changed(1, key=["k"]),
    "a key that is none": changed(1, key=None),
    "a key that no store takes": changed(1, key="\ud800"),
    "attempts as text": changed(1, attempts="3"),
    "infinite attempts": changed(1, attempts=float("inf")),
    "no number of attempts": changed(1, attempts=float("nan")),
    "attempts beyond any": changed(1, attempts=10**30),
    "negative attempts": changed(1, attempts=-1),
    "true attempts": changed(1, attempts=True),
    "a time as a number": changed(1, last_at=5),
    "no time": changed(1, first_at="yesterday"),
    "a time before all times": changed(1, last_at="0001-01-01T00:00:00+23:00"),
    "a time after all times": changed(1, first_at="9999-12-31T23:59:59-23:00"),
    "a message that is an object": changed(1, message={"a": 1}),
    "a class that is a number": changed(1, error_class=7),
    "a type that is a list": changed(1, error_type=[1]),
    "a batcher that is true": changed(1, batcher=True),
    "an item key that is a number": changed(1, item_key=42),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_record_is_told_by_its_line_and_stops_nothing(
    cli: Cli, tmp_path: Path, name: str
) -> None:
    """It stays in place, whatever is done to the others."""
    path = tmp_path / "dead"
    store = lines(path, record(1).as_dict(), BAD[name], record(2).as_dict(), record(3).as_dict())
    bad = BAD[name] if isinstance(BAD[name], bytes) else json.dumps(BAD[name]).encode()
    assert len(cli("list", store, code=1)) == 3
    assert f"{path}:2: unreadable: " in cli.err
    assert "1 records are not dead letters and stay unchanged\n" in cli.err
    cli("show", store, "key-0003", code=1)
    module(tmp_path, "any_sink", "async def sink(batch): pass")
    cli("replay", store, "--to", "any_sink:sink", "--letter", "key-0002", code=1)
    assert cli.err.startswith("replayed: 1 delivered\n")
    assert f"{path}:2: unreadable" in cli.err
    cli("purge", store, code=1)
    assert cli.err.startswith("removed 1 dead letters\n")
    assert f"{path}:2: unreadable" in cli.err
    first, second, third = path.read_bytes().split(b"\n")[:-1]
    assert (json.loads(first)["key"], second, json.loads(third)["key"]) == (
        "key-0001",
        bad,
        "key-0003",
    )


def test_only_the_first_bad_records_are_told_one_by_one(cli: Cli, tmp_path: Path) -> None:
    store = lines(tmp_path / "dead", *[b"bad"] * 25, record(1).as_dict())
    cli("list", store, code=1)
    assert cli.err.count("unreadable") == 10
    assert "and 15 more\n25 records" in cli.err


def test_a_letter_of_a_deep_item_is_shown_and_sent(cli: Cli, tmp_path: Path) -> None:
    """It can be read, but cannot be shown with an indent."""
    deep = json.loads(nested(700))
    store = lines(tmp_path / "dead", changed(1, item=deep), changed(2))
    assert json.loads("\n".join(cli("show", store, "key-0001")))["item"] == deep
    module(tmp_path, "deep_sink", "async def sink(batch): pass")
    cli("replay", store, "--to", "deep_sink:sink")


@pytest.mark.parametrize(
    "bad",
    [
        b"hello",
        b"{}",
        b"5",
        nested(100_000),
        b'{"replay": "r", "endings": [{"key": "k", "state": "gone"}]}',
        b"\xff",
    ],
)
def test_a_note_that_cannot_be_read_stops_what_might_send_twice_and_nothing_else(
    cli: Cli, tmp_path: Path, bad: bytes
) -> None:
    store = keep_in_file(tmp_path / "dead", [record(1), record(2)])
    notes = tmp_path / "dead.replayed"
    module(tmp_path, "noted_sink", "async def sink(batch): pass")
    cli("replay", store, "--to", "noted_sink:sink", "--letter", "key-0001")
    with notes.open("ab") as file:
        file.write(bad + b"\n")
    before = notes.read_bytes()
    assert len(cli("list", store, code=1)) == 1
    assert f"{notes}:3: unreadable" in cli.err
    for command in (["replay", store, "--to", "noted_sink:sink"], ["purge", store]):
        cli(*command, code=2)
        assert f"{notes}:3: unreadable" in cli.err
        assert "nothing is sent or removed" in cli.err
    assert notes.read_bytes() == before


DSNS = [
    f"postgresql://user:{SECRET}@localhost:port/db",
    f"postgresql://user:{SECRET}@localhost:99999999/db",
    f"postgresql://user:{SECRET}",
    f"postgresql://user:{SECRET}@",
    f"postgres://user:{SECRET}#x@127.0.0.1:1/db",
    f"postgres://user:x#{SECRET}@127.0.0.1:1/db",
    f"postgres://user:x/{SECRET}@127.0.0.1:1/db",
    f"postgres://user:x?{SECRET}@127.0.0.1:1/db",
    f"postgres://user:x@{SECRET}@127.0.0.1:1/db",
    f"postgres://user:{SECRET}%@127.0.0.1:1/db",
    f"postgres://user:%zz{SECRET}@127.0.0.1:1/db",
    f"postgres://user:{SECRET} x@127.0.0.1:1/db",
    f"postgres://user:{SECRET}@[::1/db",
    f"postgres://user:{SECRET}@127.0.0.1:1/db?sslmode={SECRET}",
    f"postgres://user@127.0.0.1:1/db?password={SECRET}&connect_timeout=x",
    f"postgresql:user:{SECRET}@127.0.0.1/db",
    f"postgresq://user:{SECRET}@127.0.0.1/db",
    f"postgresq:/user:{SECRET}@127.0.0.1/db",
    f"postgresql;//user:{SECRET}@127.0.0.1/db",
    f"POSTGRESQL://user:{SECRET}@127.0.0.1/db",
    f"mysql://user:{SECRET}@127.0.0.1/db",
    f"user:{SECRET}@127.0.0.1/db",
    f"host=127.0.0.1 user=app password={SECRET}",
    f"host=127.0.0.1 user=app password='a {SECRET}'",
]


PLACES = [
    ["list", "DSN"],
    ["purge", "DSN"],
    ["DSN", "list"],
    ["list", "dead", "DSN"],
    ["list", "--limit", "DSN", "dead"],
    ["list", "dead", "--since", "DSN"],
    ["list", "dead", "--state", "DSN"],
]


@pytest.mark.parametrize(
    ("arguments", "dsn"),
    [
        pytest.param(place, dsn, marks=pytest.mark.long if p and d % 8 else ())
        for p, place in enumerate(PLACES)
        for d, dsn in enumerate(DSNS)
    ],
)
def test_no_password_of_a_mistyped_dsn_is_shown(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dsn: str,
    arguments: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    keep_in_file(tmp_path / "dead", [record(1)])
    try:
        code: object = main(["dlq", *[argument.replace("DSN", dsn) for argument in arguments]])
    except SystemExit as left:
        code = left.code
    said = capsys.readouterr()
    assert code == 2, said
    assert said.err
    assert SECRET not in said.out + said.err


def test_a_connection_that_fails_names_its_place(cli: Cli) -> None:
    cli("list", f"postgresql://app:{SECRET}@localhost:1/audit", code=2)
    assert cli.err.startswith("no connection to localhost:1/audit: ")
    cli("list", "postgresql://localhost:1/audit", code=2)
    assert cli.err.startswith("no connection to localhost:1/audit: ")
    cli("list", f"postgresql://app:{SECRET}@localhost:x/audit", code=2)
    assert "cannot be read: a port is a number" in cli.err
