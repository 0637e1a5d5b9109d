"""Stacked bars as SVG, for the figures of a run report.

1. A figure is text: it needs no library, network or script, and can be printed.
2. Bars share one axis that starts at zero. Each has a tooltip with its values.
3. Colours are classes of the page's style sheet, so that a dark page has dark figures.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH, HEIGHT = 760, 190
LEFT, RIGHT, TOP, BOTTOM = 64, 8, 10, 26
_TICKS = 4
_LABELS = 8


@dataclass(frozen=True, slots=True)
class BarLayer:
    """One layer of the bars: its name, its CSS class, and one value for each bar."""

    name: str
    kind: str
    values: Sequence[float]


def bars(title: str, labels: Sequence[str], *series: BarLayer, unit: str = "") -> str:
    """Draw one bar for each label, of one or more layers."""
    highest = max(
        (sum(values) for values in zip(*(one.values for one in series), strict=True)), default=0.0
    )
    step = _step(highest)
    top = step * max(1, math.ceil(highest / step))
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        *(_tick(number * step, top) for number in range(round(top / step) + 1)),
        *_bars(labels, series, top, unit),
        *_labels(labels),
        "</svg>",
    ]
    return "".join(parts)


def short(value: float) -> str:
    """Shorten a number: 950, 1.2k, 30M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _step(highest: float) -> float:
    """Choose the distance of grid lines: 1, 2 or 5 times a power of ten."""
    if highest < sys.float_info.min * _TICKS:  # a quarter of a smaller number is inexact, or 0
        return 1.0
    rough = highest / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def _height(value: float, top: float) -> float:
    return (HEIGHT - TOP - BOTTOM) * value / top


def _tick(value: float, top: float) -> str:
    y = HEIGHT - BOTTOM - _height(value, top)
    return (
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="axis" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{short(value)}</text>'
    )


def _slot(count: int) -> float:
    return (WIDTH - LEFT - RIGHT) / max(count, 1)


def _bars(labels: Sequence[str], series: Sequence[BarLayer], top: float, unit: str) -> list[str]:
    slot = _slot(len(labels))
    width = max(slot * 0.8, 0.5) if slot < 60 else 48.0
    found: list[str] = []
    for place, label in enumerate(labels):
        x = LEFT + slot * (place + 0.5) - width / 2
        y = float(HEIGHT - BOTTOM)
        told = "".join(f"\n{one.name}: {one.values[place]:,.4g}{unit}" for one in series)
        layers: list[str] = []
        for one in series:
            height = _height(one.values[place], top)
            y -= height
            layers.append(
                f'<rect class="{one.kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
                f'height="{height:.1f}"/>'
            )
        found.append(f"<g>{''.join(layers)}<title>{escape(label + told)}</title></g>")
    return found


def _labels(labels: Sequence[str]) -> list[str]:
    slot = _slot(len(labels))
    every = max(1, math.ceil(len(labels) / _LABELS))
    return [
        f'<text class="axis" x="{LEFT + slot * (place + 0.5):.1f}" y="{HEIGHT - 8}" '
        f'text-anchor="middle">{escape(label)}</text>'
        for place, label in enumerate(labels)
        if place % every == 0
    ]
