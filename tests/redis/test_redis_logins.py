"""`RedisSink` if Redis requires a password, which the URL lacks, while the sink is open."""

from __future__ import annotations

import pytest
from tests.redis.redis_help import STREAM, Store, names, written

pytestmark = pytest.mark.usefixtures("real_clock")
MANY = {f"field{number}": number for number in range(8)}
LARGE = {"text": "x" * 20_000}


async def test_a_password_that_is_required_later_rejects_no_item(own_store: Store) -> None:
    """Without a login, Redis answers a command with many or large arguments with a protocol error,
    and closes the connection: neither is the fault of an item.
    """
    items = [{"n": 1}, {"n": 2, **MANY}, {"n": 3}, {"n": 4, **LARGE}, {"n": 5}]
    with Store.beside(own_store) as operator:
        async with own_store.sink() as sink:
            for sent in (items, items[1:], items[3:]):
                operator.config_set("requirepass", "pw")
                operator.client_kill_filter(_type="normal", skipme=True)
                await written(sink, [{"n": 0}])  # finds its connection closed, or no login
                errors = await written(sink, sent)
                assert names(errors) == dict.fromkeys(range(len(sent)), "RefusedError")
                assert {*map(str, errors.values())} <= {
                    f"the key '{STREAM}': NOAUTH {told}; to repair: give the "
                    "user and password that the server requires, in the URL"
                    for told in (
                        "Authentication required.",
                        "Protocol error: unauthenticated multibulk length",
                        "Protocol error: unauthenticated bulk length",
                    )
                }
                operator.config_set("requirepass", "")
            assert await written(sink, items) == {}
    assert len(own_store.entries()) == len(items)
