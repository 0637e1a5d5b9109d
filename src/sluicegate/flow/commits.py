"""Commits the rows of a partition's next records and its position, in one transaction.

1. A batch consists of records of one partition, in order. Its first record is the first unsettled
   one, so the position after a prefix of the batch is known before it commits.
2. A record whose rows cannot be made, or with a refused row, ends the prefix. The records before it
   commit; it alone is handled as poison, and later records come in a later batch.
3. A refused row is detected while the transaction is open. The transaction is rolled back, and
   another one is made of the records before it.
4. A commit without a response leaves the position in doubt. The next attempt reads it, and
   acknowledges the records before it without writing them.

Handlers may run in the transaction instead of writes of rows (`PartitionEffects`):

5. The handlers of a batch run one after another, in the order of the records, in one transaction.
6. If one fails, the transaction is rolled back. The handlers of the earlier records run again in
   another transaction, which commits. The failed record has used one attempt, and the later records
   are handled afterwards.
7. A handler that suppresses a database error leaves the transaction unusable. If this is
   detected later, the batch runs again with a check after each handler.
8. The errors of a handler belong to its record, even an outage of another service: the others
   commit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, cast

from .._core.batch import RowBatch
from .._core.classify import caused, classified
from .._core.clock import LOOP_CLOCK
from .._core.errors import (
    ErrorClass,
    PermanentError,
    PositionLost,
    ThrottledError,
    TransactionLost,
    TransientError,
    UnavailableError,
    UnknownOutcomeError,
)
from .._core.loading import called
from .._core.logs import for_log
from .._core.positions import CauseUnclear, aborted_by_handler
from .._core.send import send
from .._core.sink import classifier_of
from .._core.text import text_of
from .._core.transaction import transaction
from ..consumer.handling.results import ACK, Ack, Nak, Terminate, ToDeadLetter, no_result, of_raised

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from .._core.errors import SinkError
    from .._core.sink import Sink
    from .._core.transaction import Transaction
    from ..consumer.handling.results import Result
    from ..consumer.lanes.message import Message
    from .positions import HeldPosition, KeepsMoves
    from .transform import Transformed, Transformer


WRITE_SIZE = 5000
"""The maximum number of rows in one write within a transaction."""
WRITE_WITHIN = 30.0
"""Seconds for one write of rows: the default of a batcher's `flush_timeout`."""
_ENDS = (Terminate, ToDeadLetter)
"""The answers of a transform that end a prefix."""

_TOLD_AS: Mapping[ErrorClass, type[SinkError]] = {
    ErrorClass.TRANSIENT: TransientError,
    ErrorClass.DEADLOCK: TransientError,
    ErrorClass.UNAVAILABLE: UnavailableError,
    ErrorClass.REFUSED: UnavailableError,
    ErrorClass.THROTTLE: ThrottledError,
    ErrorClass.PERMANENT: PermanentError,
}


class Refused(Exception):  # never leaves a batch
    """A record cannot be committed; contains its place in the batch, and the error."""

    def __init__(self, place: int, error: BaseException) -> None:
        super().__init__(place)
        self.place = place
        self.error = error


class PartitionCommits(ABC):
    """The batch handler that commits records together with the position after them."""

    def __init__(self, sink: Sink[Any], keeper: KeepsMoves) -> None:
        self._sink = sink
        self._keeper = keeper

    async def handle(self, messages: list[Message]) -> list[Result | None]:
        """Commit the rows of these records; return a result for each, by position.

        Raises the error of a transaction that should be retried.
        """
        async with self._keeper.moving(messages[0].claim) as held:
            done = sum(held.passes(message.offset) for message in messages)
            if done == len(messages):
                return [ACK] * done
            return [ACK] * done + await self._handle_new(messages[done:], done, held)

    @abstractmethod
    async def _handle_new(
        self, messages: Sequence[Message], done: int, held: HeldPosition
    ) -> list[Result | None]:
        """Commit records that no earlier attempt has committed; `done` others precede them."""

    @abstractmethod
    def _raise_first(
        self, errors: Mapping[int, BaseException], places: Sequence[int], rows: Sequence[Any]
    ) -> None:
        """Raise the first error that belongs to no record, or else `Refused` for the first record."""

    async def _commit(
        self,
        messages: Sequence[Message],
        made: Sequence[object],
        done: int,
        held: HeldPosition,
    ) -> None:
        """Commit the rows of these records, and the position after the last one.

        Raises `Refused` for the first record with a refused row; nothing is committed then.
        """
        claim, last = messages[0].claim, messages[-1].index
        position = claim.snapshot_through(last, done + len(messages))
        unit = self._keeper.unit(claim, position)
        try:
            async with transaction(self._sink, unit) as within:
                await self._write(within, made[: len(messages)])
        except (Refused, CauseUnclear, PositionLost, TransactionLost):
            raise  # nothing was applied
        except UnknownOutcomeError as error:
            held.doubt()
            text = f"it is not known yet whether {unit.name} was committed ({text_of(error)})"
            raise UnavailableError(text) from error
        except BaseException:
            held.doubt()
            raise
        held.confirm(position)

    async def _write(self, within: Transaction[Any], made: Sequence[object]) -> None:
        rows: list[Any] = []
        places: list[int] = []
        for place, each in enumerate(made):
            if isinstance(each, list):
                rows += cast("list[Any]", each)
                places += [place] * len(cast("list[Any]", each))
        for at in range(0, len(rows), WRITE_SIZE):
            part = slice(at, at + WRITE_SIZE)
            errors = await self._send(within, RowBatch(rows[part]))
            if errors:
                self._raise_first(errors, places[part], rows[part])

    async def _send(
        self, within: Transaction[Any], batch: RowBatch[Any]
    ) -> Mapping[int, BaseException]:
        """Write rows. Raises `UnavailableError` without a response within `WRITE_WITHIN`."""
        limit = LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + WRITE_WITHIN)
        try:
            async with limit:
                return await send(within, batch)
        except TimeoutError as error:
            if not limit.expired():
                raise
            text = f"the rows of a transaction were not accepted within {WRITE_WITHIN:g} s"
            raise UnavailableError(text) from error


