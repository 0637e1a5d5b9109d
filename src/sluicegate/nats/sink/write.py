"""One write to JetStream: the messages of a batch, and the replies.

1. At most `max_in_flight` messages of a write, and about `IN_FLIGHT_BYTES`, are in flight at a
   time; a larger message is sent alone.
2. In a batch with keys, an item is sent once the previous item of its key is stored. So nothing is
   stored after a failed item of its key; later items of the key are left out.
3. Without a reply for `ack_timeout`, or after a lost connection, messages in flight may or may not
   be stored: unknown. The others were never sent: unavailable.
4. JetStream compares the expected sequence before the id. So a message that is resent after a lost
   reply is refused if it was stored. The stream is then queried for the id of the last message.
5. A cancelled write settles the items that are stored, and abandons the others: their replies are
   ignored.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from nats.errors import OutboundBufferLimitError

from ..._core.classify import caused, of_item
from ..._core.errors import (
    PermanentError,
    RefusedError,
    TimedOutError,
    UnavailableError,
    UnknownOutcomeError,
)
from ..._core.outcome import Outcome
from ..._core.sink import WriteResult
from ..client.answers import no_stream
from .ack import NoStream, PublishAck, Refusal, refused
from .chains import KeyChains
from .messages import command, id_line
from .silence import Silence

if TYPE_CHECKING:
    from ..._core.batch import Batch
    from ..._core.errors import SinkError
    from ..client.insides import PatientClient
    from .ack import Answer
    from .channel import PublishChannel
    from .messages import Messages

IN_FLIGHT_BYTES = 8 << 20


def refuse_large(messages: Messages, limit: int) -> None:
    """Fail the messages that exceed the server's limit, for which it would close the connection."""
    sizes = [
        len(headers) + len(payload)
        for headers, payload in zip(messages.headers, messages.payloads, strict=True)
    ]
    if max(sizes, default=0) <= limit:
        return
    for place in reversed(range(len(sizes))):
        if sizes[place] > limit:
            told = f"a message of {sizes[place]:,} bytes is larger than the server's max_payload"
            error = PermanentError(f"{told} of {limit:,}")
            messages.errors[messages.indices[place]] = error
            for column in (
                messages.indices,
                messages.subjects,
                messages.headers,
                messages.payloads,
            ):
                del column[place]


