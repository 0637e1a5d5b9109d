"""The findings of `sluicegate tune`, as text and as a picture."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .worksheet import (
    amount_of,
    as_code,
    headline,
    is_last,
    memory,
    nearly_best,
    remarks,
    worksheet,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ...batcher.limits import Limits
    from .worksheet import Measured, Needs

THROUGHPUT, TIME, KNEE = "#1f6f8b", "#c8553d", "#9aa5ab"


@dataclass(slots=True, kw_only=True)
class Findings:
    """All measurements so far."""

    sink: str
    """The name of the sink on the command line."""
    needs: Needs
    item_bytes: int
    sizes: list[Measured] = field(default_factory=list["Measured"])
    """By batch size, with one worker."""
    workers: list[Measured] = field(default_factory=list["Measured"])
    """By number of workers, with the recommended size."""
    refused: int | None = None
    """The batch size whose write failed, which ended the sizes."""
    chosen_workers: int | None = None
    items: int = 0
    """Items written."""
    is_complete: bool = False

    def refuse(self, size: int) -> None:
        """Note the batch size whose write failed."""
        self.refused = size

    def choose(self, workers: int) -> None:
        """Note the number of workers to recommend."""
        self.chosen_workers = workers

    def end(self, items: int, *, is_complete: bool) -> None:
        """Note the number of items written, and whether the run is complete."""
        self.items, self.is_complete = items, is_complete

    @property
    def at(self) -> Measured:
        """The smallest size with nearly the best throughput."""
        return nearly_best(self.sizes)

    @property
    def knee(self) -> Measured | None:
        """The knee, or `None` if throughput rises up to the largest size."""
        return None if is_last(self.at, self.sizes) else self.at

    @property
    def headline(self) -> str:
        """The size at the knee, or the reason why it is not known."""
        return headline(self.sizes, self.at, self.refused)

    def limits(self) -> Limits:
        """Compute the recommended limits."""
        return worksheet(self.at, self.needs, self.chosen_workers)

    def remarks(self) -> list[str]:
        """List remarks on the limits."""
        is_known = self.chosen_workers is not None
        return remarks(self.sizes, self.at, self.limits(), self.needs, workers_known=is_known)

    def as_text(self) -> str:
        """Format the recommendation as lines, with the limits as Python code."""
        limits = self.limits()
        lines = [self.headline, "", as_code(limits), "", *(f"- {each}" for each in self.remarks())]
        worst = (
            f"- memory at worst: max_pending_items x size of an item = {limits.ledger_items:,} x "
            f"{self.item_bytes:,} bytes = {amount_of(memory(limits, self.item_bytes))}"
        )
        return "\n".join([*lines, worst])

    def as_partial_text(self) -> str:
        """Format the findings of a run that ended early, in one line."""
        written = f"about {self.items:,} items were written"
        if not self.sizes:
            return f"{written}; nothing was measured"
        best = max(self.sizes, key=lambda one: one.per_second)
        return (
            f"{written}; best of the sizes measured: {best.size:,} items, "
            f"{best.per_second:,.0f} items/s; the knee is not known"
        )


def draw(measured: Sequence[Measured], knee: Measured | None, title: str, target: Path) -> None:
    """Write the picture in the format of the target's suffix.

    Raises `OSError` and, for an unknown format, `ValueError`.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

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
