"""Plots as lines of HTML: labels are text, and what is drawn is SVG in per cent of the width, so that a phone fits."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from outrider.benching.figures import Interval
from outrider.benching.words import between, speedup, times
from outrider.pages import safe

TICKS = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0)
MARGIN = 0.04
"""Of the width, on both sides of what is drawn."""

HEIGHT = 22
COLOURS = 6
"""Classes c0 to c5 of the style sheet, by strategy; a seventh begins anew."""


@dataclass(frozen=True)
class Point:
    """A line of the plot of speed-ups.

    Args:
        label: of the line.
        colour: 0 or more: of its strategy.
        found: as measured.
        foretold: as expected, or None.
    """

    label: str
    colour: int
    found: Interval
    foretold: Interval | None = None


@dataclass(frozen=True)
class Scale:
    """A logarithmic scale from `low` to `high`, both above 0."""

    low: float
    high: float

    @staticmethod
    def of(values: Iterable[float]) -> Scale:
        """Around these values and 1."""
        known = [1.0, *(value for value in values if value > 0 and math.isfinite(value))]
        return Scale(min(known) / 1.05, max(known) * 1.05)

    def place(self, value: float) -> float:
        """In per cent of the width; what lies beyond is put at the edge."""
        inside = min(max(value, self.low), self.high)
        share = math.log(inside / self.low) / math.log(self.high / self.low)
        return round(100 * (MARGIN + (1 - 2 * MARGIN) * share), 2)

    @property
    def ticks(self) -> list[float]:
        """Where lines are drawn."""
        return [tick for tick in TICKS if self.low <= tick <= self.high]


def speedups(groups: dict[str, list[Point]]) -> str:
    """Measured speed-ups as dots with their intervals, expected ones as strokes, on one scale.

    Args:
        groups: heading -> its lines.
    """
    scale = Scale.of(_values(point for points in groups.values() for point in points))
    lines = [_axis(scale)]
    for heading, points in groups.items():
        lines.append(f'<div class="group">{safe(heading)}</div>')
        lines += [_line(point.label, _dot(point, scale), _value(point)) for point in points]
    return "\n".join(['<div class="plot">', *lines, "</div>"])


def bars(values: dict[str, tuple[float, str, int | None]]) -> str:
    """Bars from 0.

    Args:
        values: label -> its value, the value in words, and the colour, which those have that are strategies.
    """
    most = max((value for value, _, _ in values.values()), default=0.0) or 1.0
    lines = []
    for label, (value, words, colour) in values.items():
        width = round(100 * value / most, 2)
        bar = f'<rect class="bar {_colour(colour)}" x="0" y="4" width="{width}%" height="14" rx="2"/>'
        lines.append(_line(label, _svg(f"{label}: {words}", bar), f"<b>{safe(words)}</b>"))
    return "\n".join(['<div class="plot">', *lines, "</div>"])


def _colour(number: int | None) -> str:
    return "other" if number is None else f"c{number % COLOURS}"


def _values(points: Iterable[Point]) -> Iterable[float]:
    for point in points:
        for each in (point.found, point.foretold):
            if each is not None:
                yield from (value for value in (each.mid, each.low, each.high) if value is not None)


def _line(label: str, drawn: str, value: str) -> str:
    return f'<div class="line"><span class="label">{safe(label)}</span>{drawn}<span class="value">{value}</span></div>'


def _value(point: Point) -> str:
    words = f"<b>{times(point.found)}</b> <small>{between(point.found)}</small>"
    return words if point.foretold is None else f"{words} <small>expected {times(point.foretold)}</small>"


def _svg(title: str, inner: str) -> str:
    return f'<svg width="100%" height="{HEIGHT}" role="img" aria-label="{safe(title)}">{inner}</svg>'


def _grid(scale: Scale) -> str:
    return "".join(
        f'<line class="{"one" if tick == 1 else "grid"}" x1="{scale.place(tick)}%" x2="{scale.place(tick)}%" y1="0" '
        f'y2="{HEIGHT}"/>'
        for tick in scale.ticks
    )


def _axis(scale: Scale) -> str:
    """The numbers over the lines, those left out that would touch the one before."""
    shown, last = "", -100.0
    for tick in scale.ticks:
        if scale.place(tick) - last >= 9:
            last = scale.place(tick)
            shown += f'<text x="{last}%" y="15" text-anchor="middle">{tick:g}x</text>'
    return _line("", f'<svg width="100%" height="{HEIGHT}" aria-hidden="true">{shown}</svg>', "")


def _dot(point: Point, scale: Scale) -> str:
    found, middle, colour = point.found, HEIGHT / 2, _colour(point.colour)
    drawn, title = _grid(scale), f"{point.label}: {speedup(found)}"
    if found.low is not None and found.high is not None:
        ends = f'x1="{scale.place(found.low)}%" x2="{scale.place(found.high)}%"'
        drawn += f'<line class="range {colour}" {ends} y1="{middle}" y2="{middle}"/>'
    drawn += f'<circle class="dot {colour}" cx="{scale.place(found.mid)}%" cy="{middle}" r="5"/>'
    if point.foretold is not None:
        place, title = scale.place(point.foretold.mid), f"{title}, expected {times(point.foretold)}"
        drawn += f'<line class="foretold" x1="{place}%" x2="{place}%" y1="2" y2="{HEIGHT - 2}"/>'
    return _svg(title, drawn)
