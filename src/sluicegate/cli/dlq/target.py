"""The target of a replay: a stack of sinks, or a consumer's handler as a sink.

1. A handler receives the record of a letter as a message in its first attempt. If it acknowledges
   the message, the letter is delivered; any other result, or an exception, fails the letter, which
   stays in its store.
2. Letters of parked records are refused: only their consumer knows the records that wait behind
   them, and `unpark` handles all of them in order.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from ..._core.classify import caused
from ..._core.errors import TransientError
from ..._core.outcome import Outcome
from ..._core.sink import WriteResult
from ...consumer.handling.handlers import as_handler
from ...consumer.lanes.message import handle_again
from ...letters.items import NoSourceRecordError, record_of_item
from ..console import UseError
from ..named import named, named_sink
from .replay import RefusedLetter, ReplayRules, item_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable

    from ..._core.batch import Batch
    from ..._core.sink import Sink
    from ..._core.source import Record
    from ...letters.letter import Letter

BATCH_SIZE = 500
PARKED = "parked"
"""The error class of a letter whose record is also parked."""
_PARKED = (
    "its key is parked: unpark(key), on the consumer that parked it, handles the records in order"
)
_NO_RECORD = "it holds no record of a source; send it with --to"


def target_of(options: argparse.Namespace) -> tuple[Sink[Any], ReplayRules]:
    """Return the named sink and the rules for it. Raises `UseError` and `ConfigError`."""
    if options.handler is None:
        decode = None if options.decode is None else named(options.decode)
        rules = ReplayRules(
            batch_size=options.batch_size or BATCH_SIZE,
            item_of=partial(item_of, decode),
            twice=options.at_least_once,
            any_order=options.any_order,
        )
        return named_sink(options.to), rules
    if options.decode is not None:
        raise UseError("--decode needs --to; name with_steps(handler, decode(...)) instead")
    if options.at_least_once:
        raise UseError("--at-least-once needs --to: a handler receives such letters anyway")
    # one at a time: a crash leaves one letter in doubt, and a handler has no write keys
    rules = ReplayRules(
        batch_size=options.batch_size or 1,
        item_of=record_of,
        twice=True,
        any_order=options.any_order,
    )
    # async or plain; of single messages, or a ConfigError
    return HandlerSink(as_handler(named(options.handler), "--handler")), rules


def record_of(letter: Letter) -> Record:
    """Return the record of a letter. Raises `RefusedLetter` if it has none or is parked, and what
    `letter.original()` raises.
    """
    try:
        record = record_of_item(letter.original())
    except NoSourceRecordError as error:
        raise RefusedLetter(f"{_NO_RECORD} ({error})") from error
    if letter.parked_behind or letter.error_class == PARKED:
        raise RefusedLetter(_PARKED)
    return record


class HandlerSink:
    """Handles the records of a batch concurrently: they have different keys."""

    def __init__(self, handler: Callable[[Any], Awaitable[object]]) -> None:
        self._handler = handler

    async def write(self, batch: Batch[Record]) -> WriteResult:
        """Handle each record; a result is booked as soon as it is known."""
        errors: dict[int, BaseException] = {}
        async with asyncio.TaskGroup() as tasks:
            for index in range(len(batch)):
                tasks.create_task(self._handle(batch, index, errors))
        return WriteResult.failed(batch, errors)

    async def _handle(
        self, batch: Batch[Record], index: int, errors: dict[int, BaseException]
    ) -> None:
        task = asyncio.current_task()
        key: Any = None if batch.keys is None else batch.keys[index]
        try:
            await handle_again(self._handler, batch[index], key)
        except asyncio.CancelledError as error:
            if task is None or task.cancelling():
                raise
            errors[index] = caused(TransientError("the handler raised CancelledError"), error)
        except Exception as error:  # the letter failed, and stays in its store
            errors[index] = error
        else:
            batch.settle([index], Outcome.DELIVERED)
