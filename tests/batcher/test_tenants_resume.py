"""`resume` and `unpark` with tenants: from threads, and with wrong arguments."""

from __future__ import annotations

from typing import Any

import pytest
from keyed_help import Destination, Item, Setting, key_of, some, tenant_of
from tenant_keys_help import A, B

from sluicegate import Batcher, BlockingBatcher, ConfigError, Limits, Outcome
from sluicegate.errors import KeyFailedError

IN_THREADS = Limits(max_items=10, max_delay=0.001, workers=4)


def test_threads_let_a_tenants_key_go() -> None:
    """batcher/4a.10: `BlockingBatcher` has the same methods."""
    setting = Setting(Item(A, 0), seconds=0.0)
    with BlockingBatcher(
        setting.stack, key=key_of, tenant=tenant_of, limits=IN_THREADS, on_key_failure="park"
    ) as batcher:
        receipts = [batcher.submit(item) for item in some(A, 0, 3)]
        assert receipts[0].settled() is Outcome.DEAD_LETTERED
        assert batcher.deliver(Item(B, 0)) is Outcome.DELIVERED
        batcher.flush()
        assert batcher.stats().held_items == 2
        assert batcher.unpark("k", tenant="bolt") == 0
        assert batcher.unpark("k", tenant="acme") == 2
        assert receipts[2].result() is Outcome.DELIVERED
    assert setting.sink.applied == {A: [1, 2], B: [0]}


def test_threads_are_told_that_a_tenants_key_has_failed() -> None:
    """batcher/4a.10: like producers on the loop."""
    setting = Setting(Item(A, 0), seconds=0.0)
    with BlockingBatcher(
        setting.stack, key=key_of, tenant=tenant_of, limits=IN_THREADS, on_key_failure="fail"
    ) as batcher:
        assert batcher.submit(Item(A, 0)).settled() is Outcome.DEAD_LETTERED
        batcher.flush()
        with pytest.raises(KeyFailedError, match="of tenant 'acme'"):
            batcher.add(Item(A, 1))
        assert not batcher.try_add(Item(A, 1))
        assert batcher.deliver(Item(B, 1)) is Outcome.DELIVERED
        assert batcher.resume("k", tenant="acme") == 0
        assert batcher.deliver(Item(A, 2)) is Outcome.DELIVERED


@pytest.mark.parametrize("kind", [Batcher, BlockingBatcher])
def test_a_tenant_is_needed_exactly_where_there_are_tenants(kind: Any) -> None:
    """batcher/B46."""
    options: dict[str, Any] = {"key": key_of, "on_key_failure": "pause"}
    with pytest.raises(
        ConfigError, match=r"tenant='acme': resume\(\) takes none, since the batcher has no tenant="
    ):
        kind(Destination(), **options).resume("k", tenant="acme")
    with_tenants = kind(Destination(), tenant=tenant_of, **options)
    with pytest.raises(
        ConfigError, match=r"resume\('k'\) needs tenant=, since the batcher has tenants"
    ):
        with_tenants.resume("k")
    with pytest.raises(ConfigError, match=r"unpark\(\) needs one of park"):
        with_tenants.unpark("k", tenant="acme")
    with pytest.raises(TypeError, match="has no hash"):
        with_tenants.resume("k", tenant=[])
    assert with_tenants.resume("k", tenant=None) == 0, "None is a tenant like any other"


def test_a_policy_needs_a_key_of_the_tenant() -> None:
    """batcher/B46."""
    with pytest.raises(ConfigError, match="has no effect without key="):
        Batcher(Destination(), tenant=tenant_of, on_key_failure="pause")
