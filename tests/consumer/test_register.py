"""Handlers by type hint: the messages that each handler takes, and what it is called with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from consuming import consume
from register_help import (
    ONE,
    Cancelled,
    Paid,
    Placed,
    RefundAsked,
    RefundEvent,
    RefundPaid,
    Shipped,
    just_place,
    typed,
)

from sluicegate import Message, Nak
from sluicegate.consumer import Envelope, HandlerRegister, NoHandlerError, Record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sluicegate.testing import FakeClock


async def test_each_handler_takes_the_class_of_its_hint(fake_clock: FakeClock) -> None:
    """S15, S-T14, consumer/G26: dataclasses, models, classes with a type name; async and plain
    handlers, in one order per key.
    """
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
    handlers.register(just_place)
    given = typed(("Placed", ONE), (None, 1), ("Placed", ONE))
    if kind is not None:
        head = ("type", kind.encode(errors="surrogateescape"))
        given[1] = Record("orders", 0, 1, "a", b"1", (head,))
    counts = (await consume(fake_clock, given, handlers)).report.counts
    assert (counts.acked, counts.terminated, counts.naks) == (2, 1, 1)
    assert "NoHandlerError: no handler for the type" in caplog.text
    assert "by the header 'type'; known types: 'Placed'" in caplog.text


@pytest.mark.parametrize("kind", [[], 3, None])
async def test_a_type_that_is_not_text_has_no_handler(fake_clock: FakeClock, kind: Any) -> None:
    handlers = HandlerRegister(type_of=lambda message: kind)
    handlers.register(just_place)
    with pytest.raises(NoHandlerError, match="no handler for the type"):
        await consume(fake_clock, typed(("Placed", ONE)), handlers, poison="exit")


async def test_a_function_of_the_type_that_raises_is_a_failed_try(fake_clock: FakeClock) -> None:
    def kind(message: Message) -> str:
        if message.attempt == 1:
            raise KeyError("later")
        return "Placed"

    handlers = HandlerRegister(type_of=kind)
    handlers.register(just_place)
    ran = await consume(fake_clock, typed(("Placed", ONE)), handlers)
    assert (ran.report.counts.acked, ran.report.counts.naks) == (1, 1)


async def test_it_may_be_skipped_and_is_counted(fake_clock: FakeClock) -> None:
    """S-T14: it is never acknowledged silently."""
    handlers = HandlerRegister(unhandled="skip")
    handlers.register(just_place)
    ran = await consume(fake_clock, typed(("Placed", ONE), ("New", 1), (None, 2)), handlers)
    assert (ran.report.counts.acked, ran.report.counts.skipped) == (1, 2)
    assert ran.position == 3


async def test_a_register_without_handlers_says_so(fake_clock: FakeClock) -> None:
    with pytest.raises(NoHandlerError, match="known types: none"):
        await consume(fake_clock, typed(("Placed", ONE)), HandlerRegister(), poison="exit")


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
    handlers.register(just_place)
    ran = await consume(fake_clock, typed(("Placed", ONE)), handlers)
    assert ran.report.counts.naks == 2


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
