"""Handlers by type hint: refused handlers, classes and arguments."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from consuming import consume_batches
from register_help import Paid, Placed, RefundEvent, RefundPaid, just_place

from sluicegate import ConfigError, Message
from sluicegate.consumer import Envelope, HandlerRegister

if TYPE_CHECKING:
    from collections.abc import Sequence
    from decimal import Decimal

    from sluicegate.testing import FakeClock

# -- two handlers of one class ---------------------------------------------------------------------


async def place_again(event: Placed) -> None:
    """Take the same class as `just_place`."""


async def place_or_pay(event: Paid | Placed) -> None:
    """Take the class of `just_place` and another one."""


async def place_in_envelope(event: Envelope[Placed]) -> None:
    """Take the class of `just_place` in an envelope."""


@pytest.mark.parametrize("handler", [place_again, place_or_pay, place_in_envelope])
def test_two_handlers_of_a_class_are_refused(handler: Any) -> None:
    """S15, S-T14: the error names both, and nothing of the second one is added."""
    handlers = HandlerRegister()
    handlers.register(just_place)
    told = (
        rf"handler=.*{handler.__name__}.*overlaps with .*just_place.*: both take the type 'Placed'"
    )
    with pytest.raises(ConfigError, match=told):
        handlers.register(handler)
    assert handlers.types == ("Placed",)


def test_two_classes_of_one_name_are_refused() -> None:
    """S-T14."""

    @dataclass
    class Other:
        __type__ = "Placed"

    async def other(event: Any) -> None: ...

    other.__annotations__["event"] = Other
    handlers = HandlerRegister()
    handlers.register(just_place)
    with pytest.raises(ConfigError, match="both take the type 'Placed'"):
        handlers.register(other)


async def any_refund(event: RefundEvent) -> None:
    """Take the family."""


async def paid_refund(event: RefundPaid) -> None:
    """Take one class of the family."""


async def all_refunds(event: RefundEvent | RefundPaid) -> None:
    """Take the family, named twice."""


@pytest.mark.parametrize("order", [(any_refund, paid_refund), (paid_refund, any_refund)])
def test_handlers_of_a_class_and_its_subclass_are_refused(order: Sequence[Any]) -> None:
    """S-T14: in either order; a single handler may take both."""
    handlers = HandlerRegister()
    handlers.register(order[0])
    with pytest.raises(ConfigError, match="one a subclass of the other"):
        handlers.register(order[1])
    HandlerRegister().register(all_refunds)


async def anything(message: Message) -> None:
    """Take any message."""


async def anything_else(message: Message) -> None:
    """Take any message."""


def test_two_handlers_of_any_message_are_refused() -> None:
    """S-T14."""
    handlers = HandlerRegister()
    handlers.register(anything)
    with pytest.raises(ConfigError, match="both take Message"):
        handlers.register(anything_else)


# -- hints and signatures --------------------------------------------------------------------------


class Pair(NamedTuple):
    """A class that is not a message class."""

    order: int


async def of_int(event: int) -> None: ...


async def of_pair(event: Pair) -> None: ...


async def of_optional(event: Placed | None) -> None: ...


async def of_list(event: list[Placed]) -> None: ...


async def of_any(event: Any) -> None: ...


async def of_bare_envelope(event: Envelope) -> None: ...  # type: ignore[type-arg]


async def of_message_in_envelope(event: Envelope[Message]) -> None: ...


async def of_envelope_twice(event: Envelope[Envelope[Placed]]) -> None: ...


@pytest.mark.parametrize(
    "handler",
    [
        of_int,
        of_pair,
        of_optional,
        of_list,
        of_any,
        of_bare_envelope,
        of_message_in_envelope,
        of_envelope_twice,
    ],
)
def test_what_is_no_message_class_is_refused(handler: Any) -> None:
    """S15, S-T14."""
    with pytest.raises(ConfigError, match=r"as 'event', which must be a message class"):
        HandlerRegister().register(handler)


async def of_message_or_class(event: Message | Placed) -> None: ...


async def of_later(event: Decimal) -> None: ...


async def of_nothing() -> None: ...


async def of_keyword(*, event: Placed) -> None: ...


async def without_hint(event) -> None: ...  # type: ignore[no-untyped-def]


def of_generator(event: Placed) -> Any:
    yield event


@pytest.mark.parametrize(
    ("handler", "told"),
    [
        (of_message_or_class, "takes Message, which stands for any class and cannot be in a union"),
        (of_later, "the hint 'Decimal' of 'event' cannot be resolved"),
        (of_nothing, "must take the message as its first parameter"),
        (of_keyword, "must take the message as its first parameter"),
        (without_hint, "needs a type hint: its first parameter 'event' must be a message class"),
        (of_generator, "is a generator function"),
        (3, "has no signature that can be read"),
        (Placed, "needs a type hint|must be a message class"),
    ],
)
def test_what_is_no_handler_is_refused(handler: Any, told: str) -> None:
    """S-T14."""
    with pytest.raises(ConfigError, match=told):
        HandlerRegister().register(handler)


def test_with_call_a_generator_is_refused_too() -> None:
    with pytest.raises(ConfigError, match=r"handler=.*of_generator.*is a generator function"):
        HandlerRegister(call=lambda handler, argument, message: None).register(of_generator)


async def needs(event: Placed, connection: object, *, now: object, retries: int = 3) -> None:
    """Take more than the message."""


async def gives(event: Placed, retries: int = 3, *args: object, **kwargs: object) -> None:
    """Take only the message."""


def test_parameters_that_nothing_provides_are_refused() -> None:
    """S-T14: parameters with defaults need no value."""
    with pytest.raises(ConfigError, match=r"nothing provides: connection, now; pass call= to"):
        HandlerRegister().register(needs)
    HandlerRegister().register(gives)
    HandlerRegister(call=lambda handler, argument, message: None).register(needs)


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"type_of": ""}, "type_of='': must be text"),
        ({"type_of": 3}, "type_of=3: must be the name of a header, or a plain function"),
        ({"type_of": anything}, "and not an async one"),
        ({"name_of": 3}, "name_of=3: must be a plain function of a message class"),
        ({"decode": json.loads}, "decode=.*: must be a function of a message class and a value"),
        ({"call": 3}, "call=3: must be a function of a handler, its argument and the message"),
        ({"unhandled": "drop"}, "unhandled='drop': must be one of 'poison', 'skip'"),
    ],
)
def test_bad_arguments_are_refused(arguments: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        HandlerRegister(**arguments)


def test_a_type_name_must_be_text() -> None:
    handlers = HandlerRegister(name_of=lambda kind: "")
    with pytest.raises(ConfigError, match="type name of Placed='': must be text, not empty"):
        handlers.register(just_place)


async def test_it_is_refused_as_a_handler_of_batches(fake_clock: FakeClock) -> None:
    with pytest.raises(ConfigError, match="handles one message at a time"):
        await consume_batches(fake_clock, [], HandlerRegister(), size=2)