class JetStreamWrite:
    """Sends the messages of one batch and returns a result for each item."""

    def __init__(
        self,
        channel: PublishChannel,
        client: PatientClient,
        batch: Batch[Any],
        messages: Messages,
        *,
        max_in_flight: int,
        ack_timeout: float,
    ) -> None:
        self._channel = channel
        self._client = client
        self._batch = batch
        self._messages = messages
        self._max_in_flight = max_in_flight
        self._ack_timeout = ack_timeout
        self._errors: dict[int, BaseException] = messages.errors
        self._acks: dict[int, PublishAck] = {}
        self._without_stream: set[int] = set()
        self._doubtful: dict[int, Refusal] = {}
        """Refusals that an earlier attempt of the same message may have caused."""
        self._places = {index: place for place, index in enumerate(messages.indices)}
        self._numbers: dict[int, int] = {}
        """The numbers of messages in flight, by index."""
        self._bytes = 0
        self._chains = KeyChains(messages.indices, batch.keys)
        self._wake = asyncio.Event()

    async def run(self) -> WriteResult:
        """Send all messages and wait for the replies. Raises the error common to all items."""
        for index, error in [*self._errors.items()]:
            self._leave_out(index, error)
        silence = Silence(self._ack_timeout, self._unanswered)
        try:
            while True:
                self._wake.clear()
                await self._send()
                if not self._numbers:
                    break
                await self._wake.wait()
                silence.heard()
            if self._without_stream:
                await self._explain()
            if self._doubtful:
                await self._verify()
        except BaseException:
            self._settle()
            raise
        finally:
            silence.stop()
            self._channel.waiting.forget({*self._numbers.values()})
        return self._result()

    async def _send(self) -> None:
        """Send ready messages, as far as the window allows. Does not suspend."""
        ready, numbers = self._chains.ready, self._numbers
        messages, waiting, inbox = self._messages, self._channel.waiting, self._channel.inbox
        commands: list[bytes] = []
        while ready and len(numbers) < self._max_in_flight and self._bytes < IN_FLIGHT_BYTES:
            index = ready.popleft()
            place = self._places[index]
            subject = messages.subjects[place]
            number = numbers[index] = waiting.add(self, index, subject)
            made = command(
                subject, f"{inbox}{number} ", messages.headers[place], messages.payloads[place]
            )
            self._bytes += len(messages.payloads[place])
            commands.append(made)
        if not commands:
            return
        try:
            await self._client.send(b"".join(commands))
        except OutboundBufferLimitError:
            self.lost(UnknownOutcomeError("the connection was lost during the write"))

    # -- answers ------------------------------------------------------------------------------------

    def answered(self, index: int, answer: Answer | SinkError) -> None:
        """Take the reply to the message of an item."""
        self._numbers.pop(index, None)
        self._bytes -= len(self._messages.payloads[self._places[index]])
        self._wake.set()
        if isinstance(answer, PublishAck):
            self._acks[index] = answer
            self._chains.stored(index, self._errors)
            return
        if isinstance(answer, NoStream):
            self._without_stream.add(index)
            error: BaseException = no_stream(self._subject(index), is_enabled=None)
        elif isinstance(answer, Refusal):
            maybe_applied = index in self._batch.maybe_applied
            if maybe_applied and answer.is_wrong_last_sequence:
                self._doubtful[index] = answer
            error = refused(answer, self._subject(index), maybe_applied=maybe_applied)
        else:
            error = answer
        self._fail(index, error)

    def lost(self, error: UnknownOutcomeError) -> None:
        """End the write: no more replies arrive."""
        for index in [*self._numbers]:
            self._fail(index, error)
        self._numbers.clear()
        unsent = caused(UnavailableError(f"not sent, because {error}"), error)
        for index in self._chains.ready:
            self._fail(index, unsent)
        self._chains.ready.clear()
        self._wake.set()

    def _unanswered(self) -> None:
        """End the write: no reply has arrived for `ack_timeout`."""
        self._channel.waiting.forget({*self._numbers.values()})
        told = f"no reply within {self._ack_timeout:g} s (ack_timeout)"
        self.lost(TimedOutError(f"{told}; a stream with no_ack never replies"))

    def _fail(self, index: int, error: BaseException) -> None:
        self._errors[index] = error
        self._leave_out(index, error)

    def _leave_out(self, index: int, error: BaseException) -> None:
        """Fail the items after a failed item of its key."""
        self._errors |= self._chains.left_out(index, error, self._errors)

    def _subject(self, index: int) -> str:
        return self._messages.subjects[self._places[index]]

    # -- after --------------------------------------------------------------------------------------

    async def _explain(self) -> None:
        """Determine why no stream accepts a subject."""
        is_enabled = await self._channel.jetstream_is_enabled()
        made: dict[str, RefusedError] = {}
        for index in self._without_stream:
            subject = self._subject(index)
            if subject not in made:
                made[subject] = no_stream(subject, is_enabled=is_enabled)
            self._errors[index] = made[subject]

    async def _verify(self) -> None:
        """Determine whether the last message of a subject is an earlier attempt of this one."""
        for index, refusal in self._doubtful.items():
            line = id_line(self._messages.headers[self._places[index]])
            sequence = refusal.last_sequence
            if line is None or sequence is None:
                continue
            if await self._channel.has_message(refusal.stream, sequence, line):
                del self._errors[index]
                self._acks[index] = PublishAck(refusal.stream, sequence, duplicate=True)

    def _settle(self) -> None:
        """Settle stored items before a cancellation is raised."""
        for outcome, is_duplicate in ((Outcome.DELIVERED, False), (Outcome.DUPLICATE, True)):
            stored = {i: ack for i, ack in self._acks.items() if ack.duplicate is is_duplicate}
            self._batch.settle(stored, outcome, stored)

    def _result(self) -> WriteResult:
        errors, acks = self._errors, self._acks
        size = len(self._batch)
        if len(errors) == size and len({*map(id, errors.values())}) == 1:
            raise next(iter(errors.values()))
        answers: list[Outcome | BaseException | None] = [None] * size
        for index, error in errors.items():
            answers[index] = of_item(error)
        for index, ack in acks.items():
            if ack.duplicate:
                answers[index] = Outcome.DUPLICATE
        assert len(errors) + len(acks) == size, "each item has a result"
        return WriteResult.from_outcomes(self._batch, answers, details=acks)
