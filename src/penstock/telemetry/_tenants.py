"""A bounded number of tenants with a time series of their own.

1. Counting is *space saving*: a fixed number of tenants is counted at a time, and a tenant that is
   not among them takes the place and the count of the one with the fewest items. Every tenant with
   more than its share of all items is among them. (Metwally, Agrawal, El Abbadi: Efficient
   Computation of Frequent and Top-k Elements in Data Streams, 2005.)
2. A tenant is shown when its count exceeds the lowest count shown; the tenant with that is hidden.
3. Items of a hidden tenant count as `other`, and stay there: no counter decreases. The series of a
   hidden tenant begins again with 0 when it is shown again, which Prometheus treats as a restart.
4. Where a series cannot be removed (`Kept`), that of a hidden tenant stays as it is. So that their
   number is bounded there too, a process shows ten times as many tenants at most, over its life.
"""

from __future__ import annotations

from .._core.text import text_of

COUNTED_PER_SHOWN = 10
OTHER = "other"


class Top:
    """The tenants with a time series of their own, at most `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._counted: dict[str, int] = {}
        self._shown: set[str] = set()

    def seen(self, tenant: str, items: int) -> str | None:
        """Count `items` of a tenant; return the tenant that this hides, if any."""
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
        """The tenant's own name if it is shown; otherwise `other`."""
        return tenant if tenant in self._shown else OTHER


class Kept:
    """Tenants whose series stay for ever, at most ten times `most`."""

    def __init__(self, most: int) -> None:
        self._most = most * COUNTED_PER_SHOWN
        self._kept: set[str] = set()

    def label(self, tenant: str) -> str:
        """The tenant's own name if it has a series or there is room for one; otherwise `other`."""
        if tenant not in self._kept and len(self._kept) < self._most:
            self._kept.add(tenant)
        return tenant if tenant in self._kept else OTHER


def label_of(tenant: object) -> str:
    """The tenant as the value of a label: its `str`, or a remark if that raises."""
    return tenant if type(tenant) is str else text_of(tenant)
