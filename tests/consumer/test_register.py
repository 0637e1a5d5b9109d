"""Handlers by type hint."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pydantic
import pytest
from consuming import consume, consume_batches

from penstock import ConfigError, Message, Nak
from penstock._core.source import Record
from penstock.consumer import DecodeError, Envelope, HandlerRegister, NoHandlerError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from decimal import Decimal

    from penstock.testing import FakeClock


@dataclass(frozen=True)
class Placed:
    """A message class that is a dataclass."""

    order: int


@dataclass(frozen=True, slots=True)
class Paid:
    """A message class with slots."""

    order: int
    cents: int = 0


class Shipped(pydantic.BaseModel):
    """A message class that is a pydantic model."""

    order: int


class Cancelled:
    """A message class by its declared type."""

    __type__ = "order-cancelled"

    def __init__(self, order: int) -> None:
        self.order = order


@dataclass
class RefundEvent:
    """The base of message classes."""

    order: int


@dataclass(slots=True)
class RefundAsked(RefundEvent):
    """A message class of the family."""


@dataclass(slots=True)
class RefundPaid(RefundAsked):
    """A message class of the family, two levels down."""

    cents: int = 0


def typed(*types_and_values: tuple[str | None, Any]) -> list[Record]:
    """Records of JSON values, with their type in a header."""
    return [
        Record(
            "orders",
            0,
            offset,
            "a",
            json.dumps(value).encode(),
            () if kind is None else (("type", kind.encode()),),
        )
        for offset, (kind, value) in enumerate(types_and_values)
    ]


ONE = {"order": 1}


async def test_each_handler_takes_the_class_of_its_hint(fake_clock: FakeClock) -> None:
    """S15, S-T14: dataclasses, models, classes with a type name; async and plain handlers."""
    handlers, handled = HandlerRegister(), list[Any]()

    @handlers.register
    async def place(event: Placed) -> None:
        handled.append(event)

    @handlers.register
    def ship(event: Shipped) -> None:
        handled.append(event)

    @handlers.register
    async def cancel(event: Cancelled) -> Nak | None:
        handled.append(event.order)
        return Nak() if len(handled) == 3 else None

    given = typed(("Placed", ONE), ("Shipped", ONE), ("order-cancelled", {"order": 7}))
    ran = await consume(fake_clock, given, handlers)
    assert handled == [Placed(1), Shipped(order=1), 7, 7]
    assert ran.report.counts.acked == 3
    assert handlers.types == ("Placed", "Shipped", "order-cancelled")
    assert repr(handlers) == (
        "HandlerRegister(the header 'type', ['Placed', 'Shipped', 'order-cancelled'])"
    )


async def test_a_union_is_each_of_its_classes(fake_clock: FakeClock) -> None:
    """S-T14: with envelopes inside or around it."""
    handlers, handled = HandlerRegister(), list[Any]()

    @handlers.register
    async def first(event: Placed | Envelope[Paid]) -> None:
        handled.append(event.value if isinstance(event, Envelope) else event)

    @handlers.register
    async def second(event: Envelope[Cancelled | Shipped]) -> None:
        handled.append((event.message.offset, event.value.order))

    given = typed(("Placed", ONE), ("Paid", ONE), ("order-cancelled", ONE), ("Shipped", ONE))
    ran = await consume(fake_clock, given, handlers)
    assert handled == [Placed(1), Paid(1), (2, 1), (3, 1)]
    assert ran.report.counts.acked == 4


async def test_the_handler_of_messages_takes_the_rest(fake_clock: FakeClock) -> None:
    handlers, rest = HandlerRegister(unhandled="skip"), list[int]()

    @handlers.register
    async def place(event: Placed) -> None: ...

    @handlers.register
    async def other(message: Message) -> None:
        rest.append(message.offset)

    ran = await consume(fake_clock, typed(("Placed", ONE), ("New", 1), (None, 2)), handlers)
    assert rest == [1, 2]
    assert (ran.report.counts.acked, ran.report.counts.skipped) == (3, 0)


async def test_a_class_stands_for_its_subclasses(fake_clock: FakeClock) -> None:
    """S-T14: also for subclasses that are defined after the first miss."""
    handlers, handled = HandlerRegister(), list[Any]()

    @handlers.register
    async def refund(event: RefundEvent) -> None:
        handled.append(event)

    given = typed(("RefundAsked", ONE), ("RefundPaid", {"order": 1, "cents": 2}), ("Late", ONE))
    with pytest.raises(NoHandlerError):
        await handlers(_message(given[2]))

    @dataclass
    class Late(RefundEvent):
        """A class that is defined after messages have been handled."""

    assert (await consume(fake_clock, given, handlers)).report.counts.acked == 3
    assert handled == [RefundAsked(1), RefundPaid(1, 2), Late(1)]
    assert handlers.types == ("RefundEvent",)


def _message(record: Record) -> Any:
    return Message("a", 1, record, None, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["New", None, "\udcff"])
async def test_a_message_without_a_handler_is_poison_alone(
    fake_clock: FakeClock, kind: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """S-T14: at once, without retries."""
    handlers = HandlerRegister()
    handlers.register(_place)
    given = typed(("Placed", ONE), (None, 1), ("Placed", ONE))
    if kind is not None:
        head = ("type", kind.encode(errors="surrogateescape"))
        given[1] = Record("orders", 0, 1, "a", b"1", (head,))
    counts = (await consume(fake_clock, given, handlers)).report.counts
    assert (counts.acked, counts.terminated, counts.naks) == (2, 1, 1)
    assert "NoHandlerError: no handler for the type" in caplog.text
    assert "by the header 'type'; known types: 'Placed'" in caplog.text


async def _place(event: Placed) -> None:
    """Do nothing."""


async def test_it_may_be_skipped_and_is_counted(fake_clock: FakeClock) -> None:
    """S-T14: it is never acknowledged silently."""
    handlers = HandlerRegister(unhandled="skip")
    handlers.register(_place)
    ran = await consume(fake_clock, typed(("Placed", ONE), ("New", 1), (None, 2)), handlers)
    assert (ran.report.counts.acked, ran.report.counts.skipped) == (1, 2)
    assert ran.position == 3


async def test_a_register_without_handlers_says_so(fake_clock: FakeClock) -> None:
    with pytest.raises(NoHandlerError, match="known types: none"):
        await consume(fake_clock, typed(("Placed", ONE)), HandlerRegister(), poison="exit")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("Placed", {"order": 1, "colour": 2}),
        ("Placed", {}),
        ("Placed", [1]),
        ("Placed", None),
        ("Shipped", {"order": "many"}),
        ("order-cancelled", {"colour": 2}),
    ],
)
async def test_a_value_that_does_not_fit_its_class_is_poison_alone(
    fake_clock: FakeClock, kind: str, value: Any
) -> None:
    """Only the cause contains the value, and logs do not show it."""
    handlers, handled = HandlerRegister(), list[Any]()

    @handlers.register
    async def take(event: Placed | Shipped | Cancelled) -> None:
        handled.append(event)

    with pytest.raises(DecodeError, match="cannot be decoded as") as raised:
        await consume(fake_clock, typed(("Placed", ONE), (kind, value)), handlers, poison="exit")
    assert handled == [Placed(1)]
    assert raised.value.__cause__ is not None


async def test_bytes_that_are_no_json_are_poison(fake_clock: FakeClock) -> None:
    handlers = HandlerRegister()
    handlers.register(_place)
    broken = Record("orders", 0, 0, "a", b"{", (("type", b"Placed"),))
    with pytest.raises(DecodeError, match="JSONDecodeError"):
        await consume(fake_clock, [broken], handlers, poison="exit")


@pytest.mark.parametrize("value", [Placed(3), {"order": 3}, '{"order": 3}', b'{"order": 3}'])
async def test_values_may_be_decoded_already(fake_clock: FakeClock, value: object) -> None:
    handlers, handled = HandlerRegister(), list[Placed]()

    @handlers.register
    async def place(event: Placed) -> None:
        handled.append(event)

    given = [Record("orders", 0, 0, "a", value, (("type", b"Placed"),))]
    await consume(fake_clock, given, handlers)
    assert handled == [Placed(3)]


@pytest.mark.parametrize("value", [Shipped(order=3), {"order": 3}, b'{"order": 3}'])
async def test_models_may_be_decoded_already(fake_clock: FakeClock, value: object) -> None:
    handlers, handled = HandlerRegister(), list[Shipped]()

    @handlers.register
    async def ship(event: Shipped) -> None:
        handled.append(event)

    given = [Record("orders", 0, 0, "a", value, (("type", b"Shipped"),))]
    await consume(fake_clock, given, handlers)
    assert handled == [Shipped(order=3)]


@pytest.mark.parametrize("is_async", [True, False])
async def test_names_types_and_values_may_be_of_another_form(
    fake_clock: FakeClock, is_async: bool
) -> None:
    def plainly(kind: type[Any], value: bytes) -> Any:
        return kind(int(value))

    async def later(kind: type[Any], value: bytes) -> Any:
        return plainly(kind, value)

    handled = list[Any]()
    handlers = HandlerRegister(
        type_of=lambda message: f"v1.{message.key}",
        name_of=lambda kind: f"v1.{kind.__name__.lower()}",
        decode=later if is_async else plainly,
    )

    @handlers.register
    async def place(event: Placed) -> None:
        handled.append(event)

    await consume(fake_clock, [Record("orders", 0, 0, "placed", b"4")], handlers)
    assert handled == [Placed(4)]


# -- call ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [True, False])
async def test_call_provides_other_parameters(fake_clock: FakeClock, is_async: bool) -> None:
    """S-T14: for async and plain handlers; its result is the handler's result."""
    handled = list[Any]()

    def pass_both(
        handler: Callable[..., Awaitable[object]], argument: Any, message: Message
    ) -> Awaitable[object]:
        return handler(argument, at=message.offset)

    async def pass_later(
        handler: Callable[..., Awaitable[object]], argument: Any, message: Message
    ) -> object:
        return await handler(argument, at=message.offset)

    handlers = HandlerRegister(call=pass_later if is_async else pass_both)

    @handlers.register
    async def place(event: Placed, at: int) -> None:
        handled.append((event, at))

    @handlers.register
    def pay(event: Paid, *, at: int) -> Nak | None:
        handled.append((event, at))
        return Nak() if len(handled) == 2 else None

    ran = await consume(fake_clock, typed(("Placed", ONE), ("Paid", ONE)), handlers)
    assert handled == [(Placed(1), 0), (Paid(1), 1), (Paid(1), 1)]
    assert (ran.report.counts.acked, ran.report.counts.naks) == (2, 1)


