"""The arguments of `sluicegate console`.

1. No secret is an argument: the token is in a file or in the environment, and so may be the password
   of the database (`PGPASSWORD`, `PGPASSFILE`).
2. Without a token, the console listens on loopback only.
3. A program that is named runs in this process, and its consumers, pipes and batchers are shown. The
   command ends with it; on SIGTERM or Ctrl-C both drain.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack, closing, suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from .._core.errors import DrainTimeout, ItemsFailed, SluicegateError
from .._core.extras import need
from .._core.runtime.run import collect_opened, run
from ..cli.console import BAD_USE, FAILED, OK, UseError, say
from ..cli.named import named
from ..cli.parser import DSN, Group
from ..cli.serve.member import call
from ..consumer.operating.probes import LAST_PORT, listening_at, serve_app
from ..postgres.schema.opened import DEFAULT_SCHEMA
from .console import Console

if TYPE_CHECKING:
    import argparse
    from weakref import WeakSet

    from ..cli.parser import Parser

TOKEN = "SLUICEGATE_CONSOLE_TOKEN"  # noqa: S105  # the variable's name
"""The variable with the token."""


def options_of(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "object",
        nargs="?",
        metavar="MODULE:OBJECT",
        help="a program to run and show, as for `sluicegate serve`; default: none",
    )
    parser.add_argument("--postgres", metavar="DSN", help="show the queues and streams there")
    told = f"the schema of queues and streams; default: {DEFAULT_SCHEMA}"
    parser.add_argument("--schema", default=DEFAULT_SCHEMA, help=told)
    for name, metavar, told in (
        ("letters", "STORE", "show this store of dead letters, named as for `sluicegate dlq`"),
        ("spool", "PATH", "show this folder of a spool"),
        ("allow-host", "NAME", "answer for this name of the host, besides localhost"),
    ):
        text = f"{told}; may be repeated"
        parser.add_argument(f"--{name}", action="append", default=[], metavar=metavar, help=text)
    parser.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1")
    told = "0 selects a free one; default: 8377"
    parser.add_argument("--port", type=int, default=8377, help=told)
    told = f"the file with the token to log in with; default: the variable {TOKEN}"
    parser.add_argument("--token-file", type=Path, metavar="PATH", help=told)
    parser.add_argument("--read-only", action="store_true", help="refuse all actions")


def console(options: argparse.Namespace) -> int:
    """Serve the console until a signal, or until the program has ended; return the exit code."""
    try:
        token = _token(options.token_file)
        if not 0 <= options.port <= LAST_PORT:
            raise UseError(f"--port {options.port} must be from 0 to {LAST_PORT}")
        address = _address(options.host)
        if token is None and not (address and address.is_loopback):
            told = f"--host {options.host} is reachable from other hosts, so it needs a token"
            raise UseError(f"{told}: add --token-file, or set {TOKEN}")
        program = None if options.object is None else named(options.object)
        need("uvicorn", "console", "sluicegate console")
        opened = collect_opened()
        made = Console(
            lambda: [*opened],
            postgres=options.postgres,
            schema=options.schema,
            letters=options.letters,
            spools=options.spool,
            token=token,
            hosts=[
                *options.allow_host,
                *([] if address and address.is_unspecified else [options.host]),
            ],
            read_only=options.read_only,
        )
        run(_serve(options, made, program, opened))
    except (UseError, SluicegateError, OSError) as error:
        say(f"sluicegate console: {error}")
        return FAILED if isinstance(error, (DrainTimeout, ItemsFailed)) else BAD_USE
    return OK


def _token(path: Path | None) -> str | None:
    token = os.environ.pop(TOKEN, None)  # not for programs that this process starts
    if path is not None:
        token = path.read_text(encoding="utf-8", errors="replace")
        if path.stat().st_mode & 0o007:
            say(f"sluicegate console: all users of this host can read {path}: chmod o= {path}")
    if token is not None and not token.strip():
        raise UseError("the token is empty")
    return None if token is None else token.strip()


def _address(host: str) -> IPv4Address | IPv6Address | None:
    """Return a host as an address; `None` for a name."""
    with suppress(ValueError):
        return ip_address("127.0.0.1" if host == "localhost" else host)
    return None


async def _serve(
    options: argparse.Namespace, made: Console, program: object, opened: WeakSet[object]
) -> None:
    async with AsyncExitStack() as stack:
        listening = stack.enter_context(closing(listening_at(options.host, options.port)))
        await stack.enter_async_context(made)
        await stack.enter_async_context(serve_app(made, listening))
        host = f"[{options.host}]" if ":" in options.host else options.host
        say(f"sluicegate console: http://{host}:{listening.getsockname()[1]}/")
        if program is None:
            await asyncio.Event().wait()  # until a signal cancels it
        else:
            await call(options.object, program, opened)


GROUP = Group(
    description=(
        "Serve a web console: queues and streams in PostgreSQL, dead letters, spools, and the parts of "
        "a program that runs in this process."
    ),
    example=f"sluicegate console --postgres {DSN} --read-only",
    options=options_of,
    run=console,
    extras={
        "asyncpg": "postgres",
        "starlette": "console",
        "jinja2": "console",
        "uvicorn": "console",
    },
)
"""The arguments of `sluicegate console`."""
