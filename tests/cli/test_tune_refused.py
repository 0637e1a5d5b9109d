"""`sluicegate tune`: refused arguments, sinks and items, and the confirmation before it writes."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from tests.cli.tune_help import QUICK

from sluicegate.cli import main


@pytest.mark.parametrize(
    ("arguments", "told", "code"),
    [
        (["tuned", *QUICK], "'tuned' must be MODULE:NAME", 2),
        (["nowhere:slow", *QUICK], "'nowhere:slow': No module named 'nowhere'", 2),
        (["tuned:nothing", *QUICK], "'tuned:nothing': tuned has no nothing", 2),
        (["tuned:no_sink", *QUICK], "5", 2),
        (
            ["tuned:slow", "--items", "tuned:no_sink"],
            "'tuned:no_sink' must be a function that makes an item from a number, not 5",
            2,
        ),
        (
            ["tuned:slow", "--items", "tuned:no_item"],
            "could not make an item from the number 0: ValueError: nothing",
            2,
        ),
        (
            ["tuned:slow", "--items", "tuned:item_later"],
            "must be a plain function, not an async one",
            2,
        ),
        (["tuned:slow", "--items", "tuned:items"], "must return one item, not yield them", 2),
        (
            ["tuned:slow", "--items", "tuned:two_hundred", "--yes"],
            "could not make an item from the number 200: ValueError: no more",
            2,
        ),
        (
            ["tuned:no_password", *QUICK],
            "'tuned:no_password' could not make a sink: KeyError: 'PASSWORD'",
            2,
        ),
        (["broken:sink", *QUICK], "'broken:sink': importing broken failed: SyntaxError", 2),
        (
            ["tuned:narrow", *QUICK, "--sizes", "1,20"],
            "a write of 20 items failed: PermanentError: too wide; larger",
            0,
        ),
        (
            ["tuned:narrow", *QUICK, "--sizes", "100"],
            "a write of 100 items failed: PermanentError: too wide",
            1,
        ),
    ],
)
def test_what_cannot_be_is_told_in_one_line(
    here: Path, arguments: list[str], told: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", *arguments]) == code
    err = capsys.readouterr().err
    assert told in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--rate", "0"], "argument --rate: '0' must be a number of items per second, more than 0"),
        (
            ["--latency", "soon"],
            "argument --latency: 'soon' must be a time with its unit such as 50ms",
        ),
        (["--latency", "50"], "argument --latency: '50' must be a time with its unit such as 50ms"),
        (["--sizes", "1,x"], "argument --sizes: 'x' must be a whole number of at least 1"),
    ],
)
def test_wrong_arguments_are_told(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["tune", "a:b", "--items", "a:c", *arguments])
    assert caught.value.code == 2
    assert told in capsys.readouterr().err


def test_it_asks_on_a_terminal(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return "\n"

    monkeypatch.setattr(sys, "stdin", Terminal())
    assert main(["tune", "tuned:slow", "--items", "tuned:item"]) == 2
    out, err = capsys.readouterr()
    assert err.endswith("Write them? [y/N] nothing was written\n")
    assert not out


def test_without_a_terminal_it_writes_only_with_yes(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert main(["tune", "tuned:loud", "--items", "tuned:item", "--sizes", "1"]) == 2
    out, err = capsys.readouterr()
    assert err.endswith(
        "Write them? There is no terminal for the confirmation: add --yes to continue\n"
    )
    assert not out, "nothing was written"
