"""A bounded number of tenants with their own time series.

1. Counting uses the *space saving* algorithm: a fixed number of tenants is counted at a time, and a
   new tenant takes over the place and the count of the tenant with the fewest items. Every tenant
   with more than its share of all items is counted. (Metwally, Agrawal, El Abbadi: Efficient
   Computation of Frequent and Top-k Elements in Data Streams, 2005.)
2. A tenant is shown when its count exceeds the lowest shown count; the tenant with that count is
   then hidden.
3. Items of a hidden tenant count as `other`, and stay there: no counter decreases. When a hidden
   tenant is shown again, its series restarts at 0, which Prometheus treats as a counter reset.
4. If series cannot be removed (`Kept`), that of a hidden tenant stays unchanged. To limit their
   number as well, a process shows at most ten times as many tenants during its life.
"""

from __future__ import annotations

from .._core.text import text_of

COUNTED_PER_SHOWN = 10
OTHER = "other"


class Top:
    """The tenants with their own time series, at most `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._counted: dict[str, int] = {}
        self._shown: set[str] = set()

    def seen(self, tenant: str, items: int) -> str | None:
        """Count `items` of a tenant; return the tenant that is hidden as a result, if any."""
        if tenant == OTHER:
            return None
        counted = self._counted
        if tenant not in counted and len(counted) >= self._most * COUNTED_PER_SHOWN:
            least = min(counted, key=counted.__getitem__)
            counted[tenant] = counted.pop(least)
            if least in self._shown:  # then all counted tenants have this count
                self._shown.remove(least)
                self._shown.add(tenant)
                counted[tenant] += items
                return least
        counted[tenant] = counted.get(tenant, 0) + items
        if tenant in self._shown:
            return None
        if len(self._shown) < self._most:
            self._shown.add(tenant)
            return None
        last = min(self._shown, key=counted.__getitem__)
        if counted[tenant] <= counted[last]:
            return None
        self._shown.remove(last)
        self._shown.add(tenant)
        return last

    def label(self, tenant: str) -> str:
        """Return the tenant's own name if it is shown; otherwise `other`."""
        return tenant if tenant in self._shown else OTHER


class Kept:
    """Tenants whose series are kept forever, at most ten times `most`."""

    def __init__(self, most: int) -> None:
        self._most = most * COUNTED_PER_SHOWN
        self._kept: set[str] = set()

    def label(self, tenant: str) -> str:
        """Return the tenant's own name if it has a series or there is room for one; otherwise
        `other`.
        """
        if tenant not in self._kept and len(self._kept) < self._most:
            self._kept.add(tenant)
        return tenant if tenant in self._kept else OTHER


def label_of(tenant: object) -> str:
    """Return the label value of a tenant: its `str`, or a placeholder if that raises."""
    return tenant if type(tenant) is str else text_of(tenant)
