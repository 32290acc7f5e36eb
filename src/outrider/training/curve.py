"""The curves of a training as a picture."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from outrider.errors import InvalidOption


def check_drawing(path: Path) -> None:
    """Refuse to begin what could not be drawn in the end.

    Raises:
        InvalidOption: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        fix = "Install it: pip install 'outrider[plot]'"
        raise InvalidOption("curve", str(path), "a picture, which matplotlib draws", fix)


def draw(records: list[dict[str, Any]], path: Path) -> None:
    """Loss, held-out acceptance by place of the draft, and walked acceptance length, over the steps of training."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3), layout="constrained")
    panels = figure.subplots(1, 3)
    steps = [record["step"] for record in records]
    names = list(records[-1]) if records else []
    shown = {
        "loss": ["loss"],
        "held-out acceptance": [name for name in names if name.startswith("accepted_")],
        "tokens per round": [name for name in names if name.startswith("walked_")],
    }
    for panel, (title, curves) in zip(panels, shown.items(), strict=True):
        for name in curves:
            found = [record.get(name, float("nan")) for record in records]  # the first has no loss
            panel.plot(steps, found, marker=".", label=name.partition("_")[2] or None)
        panel.set_title(title)
        panel.set_xlabel("step")
        if len(curves) > 1:
            panel.legend(fontsize="small")
    figure.savefig(path, dpi=110)
