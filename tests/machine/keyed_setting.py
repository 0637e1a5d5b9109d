"""The batchers with keys, tenants and adaptive control that the machine tries."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from tests.machine import setting
from tests.machine.destination import Act
from tests.machine.setting import MOST_ITEMS, Setting, retry

from sluicegate import CircuitBreaker, DeadLetter, Timeout
from sluicegate.batcher import Adaptive, Tenants

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate import Batch

POLICIES = ("skip", "pause", "park", "fail")

STACKS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "bare": lambda: (),
    "timeout": lambda: (Timeout(2.0),),
    "retry": lambda: (retry(),),
    "full": lambda: (
        Timeout(2.0),
        CircuitBreaker(consecutive=3, open_for=1.0, longest_open=4.0),
        retry(),
    ),
}
KINDS = ("keys", "tenants", "both")
MOST_INSIDE = 40


class Letters:
    """Accepts every dead letter, and records their order."""

    def __init__(self, seconds: float) -> None:
        self.items: list[int] = []
        self.spilled: set[int] = set()
        self._act = Act(seconds=seconds)

    async def write(self, batch: Batch[Any]) -> None:
        await self._act.last()
        self.items += [record.item for record in batch]
        self.spilled.update(record.item for record in batch if record.parked_behind)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedSetting(Setting):
    """Items belong to the pairs of tenant and key in `pattern`, in turn."""

    kind: str
    pattern: tuple[tuple[int, int], ...]
    prefix_safe: bool
    policy: Any
    most_parked: int
    buries: float | None
    """Duration of a write of dead letters, in seconds; `None`: there are no dead letters."""
    cap_items: int | None
    cap_bytes: int | None
    weights: tuple[float, float, float]
    adaptive: Adaptive | None

    @property
    def has_keys(self) -> bool:
        return self.kind != "tenants"

    @property
    def has_tenants(self) -> bool:
        return self.kind != "keys"

    @property
    def has_caps(self) -> bool:
        return self.has_tenants and (self.cap_items is not None or self.cap_bytes is not None)

    def tenant(self, item: int) -> int:
        return self.pattern[item % len(self.pattern)][0]

    def key(self, item: int) -> int:
        return self.pattern[item % len(self.pattern)][1]

    def line(self, item: int) -> tuple[int | None, int | None] | None:
        """The unit of ordering of an item; `None` if there is none."""
        tenant = self.tenant(item) if self.has_tenants else None
        if self.has_keys:
            return tenant, self.key(item)
        return (tenant, None) if self.workers == 1 else None

    def weight(self, tenant: int) -> float:
        return self.weights[tenant]

    def layers(self, letters: Letters) -> tuple[Any, ...]:
        return (*STACKS[self.stack](), *(() if self.buries is None else (DeadLetter(letters),)))

    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"adaptive": self.adaptive}
        if self.has_keys:
            options |= {"key": self.key, "on_key_failure": self.policy}
        if self.policy == "park":
            options |= {"max_parked_items": self.most_parked}
        if self.has_tenants:
            options |= {"tenant": self.tenant}
            options |= {
                "tenants": Tenants(
                    weights=self.weight,
                    max_pending_items=self.cap_items,
                    max_pending_bytes=self.cap_bytes,
                )
            }
        return options


@st.composite
def keyed_settings(draw: st.DrawFn, /, **fixed: Any) -> KeyedSetting:
    """All settings; `fixed` ones have the given values."""

    def pick(name: str, strategy: st.SearchStrategy[Any]) -> Any:
        return fixed[name] if name in fixed else draw(strategy)

    plain = draw(setting.settings)
    given = {
        field.name: fixed.get(field.name, getattr(plain, field.name)) for field in fields(Setting)
    }
    kind = pick("kind", st.sampled_from(KINDS))
    workers = given["workers"] = pick("workers", st.sampled_from([1, 2, 3, 4, 8, 16]))
    max_items = given["max_items"] = pick(
        "max_items", st.integers(1, min(5, MOST_INSIDE // (workers + 1)))
    )
    given["spare"] = pick("spare", st.sampled_from([0, 2, 12]))
    given["stack"] = pick("stack", st.sampled_from(sorted(STACKS)))
    policy = pick("policy", st.sampled_from(POLICIES if kind != "tenants" else ("skip",)))
    pairs = st.tuples(
        st.integers(0, 0 if kind == "keys" else 2), st.integers(0, 5 if kind != "tenants" else 0)
    )
    caps = st.one_of(st.none(), st.integers(3, 8)) if kind != "keys" else st.none()
    adaptive = st.builds(
        Adaptive,
        min_items=st.just(1),
        start_items=st.none() | st.integers(1, max_items),
        start_workers=st.none() | st.integers(1, workers),
    )
    return KeyedSetting(
        **given,
        kind=kind,
        pattern=pick("pattern", st.lists(pairs, min_size=1, max_size=8).map(tuple)),
        prefix_safe=pick("prefix_safe", st.booleans()),
        policy=policy,
        most_parked=pick("most_parked", st.integers(1, 3)),
        buries=pick(
            "buries", st.sampled_from([0.0, 0.3] if policy == "park" else [None, None, 0.0, 0.3])
        ),
        cap_items=pick("cap_items", caps),
        cap_bytes=pick("cap_bytes", caps if given["sized"] else st.none()),
        weights=pick("weights", st.tuples(*[st.sampled_from([1.0, 1.0, 2.0, 3.0])] * 3)),
        adaptive=pick("adaptive", st.none() | adaptive),
    )


__all__ = ["MOST_ITEMS", "KeyedSetting", "Letters", "keyed_settings"]
