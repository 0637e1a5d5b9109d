"""Handlers by type hint: the values that they take, and values that cannot be decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from consuming import consume
from register_help import ONE, Cancelled, Placed, Shipped, just_place, typed

from sluicegate.consumer import DecodeError, HandlerRegister, Record

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock


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
    handlers.register(just_place)
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


async def test_a_class_that_is_a_dictionary_gets_the_members(fake_clock: FakeClock) -> None:
    class Renamed(dict[str, Any]):
        __type__ = "renamed"

    async def rename(event: Any) -> None:
        handled.append(event)

    handlers, handled = HandlerRegister(), list[Renamed]()
    rename.__annotations__["event"] = Renamed
    handlers.register(rename)
    await consume(fake_clock, typed(("renamed", {"id": 7, "to": "b"})), handlers)
    assert handled == [{"id": 7, "to": "b"}]
