"""One write without JetStream: the messages of a batch, followed by one ping.

The server replies to the ping after it has processed everything before it. The reply therefore
means that the messages were handed to the server and to the subscribers present. Nothing is stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nats.errors import OutboundBufferLimitError

from ..._core.classify import caused, of_item
from ..._core.errors import UnavailableError, UnknownOutcomeError
from ..._core.order.left_out import stopped_behind
from ..._core.sink import WriteResult
from .messages import command
from .write import IN_FLIGHT_BYTES

if TYPE_CHECKING:
    from ..._core.batch import Batch
    from ..._core.errors import SinkError
    from ..client.insides import PatientClient
    from .ack import Answer
    from .channel import PublishChannel
    from .messages import Messages


class CoreWrite:
    """Sends the messages of one batch and returns a result for each item."""

    def __init__(
        self,
        channel: PublishChannel,
        client: PatientClient,
        batch: Batch[Any],
        messages: Messages,
        *,
        ack_timeout: float,
    ) -> None:
        self._channel = channel
        self._client = client
        self._batch = batch
        self._messages = messages
        self._ack_timeout = ack_timeout
        self._errors = messages.errors
        self._errors |= stopped_behind(batch.keys, self._errors)

    async def run(self) -> WriteResult:
        """Send all messages and wait for the server. Raises the error common to all items."""
        places = [
            place for place, index in enumerate(self._messages.indices) if index not in self._errors
        ]
        waiting = self._channel.waiting
        while places:
            part, places = self._part(places)
            numbers = {
                waiting.add(self, self._messages.indices[place], self._messages.subjects[place])
                for place in part
            }
            try:
                error = await self._hand_over(part)
            finally:
                waiting.forget(numbers)
            if error is not None:
                self._fail(part, error)
                self._fail(places, caused(UnavailableError(f"not sent, because {error}"), error))
                break
        return self._result()

    def _part(self, places: list[int]) -> tuple[list[int], list[int]]:
        """Split into the messages to send now and the remaining ones."""
        size = 0
        for number, place in enumerate(places):
            if size >= IN_FLIGHT_BYTES:
                return places[:number], places[number:]
            size += len(self._messages.payloads[place])
        return places, []

    async def _hand_over(self, places: list[int]) -> SinkError | None:
        messages = self._messages
        commands = [
            command(messages.subjects[p], "", messages.headers[p], messages.payloads[p])
            for p in places
        ]
        try:
            await self._client.send(b"".join(commands))
        except OutboundBufferLimitError:
            return UnavailableError("the connection was lost before anything was sent")
        try:
            await self._channel.flush(self._ack_timeout)
        except (UnknownOutcomeError, UnavailableError) as error:
            return error
        return None

    def _fail(self, places: list[int], error: BaseException) -> None:
        indices = self._messages.indices
        self._errors |= {
            indices[place]: error for place in places if indices[place] not in self._errors
        }

    def answered(self, index: int, answer: Answer | SinkError) -> None:
        """Fail an item whose message the server denies."""
        if isinstance(answer, BaseException):
            self._errors[index] = answer

    def lost(self, error: UnknownOutcomeError) -> None:
        """Do nothing: the wait for the ping ends by itself."""

    def _result(self) -> WriteResult:
        errors = self._errors
        if len(errors) == len(self._batch) and len({*map(id, errors.values())}) == 1:
            raise next(iter(errors.values()))
        return WriteResult.failed(self._batch, {i: of_item(e) for i, e in errors.items()})
