"""A plan as a picture: speed-up against k and against the batch, and what forwards cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outrider.errors import InvalidOption
from outrider.planning.plan import AUTO, TREE, Plan, best_of, strategies

ENDINGS = (".png", ".svg", ".pdf", ".jpg")
"""Of the formats."""


def draw(plan: Plan, path: Path) -> None:
    """Write it, in the format of the file's ending; speed-ups are at the first temperature.

    Args:
        plan: has cells.
        path: of the picture.

    Raises:
        InvalidOption: it cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    against_k, against_batch, curve = figure.subplots(1, 3)
    cells = plan.cells
    temperature = cells[0].temperature if cells else 0.0
    batches = sorted({cell.batch for cell in cells if cell.temperature == temperature})
    for name in strategies(cells):
        _lengths(against_k, plan, name, temperature, batches[0])
        best = [best_of(plan.at(temperature, batch), name) for batch in batches]
        known = [each for each in best if each is not None]
        against_batch.plot([each.batch for each in known], [each.speedup.mid for each in known], marker=".", label=name)
    for target in plan.targets:
        milliseconds = [1000 * seconds for seconds in target.seconds]
        curve.plot(target.rows, milliseconds, marker=".", label=f"batch {target.batch}")
    if batches:
        _finish(against_k, f"speed-up, temperature {temperature:g}, batch {batches[0]}", "k, drafted tokens")
        _finish(against_batch, f"best speed-up, temperature {temperature:g}", "batch")
    _finish(curve, "milliseconds of a forward", "rows of the batch", line=False)
    try:
        figure.savefig(path, dpi=110)
    except OSError as error:
        raise InvalidOption("plot", str(path), "a file that can be written", f"{error.strerror}.") from error


def _lengths(panel: Any, plan: Plan, name: str, temperature: float, batch: int) -> None:
    """Fixed lengths with their intervals as a curve; what a drafter decides itself as a level line."""
    cells = [cell for cell in plan.at(temperature, batch) if cell.drafter == name]
    fixed = sorted((cell for cell in cells if isinstance(cell.k, int)), key=lambda cell: cell.k)
    colour = None
    if fixed:
        ks, mids = [cell.k for cell in fixed], [cell.speedup.mid for cell in fixed]
        (curve,) = panel.plot(ks, mids, marker=".", label=name)
        colour = curve.get_color()
        panel.fill_between(
            ks, [c.speedup.low for c in fixed], [c.speedup.high for c in fixed], color=colour, alpha=0.12
        )
    for cell in cells:
        if cell.k in (AUTO, TREE):
            panel.axhline(cell.speedup.mid, linestyle="--", color=colour, label=None if fixed else f"{name} ({cell.k})")


def _finish(panel: Any, title: str, below: str, *, line: bool = True) -> None:
    panel.set_title(title, fontsize="medium")
    panel.set_xlabel(below)
    if line:
        panel.axhline(1.0, color="grey", linewidth=0.8)
    if panel.get_legend_handles_labels()[0]:
        panel.legend(fontsize="x-small")
