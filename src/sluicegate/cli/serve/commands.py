"""The arguments of `sluicegate serve`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

from ..._core.errors import SluicegateError
from ..._core.extras import need
from ...consumer.operating.probes import LAST_PORT, listening_at, serve_app
from ..console import BAD_USE, UseError, say
from ..parser import Group, count
from .gathered import GatheredProbes
from .supervise import Supervisor

if TYPE_CHECKING:
    from ..parser import Parser

_LOOPBACK = "127.0.0.1"
_LONGEST_SOCKET = 90
"""The operating systems allow about 104 bytes for the path of a socket."""


def options_of(parser: Parser) -> None:
    """Declare the arguments."""
    parser.argument(
        "object",
        "MODULE:OBJECT",
        "an async function without arguments, a pipe, a flow, or a function that returns one",
    )
    parser.argument("--processes", "N", "the number of processes", type=count, required=True)
    parser.argument(
        "--probes",
        "[HOST:]PORT",
        f"serve /ready, /live and /metrics of all processes there; default host: {_LOOPBACK}",
        type=_address,
    )


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal()) or len(port) > 5 or int(port) > LAST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} must be PORT, HOST:PORT or [IPV6]:PORT")
    return host.removeprefix("[").removesuffix("]") or _LOOPBACK, int(port)


def serve(options: argparse.Namespace) -> int:
    """Run the processes until all have ended; return the exit code."""
    try:
        if sys.platform == "win32":
            raise UseError("sluicegate serve needs signals that Windows lacks: run it on Linux")
        with tempfile.TemporaryDirectory(prefix="sluicegate-") as folder:
            return asyncio.run(_serve(options, Path(folder)))
    except (UseError, SluicegateError, OSError) as error:
        say(f"sluicegate serve: {error}")
        return BAD_USE


async def _serve(options: argparse.Namespace, folder: Path) -> int:
    probed: tuple[str, int] | None = options.probes
    supervisor = Supervisor(options.object, options.processes, folder, is_probed=probed is not None)
    async with AsyncExitStack() as stack:
        if probed is not None:
            need("uvicorn", "probes", "sluicegate serve --probes")
            if len(bytes(folder)) > _LONGEST_SOCKET:
                raise UseError(f"{folder} is too long for sockets: set TMPDIR to a shorter folder")
            listening = stack.enter_context(closing(listening_at(*probed)))
            host, port = listening.getsockname()[:2]
            say(f"sluicegate serve: probes of {options.processes} processes at {host}:{port}")
            app = GatheredProbes(supervisor.members)
            await stack.enter_async_context(serve_app(app, listening))
        return await supervisor.run()


GROUP = Group(
    description=(
        "Run an object of your program in several processes: members of one consumer group. Restart "
        "them after a crash, with backoff; on SIGTERM or SIGINT drain all."
    ),
    example="sluicegate serve app:main --processes 4 --probes 8080",
    options=options_of,
    run=serve,
    extras={},
)
