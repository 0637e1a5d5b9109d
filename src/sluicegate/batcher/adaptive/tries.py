"""Reports attempts to the governor, if any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._core.batch import Reason
from .governor import Governor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..gathering.pack import Sealed
    from ..setup import Setup
    from .adaptive import Setting
    from .governor import Running

_FULL = frozenset({Reason.SIZE, Reason.BYTES})


class TryWatch:
    """The attempts of one batcher; without `adaptive` it does nothing."""

    def __init__(self, setup: Setup[Any]) -> None:
        adaptive = setup.adaptive
        self._governor = None if adaptive is None else Governor(adaptive, setup.limits, setup.sink)

    @property
    def setting(self) -> Setting | None:
        """The governor's setting; `None` without a governor."""
        return None if self._governor is None else self._governor.setting

    def begins(self, items: int, sealed: Sealed[Any], now: float) -> Running | None:
        """Begin an attempt of this number of items of a batch."""
        if self._governor is None:
            return None
        of_tenant, is_full = sealed.owner is not None, sealed.reason in _FULL
        return self._governor.begins(items, now, of_tenant=of_tenant, full=is_full)

    def heard(self, running: Running | None, errors: Iterable[BaseException]) -> None:
        """Evaluate the errors of an attempt."""
        if self._governor is not None and running is not None:
            self._governor.heard(running, errors)

    def ends(self, running: Running | None, now: float, *, rests: bool, told: bool) -> bool:
        """End an attempt, in a backoff if it `rests`; return whether the setting has changed."""
        if self._governor is None or running is None:
            return False
        return self._governor.ends(running, now, rests=rests, told=told)
