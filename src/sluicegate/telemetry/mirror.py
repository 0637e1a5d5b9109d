"""States and totals for Prometheus's multiprocess mode, in which a scrape does not read batchers.

1. Each process writes values to its own files, and any process answers a scrape from all files. So
   states are gauges and totals are counters here, and `refresh` sets them.
2. A timer on the batcher's loop refreshes them every `REFRESH_SECONDS`. Events of a batcher refresh
   them at once: opened, closed, broken, a change of the destination's state, an adaptation. There
   is no thread: while a loop is blocked, the states of its process do not change.
3. A total grows by its difference since the last refresh. So a process with the id of a dead
   process continues the counts in its file, without counting anything twice.
4. Gauges are of the kinds `livesum` and `livemax`: gauges of a dead process disappear with its
   file, which `prometheus_client.multiprocess.mark_process_dead` removes.
5. A forked child starts empty: its parent's batchers belong to the parent.
6. Series cannot be removed. The states of a closed batcher are 0.
"""

from __future__ import annotations

import asyncio
import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ._tenants import OTHER, Kept
from .definitions import PENDING
from .readings import StateReadings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from prometheus_client import CollectorRegistry, Gauge

    from .measures import Catalogue, Family
    from .readings import Series, StateReading

REFRESH_SECONDS = 1.0
"""Interval of the timer, in seconds."""


class Mirror:
    """Gauges and counters that follow the batchers or consumers of this process."""

    def __init__(self, registry: CollectorRegistry, catalogue: Catalogue) -> None:
        from prometheus_client import Counter

        self._registry = registry
        self._catalogue = catalogue
        self._readings = StateReadings(catalogue)
        self._gauges: dict[str, Gauge] = {
            each.family.name: self._gauge(each.family, is_greatest=each.is_greatest)
            for each in catalogue.states
        }
        self._counters = {
            each.family.name: Counter(
                each.family.name, each.family.text, each.family.all_labels, registry=registry
            )
            for each in catalogue.totals
        }
        self._counted: dict[tuple[str, Series], int] = {}
        self._shown: dict[str, set[Series]] = {}
        self._kept: dict[str, Kept] = {}
        self._timers: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.TimerHandle] = (
            WeakKeyDictionary()
        )
        self._process = os.getpid()
        self._lock = threading.RLock()

    def _gauge(self, family: Family, *, is_greatest: bool = False) -> Gauge:
        from prometheus_client import Gauge

        return Gauge(
            family.name,
            family.text,
            family.all_labels,
            registry=self._registry,
            multiprocess_mode="livemax" if is_greatest else "livesum",
        )

    def watch(self, name: str, stats: Callable[[], Any], *, tenants: int) -> None:
        """Start following this batcher, with a timer on the running loop."""
        self._begin_anew_in_a_child()
        with self._lock:
            self._readings.watch(name, stats, tenants=tenants)
            if tenants and PENDING.name not in self._gauges:
                self._gauges[PENDING.name] = self._gauge(PENDING)
            self._kept.setdefault(name, Kept(tenants))
        self.refresh()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # without a loop there are no batches either
        if loop not in self._timers:
            self._set_timer(loop)

    def forget(self, name: str) -> None:
        """Write the last totals of the closed batchers of this name; their states become 0."""
        self.refresh()
        if not self._readings.has_open:  # the timers of other loops end by themselves
            timer = self._timers.pop(asyncio.get_running_loop(), None)
            if timer is not None:
                timer.cancel()

    def refresh(self) -> None:
        """Write the current states and totals."""
        self._begin_anew_in_a_child()
        with self._lock:
            for reading in self._readings.read():
                self._write_states(reading)
                self._write_totals(reading)

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timers[loop] = loop.call_later(REFRESH_SECONDS, partial(self._tick, loop))

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self.refresh()
        if self._readings.has_open:
            self._set_timer(loop)
        else:
            self._timers.pop(loop, None)

    def _begin_anew_in_a_child(self) -> None:
        if self._process != os.getpid():
            self._process = os.getpid()
            self._lock = threading.RLock()  # a thread of the parent may have held it
            self._readings = StateReadings(self._catalogue)
            self._timers.clear()
            for held in (self._counted, self._shown, self._kept):
                held.clear()

    def _write_states(self, reading: StateReading) -> None:
        states = {
            (measure.family.name, labels): value
            for measure in self._catalogue.states
            for labels, value in reading.of(measure).items()
        }
        for tenant, inside in self._inside_by_tenant(reading).items():
            states[PENDING.name, (tenant,)] = inside
        shown = self._shown.setdefault(reading.name, set())
        for family, labels in shown - states.keys():
            states[family, labels] = 0
        shown.update(states)
        for (family, labels), value in states.items():
            self._gauges[family].labels(reading.name, *labels).set(value)

    def _inside_by_tenant(self, reading: StateReading) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for tenant, inside in reading.inside_by_tenant().items():
            shown = OTHER if tenant == OTHER else self._kept[reading.name].label(tenant)
            found[shown] = found.get(shown, 0) + inside
        return found

    def _write_totals(self, reading: StateReading) -> None:
        for (family, labels), count in reading.counts.items():
            series = (reading.name, (family, labels))
            more = count - self._counted.get(series, 0)
            child = self._counters[family].labels(reading.name, *labels)
            if more > 0:
                child.inc(more)
                self._counted[series] = count
