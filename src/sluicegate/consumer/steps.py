"""Ready-made steps: decoding, checks, duplicates.

1. A fault of the data is poison for its message alone: `DecodeError`, `SchemaError`. Its cause goes
   to the dead letters; logs show only its type, since its text may quote the value.
2. A fault of the environment is not poison: network errors, and Sluicegate's own errors that a
   later try may overcome, are failed tries.
3. A duplicate is *another record* with a known key. The first record of a key is not a duplicate:
   it may run again after a failure or a crash, and skipping it then would lose it.
4. Without a key, or if the store fails, the handler runs: handling a message twice loses nothing.
"""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any, NoReturn

from .._core import checks
from .._core.checks import accepts, bad
from .._core.classify import classified
from .._core.errors import ErrorClass
from .._core.logs import for_log, log_safely
from .handlers import why_no_function
from .results import DecodeError, SchemaError, Skip

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from .message import Message
    from .stepping import Step

logger = logging.getLogger("sluicegate.consumer")

_SKIP = Skip()
_NO_KEY = "skip_seen: %s has no idempotency key; such messages are always handled"
_STORE_FAILED = (
    "skip_seen: %s could not be looked up (%s); messages are handled until lookups succeed"
)


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


def decode_by(
    header: str,
    functions: Mapping[str, Callable[[Any], object]],
    default: Callable[[Any], object] | None = None,
) -> Step:
    """Return a step that selects the decoding function by a header.

    Args:
        header: the name of the header, such as `content-type`.
        functions: the function for each value of the header, as for `decode`.
        default: the function for other values, and for messages without the header. Without a
            default they are poison: `DecodeError`.

    Raises `ConfigError` for a bad argument.
    """
    name = checks.text("header", header)
    steps = {given: decode(function) for given, function in functions.items()}
    otherwise = None if default is None else decode(default)

    def decode_value(message: Message) -> object:
        given = message.header(name)
        step = otherwise if given is None else steps.get(given, otherwise)
        if step is None:
            raise DecodeError(f"no function for the header {name!r} of {checks.shown(given)}")
        return step(message)

    return decode_value


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
