"""Every command of the command line: its help, its example, near-misses, and missing packages.

White box: the tree of parsers, from which every command is listed.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from typing import TYPE_CHECKING

import pytest
from tests.test_missing_extras import EXTRAS, with_the_core_alone

from sluicegate.cli import _GROUPS, _group, _parser, main

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sluicegate.cli.parser import Parser


def commands(parser: Parser, *path: str) -> Iterator[tuple[tuple[str, ...], Parser]]:
    yield path, parser
    for name, each in parser.commands.items():
        yield from commands(each, *path, name)


PARSER = _parser({name: _group(name) for name in _GROUPS})
ALL = dict(commands(PARSER))
GROUPS = [path for path, parser in ALL.items() if parser.commands]
LEAVES = [path for path, parser in ALL.items() if not parser.commands]
CLIENTS = {
    "dlq": ("asyncpg", "postgres"),
    "pg": ("asyncpg", "postgres"),
    "stream": ("asyncpg", "postgres"),
    "queue": ("asyncpg", "postgres"),
}
"""What the commands of each group need."""


def run(*arguments: str) -> tuple[object, str, str]:
    """The exit code, standard output, and standard error."""
    out, err = io.StringIO(), io.StringIO()
    code: object = None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(arguments)
        except SystemExit as stop:
            code = stop.code
    return code, out.getvalue(), err.getvalue()


def near_miss(word: str) -> str:
    return word[0] + word[2:] if len(word) > 3 else word + word[-1]


def test_the_commands_were_found() -> None:
    assert len(GROUPS) >= 6
    assert len(LEAVES) >= 35


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_the_help_of_every_command_ends_in_an_example_that_it_accepts(
    path: tuple[str, ...],
) -> None:
    code, out, err = run(*path, "--help")
    assert (code, err) == (0, "")
    assert path[:1] == ("help",) or run("help", *path) == (0, out, "")
    assert out.splitlines()[-2] == "example:"
    words = shlex.split(out.splitlines()[-1])
    if path != ("help",):  # its help is that of all commands
        assert words[: len(path) + 1] == ["sluicegate", *path]
    if words[-1] != "--help":
        options = PARSER.parse(words[1:])
        assert not options.parser.commands, "it is complete"


@pytest.mark.parametrize("path", GROUPS, ids=" ".join)
def test_without_a_command_the_commands_are_listed_with_exit_code_2(path: tuple[str, ...]) -> None:
    code, out, err = run(*path)
    assert (code, out) == (2, "")
    assert all(re.search(rf"\n    {name}\s", err) for name in ALL[path].commands)


@pytest.mark.parametrize("path", [path for path in ALL if path], ids=" ".join)
def test_a_near_miss_is_suggested_with_exit_code_2(path: tuple[str, ...]) -> None:
    *group, name = path
    code, out, err = run(*group, near_miss(name))
    assert (code, out) == (2, "")
    assert f"there is no command {near_miss(name)!r}; did you mean {name}?\n" in err
    for known in ALL[tuple(group)].commands:
        assert f"\n  {known} " in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nothing"], "there is no command 'nothing'\n"),
        (["help", "nothing"], "there is no command 'nothing'\n"),
        (["-x"], "unrecognized arguments: -x\n"),
        (["queue", "list", "d", "--jsn"], "arguments: --jsn; did you mean --json?\n"),
        (["queue", "create", "d", "q", "--poison", "parkkey"], "; did you mean park_key?\n"),
        (["queue", "postgresql://u:s3cret@h/d"], "there is no command 'postgresql://"),
    ],
)
def test_unknown_words_exit_with_2(arguments: list[str], told: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert told in err
    assert "s3cret" not in err


def test_a_command_whose_client_is_missing_says_the_package_the_extra_and_the_command() -> None:
    """The example of each command, with the core alone."""
    examples = {
        " ".join(path): ALL[path]
        .example.replace("dead.jsonl", "postgresql://app@db/shop")
        .replace("app:handle", "json:loads")
        .replace("app:sink", "json:loads")
        for path in LEAVES
        if path[0] in CLIENTS
    }
    program = f"""
import contextlib, io, json, shlex
from sluicegate.cli import main

def said(example):
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        return main(shlex.split(example)[1:]), err.getvalue()

print(json.dumps({{name: said(example) for name, example in {examples!r}.items()}}))
"""
    for name, (code, err) in json.loads(with_the_core_alone(program)).items():
        package, extra = CLIENTS[name.split()[0]]
        assert code == 2, name
        assert f"needs the package {package}, " in err, name
        assert f"the extra {extra!r} " in err, name
        assert err.endswith(f'pip install "sluicegate[{extra}]"\n'), name
        assert any(each.startswith(package) for each in EXTRAS[extra])
