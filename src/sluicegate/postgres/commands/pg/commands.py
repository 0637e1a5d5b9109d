"""`sluicegate pg`: SQL on standard output, messages on standard error.

1. A dry run and a check print SQL that `psql` executes as it is: everything else is a comment.
2. A check returns 1 if it found a problem; notes do not count.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...._core.errors import SluicegateError
from ...._core.text import text_of
from ....cli.dlq.output import encodable, say
from ....cli.exits import BAD_USE, FAILED, OK
from ....letters.text import printable, without_secrets
from ...schema.administration import check_streams, install_streams, upgrade_streams

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Coroutine, Iterable
    from typing import Any

    from ...schema.problems import SchemaProblem


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
    try:
        return asyncio.run(commands[options.pg_command](options))
    except (SluicegateError, OSError) as error:
        text = text_of(error)
        say(without_secrets(text) if isinstance(error, OSError) else text)
        return BAD_USE


async def _install(options: argparse.Namespace) -> int:
    statements = await install_streams(
        options.dsn,
        schema=options.schema,
        append=options.append,
        read=options.read,
        subscribe=options.subscribe,
        enqueue=options.enqueue,
        work=options.work,
        operate=options.operate,
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
    problems = await check_streams(
        options.dsn,
        schema=options.schema,
        append=options.append,
        read=options.read,
        subscribe=options.subscribe,
        enqueue=options.enqueue,
        work=options.work,
        operate=options.operate,
    )
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
