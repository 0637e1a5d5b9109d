"""The `sluicegate` command.

`parser` reads the command line, `console` is the terminal and the process, and `named` imports the
objects that are named in arguments. `dlq`, `spool`, `tune` and `serve` are here; other groups of
commands are in the packages of their technologies.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from .._core.extras import missing
from .console import BAD_USE, INTERRUPTED
from .parser import Parser

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .parser import Group

_GROUPS = {
    "dlq": (".dlq.commands", "list, show, replay or purge dead letters; create their table"),
    "tune": (".tune", "measure a sink at several batch sizes and recommend limits"),
    "pg": (
        "..postgres.commands.pg",
        "install streams and queues in PostgreSQL, upgrade or check them",
    ),
    "stream": (
        "..postgres.commands.stream",
        "inspect, pause, reset or delete subscriptions of a stream log; delete messages",
    ),
    "queue": (
        "..postgres.commands.queue",
        "create and inspect queues; unblock, park, redrive, purge",
    ),
    "parked": (
        "..postgres.commands.parked",
        "list the keys that consumers have parked in PostgreSQL; unpark them",
    ),
    "spool": (
        ".spool.commands",
        "inspect and check the spool of a batcher; export or replay its items",
    ),
    "serve": (".serve.commands", "run a program in several processes, and restart and drain them"),
    "console": ("..console.commands", "serve a web console for operators"),
    "pipeline": ("..spark.commands", "validate, explain or run a pipeline on Spark"),
}
"""The package that declares each group, and the group's line in the list."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with `arguments` (default: the process's own); return the exit code."""
    given = sys.argv[1:] if arguments is None else [*arguments]
    if given[:1] == ["help"]:
        given = [*(word for word in given[1:] if word not in {"-h", "--help"}), "--help"]
    command = next((word for word in given if not word.startswith("-")), "")
    groups = {command: _group(command)} if command in _GROUPS else {}
    options = _parser(groups).parse(given)
    try:
        return groups[options.command].run(options)
    except ModuleNotFoundError as error:
        package = (error.name or str(error)).partition(".")[0]
        extra = groups[options.command].extras.get(package)
        if extra is None:  # a module of the user, or a bug in Sluicegate
            raise
        print(missing(package, extra, f"sluicegate {options.command}"), file=sys.stderr)
        return BAD_USE
    except KeyboardInterrupt:  # before any work that needs a clean shutdown
        return INTERRUPTED


def _group(name: str) -> Group:
    group: Group = import_module(_GROUPS[name][0], __name__).GROUP
    return group


def _parser(groups: Mapping[str, Group]) -> Parser:
    """The parser, with the arguments of these groups; of others it knows the name."""
    parser = Parser(
        prog="sluicegate",
        description="Batching with every item accounted for.",
        example="sluicegate queue lag --help",
    )
    version = sys.modules[__name__.partition(".")[0]].__version__  # of the code that runs
    parser.add_argument("--version", action="version", version=f"sluicegate {version}")
    add = parser.accept_commands("command")
    for name, (_, text) in _GROUPS.items():
        if (group := groups.get(name)) is None:
            add(name, text, f"sluicegate {name} --help")
        else:
            group.options(add(name, text, group.example, group.description))
    add("help", "print the help of a command", "sluicegate help queue create").add_argument(
        "words", nargs="*", metavar="COMMAND", help="the command; default: the list of commands"
    )
    return parser
