"""One handler per type of record."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from consuming import consume, records

from sluicegate import ConfigError
from sluicegate._core.source import Record
from sluicegate.consumer import HandlersByType, NoHandlerError, decode, with_steps

if TYPE_CHECKING:
    from sluicegate.consumer.message import Message
    from sluicegate.testing import FakeClock


async def fine(message: Message) -> None:
    """Do nothing."""


def typed(*types_and_values: tuple[bytes | None, bytes]) -> list[Record]:
    return [
        Record("orders", 0, offset, "a", value, () if kind is None else (("type", kind),))
        for offset, (kind, value) in enumerate(types_and_values)
    ]


async def test_each_type_has_its_handler_and_its_decoder(fake_clock: FakeClock) -> None:
    """consumer/G26: async and plain handlers, in one order per key."""
    handled: list[tuple[str, Any]] = []

    async def order(message: Message) -> None:
        handled.append(("order", message.value))

    def text(message: Message) -> None:
        handled.append(("text", message.value))

    async def other(message: Message) -> None:
        handled.append(("other", message.value))

    handler = HandlersByType(
        "type",
        {
            "order": with_steps(order, decode(json.loads)),
            "text": with_steps(text, decode(bytes.upper)),
        },
        default=other,
    )
    given = typed((b"order", b'{"id": 1}'), (b"text", b"ab"), (b"new", b"2"), (None, b"3"))
    ran = await consume(fake_clock, given, handler)
    assert handled == [("order", {"id": 1}), ("text", b"AB"), ("other", b"2"), ("other", b"3")]
    assert ran.report.counts.acked == 4


@pytest.mark.parametrize("kind", [b"new", None, b"\xff\xfe"])
async def test_an_unknown_type_is_poison_for_its_record_alone(
    fake_clock: FakeClock, kind: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """At once, without retries: waiting cannot add a handler."""
    ran = await consume(
        fake_clock,
        typed((b"order", b"1"), (kind, b"2"), (b"order", b"3")),
        HandlersByType("type", {"order": fine}),
    )
    counts = ran.report.counts
    assert (counts.acked, counts.terminated, counts.naks, ran.position) == (2, 1, 1, 3)
    assert "NoHandlerError: no handler for the type" in caplog.text
    assert "known types: 'order'" in caplog.text


@pytest.mark.parametrize("kind", [[], "c", None])
async def test_a_function_of_the_message_may_tell_its_type(
    fake_clock: FakeClock, kind: object
) -> None:
    """A type can be any hashable value; an unhashable one counts as unknown."""
    seen: list[object] = []

    async def handle(message: Message) -> None:
        seen.append(message.value)

    handler = HandlersByType(lambda message: message.value, {1: handle, ("b", 2): handle})
    ran = await consume(fake_clock, records(("a", 1), ("a", kind), ("a", ("b", 2))), handler)
    assert (seen, ran.report.counts.terminated) == ([1, ("b", 2)], 1)


async def test_a_function_that_raises_is_a_failed_try(fake_clock: FakeClock) -> None:
    def kind(message: Message) -> str:
        if message.attempt == 1:
            raise KeyError("later")
        return "order"

    ran = await consume(fake_clock, records(("a", b"1")), HandlersByType(kind, {"order": fine}))
    assert (ran.report.counts.acked, ran.report.counts.naks) == (1, 1)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("type", {}), "handlers={}: must be a mapping"),
        (("type", [fine]), "must be a mapping"),
        (("", {"a": fine}), "type_of='': must be text"),
        ((3, {"a": fine}), "type_of=3: must be the name of a header, or a plain function"),
        ((fine, {"a": fine}), "and not an async one"),
        (("type", {"a": 1}), r"handlers\['a'\]=1: must be a function"),
        (("type", {"a": fine}, "b"), "default='b': must be a function"),
    ],
)
def test_bad_arguments_are_refused(arguments: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        HandlersByType(*arguments)


def test_its_text_names_its_types() -> None:
    assert repr(HandlersByType("type", {"a": fine})) == "HandlersByType(the header 'type', ['a'])"
    assert issubclass(NoHandlerError, Exception)
