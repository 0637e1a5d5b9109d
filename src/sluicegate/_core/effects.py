"""Handlers whose effects commit together with the position of the source.

1. The items of such a destination are *effects*: calls of a handler with the open connection.
2. A transaction runs them in order and stops at the first failure. It records the error in the
   failed effect, and the write fails with that error.
3. An effect may leave the transaction unusable without failing: for example, a handler that ignores
   a database error. If a later effect or the commit detects that, `CauseUnclear` is raised: run the
   effects again with `is_checked`, so that the destination checks the transaction after each one.
4. An error not caused by an effect is raised: nothing was applied, and no effect has failed.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from .checks import bad
from .errors import PermanentError, TransientError


class Effect(Protocol):
    """One call of a handler, in one attempt of its transaction."""

    @property
    def is_checked(self) -> bool:
        """Whether to check after the call that the transaction is still usable."""
        ...

    async def run(self, connection: object) -> None:
        """Call the handler with the connection. Raises the handler's exceptions."""
        ...

    def failed(self, error: BaseException) -> None:
        """Record that this effect caused the error."""


@runtime_checkable
class RunsEffects(Protocol):
    """A destination whose items are effects."""

    def check_handler(self, handler: object) -> None:
        """Raise `ConfigError` if the handler cannot use the connections of this destination."""
        ...


class CauseUnclear(TransientError):
    """One of the effects has made the transaction unusable; it is unknown which."""


def not_its_to_end(statement: str) -> PermanentError:
    """Return the error for a handler that tries to begin or end a transaction."""
    return PermanentError(
        f"message.connection refuses {statement}: its transaction commits together with the "
        "position after the message; raise an exception to roll back"
    )


def ended_by_handler() -> PermanentError:
    """Return the error for a handler that has ended its own transaction."""
    return PermanentError(
        "the handler has ended the transaction of message.connection with its own statement: its "
        "effects, and earlier ones, may be committed without the position, and their messages "
        "will be delivered again; leave the COMMIT to the flow, and raise an exception to roll "
        "back"
    )


def aborted_by_handler() -> PermanentError:
    """Return the error for a handler that has ignored a database error."""
    return PermanentError(
        "the handler has returned although one of its statements failed, which aborts the "
        "transaction; run a statement that may fail in `async with "
        "message.connection.transaction():`"
    )


def not_in_transaction(given: object) -> Exception:
    """Return the error for a direct write to a destination of effects."""
    rule = "runs handlers in transactions; use flow.transaction(source, sink, handler)"
    return bad("sink", given, rule)
