"""Steps before the handler: functions of a message, in order.

1. A step returns `None` to go on. A result (`Ack()`, `Skip()`, `ToDeadLetter()` ...) settles the
   message without the handler, and without the steps after it.
2. A step may replace the value that later steps and the handler see: `message.decoded(value)`.
3. An exception of a step is a failed try, like an exception of the handler; a `PermanentError` is
   poison at once, for this message alone. In a batch, messages that steps settle are not shown to
   the handler, and the others are unaffected.
4. A record that its source could not decode is poison without a step or a handler (`refused`).
5. A plain step runs in the event loop: decoding is too short to need a thread. A step that waits
   must be async. The handler's timeout covers its steps.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

from .._core.checks import bad
from .._core.classify import caused
from .._core.park_store import ParkedRecord
from .._core.source import UndecodableRecord
from .batching.former import LaneId, lane_of
from .handlers import OfOneMessage, as_handler, why_no_function
from .results import (
    Ack,
    Manual,
    Nak,
    ResultTypeError,
    Terminate,
    ToDeadLetter,
    UndecodableError,
    of_raised,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from .._core.source import SourceRecord
    from .handlers import MessageHandler
    from .message import Message

Step: TypeAlias = "Callable[[Message], object]"
"""A step before the handler; plain or async."""

_RESULTS = (Ack, Nak, ToDeadLetter, Terminate, Manual)


def checked_steps(steps: object, name: str = "steps") -> tuple[Step, ...]:
    """Return the checked steps of an argument. Raises `ConfigError`."""
    if isinstance(steps, (str, bytes)) or not hasattr(steps, "__iter__"):
        raise bad(
            name, steps, "must be a list of functions of a message, as in [decode(json.loads)]"
        )
    checked = tuple(cast("Iterable[Step]", steps))
    for place, step in enumerate(checked):
        if (rule := why_no_function(step, "the message")) is not None:
            raise bad(f"{name}[{place}]", step, rule)
    return checked


class Sifted(NamedTuple):
    """The messages of a batch after their steps."""

    shown: list[Message]
    """The messages for the handler, in order."""
    settled: dict[Message, object]
    """The results of the other messages, except those behind one that was not acknowledged."""


def refused(message: Message) -> Terminate | ToDeadLetter | None:
    """Return the result of a message whose record could not be decoded; `None` for any other.

    It is poison. From the park store, where no handler can repair it, it goes to the dead letters.
    """
    error = error_of_decoding(message.record)
    if error is None:
        return None
    return ToDeadLetter(error=error) if message.is_unparked else Terminate(error=error)


def error_of_decoding(record: SourceRecord) -> UndecodableError | None:
    """Return the error of a record that could not be decoded, also after it was parked."""
    if type(record) is UndecodableRecord:
        told = f"the source cannot decode the record ({type(record.error).__name__})"
        return caused(UndecodableError(told), record.error)
    if type(record) is ParkedRecord and record.error_type == UndecodableError.__name__:
        return UndecodableError(record.message)
    return None


async def before(steps: Sequence[Step], message: Message) -> object:
    """Run the steps of a message; return the result that settles it, or `None` to continue."""
    for step in steps:
        answer = step(message)
        if answer is None:
            continue
        if inspect.isawaitable(answer):
            answer = await answer
            if answer is None:
                continue
        if not isinstance(answer, _RESULTS):
            told = f"a step returned a {type(answer).__name__}; return None to go on, or a result"
            raise ResultTypeError(told)
        return answer
    return None


async def sift(steps: Sequence[Step], messages: Sequence[Message]) -> Sifted:
    """Run the steps of each message of a batch, one message after another.

    A message whose record could not be decoded has no steps.
    An exception of a step fails only its message. Later messages of the same key are left out, and
    are handled after it. Cancellation is raised.
    """
    sifted = Sifted([], {})
    failed: set[LaneId] = set()
    for message in messages:
        if failed and lane_of(message) in failed:
            continue
        try:
            result = refused(message) or await before(steps, message)
        except Exception as error:  # a failed try of this message only
            result = Nak(error=of_raised(error))
        if result is None:
            sifted.shown.append(message)
        else:
            sifted.settled[message] = result
            if not isinstance(result, Ack):
                failed.add(lane_of(message))
    return sifted


class WithSteps(OfOneMessage):
    """A handler of single messages with steps before it."""

    def __init__(
        self, handler: Callable[[Message], Awaitable[object]], steps: Sequence[Step]
    ) -> None:
        self._handler = handler
        self._steps = steps

    async def __call__(self, message: Message) -> object:
        """Run the steps, and the handler unless one of them settles the message."""
        settled = await before(self._steps, message)
        return await self._handler(message) if settled is None else settled

    def __repr__(self) -> str:
        return f"WithSteps({self._handler!r}, {len(self._steps)} steps)"


def with_steps(handler: MessageHandler, *steps: Step) -> Callable[[Message], Awaitable[object]]:
    """Return a handler with its own steps before it, for example to replay dead letters.

    Raises `ConfigError` if `handler` is not a handler or a step is not a function of a message.
    """
    call = as_handler(handler)
    return WithSteps(call, checked_steps(steps)) if steps else call
