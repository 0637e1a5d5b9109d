"""Handlers whose effects commit together with the position of the source.

1. The items of such a destination are *effects*: calls of a handler with the open connection.
2. A transaction runs them one after the other, and none behind one that has failed. It tells the
   failed one of its error, and answers the write with that.
3. An effect may leave the transaction unusable without failing, as a handler does that passes over
   an error of the database. If a later effect or the commit finds that, `CauseUnclear` is raised:
   run the effects again with `is_checked`, so that the destination looks after each one.
4. An error that is of no effect is raised: nothing was applied, and no effect is to blame.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from .checks import bad
from .errors import PermanentError, TransientError


class Effect(Protocol):
    """One call of a handler, in one try of its transaction."""

    @property
    def is_checked(self) -> bool:
        """Whether to look after the call whether the transaction can still be used."""
        ...

    async def run(self, connection: object) -> None:
        """Call the handler with the connection. Raises whatever it raises."""
        ...

    def failed(self, error: BaseException) -> None:
        """Note that this effect is to blame for the error."""


@runtime_checkable
class RunsEffects(Protocol):
    """A destination whose items are effects."""

    def check_handler(self, handler: object) -> None:
        """Raise `ConfigError` for a handler that cannot use the connections of this destination."""
        ...


class CauseUnclear(TransientError):
    """An effect has made the transaction unusable, and it is not known which one."""


def not_its_to_end(statement: str) -> PermanentError:
    """The error of a handler that tries to begin or end a transaction."""
    return PermanentError(
        f"message.connection refuses {statement}: its transaction commits together with the position "
        "behind the message; raise an exception to roll back"
    )


def ended_by_handler() -> PermanentError:
    """The error of a handler that has ended the transaction it runs in."""
    return PermanentError(
        "the handler has ended the transaction of message.connection by a statement of its own: its "
        "effects may be committed without the position, and those before it, which come again; leave "
        "the COMMIT to the flow, and raise an exception to roll back"
    )


def aborted_by_handler() -> PermanentError:
    """The error of a handler that has passed over an error of the database."""
    return PermanentError(
        "the handler has returned although a statement of it failed, which aborts the transaction; "
        "run a statement that may fail in `async with message.connection.transaction():`"
    )


def not_in_transaction(given: object) -> Exception:
    """The error of a destination of effects that is written to directly."""
    rule = "runs handlers in transactions; use flow.transaction(source, sink, handler)"
    return bad("sink", given, rule)
