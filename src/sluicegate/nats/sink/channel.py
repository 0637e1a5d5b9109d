"""The connection of an open sink, and its messages in flight.

1. All replies go to one inbox; the last token of a reply's subject is the message's number. Numbers
   are never reused, so a late reply to an abandoned message is ignored.
2. A lost connection ends the wait for every message in flight. nats-py reconnects by itself; if it
   has stopped trying, the next write opens another connection.
3. The server reports a missing permission with the message's subject, in lower case. The error
   applies to every message to that subject, or is an unknown outcome if subjects differ only in
   case.
4. A user that may not subscribe to the inbox receives no replies. This is detected when opening.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Protocol

from nats import errors as nats

from ..._core.classify import caused
from ..._core.errors import (
    ConfigError,
    RefusedError,
    SinkError,
    UnavailableError,
    UnknownOutcomeError,
)
from ..._core.logs import log_safely
from ..connection import ConnectionEvents, close, connect, is_login, opening_error, reason_of
from .messages import parse_reply

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from ..client import PatientClient
    from ..connection import Denied
    from ..options import NatsOptions
    from .messages import Answer

logger = logging.getLogger("sluicegate.nats")


class AckWaiter(Protocol):
    """A write that waits for replies."""

    def answer(self, index: int, answer: Answer | SinkError) -> None:
        """Take the reply to the message of an item."""
        ...

    def lose(self, error: UnknownOutcomeError) -> None:
        """Take the error of a lost connection: no more replies arrive."""
        ...


class UnansweredMessages:
    """The messages without a reply, by number."""

    def __init__(self) -> None:
        self._next = 0
        self._of: dict[int, tuple[AckWaiter, int, str]] = {}

    def add(self, waiter: AckWaiter, index: int, subject: str) -> int:
        """Register a message about to be sent; return its number."""
        self._next += 1
        self._of[self._next] = waiter, index, subject
        return self._next

    def forget(self, numbers: set[int]) -> None:
        """Stop waiting for these messages."""
        for number in numbers:
            self._of.pop(number, None)

    def take(self, number: int, answer: Answer | SinkError) -> None:
        """Pass on a reply; ignore it if the message is unknown."""
        found = self._of.pop(number, None)
        if found is not None:
            found[0].answer(found[1], answer)

    def deny(self, denied: Denied, place: str) -> bool:
        """Fail the messages to a denied subject; return whether there are any."""
        found = [
            (number, subject)
            for number, (_, _, subject) in self._of.items()
            if subject.lower() == denied.subject
        ]
        subjects = sorted({subject for _, subject in found})
        answer: SinkError
        if len(subjects) == 1:
            answer = RefusedError(
                f"{place} does not allow the sink to publish to {subjects[0]!r}",
                repair=f"allow the user to publish to {subjects[0]!r}",
            )
        else:
            told = " or ".join(map(repr, subjects))
            answer = UnknownOutcomeError(f"{place} does not allow the sink to publish to {told}")
        for number, _ in found:
            waiter, index, _ = self._of.pop(number)
            waiter.answer(index, answer)
        return bool(found)

    def lose(self, error: UnknownOutcomeError) -> None:
        """End the wait for every message."""
        waiters = {waiter: None for waiter, _, _ in self._of.values()}
        self._of.clear()
        for waiter in waiters:
            waiter.lose(error)


class PublishChannel:
    """The connection of an open sink. Used in one event loop."""

    def __init__(self, options: NatsOptions, name: str) -> None:
        self.waiting = UnansweredMessages()
        self._options = options
        self._name = name
        self._client: PatientClient | None = None
        self._inbox = ""
        self._opening = asyncio.Lock()
        self._denied: RefusedError | None = None
        self._last_error: Exception | None = None
        self._pings: set[asyncio.Future[Any]] = set()

    @property
    def inbox(self) -> str:
        """The prefix of a reply's subject, before the message's number."""
        return self._inbox

    async def open(self) -> None:
        """Connect, and subscribe to the inbox. Suspends; raises the sink's errors."""
        events = ConnectionEvents(
            lost=self._on_lost, back=self._on_back, denied=self._on_denied, error=self._note_error
        )
        client = await connect(self._options, events)
        try:
            self._denied = None
            self._inbox = f"{client.new_inbox()}."
            await client.subscribe(f"{self._inbox}*", cb=self._reply)  # pyright: ignore[reportUnknownMemberType]
            self._client = client
            await self.flush(self._options.connect_timeout)
            if self._denied is not None:
                raise self._denied
        except BaseException as error:
            self._client = None
            await close(client)
            if isinstance(error, nats.Error):
                raise opening_error(error, self._options) from error
            raise

    async def close(self) -> None:
        """Close the connection; suspends for a bounded time."""
        client, self._client = self._client, None
        if client is not None:
            await close(client)

    def terminate(self) -> None:
        """Close the socket at once."""
        if self._client is not None:
            self._client.cut()

    async def ready(self) -> PatientClient:
        """The connection, or a new one if the old one is closed for good, in which case it
        suspends.

        Raises `UnavailableError` while disconnected.
        """
        if (client := self._client) is not None and client.is_connected:
            if self._denied is not None:
                raise self._denied
            return client
        async with self._opening:
            client = self._client
            if client is None or client.is_closed:
                self._client = None
                if client is not None:
                    await close(client)
                try:
                    await self.open()
                except ConfigError as error:
                    raise RefusedError(
                        str(error), repair="correct the cause that the message names"
                    ) from error
                client = self._client
        if client is None or not client.is_connected:
            raise self._unavailable()
        return client

    def _unavailable(self) -> UnavailableError:
        error, place = self._last_error, self._options.place
        if error is None:
            return UnavailableError(f"the connection to {place} is lost and not yet restored")
        told = reason_of(error, self._options)
        if is_login(error):
            repair = "check the user and its password, token or credentials"
            return caused(RefusedError(told, repair=repair), error)
        return caused(UnavailableError(told), error)

    async def flush(self, within: float) -> None:
        """Suspend until the server has received everything sent before.

        Raises `UnknownOutcomeError` if the connection is lost, or after `within` seconds.
        """
        client = self._client
        if client is None:
            raise self._unavailable()
        ping = await client.ping()
        self._pings.add(ping)
        try:
            await asyncio.wait([ping], timeout=within)
        finally:
            self._pings.discard(ping)
        if not ping.done() or ping.cancelled():
            raise UnknownOutcomeError(f"{self._options.place} has not replied to a ping")

    # -- events -------------------------------------------------------------------------------------

    async def _reply(self, message: Msg) -> None:
        number = message.subject[len(self._inbox) :]
        self.waiting.take(int(number), parse_reply(message.data, message.headers))

    def _on_lost(self) -> None:
        self._denied = None
        self.waiting.lose(
            UnknownOutcomeError(
                f"the connection to {self._options.place} was lost before the reply"
            )
        )
        for ping in self._pings:
            ping.cancel()

    def _on_back(self) -> None:
        self._last_error = None

    def _note_error(self, error: Exception) -> None:
        self._last_error = error

    def _on_denied(self, denied: Denied) -> None:
        place, inbox = self._options.place, self._inbox.lower()
        if denied.what == "subscribe" and denied.subject.startswith(inbox):
            self._denied = RefusedError(
                f"{place} does not allow the sink to subscribe to its inbox, so no reply would "
                "arrive",
                repair=f"allow the user to subscribe to '{self._inbox.partition('.')[0]}.>', or give "
                "the sink an inbox_prefix= that is allowed",
            )
        elif denied.of_reply and denied.subject.startswith(inbox):
            number = int(denied.subject[len(inbox) :])
            error = RefusedError(
                f"{place} does not allow replies to the sink's inbox", repair=denied.repair
            )
            self.waiting.take(number, error)
        elif not self.waiting.deny(denied, place):
            told = f"{place} does not allow the sink to {denied.what} to {denied.subject!r}"
            log_safely(logger, logging.WARNING, "%s: %s; %s", self._name, told, denied.repair)
