"""Records of a topic that become rows of a table: their values, and the row of each record."""

from __future__ import annotations

import json
import random
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

from ...destination import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...destination import Row

ACTIONS = Table(
    "actions",
    {
        "number": "bigint",
        "account": "text",
        "action": "text",
        "amount": "double precision",
        "page": "text",
        "at": "bigint",
    },
)
VERBS = ("view", "search", "add_to_cart", "remove", "checkout", "pay")

row_of = cast("Callable[[dict[str, Any]], Row]", itemgetter(*ACTIONS.columns))
"""Makes the row of a decoded value."""
number_of: Callable[[Row], int] = itemgetter(ACTIONS.columns.index("number"))
account_of: Callable[[Row], str] = itemgetter(ACTIONS.columns.index("account"))


def actions(count: int, keys: int) -> Iterator[tuple[bytes, bytes]]:
    """Make keys and values of this number of records, the keys in an order without a pattern."""
    draw = random.Random(1)
    for number in range(count):
        account = f"account-{draw.randrange(keys)}"
        value = {
            "number": number,
            "account": account,
            "action": VERBS[number % len(VERBS)],
            "amount": round(draw.random() * 500, 2),
            "page": f"/catalogue/{draw.randrange(10_000)}/reviews",
            "at": 1_704_067_200_000 + number * 17,
        }
        yield account.encode(), json.dumps(value).encode()
