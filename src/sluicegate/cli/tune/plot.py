"""Plot of a measurement: throughput and write time by batch size, with the knee if there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .worksheet import Measured

THROUGHPUT, TIME, KNEE = "#1f6f8b", "#c8553d", "#9aa5ab"


def draw(measured: Sequence[Measured], knee: Measured | None, title: str, target: Path) -> None:
    """Write the picture in the format of the target's suffix.

    Raises `OSError` and, for an unknown format, `ValueError`.
    """
    sizes = [one.size for one in measured]
    drawing: Any = mpl
    with drawing.rc_context({"svg.hashsalt": "sluicegate", "svg.fonttype": "none", "font.size": 9}):
        figure: Any = Figure(figsize=(7.0, 4.0), layout="constrained")
        left = figure.subplots()
        right = left.twinx()
        left.plot(sizes, [one.per_second for one in measured], marker="o", color=THROUGHPUT)
        spread = [
            [(one.write - min(one.seconds)) * 1000 for one in measured],
            [(max(one.seconds) - one.write) * 1000 for one in measured],
        ]
        right.errorbar(
            sizes,
            [one.write * 1000 for one in measured],
            yerr=spread,
            marker="s",
            color=TIME,
            capsize=2,
            elinewidth=0.8,
        )
        if knee is not None:
            left.axvline(knee.size, color=KNEE, linestyle="--")
            place = (knee.size, 1.0)
            left.annotate(
                f" knee: {knee.size:,}", place, xycoords=("data", "axes fraction"), color=KNEE
            )
        for axes, label, colour in (
            (left, "items a second", THROUGHPUT),
            (right, "ms a write, median and spread", TIME),
        ):
            axes.set_ylabel(label, color=colour)
            axes.set_ylim(bottom=0)
            axes.spines["top"].set_visible(False)
        left.set_xscale("log")
        left.set_xlabel("items in a batch")
        left.set_title(title, loc="left")
        figure.savefig(target, metadata={"Date": None} if target.suffix == ".svg" else None)
