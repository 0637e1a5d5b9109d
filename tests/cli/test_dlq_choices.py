"""`sluicegate dlq` with typing errors, and with commands that cannot be undone."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.cli.dlq_help import NOON, Cli, keep_in_file, module, record

from sluicegate.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return Cli(capsys)


@pytest.fixture
def store(tmp_path: Path) -> str:
    return keep_in_file(
        tmp_path / "dead.jsonl",
        [
            record(1, batcher="audit", tenant={"of": 1}),
            record(
                2,
                batcher="orders",
                error_type="DataError",
                error_class="unlisted",
                cause_type="NotNullViolationError",
                code="23502",
            ),
            record(3, batcher="audit", tenant="ann"),
        ],
    )


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """A terminal as standard input, and a function that types on it."""
    master, slave = os.openpty()
    with os.fdopen(slave, encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield lambda text: void(os.write(master, text.encode()))
    os.close(master)


def void(_: object) -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["list", "x", "--error-class", "perm"], "'permanent', 'transient', 'throttle'"),
        (["list", "x", "--state", "pend"], "'pending', 'interrupted', 'replayed', 'left', 'all'"),
        (["purge", "x", "--since", "yesterday"], "a time such as 2026-01-31T12:00"),
        (["purge", "x", "--until", "2026-13-01"], "a time such as 2026-01-31T12:00"),
        (["list", "x", "--limit", "0"], "'0' must be a whole number of at least 1"),
    ],
)
def test_an_unknown_choice_is_refused_with_the_known_ones(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["dlq", *arguments])
    assert caught.value.code == 2
    assert told in capsys.readouterr().err


def test_times_in_the_wrong_order_are_refused(cli: Cli, store: str) -> None:
    cli("purge", store, "--since", "1h", "--until", "2h", code=2)
    assert cli.err == "--since must be before --until\n"


def test_a_selection_without_letters_is_told_with_their_number(
    cli: Cli, store: str, tmp_path: Path
) -> None:
    module(tmp_path, "nothing_here", "def sink(batch): pass")
    for command in (
        ["list"],
        ["replay", "--to", "nothing_here:sink"],
        ["purge"],
    ):
        assert cli(command[0], store, *command[1:], "--error-type", "Permanent") == []
        assert "none of 3 dead letters is selected: 3 pending\n" in cli.err


def test_an_empty_store_is_told(cli: Cli, tmp_path: Path) -> None:
    cli("list", keep_in_file(tmp_path / "empty", []), "--batcher", "audit")
    assert cli.err == "0 dead letters\nthere are no dead letters\n"


@pytest.mark.parametrize("tenant", ['{"of": 1}', "{'of': 1}"])
def test_a_tenant_may_be_given_as_json(cli: Cli, store: str, tenant: str) -> None:
    assert cli.keys(store, "--tenant", tenant) == [1]


def test_a_missing_file_is_told(cli: Cli, store: str, tmp_path: Path) -> None:
    cli("list", str(tmp_path / "daed.jsonl"), code=2)
    assert cli.err.endswith("daed.jsonl: there is no such file\n")
    cli("list", str(tmp_path), code=2)
    assert cli.err.endswith(": a folder, not a file\n")
    cli("list", str(tmp_path / "nowhere" / "dead.jsonl"), code=2)
    assert cli.err.endswith(f"there is no folder {tmp_path / 'nowhere'}\n")


@pytest.mark.parametrize("stdin", [io.StringIO("y\n"), None], ids=["a pipe", "closed"])
def test_without_a_terminal_letters_never_replayed_are_removed_only_with_yes(
    cli: Cli, store: str, monkeypatch: pytest.MonkeyPatch, stdin: Any
) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    cli("purge", store, "--state", "all", code=2)
    assert cli.err.startswith("remove 3 dead letters (3 pending) for good?")
    assert cli.err.endswith("There is no terminal for the confirmation: add --yes to continue\n")
    assert cli.keys(store) == [1, 2, 3]
    cli("purge", store, "--state", "all", "--yes")
    assert cli.err == "removed 3 dead letters\n"


@pytest.mark.parametrize(("answer", "left"), [("n", [1, 2, 3]), ("", [1, 2, 3]), ("y", [1, 3])])
def test_on_a_terminal_they_are_counted_and_asked_for(
    cli: Cli, store: str, terminal: Callable[[str], None], answer: str, left: list[int]
) -> None:
    terminal(f"{answer}\n")
    refused = left == [1, 2, 3]
    cli("purge", store, "--state", "pending", "--batcher", "orders", code=2 if refused else 0)
    assert "remove 1 dead letters (1 pending) for good?" in cli.err
    assert ("nothing was removed" in cli.err) is refused
    assert cli.keys(store) == left


def test_replayed_letters_are_removed_without_a_question(
    cli: Cli, store: str, tmp_path: Path
) -> None:
    module(tmp_path, "takes_all", "def sink(batch): pass")
    cli("replay", store, "--to", "takes_all:sink")
    cli("purge", store)
    assert cli.err == "removed 3 dead letters\n"


def test_what_arrives_during_the_question_is_not_removed(
    cli: Cli, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer applies to the letters that were counted."""

    class Slow:
        closed = False

        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            keep_in_file(tmp_path / "dead.jsonl", [record(4, last_at=NOON)])
            return "y\n"

    monkeypatch.setattr(sys, "stdin", Slow())
    cli("purge", store, "--state", "all")
    assert cli.err.endswith("removed 3 dead letters\n")
    assert cli.keys(store) == [4]
