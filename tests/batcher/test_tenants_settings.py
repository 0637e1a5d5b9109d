"""The settings of tenants: refused arguments, weights and tenants, and pickled settings."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from tenant_help import Item, limits, tenant_of

from sluicegate import Batcher, ConfigError
from sluicegate.batcher import Tenants
from sluicegate.testing import FakeClock, FakeSink


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tenant": "name"}, "tenant='name': must be a function"),
        ({"tenants": Tenants()}, "has no meaning without tenant"),
        ({"tenant": tenant_of, "tenants": {"a": 2}}, r"must be a Tenants\(\.\.\.\)"),
        (
            {"tenant": tenant_of, "tenants": Tenants(max_pending_bytes=10)},
            "max_pending_bytes=10: needs sizes",
        ),
    ],
)
def test_mistakes_are_told_at_construction(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Batcher(FakeSink[Item](), **arguments)


@pytest.mark.parametrize(
    "wrong",
    [{"weights": {"a": 0}}, {"weights": 3}, {"weights": {"a": "b"}}, {"max_pending_items": 0}],
)
def test_tenants_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Tenants(**wrong)


async def test_a_weight_that_cannot_be_refuses_all_of_what_comes_in_together(
    fake_clock: FakeClock,
) -> None:
    """I10: all items of the group are accepted, or none."""
    shares = Tenants(weights=lambda tenant: -1.0 if tenant == "bad" else 1.0)
    async with Batcher(
        FakeSink[Item](), tenant=tenant_of, tenants=shares, limits=limits(), clock=fake_clock
    ) as batcher:
        with pytest.raises(ConfigError, match=r"-1\.0 for tenant 'bad'"):
            await batcher.add_many([("good", 0), ("bad", 0)])
        assert batcher.tally().accepted == 0


async def test_an_item_whose_tenant_cannot_be_one_is_refused(fake_clock: FakeClock) -> None:
    async with Batcher(FakeSink[Any](), tenant=lambda item: item, clock=fake_clock) as batcher:
        with pytest.raises(TypeError, match="has no hash"):
            await batcher.add(["a"])
        assert batcher.tally().accepted == 0


def test_tenants_travel() -> None:
    assert pickle.loads(pickle.dumps(Tenants(weights={"a": 2.0}))).weight("a") == 2.0
