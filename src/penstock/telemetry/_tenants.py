"""Which tenants get a series of their own: as many as asked for, however many there are.

1. Counting is *space saving*: so many tenants are counted at a time, and one that is not among them
   takes the place and the count of the one with the fewest. Every tenant with more than its part of
   all items is among them. (Metwally, Agrawal, El Abbadi: Efficient Computation of Frequent and
   Top-k Elements in Data Streams, 2005.)
2. A tenant is shown when its count passes that of the one shown with the fewest, which is hidden
   then.
3. What a tenant does while it is hidden counts as `other`, and stays there: no counter goes back. A
   series that has been hidden begins again with 0, which Prometheus takes for the restart that it
   is.
"""

from __future__ import annotations

COUNTED_PER_SHOWN = 10
OTHER = "other"


class Top:
    """The tenants that are shown. `most` of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._counted: dict[str, int] = {}
        self._shown: set[str] = set()

    def seen(self, tenant: str, items: int) -> str | None:
        """Count `items` of a tenant; return the tenant that is hidden by that, `None` for none."""
        if tenant == OTHER:
            return None
        counted = self._counted
        if tenant not in counted and len(counted) >= self._most * COUNTED_PER_SHOWN:
            least = min(counted, key=counted.__getitem__)
            counted[tenant] = counted.pop(least)
            if (
                least in self._shown
            ):  # all that are counted have the same, so it may as well be this one
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
