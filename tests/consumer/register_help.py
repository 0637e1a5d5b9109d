"""Message classes, records of them, and a handler, for tests of `HandlerRegister`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pydantic

from sluicegate.consumer import Record


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


async def just_place(event: Placed) -> None:
    """Do nothing."""
