"""Handlers that run in the transaction of their destination, which also stores the position.

1. The handlers of a batch run one after another, in the order of the records, in one transaction.
2. If one fails, the transaction is rolled back. The handlers of the earlier records run again in
   another transaction, which commits. The failed record has used one attempt, and the later records
   are handled afterwards.
3. A handler that suppresses an error of the database leaves the transaction unusable. If this is
   detected later, the batch runs again with a check after each handler.
4. The errors of a handler belong to its record, even an outage of another service: the others
   commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._core.classify import caused, classified
from .._core.errors import (
    ErrorClass,
    PermanentError,
    ThrottledError,
    TransientError,
    UnavailableError,
)
from .._core.logs import for_log
from .._core.positions import CauseUnclear, aborted_by_handler
from .._core.send import send
from .._core.sink import classifier_of
from .._core.text import text_of
from ..consumer.results import ACK, Ack, Nak, Terminate, ToDeadLetter, no_result, of_raised
from .transacting import PartitionCommits, Refused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from .._core.batch import RowBatch
    from .._core.errors import SinkError
    from .._core.sink import Sink
    from .._core.transaction import Transaction
    from ..consumer.message import Message
    from ..consumer.results import Result
    from .positions import HeldPosition, KeepsMoves

_TOLD_AS: Mapping[ErrorClass, type[SinkError]] = {
    ErrorClass.TRANSIENT: TransientError,
    ErrorClass.DEADLOCK: TransientError,
    ErrorClass.UNAVAILABLE: UnavailableError,
    ErrorClass.REFUSED: UnavailableError,
    ErrorClass.THROTTLE: ThrottledError,
    ErrorClass.PERMANENT: PermanentError,
}


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
            answer = await self._handler(message)
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
        *,
        write_size: int,
    ) -> None:
        super().__init__(sink, keeper, write_size=write_size)
        self._handler = handler

    async def _sent(
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