async def test_call_may_settle_a_message_by_itself(fake_clock: FakeClock) -> None:
    handlers = HandlerRegister(call=lambda handler, argument, message: Nak())
    handlers.register(_place)
    ran = await consume(fake_clock, typed(("Placed", ONE)), handlers)
    assert ran.report.counts.naks == 2


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


# -- refused handlers and classes ------------------------------------------------------------------


async def place_again(event: Placed) -> None:
    """Take the same class as `_place`."""


async def place_or_pay(event: Paid | Placed) -> None:
    """Take the class of `_place` and another one."""


async def place_in_envelope(event: Envelope[Placed]) -> None:
    """Take the class of `_place` in an envelope."""


@pytest.mark.parametrize("handler", [place_again, place_or_pay, place_in_envelope])
def test_two_handlers_of_a_class_are_refused(handler: Any) -> None:
    """S15, S-T14: the error names both, and nothing of the second one is added."""
    handlers = HandlerRegister()
    handlers.register(_place)
    told = rf"handler=.*{handler.__name__}.*overlaps with .*_place.*: both take the type 'Placed'"
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
    handlers.register(_place)
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


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"type_of": ""}, "type_of='': must be text"),
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
        handlers.register(_place)


async def test_it_is_refused_as_a_handler_of_batches(fake_clock: FakeClock) -> None:
    with pytest.raises(ConfigError, match="handles one message at a time"):
        await consume_batches(fake_clock, [], HandlerRegister(), size=2)


# -- forms of functions ----------------------------------------------------------------------------


class Service:
    """Handlers that are methods, and an object that is a handler."""

    def __init__(self) -> None:
        self.handled: list[object] = []

    async def place(self, event: Placed) -> None:
        self.handled.append(event)

    async def __call__(self, event: Paid) -> None:
        self.handled.append(event)


async def ship_to(event: Shipped, country: str, to: list[object]) -> None:
    """Do nothing."""
    to.append((event.order, country))


async def test_methods_objects_and_partials_are_handlers(fake_clock: FakeClock) -> None:
    """The hints of this module are strings, and they are resolved."""
    service, handlers = Service(), HandlerRegister()
    handlers.register(service.place)
    handlers.register(service)
    handlers.register(partial(ship_to, country="NZ", to=service.handled))
    await consume(fake_clock, typed(("Placed", ONE), ("Paid", ONE), ("Shipped", ONE)), handlers)
    assert service.handled == [Placed(1), Paid(1), (1, "NZ")]
