"""What an opened retry knows of its destination: whether to leave it alone, and who may look whether it is back.

1. A throttled destination is left alone by every batch until a time; with tenants, by every batch of the tenant that it throttled.
2. Of an unavailable destination exactly one batch tries from time to time whether it is back; the others wait for its success.
3. Whoever probes and ends in any other way hands the probe on.
4. A retry budget that is used up counts as an outage too. It ends with a try that succeeds; one that fails, though it got an answer, does
   not end it.
"""

from __future__ import annotations

from .._core.clock import Signal


class Destination:
    """The state shared by all batches of one retry."""

    def __init__(self) -> None:
        self._throttled: dict[object, float] = {}
        self.changed = Signal()
        """Fires when an outage has ended, or when somebody else may probe."""
        self.down_since: float | None = None
        self.failures = 0
        self.is_short = False
        """Whether the outage is that of an empty retry budget."""
        self._probe: object | None = None

    def throttle(self, until: float, tenant: object, now: float) -> None:
        """Leave the destination alone until then, as far as `tenant` goes (`None`: everybody, where there are no tenants)."""
        self._throttled = {each: end for each, end in self._throttled.items() if end > now}
        self._throttled[tenant] = max(self._throttled.get(tenant, until), until)

    def throttled_until(self, tenant: object) -> float:
        """When a batch of `tenant` may be tried again."""
        return self._throttled.get(tenant, 0.0)

    def is_unavailable(self, now: float, who: object) -> bool:
        """A try of `who` found nobody there; say whether `who` is the one to probe."""
        if self.down_since is None:
            self.down_since = now
            self.failures = 0
        self.failures += 1
        self.is_short = False
        return self.may_probe(who)

    def is_out_of_budget(self, now: float, who: object) -> bool:
        """There is no budget for a try of `who`; say whether `who` is the one to probe."""
        probes = self.is_unavailable(now, who)
        self.is_short = True
        return probes

    def may_probe(self, who: object) -> bool:
        """Take the probe if nobody has it; say whether `who` has it now."""
        if self._probe is None:
            self._probe = who
        return self._probe is who

    def is_there(self) -> None:
        """A try got an answer: the outage, if any, has ended, and everybody may go on."""
        if self.down_since is not None:
            self.down_since = None
            self.is_short = False
            self._probe = None
            self.changed.fire()

    def leave(self, who: object) -> None:
        """`who` has ended; if it had the probe, somebody else may take it."""
        if self._probe is who:
            self._probe = None
            self.changed.fire()
