"""A certificate as one HTML page that needs nothing else: no network, no script; all its text is data."""

from __future__ import annotations

import json
from collections.abc import Iterator

from outrider.certifying.certificate import DOES_NOT_SAY, DOES_SAY, Certificate, Check, Tier
from outrider.pages import page, resource, safe


def as_page(certificate: Certificate) -> str:
    """The page."""
    title = f"outrider certify: {certificate.verdict}"
    body = [
        f'<p class="sub">{safe(_settings(certificate))}</p>',
        *(f'<p class="warning">{safe(fault)}</p>' for fault in certificate.faults),
        f"<p>{safe(DOES_SAY)}</p>",
        f"<p>{safe(DOES_NOT_SAY)}</p>",
        *(line for tier in certificate.tiers for line in _tier(tier)),
        *(f"<p>{safe(note)}</p>" for note in certificate.notes),
        "<h2>Where it comes from</h2>",
        f"<pre>{safe(json.dumps(certificate.provenance, indent=1, default=str))}</pre>",
    ]
    return page(title, resource("bench.css"), body)


def _settings(certificate: Certificate) -> str:
    return ", ".join(f"{name} {value}" for name, value in certificate.settings.items())


def _tier(tier: Tier) -> Iterator[str]:
    yield f"<h2>{safe(tier.name)}: {safe(tier.state)}</h2>"
    yield f"<p>{safe(tier.not_applicable or tier.claim)}</p>"
    if tier.not_applicable:
        return
    yield f'<p class="sub">{safe(tier.samples)}; {tier.seconds:.1f} s</p>'
    yield '<div class="wide"><table><tr><th>checked</th><th>figure</th><th>limit</th><th></th><th>in words</th></tr>'
    for check in tier.checks:
        yield _row(check, check.name, "ok" if check.passed else "FAILED")
    for control in tier.controls:
        yield _row(control, f"planted: {control.name}", "found" if control.passed else "NOT FOUND")
    yield "</table></div>"


def _row(check: Check, name: str, state: str) -> str:
    where = f" (worst at {check.position})" if check.position and check.figure else ""
    shown = f"<td{' class=' + chr(34) + 'unequal' + chr(34) if not check.passed else ''}>{safe(state)}</td>"
    words = safe(check.detail + where)
    figures = f"<td>{check.figure:.3g}</td><td>{check.limit:.3g}</td>"
    return f'<tr><td>{safe(name)}</td>{figures}{shown}<td style="white-space:normal">{words}</td></tr>'
