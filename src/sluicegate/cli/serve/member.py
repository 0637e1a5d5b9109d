"""The program of one process of `sluicegate serve`; see `supervise`.

Its arguments are those of `Supervisor`: MODULE:OBJECT, the private folder, the number, and whether
it serves probes, on a socket in that folder.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import socket
import sys
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from ..._core.errors import ConfigError, MissingExtra
from ..._core.runtime.run import collect_opened, run
from ...consumer.operated import Operated
from ...consumer.operating.guard import Guard
from ...consumer.operating.probes import READY, Probes, respond, serve_app, text_answer
from ..console import BAD_USE, OK, UseError
from ..named import named, needs_arguments
from .supervise import SIGNALS, TERMINATED, Member

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from weakref import WeakSet

    from ...consumer.operating.probes import Receive, Scope, Send


@runtime_checkable
class Runs(Protocol):
    """A pipe, a flow or a similar object."""

    def run(self) -> Awaitable[object]:
        """Run to its end."""
        ...


def main() -> int:
    """Run the program; return the exit code: 143 after a signal, 2 for an error in the configuration."""
    name, folder, number, probed = sys.argv[1:]
    member = Member(int(number), Path(folder))
    for sign in SIGNALS:
        signal.signal(sign, _leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    try:
        found = named(name)
        opened = collect_opened()
        has_finished = run(_work(name, found, opened, member.socket if probed else None))
    except (UseError, ConfigError, MissingExtra) as error:
        member.error.write_text(str(error), encoding="utf-8")
        return BAD_USE
    return OK if has_finished else TERMINATED


def _leave(*_: object) -> None:
    """Leave before anything is opened."""
    sys.exit(TERMINATED)


async def _work(name: str, found: object, opened: WeakSet[object], path: Path | None) -> bool:
    """Run the object to its end, and return `True`; SIGTERM cancels it."""
    loop = asyncio.get_running_loop()
    loop.add_reader(0, _on_end_of_parent)
    try:
        async with AsyncExitStack() as stack:
            if path is not None:
                listening = stack.enter_context(closing(socket.socket(socket.AF_UNIX)))
                listening.bind(str(path))
                listening.listen()
                listening.setblocking(False)
                await stack.enter_async_context(serve_app(MemberProbes(opened), listening))
            await call(name, found, opened)
        return True
    finally:
        loop.remove_reader(0)
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # the work is done: no more kills


def _on_end_of_parent() -> None:
    asyncio.get_running_loop().remove_reader(0)
    os.kill(os.getpid(), signal.SIGTERM)


def call(name: str, found: object, opened: WeakSet[object]) -> Awaitable[object]:
    """Call the object and its `run`, if it has one. Raises `UseError` if it is of another kind."""
    made: Any = found
    if callable(found) and not isinstance(found, Runs):
        if needs_arguments(found):
            raise UseError(f"{name!r} must take no arguments")
        made = found()
    if isinstance(made, Operated):
        opened.add(made)
    if isinstance(made, Runs):
        if needs_arguments(made.run):
            rule = "whose run() needs its handler: name an async function that runs it"
            raise UseError(f"{name!r} is a {type(made).__name__}, {rule}")
        made = made.run()
    if not inspect.isawaitable(made):
        raise UseError(f"{name!r} must be an async function without arguments, a pipe or a flow")
    return cast("Awaitable[object]", made)


class MemberProbes:
    """The probes of the consumers that the program has opened; without one, it is ready when it has
    opened a batcher.
    """

    def __init__(self, opened: WeakSet[object]) -> None:
        self._opened = opened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["path"] == READY and not self._opened:
            await respond(send, text_answer(503, "nothing is open yet"), has_body=True)
            return
        consumers = tuple([each for each in self._opened if isinstance(each, Operated)])
        app = Probes(consumers, restart_when_stalled=False, registry=None, guard=Guard(None))
        await app(scope, receive, send)


if __name__ == "__main__":
    sys.exit(main())
