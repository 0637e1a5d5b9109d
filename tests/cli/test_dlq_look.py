"""Viewing dead letters: their selection and their output."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from tests.cli.dlq_help import NOON, Cli, keep_in_file, process, record

from sluicegate.cli import main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


def test_letters_are_listed_oldest_first(cli: Cli, tmp_path: Path) -> None:
    """Each once, although it was written twice."""
    for number in (1, 2, 3, 2):
        store = keep_in_file(tmp_path / "dead.jsonl", [record(number)])
    assert cli.keys(store) == [1, 2, 3]
    assert cli.err == "3 dead letters\n"
    assert cli.keys(store, "--limit", "2") == [1, 2]


def test_a_line_tells_what_matters_and_moves_no_cursor(cli: Cli, tmp_path: Path) -> None:
    store = keep_in_file(
        tmp_path / "a", [record(7, message="\x1b[2J" + "long " * 50, error_type="KeyError")]
    )
    (line,) = cli("list", store)
    assert line.startswith(
        "key-0007  2026-01-31T12:07:00Z    3  pending  permanent  KeyError  \\x1b[2Jlong long"
    )
    assert line.endswith("...")
    (line,) = cli("list", keep_in_file(tmp_path / "b", [record(7, item_key="acme/42")]))
    assert line.endswith("PermanentError  key=acme/42  no 7")


def test_a_line_hides_the_password_in_an_error(cli: Cli, tmp_path: Path) -> None:
    told = "no connection to postgresql://app:hunter2@db/shop"
    (line,) = cli("list", keep_in_file(tmp_path / "a", [record(7, message=told)]))
    assert "no connection to" in line
    assert "hunter2" not in line


def test_everything_known_is_shown_as_json(cli: Cli, tmp_path: Path) -> None:
    """batcher/4a.7: with class, message, attempts, times, tenant, batch id, trace id."""
    store = keep_in_file(
        tmp_path / "a", [record(1, tenant="ann", trace_id="t1", maybe_delivered=True), record(2)]
    )
    shown = json.loads("\n".join(cli("show", store, "key-0001")))
    assert shown["item"] == {"n": 1}
    expected = {
        "tenant": "ann",
        "trace_id": "t1",
        "maybe_delivered": True,
        "attempts": 3,
        "batch_id": "b1",
        "error_class": "permanent",
    }
    assert {name: shown[name] for name in expected} == expected
    assert shown["last_at"] == (NOON + timedelta(minutes=1)).isoformat()
    cli("show", store, "key-0003", "key-0002", code=2)
    assert "'key-0003'" in cli.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], [1, 2, 3, 4]),
        (["--letter", "key-0002"], [2]),
        (["--letter", "key-0002", "--letter", "key-0004"], [2, 4]),
        (["--key", "acme/42"], [2, 4]),
        (["--key", ":42", "--key", "42"], [1, 3]),
        (["--key", "42", "--tenant", "ann"], []),
        (["--batcher", "audit"], [1, 2, 3]),
        (["--tenant", "ann"], [2]),
        (["--error-type", "KeyError"], [3]),
        (["--error-class", "transient"], [3]),
        (["--message", "o 4"], [4]),
        (["--since", "2026-01-31T12:03"], [3, 4]),
        (["--until", "2026-01-31T13:02:00+01:00"], [1]),
        (["--since", "1d"], []),
        (
            [
                "--until",
                "30m",
                "--since",
                "30000d",
                "--error-class",
                "permanent",
                "--batcher",
                "audit",
            ],
            [1, 2],
        ),
        (["--state", "replayed"], []),
        (["--state", "all"], [1, 2, 3, 4]),
    ],
)
def test_every_condition_must_hold(
    cli: Cli, tmp_path: Path, arguments: list[str], expected: list[int]
) -> None:
    letters = [
        record(1, item_key=":42"),
        record(2, item_key="acme/42", tenant="ann"),
        record(3, item_key="42", error_type="KeyError", error_class="transient"),
        record(4, item_key="acme/42", batcher="other"),
    ]
    assert cli.keys(keep_in_file(tmp_path / "a", letters), *arguments) == expected


def test_what_is_no_letter_is_counted_and_left_alone(cli: Cli, tmp_path: Path) -> None:
    store = keep_in_file(tmp_path / "a", [record(1)])
    with (tmp_path / "a").open("a") as file:
        file.write('{"n": 1}\n[]\nnot json\n{"key": "k", "item": 1, "attempts": "x"}\n{"torn')
    assert [json.loads(line)["key"] for line in cli("list", store, "--json", code=1)] == [
        "key-0001"
    ]
    assert "4 records are not dead letters" in cli.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["list"], "store"),
        (["list", "a", "--since", "yesterday"], "'yesterday' must be a time"),
        (["list", "a", "--limit", "0"], "--limit"),
        (["list", "a", "--state", "gone"], "--state"),
        (["show", "a"], "LETTER"),
        (["replay", "a"], "--to"),
        (["forget", "a"], "forget"),
    ],
)
def test_wrong_use_is_told(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["dlq", *arguments])
    assert caught.value.code == 2
    assert told in capsys.readouterr().err


def test_a_file_that_may_not_be_read_is_told(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "b").symlink_to(tmp_path / "c")
    (tmp_path / "c").symlink_to(tmp_path / "b")
    cli("list", str(tmp_path / "b"), code=2)
    assert "no such file" in cli.err


def test_a_reader_who_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    store = keep_in_file(tmp_path / "a", [record(number) for number in range(3000)])
    with process(tmp_path, "list", store) as running:
        assert running.stdout is not None
        assert running.stdout.readline().startswith("key-0000")
        running.stdout.close()
        running.stdout = None
        _, said = running.communicate()
    assert "Error" not in said
    assert running.returncode == 0


def test_a_store_that_is_not_there_is_told(cli: Cli, tmp_path: Path) -> None:
    why = {
        "nothing": "there is no such file",
        "nowhere/a": f"there is no folder {tmp_path}/nowhere",
    }
    for name, told in why.items():
        cli("list", str(tmp_path / name), code=2)
        assert cli.err == f"{tmp_path / name}: {told}\n"
