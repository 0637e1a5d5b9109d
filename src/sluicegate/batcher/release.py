"""`resume` and `unpark`: release of a held key by the caller's key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._core import checks
from .._core.errors import ConfigError
from .._core.order.keys import identity
from .gathering.tenant_queue import TenantKey

if TYPE_CHECKING:
    from collections.abc import Hashable

    from .dispatch import Dispatcher


def release(
    dispatcher: Dispatcher[Any], call: str, key: object, tenant: object, policies: tuple[str, ...]
) -> int:
    """Release a key under one of `policies`; return its number of held items. Raises `ConfigError`."""
    dispatcher.lifecycle.check_here()
    policy = dispatcher.setup.on_key_failure
    if policy not in policies:
        rule = f"{call}() needs one of {', '.join(policies)}"
        raise checks.bad("on_key_failure", policy, rule)
    known = _known(dispatcher, call, key, tenant)
    holds = dispatcher.gathering.holds
    if holds is None or dispatcher.lifecycle.state != "open":
        return 0
    with dispatcher.step():
        now = dispatcher.clock.now()
        dispatcher.window.close()
        count = holds.let_go(known, now)
        dispatcher.advance(now)
    return count


def _known(dispatcher: Dispatcher[Any], call: str, key: object, tenant: object) -> Hashable:
    """Return the identity of the key in the gatherer."""
    if dispatcher.setup.tenant is None:
        if tenant is not ...:
            rule = f"{call}() takes none, since the batcher has no tenant="
            raise checks.bad("tenant", tenant, rule)
        return identity(key)
    if tenant is ...:
        raise ConfigError(
            f"{call}({key!r}) needs tenant=, since the batcher has tenants: a key is a key "
            "within its tenant"
        )
    return TenantKey(identity(tenant, "tenant"), identity(key))
