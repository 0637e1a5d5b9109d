"""Plot of a simulated run: limits in force, writes, batch size and items per second."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from ..._core.extras import need

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from .samples import Sample

COLOURS = ("#1f6f8b", "#e0a030")


def draw(samples: Sequence[Sample], digest: str, target: Path, title: str) -> None:
    """Write the plot as SVG or PNG, by the target's suffix; the same run gives the same plot.

    Raises `MissingExtra` and `OSError`.
    """
    need("matplotlib", "tune", "a plot of a simulated run")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    drawing: Any = mpl
    seconds = [sample.second for sample in samples]
    with drawing.rc_context(
        {
            "svg.hashsalt": "sluicegate",
            "svg.fonttype": "none",
            "font.family": "sans-serif",
            "font.size": 9,
        }
    ):
        figure: Any = Figure(figsize=(8.0, 3.6), layout="constrained")
        for axes, (unit, lines) in zip(
            figure.subplots(3, sharex=True), _curves(samples).items(), strict=True
        ):
            for colour, (label, values) in zip(COLOURS, lines.items(), strict=False):
                axes.step(seconds, values, where="post", label=label, color=colour, linewidth=1.2)
            axes.set_ylabel(unit)
            axes.set_ylim(bottom=0)
            axes.spines[["top", "right"]].set_visible(False)
            if len(lines) > 1:
                axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        figure.supxlabel("seconds")
        figure.suptitle(title, x=0.0, ha="left")
        if target.suffix != ".svg":
            figure.savefig(target)
            return
        text = io.StringIO()
        figure.savefig(
            text, format="svg", metadata={"Date": None, "Creator": None, "Description": digest}
        )
    target.write_text("".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines()))


def _curves(samples: Sequence[Sample]) -> Mapping[str, Mapping[str, Sequence[float]]]:
    return {
        "writes": {
            "limit": [s.workers for s in samples],
            "in flight": [s.writing for s in samples],
        },
        "items": {"limit": [s.max_items for s in samples]},
        "items/s": {
            "written": [s.written for s in samples],
            "accepted": [s.offered for s in samples],
        },
    }
