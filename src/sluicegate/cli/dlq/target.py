"""The target of a replay: a stack of sinks, or a consumer's handler or a pipe as a sink.

1. A handler receives the record of a letter as a message in its first attempt. If it acknowledges
   the message, the letter is delivered; any other result, or an exception, fails the letter, which
   stays in its store.
2. A letter of a pipe holds a record of its source, or a row that its batcher's sink has refused.
   Which one is known from the letter's own key: that of a record is made of its coordinates. The
   rows of a record are made again by the pipe's transform, and written alone; the letter is
   delivered if all of them are. A row is written as it is.
3. Letters of parked records are refused: only their consumer knows the records that wait behind
   them, and `unpark` handles all of them in order.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ..._core.batch import RowBatch
from ..._core.classify import caused, classified
from ..._core.decorator import WrappingSink
from ..._core.delivery.delivery import Delivery
from ..._core.errors import TransientError
from ..._core.outcome import Outcome
from ..._core.send import send
from ..._core.sink import WriteResult
from ...consumer.failures.dead_letters import letter_key
from ...consumer.handling.handlers import as_handler
from ...consumer.lanes.message import handle_again
from ...flow.pipe import Pipe
from ...flow.transaction import TransactionalPipe
from ...letters.items import NoSourceRecordError, record_of_item
from ...sinks.split import ENDS_PARTS
from ..console import UseError
from ..named import named, named_sink, named_value
from .replay import RefusedLetter, ReplayRules, item_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable

    from ..._core.batch import Batch
    from ..._core.sink import Capabilities, Sink
    from ..._core.source import Record
    from ...consumer.lanes.message import Message
    from ...flow.transform import FlowSteps
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
        row_of = partial(item_of, decode)
        steps = None if options.pipe is None else _steps_of(options.pipe)
        rules = ReplayRules(
            batch_size=options.batch_size or BATCH_SIZE,
            item_of=row_of if steps is None else partial(_piped, steps, row_of),
            twice=options.at_least_once,
            any_order=options.any_order,
        )
        return named_sink(options.to) if steps is None else PipeSink(steps), rules
    if options.decode is not None:
        raise UseError(
            "--decode needs --to or --pipe; name with_steps(handler, decode(...)) instead"
        )
    if options.at_least_once:
        raise UseError(
            "--at-least-once needs --to or --pipe: a handler receives such letters anyway"
        )
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


def _steps_of(name: str) -> FlowSteps:
    """Return the steps of a named pipe. Raises `UseError`."""
    found = named_value(name, "a pipe")
    steps = found.steps if isinstance(found, (Pipe, TransactionalPipe)) else None
    if steps is None:
        raise UseError(f"{name!r} must be a pipe of rows (flow.pipe, flow.transaction)")
    return steps


class FromSource(NamedTuple):
    """A record of a pipe's source, whose rows are to be made."""

    record: Record


def _piped(steps: FlowSteps, row_of: Callable[[Letter], Any], letter: Letter) -> Any:
    """Return the row of a letter, or its record. Raises `RefusedLetter` for a letter of another
    pipe, and as `record_of` and `row_of`.
    """
    if letter.batcher not in steps.names:
        own = " or ".join(map(repr, sorted(steps.names)))
        raise RefusedLetter(f"it is from {letter.batcher!r}, and the pipe is {own}")
    item: object = letter.item
    time = cast("dict[str, Any]", item).get("timestamp") if isinstance(item, dict) else None
    if time is None or letter.key != letter_key(letter.batcher, letter.batch_id, time):
        return row_of(letter)
    return FromSource(record_of(letter))


class PipeSink(WrappingSink[Any]):
    """Writes rows to a pipe's sink, and the rows of records, one record after another."""

    def __init__(self, steps: FlowSteps) -> None:
        super().__init__(steps.sink)
        self._steps = steps

    @property
    def capabilities(self) -> Capabilities:
        """The sink's, but records of a key are written although an earlier one has failed."""
        return replace(super().capabilities, key_prefix_safe=False)

    async def write(self, batch: Batch[Any]) -> WriteResult:
        """Write the rows, then those of each record, until the destination accepts nothing."""
        records = [index for index in range(len(batch)) if type(batch[index]) is FromSource]
        rows = [index for index in range(len(batch)) if type(batch[index]) is not FromSource]
        batch.hold(records)
        written = await send(self.inner, batch.pick(rows))
        errors = {rows[index]: error for index, error in written.items()}
        down = next(filter(self._is_down, errors.values()), None)
        for index in records:
            error = down or await self._again(batch, index)
            if error is not None:
                errors[index] = error
                down = error if self._is_down(error) else None
            else:
                batch.settle([index], Outcome.DELIVERED)
        return WriteResult.failed(batch, errors)

    def _is_down(self, error: BaseException) -> bool:
        return classified(error, self.classify) in ENDS_PARTS

    async def _again(self, batch: Batch[Any], index: int) -> BaseException | None:
        """Make and write the rows of one record; return its error."""
        batch.delivery.begin(batch.roots([index]))
        task = asyncio.current_task()
        try:
            await handle_again(partial(self._move, batch, index), batch[index].record)
        except asyncio.CancelledError as error:
            if task is None or task.cancelling():
                raise
            return caused(TransientError("the transform raised CancelledError"), error)
        except Exception as error:  # the letter failed, and stays in its store
            return error
        return None

    async def _move(self, batch: Batch[Any], index: int, message: Message) -> object:
        """Write the rows of a message; return the result that settles it. Raises their first error."""
        rows, key = await self._steps.rows_of(message), self._steps.key
        if not isinstance(rows, list):
            return rows
        delivery = Delivery(len(rows))
        if index in batch.maybe_applied:
            delivery.doubt(range(len(rows)))
        lineage = replace(batch.lineage, id=f"{batch.id}-{index}")
        keys = None if key is None else [key(row) for row in rows]
        again = RowBatch(rows, lineage=lineage, delivery=delivery, keys=keys)
        for error in (await send(self.inner, again)).values():
            raise error
        return None


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
