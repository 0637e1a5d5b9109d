"""Steps before the handler: functions of a message, in order.

1. A step returns `None` to go on. A result (`Ack()`, `Skip()`, `ToDeadLetter()` ...) settles the
   message without the handler, and without the steps after it.
2. A step may replace the value that later steps and the handler see: `message.decoded(value)`.
3. An exception of a step is a failed attempt, like an exception of the handler; a `PermanentError`
   is poison immediately, for this message alone. In a batch, messages that steps settle are not
   shown to the handler, and the others are unaffected.
4. A record that its source could not decode is poison without a step or a handler (`refused`).
5. A plain step runs in the event loop: decoding is too short to need a thread. A step that waits
   must be async. The handler's timeout covers its steps.

Ready-made steps decode, check, and skip duplicates.

6. A fault of the data is poison for its message alone: `DecodeError`, `SchemaError`. Its cause goes
   to the dead letters; logs show only its type, since its text may quote the value.
7. A fault of the environment is not poison: network errors, and Sluicegate's own errors that a
   later attempt may overcome, are failed attempts.
8. A duplicate is *another record* with a known key. The first record of a key is not a duplicate:
   it may run again after a failure or a crash, and skipping it then would lose it.
9. Without a key, or if the store fails, the handler runs: handling a message twice loses nothing.
"""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias, cast

