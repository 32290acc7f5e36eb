"""The curves of a training as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outrider.errors import InvalidOption


def draw(records: list[dict[str, Any]], path: Path) -> None:
    """Loss, held-out acceptance by step of the draft, and walked acceptance length, over the steps of training.

    Raises:
        InvalidOption: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        fix = "Install it: pip install 'outrider[plot]'; the numbers are in curve.jsonl."
        raise InvalidOption("curve", str(path), "a picture, which matplotlib draws", fix) from error
    figure = Figure(figsize=(9, 3), layout="constrained")
    panels = figure.subplots(1, 3)
    steps = [record["step"] for record in records]
    shown = {"loss": ["loss"], "held-out acceptance": [], "tokens per round": []}
    for name in records[-1] if records else ():
        if name.startswith("accepted_"):
            shown["held-out acceptance"].append(name)
        elif name.startswith("walked_"):
            shown["tokens per round"].append(name)
    for panel, (title, names) in zip(panels, shown.items(), strict=True):
        for name in names:
            panel.plot(steps, [record.get(name) for record in records], label=name.partition("_")[2] or None)
        panel.set_title(title)
        panel.set_xlabel("step")
        if len(names) > 1:
            panel.legend(fontsize="small")
    figure.savefig(path, dpi=110)
