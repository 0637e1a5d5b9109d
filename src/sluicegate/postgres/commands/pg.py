"""`sluicegate pg`: SQL on standard output, messages on standard error.

1. A dry run and a check print SQL that `psql` executes as it is: everything else is a comment.
2. A check returns 1 if it found a problem; notes do not count.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...cli.console import FAILED, OK, encodable, say
from ...cli.parser import DSN, Group
from ...letters.text import printable
from ..schema.administration import check_streams, install_streams, upgrade_streams
from .output import accept_database, answer

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Coroutine, Iterable
    from typing import Any

    from ...cli.parser import Parser
    from ..schema.objects import SchemaProblem

_COMMANDS = {
    "install": (
        "create the schema of streams and queues unless it exists, and grant rights on it to roles"
    ),
    "upgrade": "upgrade the schema to the version of this release; messages and jobs stay",
    "check": "print the problems of the schema and the SQL that repairs them; change nothing",
}
_EXAMPLE = " --append web --subscribe billing --enqueue web --work mailer"
_RIGHTS = {
    "append": "may append messages, but neither read nor change them",
    "read": "may read messages",
    "subscribe": "may read messages and store positions of subscriptions",
    "enqueue": "may enqueue jobs, but neither read nor claim them",
    "work": "may read queues, and claim and settle jobs",
    "operate": "may create and change queues, resume and park keys, cancel, redrive and purge jobs",
}


def pg(options: argparse.Namespace) -> int:
    """Run a sub-command; return the exit code.

    0, 1 if a check found problems, 2 for bad use or a refusal. Raises `KeyboardInterrupt` after
    Ctrl-C; the server rolls the current transaction back then.
    """
    commands: dict[str, Callable[[argparse.Namespace], Coroutine[Any, Any, int]]] = {
        "install": _install,
        "upgrade": _upgrade,
        "check": _check,
    }
    return answer(lambda: asyncio.run(commands[options.pg_command](options)))


async def _install(options: argparse.Namespace) -> int:
    statements = await install_streams(
        options.dsn,
        schema=options.schema,
        **{right: getattr(options, right) for right in _RIGHTS},
        dry_run=options.dry_run,
    )
    is_new = any("CREATE TABLE" in each for each in statements)
    result = "is installed" if is_new else "exists already; the roles have their rights"
    return _done(options, statements, result)


async def _upgrade(options: argparse.Namespace) -> int:
    statements = await upgrade_streams(options.dsn, schema=options.schema, dry_run=options.dry_run)
    return _done(options, statements, "is upgraded")


def _done(options: argparse.Namespace, statements: Iterable[str], result: str) -> int:
    if options.dry_run:
        for statement in statements:
            print(encodable(f"{statement};"))
    if not statements:
        say(f"{options.schema} is up to date already")
    elif not options.dry_run:
        say(f"{options.schema} {result}")
    return OK


async def _check(options: argparse.Namespace) -> int:
    problems = await check_streams(options.dsn, schema=options.schema)
    for problem in problems:
        _show(problem)
    wrong = sum(not problem.is_note for problem in problems)
    say(f"{options.schema}: {f'{wrong} problems' if wrong else 'no problems'}")
    return FAILED if wrong else OK


def _show(problem: SchemaProblem) -> None:
    kind = "note" if problem.is_note else "problem"
    print(encodable(printable(f"-- {kind} {problem}")))
    for statement in problem.repair:
        # the repair of a note is optional
        print(encodable(f"-- {printable(statement)};" if problem.is_note else f"{statement};"))


def pg_options(parser: Parser) -> None:
    """Declare the sub-commands and their arguments."""
    add = parser.accept_commands("pg_command")
    for name, text in _COMMANDS.items():
        example = _EXAMPLE if name == "install" else ""
        command = add(name, text, f"sluicegate pg {name} {DSN}{example}")
        accept_database(command)
        if name == "install":
            for right, rule in _RIGHTS.items():
                command.several(f"--{right}", "ROLE", f"a role that {rule}")
        if name != "check":
            command.flag("--dry-run", "change nothing; print the SQL")


GROUP = Group(
    description=(
        "Create the schema of streams and queues in PostgreSQL, grant rights on it to roles, upgrade it, "
        "or check it for problems."
    ),
    example=f"sluicegate pg install {DSN}",
    options=pg_options,
    run=pg,
    extras={"asyncpg": "postgres"},
)
