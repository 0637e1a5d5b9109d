"""One write: the messages of a batch, and the replies.

1. At most `max_in_flight` messages of a write, and about `IN_FLIGHT_BYTES`, are in flight at a
   time; a larger message is sent alone.
2. In a batch with keys, an item is sent once the previous item of its key is stored. So nothing is
   stored after a failed item of its key; later items of the key are left out.
3. Without a reply for `ack_timeout`, or after a lost connection, messages in flight may or may not
   be stored: unknown. The others were never sent: unavailable.
4. A cancelled write settles the items that are stored, and abandons the others: their replies are
   ignored.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from nats.errors import OutboundBufferLimitError

from ..._core.classify import caused, of_item
from ..._core.clock import LOOP_CLOCK, Signal, wait_until
from ..._core.errors import (
    PermanentError,
    TimedOutError,
    UnavailableError,
    UnknownOutcomeError,
)
from ..._core.order.keys import accepted
from ..._core.order.left_out import stopped_behind_error
from ..._core.outcome import Outcome
from ..._core.sink import WriteResult
from ..errors import api_error, no_stream
from .messages import NoStream, PublishAck, Refusal, command

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ..._core.batch import Batch
    from ..._core.errors import KeyStopped, RefusedError, SinkError
    from ..client import PatientClient
    from .channel import PublishChannel
    from .messages import Answer, Messages

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
        self._without_stream: dict[str, RefusedError] = {}
        """The error of each subject without a stream."""
        self._places = {index: place for place, index in enumerate(messages.indices)}
        self._numbers: dict[int, int] = {}
        """The numbers of messages in flight, by index."""
        self._bytes = 0
        self._chains = KeyChains(messages.indices, batch.keys)
        self._wake = Signal()

    async def run(self) -> WriteResult:
        """Send all messages and wait for the replies. Raises the error common to all items."""
        for index, error in [*self._errors.items()]:
            self._leave_out(index, error)
        try:
            while True:
                await self._send()
                if not (in_flight := len(self._numbers)):
                    break
                await wait_until(LOOP_CLOCK, LOOP_CLOCK.now() + self._ack_timeout, self._wake)
                if len(self._numbers) == in_flight:
                    self._time_out()
        except BaseException:
            self._settle()
            raise
        finally:
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
            self.lose(UnknownOutcomeError("the connection was lost during the write"))

    # -- answers ------------------------------------------------------------------------------------

    def answer(self, index: int, answer: Answer | SinkError) -> None:
        """Take the reply to the message of an item."""
        self._numbers.pop(index, None)
        self._bytes -= len(self._messages.payloads[self._places[index]])
        self._wake.fire()
        if isinstance(answer, PublishAck):
            self._acks[index] = answer
            self._chains.release_after(index, self._errors)
            return
        if isinstance(answer, NoStream):
            subject = self._subject(index)
            error: BaseException = self._without_stream.setdefault(subject, no_stream(subject))
        elif isinstance(answer, Refusal):
            code, err_code, description = answer
            error = api_error(f"the subject {self._subject(index)!r}", code, err_code, description)
        else:
            error = answer
        self._fail(index, error)

    def lose(self, error: UnknownOutcomeError) -> None:
        """End the write: no more replies arrive."""
        for index in [*self._numbers]:
            self._fail(index, error)
        self._numbers.clear()
        unsent = caused(UnavailableError(f"not sent, because {error}"), error)
        for index in self._chains.ready:
            self._fail(index, unsent)
        self._chains.ready.clear()
        self._wake.fire()

    def _time_out(self) -> None:
        """End the write: no reply has arrived for `ack_timeout`."""
        self._channel.waiting.forget({*self._numbers.values()})
        told = f"no reply within {self._ack_timeout:g} s (ack_timeout)"
        self.lose(TimedOutError(f"{told}; a stream with no_ack never replies"))

    def _fail(self, index: int, error: BaseException) -> None:
        self._errors[index] = error
        self._leave_out(index, error)

    def _leave_out(self, index: int, error: BaseException) -> None:
        """Fail the items after a failed item of its key."""
        self._errors |= self._chains.leave_out(index, error, self._errors)

    def _subject(self, index: int) -> str:
        return self._messages.subjects[self._places[index]]

    # -- after --------------------------------------------------------------------------------------

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


class KeyChains:
    """The items that can be sent now, and those that wait for an earlier item of their key.

    Args:
        indices: the items that can be sent, in order.
        keys: those of all items of the batch; with `None`, every item can be sent immediately.
    """

    def __init__(self, indices: Collection[int], keys: Sequence[object] | None) -> None:
        self._next: dict[int, int] = {}
        self.ready = deque(indices if keys is None else self._firsts({*indices}, keys))

    def _firsts(self, indices: set[int], keys: Sequence[object]) -> list[int]:
        """The first item of each key, if it can be sent; also records the successor of each item."""
        last: dict[object, int] = {}
        firsts: list[int] = []
        for index, given in enumerate(keys):
            key = accepted(given)
            before = last.get(key)
            if before is not None:
                self._next[before] = index
            elif index in indices:
                firsts.append(index)
            last[key] = index
        return firsts

    def release_after(self, index: int, errors: Mapping[int, object]) -> None:
        """Release the successor of a stored item, unless it has an error."""
        following = self._next.get(index)
        if following is not None and following not in errors:
            self.ready.append(following)

    def leave_out(
        self, index: int, error: BaseException, errors: Mapping[int, object]
    ) -> dict[int, KeyStopped]:
        """The errors of the items after a failed one, up to the first that had failed before."""
        found: dict[int, KeyStopped] = {}
        following = self._next.get(index)
        if following is None:
            return found
        stopped = stopped_behind_error(error)
        while following is not None and following not in errors:
            found[following] = stopped
            following = self._next.get(following)
        return found
