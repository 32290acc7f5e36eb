"""A certificate as one HTML page that needs nothing else: no network, no script; all its text is data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from importlib.resources import files

from outrider.certifying.certificate import DOES_NOT_SAY, DOES_SAY, Certificate, Check, Tier
from outrider.text import visible

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Even if a text got through as markup, the browser would load and run nothing."""


def as_page(certificate: Certificate) -> str:
    """The page."""
    title = f"outrider certify: {certificate.verdict}"
    style = files("outrider").joinpath("data/bench.css").read_text(encoding="utf-8")
    body = [
        f"<h1>{_safe(title)}</h1>",
        f'<p class="sub">{_safe(_settings(certificate))}</p>',
        *(f'<p class="warning">{_safe(fault)}</p>' for fault in certificate.faults),
        f"<p>{_safe(DOES_SAY)}</p>",
        f"<p>{_safe(DOES_NOT_SAY)}</p>",
        *(line for tier in certificate.tiers for line in _tier(tier)),
        *(f"<p>{_safe(note)}</p>" for note in certificate.notes),
        "<h2>Where it comes from</h2>",
        f"<pre>{_safe(json.dumps(certificate.provenance, indent=1, default=str))}</pre>",
    ]
    head = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        f"<title>{_safe(title)}</title>",
        f"<style>\n{style}</style></head><body><main>",
    ]
    return "\n".join([*head, *body, "</main></body></html>", ""])


def _settings(certificate: Certificate) -> str:
    return ", ".join(f"{name} {value}" for name, value in certificate.settings.items())


def _tier(tier: Tier) -> Iterator[str]:
    yield f"<h2>{_safe(tier.name)}: {_safe(tier.state)}</h2>"
    yield f"<p>{_safe(tier.not_applicable or tier.claim)}</p>"
    if tier.not_applicable:
        return
    yield f'<p class="sub">{_safe(tier.samples)}; {tier.seconds:.1f} s</p>'
    yield '<div class="wide"><table><tr><th>checked</th><th>figure</th><th>limit</th><th></th><th>in words</th></tr>'
    for check in tier.checks:
        yield _row(check, check.name, "ok" if check.passed else "FAILED")
    for control in tier.controls:
        yield _row(control, f"planted: {control.name}", "found" if control.passed else "NOT FOUND")
    yield "</table></div>"


def _row(check: Check, name: str, state: str) -> str:
    where = f" (worst at {check.position})" if check.position and check.figure else ""
    shown = f"<td{' class=' + chr(34) + 'unequal' + chr(34) if not check.passed else ''}>{_safe(state)}</td>"
    words = _safe(check.detail + where)
    figures = f"<td>{check.figure:.3g}</td><td>{check.limit:.3g}</td>"
    return f'<tr><td>{_safe(name)}</td>{figures}{shown}<td style="white-space:normal">{words}</td></tr>'


def _safe(text: object) -> str:
    """Any text as text of a page: no markup, no control characters."""
    return escape(visible(str(text)), quote=True)
