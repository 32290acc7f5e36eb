"""A certificate on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from outrider.certifying.certificate import DOES_NOT_SAY, DOES_SAY, Certificate, Check, Tier
from outrider.text import visible

STYLES = {"passed": "green", "failed": "bold red", "not applicable": "dim"}


def contents(certificate: Certificate) -> Iterator[RenderableType]:
    """What is printed, from top to bottom."""
    yield _line(", ".join(f"{name} {value}" for name, value in _short(certificate).items()))
    table = Table(title=None, show_lines=False)
    for name in ("tier", "checked", "figure", "limit", "", "in words"):
        table.add_column(name, overflow="fold", no_wrap=name in ("tier", "figure", "limit", ""))
    for tier in certificate.tiers:
        for row in _rows(tier):
            table.add_row(*row)
        table.add_section()
    yield table
    for note in certificate.notes:
        yield _line(f"Note: {note}")
    for fault in certificate.faults:
        yield Text.assemble(("Fault: ", "bold red"), visible(fault))
    yield Text(certificate.verdict, style="bold green" if certificate.certified else "bold red")
    yield _line(DOES_SAY)
    yield _line(DOES_NOT_SAY)


def _short(certificate: Certificate) -> dict[str, object]:
    """The settings that are not at their defaults."""
    defaults = {"top_k": None, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "invariant": False}
    hidden = ("confidence", "distance", "slots")
    plain: tuple[object, ...] = (None, 0, {}, frozenset())
    return {
        name: value
        for name, value in certificate.settings.items()
        if name in ("temperature", "seed")
        or (name not in hidden and value not in plain and value != defaults.get(name))
    }


def _rows(tier: Tier) -> Iterator[tuple[RenderableType, ...]]:
    words = tier.not_applicable or f"{tier.samples}; {tier.seconds:.1f} s"
    yield Text(tier.name, style="bold"), _line(tier.claim), "", "", Text(tier.state, STYLES[tier.state]), _line(words)
    if tier.not_applicable:
        return
    for check in tier.checks:
        yield _row(check, check.name, "passed" if check.passed else "failed")
    for control in tier.controls:
        yield _row(control, f"planted: {control.name}", "passed" if control.passed else "failed", planted=True)


def _row(check: Check, name: str, state: str, *, planted: bool = False) -> tuple[RenderableType, ...]:
    said = {"passed": "found", "failed": "NOT FOUND"} if planted else {"passed": "ok", "failed": "FAILED"}
    where = f" (worst at {check.position})" if check.position and check.figure else ""
    shown = Text(said[state], STYLES[state])
    return "", _line(name), f"{check.figure:.3g}", f"{check.limit:.3g}", shown, _line(check.detail + where)


def _line(text: str) -> Text:
    return Text(visible(text))
