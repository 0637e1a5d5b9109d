"""`sluicegate queue`: findings on standard output, messages on standard error.

1. A command that loses data asks for confirmation first, outside the event loop, where Ctrl-C ends
   it.
2. The objects are looked up before the confirmation, so a wrong name is reported without one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...._core.errors import SluicegateError
from ...._core.text import text_of
from ....cli.confirm import confirmed
from ....cli.dlq.output import say
from ....cli.exits import BAD_USE
from ....cli.named import UseError
from ....letters.text import printable, without_secrets
from ...queues.operating.admin import QueueAdmin
from .changes import CHANGES, QUESTIONS
from .looks import LOOKS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable
    from typing import TypeVar

    T = TypeVar("T")


def queue(options: argparse.Namespace) -> int:
    """Run a sub-command; return the exit code: 0, or 2 for bad use or a refusal.

    Raises `KeyboardInterrupt` after Ctrl-C; the server rolls the current statement back then.
    """
    name = options.queue_command
    try:
        if name in QUESTIONS:
            question = asyncio.run(_run(options, QUESTIONS[name]))
            if question is not None and not confirmed(printable(question), yes=options.yes):
                say("nothing was changed")
                return BAD_USE
        return asyncio.run(_run(options, {**LOOKS, **CHANGES}[name]))
    except (UseError, SluicegateError, OSError) as error:
        text = text_of(error)
        say(without_secrets(text) if isinstance(error, OSError) else text)
        return BAD_USE


async def _run(
    options: argparse.Namespace, command: Callable[[argparse.Namespace, QueueAdmin], Awaitable[T]]
) -> T:
    async with QueueAdmin(options.dsn, schema=options.schema) as admin:
        return await command(options, admin)