class PartitionTransactions(PartitionCommits):
    """The batch handler for rows made by a transform."""

    def __init__(self, sink: Sink[Any], keeper: KeepsMoves, transformer: Transformer) -> None:
        super().__init__(sink, keeper)
        self._transformer = transformer

    async def _handle_new(
        self, messages: Sequence[Message], done: int, held: HeldPosition
    ) -> list[Result | None]:
        made = await self._transform(messages)
        ended: list[Result | None] = []
        end = next((at for at, rows in enumerate(made) if isinstance(rows, _ENDS)), len(made))
        if end < len(made):
            ended = [cast("Result", made[end])]
        while any(isinstance(rows, list) and rows for rows in made[:end]):
            try:
                await self._commit(messages[:end], made, done, held)
                break
            except Refused as refused:
                end = refused.place
                ended = [Terminate(error=refused.error)]
        results = [rows if isinstance(rows, Ack) else ACK for rows in made[:end]]
        left = len(messages) - end - len(ended)
        return [*results, *ended, *[None] * left]

    async def _transform(self, messages: Sequence[Message]) -> list[Transformed]:
        made: list[Transformed] = []
        most = self._transformer.most
        for at in range(0, len(messages), most):
            made += await self._transformer.rows_of(messages[at : at + most])
        return made

    def _raise_first(
        self, errors: Mapping[int, BaseException], places: Sequence[int], rows: Sequence[Any]
    ) -> None:
        classifier = classifier_of(self._sink)
        for error in errors.values():
            if classified(error, classifier) is not ErrorClass.PERMANENT:
                raise error
        first = min(errors)
        raise Refused(places[first], errors[first])


class _NotHandled(Exception):  # never leaves a batch
    """The handler returned a result other than success."""

    def __init__(self, result: Result) -> None:
        super().__init__(result)
        self.result = result


class MessageEffect:
    """One call of the handler, for one message."""

    __slots__ = ("_handler", "_message", "answer", "error", "is_checked")

    def __init__(
        self, handler: Callable[[Message], Awaitable[object]], message: Message, *, is_checked: bool
    ) -> None:
        self._handler = handler
        self._message = message
        self.is_checked = is_checked
        self.answer: Ack = ACK
        self.error: BaseException | None = None
        """The error caused by this call."""

    async def run(self, connection: object) -> None:
        """Call the handler with the connection. Raises the errors of the handler."""
        message = self._message
        message.lend(connection)
        try:
            answer = await called(self._handler, message)
        finally:
            message.lend(None)
        if isinstance(answer, Ack):
            self.answer = answer
        elif isinstance(answer, (Nak, ToDeadLetter, Terminate)):
            raise _NotHandled(answer)
        elif answer is not None:
            raise no_result(answer)

    def failed(self, error: BaseException) -> None:
        """Record that this call has caused the error."""
        self.error = error


class PartitionEffects(PartitionCommits):
    """The batch handler for records that are handled within the transaction."""

    def __init__(
        self,
        sink: Sink[Any],
        keeper: KeepsMoves,
        handler: Callable[[Message], Awaitable[object]],
    ) -> None:
        super().__init__(sink, keeper)
        self._handler = handler

    async def _send(
        self, within: Transaction[Any], batch: RowBatch[Any]
    ) -> Mapping[int, BaseException]:
        """Run effects, which have their own limits."""
        return await send(within, batch)

    async def _handle_new(
        self, messages: Sequence[Message], done: int, held: HeldPosition
    ) -> list[Result | None]:
        end, is_checked = len(messages), False
        calls: list[MessageEffect] = []
        ended: list[Result | None] = []
        while end:
            calls = [
                MessageEffect(self._handler, each, is_checked=is_checked) for each in messages[:end]
            ]
            try:
                await self._commit(messages[:end], [[call] for call in calls], done, held)
                break
            except Refused as refused:
                end = refused.place
                ended = [self._result_of(refused.error)]
            except CauseUnclear:
                if end == 1:
                    end = 0
                    ended = [Nak(error=aborted_by_handler())]
                elif is_checked:
                    raise
                is_checked = True
        left = len(messages) - end - len(ended)
        return [*(call.answer for call in calls[:end]), *ended, *[None] * left]

    def _raise_first(
        self, errors: Mapping[int, BaseException], places: Sequence[int], rows: Sequence[Any]
    ) -> None:
        calls: Sequence[MessageEffect] = rows
        for index, call in enumerate(calls):
            if call.error is not None:
                raise Refused(places[index], call.error)
        raise errors[min(errors)]

    def _result_of(self, error: BaseException) -> Result:
        """Return the result for a message whose handler has raised this error."""
        if isinstance(error, _NotHandled):
            return error.result
        error = of_raised(error)
        kind = _TOLD_AS.get(classified(error, classifier_of(self._sink)))
        if kind is None or classified(error) is not ErrorClass.UNLISTED:
            return Nak(error=error)
        return Nak(error=caused(kind(text_of(error)), error, summary=for_log(error)))