from ..._core import checks
from ..._core.checks import accepts, bad
from ..._core.classify import caused, classified
from ..._core.errors import ErrorClass
from ..._core.loading import NotLoaded, called_again
from ..._core.logs import for_log, log_safely
from ..._core.park_store import ParkedRecord
from ..._core.source import UndecodableRecord
from ..lanes.batches import LaneId, lane_of
from .handlers import OfOneMessage, as_handler, why_no_function
from .results import (
    Ack,
    DecodeError,
    Manual,
    Nak,
    ResultTypeError,
    SchemaError,
    Skip,
    Terminate,
    ToDeadLetter,
    UndecodableError,
    cancelled_by_source,
    of_raised,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from ..._core.source import SourceRecord
    from ..lanes.message import Message
    from .handlers import MessageHandler


Step: TypeAlias = "Callable[[Message], object]"
"""A step before the handler; plain or async."""

_RESULTS = (Ack, Nak, ToDeadLetter, Terminate, Manual)

logger = logging.getLogger("sluicegate.consumer")
_SKIP = Skip()
_NO_KEY = "skip_seen: %s has no idempotency key; such messages are always handled"
_STORE_FAILED = (
    "skip_seen: %s could not be looked up (%s); messages are handled until lookups succeed"
)


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
    """Return the result of a message that was cancelled, or whose record could not be decoded; `None`
    for any other.

    The latter is poison. From the park store, where no handler can repair it, it goes to the dead letters.
    """
    if message.claim.cancelled and message.offset in message.claim.cancelled:
        return ToDeadLetter(error=cancelled_by_source())
    error = error_of_decoding(message.record)
    if error is None:
        return None
    return ToDeadLetter(error=error) if message.is_unparked else Terminate(error=error)


def error_of_decoding(record: SourceRecord) -> UndecodableError | None:
    """Return the error of a record that could not be decoded, even after it was parked."""
    if type(record) is UndecodableRecord:
        told = f"the source cannot decode the record ({type(record.error).__name__})"
        return caused(UndecodableError(told), record.error)
    if type(record) is ParkedRecord and record.error_type == UndecodableError.__name__:
        return UndecodableError(record.message)
    return None


async def before(steps: Sequence[Step], message: Message) -> object:
    """Run the steps of a message; return the result that settles it, or `None` to continue."""
    for step in steps:
        try:
            answer = step(message)
            if answer is None:
                continue
            if inspect.isawaitable(answer):
                answer = await answer
        except NotLoaded as missing:
            answer = await called_again(missing, step, message)
        if answer is None:
            continue
        if not isinstance(answer, _RESULTS):
            told = f"a step returned a {type(answer).__name__}; return None to go on, or a result"
            raise ResultTypeError(told)
        return answer
    return None


async def sift(steps: Sequence[Step], messages: Sequence[Message]) -> Sifted:
    """Run the steps of each message of a batch, one message after another.

    A message whose record could not be decoded has no steps. An exception of a step fails only its
    message. Later messages of the same key are left out, and are handled after it. Cancellation is
    raised.
    """
    sifted = Sifted([], {})
    failed: set[LaneId] = set()
    for message in messages:
        if failed and lane_of(message) in failed:
            continue
        try:
            result = refused(message) or await before(steps, message)
        except Exception as error:  # a failed attempt of this message only
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


def decode(function: Callable[[Any], object]) -> Step:
    """Return a step that replaces the value by `function(value)`, as in `decode(json.loads)`.

    `function` is plain or async. A value of `None` (a tombstone) is not decoded. An exception of
    the function makes the message poison: a `DecodeError` with the exception as its cause. Raises
    `ConfigError` if `function` is not a function of a value.
    """
    _check_function("decode", function)

    def decode_value(message: Message) -> Awaitable[None] | None:
        if message.value is None:
            return None
        try:
            decoded = function(message.value)
        except Exception as error:
            refuse(DecodeError, "the value cannot be decoded", error)
        if inspect.isawaitable(decoded):
            return _decode_later(message, decoded)
        message.decoded(decoded)
        return None

    return decode_value


async def _decode_later(message: Message, decoding: Awaitable[object]) -> None:
    try:
        decoded = await decoding
    except Exception as error:
        refuse(DecodeError, "the value cannot be decoded", error)
    message.decoded(decoded)


def check(validator: Callable[[Any], object]) -> Step:
    """Return a step that refuses a message if `validator(value)` returns `False` or raises.

    `validator` is plain or async; after `decode`, it gets the decoded value. Any other return value
    accepts the message. A refused message is poison: a `SchemaError` with the exception as its
    cause. Raises `ConfigError` if `validator` is not a function of a value.
    """
    _check_function("check", validator)

    def check_value(message: Message) -> Awaitable[None] | None:
        try:
            answer = validator(message.value)
        except Exception as error:
            refuse(SchemaError, "the value is not valid", error)
        if inspect.isawaitable(answer):
            return _check_later(answer)
        _accept(answer)
        return None

    return check_value


async def _check_later(checking: Awaitable[object]) -> None:
    try:
        answer = await checking
    except Exception as error:
        refuse(SchemaError, "the value is not valid", error)
    _accept(answer)


def _accept(answer: object) -> None:
    if answer is False:
        raise SchemaError("the value is not valid")


def _check_function(name: str, function: object) -> None:
    if isinstance(function, type):  # such as a dataclass of one field
        rule = None if accepts(function, 1) else "must take one argument, the value"
    else:
        rule = why_no_function(function, "the value")
    if rule is not None:
        raise bad(name, function, rule)


def refuse(kind: type[DecodeError | SchemaError], told: str, error: Exception) -> NoReturn:
    """Raise a poison error for a fault of the data; raise any other error again."""
    about_data = classified(error) in (ErrorClass.UNLISTED, ErrorClass.PERMANENT)
    if about_data or isinstance(error, EOFError):  # a decoder's error for a truncated value
        raise kind(f"{told} ({type(error).__name__})") from error
    raise error


def skip_seen(
    seen: Callable[[Any, str], object],
    *,
    key: Callable[[Message], object] | None = None,
    header: str | None = None,
) -> Step:
    """Return a step that skips duplicates, which count as `skipped`.

    Args:
        seen: a function `seen(key, record)`, plain or async, that queries the caller's store in one
            atomic step. If the key is new, it stores `record`, a text such as `orders/3@1044`, as
            the first record of `key`. It returns whether the first record is *another* one. With a
            dictionary: `lambda key, record: store.setdefault(key, record) != record`.
        key: a function from a message to its idempotency key.
        header: the name of the header that contains the key, used if `key` is not given or returns
            `None`.

    A message without such a key is handled. While the store raises, or returns a value that is not
    a `bool`, every message is handled. Both cases are logged once. Raises `ConfigError` for a bad
    argument, and if both `key` and `header` are missing: a record's own key names an entity, and
    later records of an entity are usually not duplicates.
    """
    return _SkipSeen(seen, key, header).step


class _SkipSeen:
    def __init__(self, seen: object, key: object, header: str | None) -> None:
        if not callable(seen) or not accepts(seen, 2):
            raise bad("seen", seen, "must be a function of a key and a record's coordinates")
        if key is None and header is None:
            raise bad("key", key, "must be given, or header=, to identify duplicates")
        self._seen: Callable[[object, str], object] = seen
        self._key = checks.optional_function("key", key, "must be a function of a message")
        self._header = None if header is None else checks.text("header", header)
        self._told_no_key = self._told_failure = False

    def step(self, message: Message) -> object:
        """Look up a message in the store, unless it has no key."""
        try:
            key = self._key_of(message)
            if key is None:
                self._tell_no_key(message)
                return None
            answer = self._seen(key, message.coordinates)
        except Exception as error:
            self._tell_failure(message, error)
            return None
        if inspect.isawaitable(answer):
            return self._later(message, answer)
        return self._result(message, answer)

    async def _later(self, message: Message, asking: Awaitable[object]) -> object:
        try:
            answer = await asking
        except Exception as error:
            self._tell_failure(message, error)
            return None
        return self._result(message, answer)

    def _key_of(self, message: Message) -> object:
        key = None if self._key is None else self._key(message)
        if key is None and self._header is not None:
            return message.header(self._header)
        return key

    def _result(self, message: Message, answer: object) -> object:
        if not isinstance(answer, bool):
            kind = type(answer).__name__
            self._tell_failure(message, TypeError(f"seen returned a {kind}, not a bool"))
            return None
        self._told_failure = False
        return _SKIP if answer else None

    def _tell_failure(self, message: Message, error: Exception) -> None:
        if not self._told_failure:
            self._told_failure = True
            log_safely(logger, logging.WARNING, _STORE_FAILED, message.coordinates, for_log(error))

    def _tell_no_key(self, message: Message) -> None:
        if not self._told_no_key:
            self._told_no_key = True
            log_safely(logger, logging.WARNING, _NO_KEY, message.coordinates)
