"""Draws the first panels of each dashboard for the docs, from recorded series in a real Prometheus.

`PYTHONPATH=src python -m tests.telemetry.pictures FOLDER` writes them; `promtool` and `prometheus`
are in FOLDER.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from tests.telemetry.recorded import BEGIN, Prometheus, record, serving

from sluicegate.telemetry import grafana_dashboards

if TYPE_CHECKING:
    from collections.abc import Mapping

PICTURES = Path(__file__).parents[2] / "docs" / "assets" / "dashboards"
PANELS = 6
LINES = 6
"""Maximum number of labelled series; the ones with the greatest values."""
FACTORS = {"bytes": 1 / 1024}
UNITS = {"cps": "per second", "s": "seconds", "bytes": "KiB", "short": ""}


def draw(board: Mapping[str, Any], server: Prometheus) -> str:
    """The picture of a dashboard as SVG; the same series give the same text."""
    settings = {"svg.hashsalt": "sluicegate", "svg.fonttype": "none", "font.size": 8}
    drawing: Any = mpl
    with drawing.rc_context(settings):
        figure: Any = Figure(figsize=(11.0, 5.6), layout="constrained")
        figure.suptitle(board["title"], x=0.0, ha="left")
        panels = [each for each in board["panels"] if each["type"] == "timeseries"]
        for axes, panel in zip(figure.subplots(2, 3).flat, panels[:PANELS], strict=True):
            _draw_panel(axes, panel, server)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def _draw_panel(axes: Any, panel: Mapping[str, Any], server: Prometheus) -> None:
    unit = panel["fieldConfig"]["defaults"]["unit"]
    lines: list[tuple[str, list[tuple[float, float]]]] = []
    for target in panel["targets"]:
        for series in server.series(target["expr"]):
            told = target["legendFormat"]
            for label, value in series["metric"].items():
                told = told.replace(f"{{{{{label}}}}}", value)
            points = [
                ((at - BEGIN) / 60, float(value) * FACTORS.get(unit, 1))
                for at, value in series["values"]
            ]
            lines.append((told, points))
    lines.sort(key=lambda line: max([value for _, value in line[1] if value == value] or [0.0]))
    for told, points in reversed(lines[-LINES:]):
        axes.plot(*zip(*points, strict=True), label=told, linewidth=1.1)
    axes.set_title(panel["title"], loc="left", fontsize=9)
    axes.set_ylabel(UNITS[unit])
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=6.5, loc="upper left", bbox_to_anchor=(0, -0.1), ncols=2)


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    with serving(Path(sys.argv[1]), record()) as prometheus:
        for name, board in grafana_dashboards().items():
            (PICTURES / f"{name}.svg").write_text(draw(json.loads(board), prometheus))
