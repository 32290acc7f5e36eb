"""What a certificate holds: tiers of checks, their negative controls, and the verdict that follows from them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

SCHEMA = 1
"""Goes up when the meaning of a key changes or a key goes away."""

DOES_SAY = (
    "A certificate says that on these prompts, with this target, drafter, rule and these settings, everything that was "
    "checked agrees with the target's own law as far as the figures beside each check tell, and that the same checks "
    "found faults that were planted on purpose."
)
DOES_NOT_SAY = (
    "It does not say that the target's answers are right or good, nor anything of other prompts or settings, of biases "
    "that are smaller than the samples can show, or of another precision, machine or version."
)

State = Literal["passed", "failed", "not applicable"]


@dataclass(frozen=True)
class Check:
    """One figure against its limit.

    Args:
        name: what was checked.
        figure: what was found.
        limit: that decides.
        passed: whether the figure is on the right side of it.
        detail: the figure in words, with what belongs to it.
        position: where the worst case stands, such as "prompt 2, seed 5, token 7"; "" if it stands nowhere.
    """

    name: str
    figure: float
    limit: float
    passed: bool
    detail: str = ""
    position: str = ""


@dataclass(frozen=True)
class Tier:
    """Checks of one kind on the same data.

    Args:
        name: "law", "stream", "small", "same text" or "state".
        claim: what holds if it passes.
        checks: all must pass.
        controls: planted faults on the same data, `passed` where the fault was found; all must be, and one at least.
        samples: what was looked at, in words.
        not_applicable: why there is nothing to check here, or "".
    """

    name: str
    claim: str
    checks: tuple[Check, ...] = ()
    controls: tuple[Check, ...] = ()
    samples: str = ""
    not_applicable: str = ""
    seconds: float = 0.0

    @property
    def state(self) -> State:
        """Missing evidence is never a pass: without a control that was caught a tier has failed."""
        if self.not_applicable:
            return "not applicable"
        if not (self.checks and self.controls):
            return "failed"
        return "passed" if all(check.passed for check in (*self.checks, *self.controls)) else "failed"

    def faults(self) -> Iterator[str]:
        """Why it failed, each with its figure and position."""
        if not self.not_applicable and not (self.checks and self.controls):
            yield f"{self.name}: there is no evidence ({self.samples or 'nothing was decoded'})"
        for check in self.checks:
            if not check.passed:
                where = f", at {check.position}" if check.position else ""
                yield f"{self.name}: {check.name} is {check.figure:.3g}, limit {check.limit:.3g}{where}. {check.detail}"
        for control in self.controls:
            if not control.passed:
                yield f"{self.name}: the planted fault ({control.name}) was not found. {control.detail}"


@dataclass(frozen=True)
class Certificate:
    """What `certify` found.

    Args:
        lossless: whether the rule claims to keep the law; one that does not is measured and never certified.
        tiers: in the order of the documentation.
        settings: of target, drafter, rule, sampler and the run.
        distance: of a lossy rule, total variation per token from the target's law, on average; else None.
        notes: what a reader should know beside the figures.
        provenance: command, versions, machine.
    """

    lossless: bool
    tiers: tuple[Tier, ...]
    settings: dict[str, Any]
    distance: float | None = None
    notes: tuple[str, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def certified(self) -> bool:
        """Whether the rule is lossless, no tier failed and one at least passed."""
        states = [tier.state for tier in self.tiers]
        return self.lossless and "failed" not in states and "passed" in states

    @property
    def faults(self) -> tuple[str, ...]:
        """Why it is not certified: tier, figure and position of each fault; () if it is."""
        if not self.lossless:
            measured = "" if self.distance is None else f": measured total variation {self.distance:.3g} per token"
            return (f"rule {self.settings.get('rule')} is LOSSY{measured}; a lossy rule is never certified",)
        return tuple(fault for tier in self.tiers for fault in tier.faults())

    @property
    def verdict(self) -> str:
        """One line."""
        return "CERTIFIED" if self.certified else "LOSSY, not certified" if not self.lossless else "NOT CERTIFIED"

    def as_record(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "schema": SCHEMA,
            "certified": self.certified,
            "verdict": self.verdict,
            "says": DOES_SAY,
            "does_not_say": DOES_NOT_SAY,
            "faults": list(self.faults),
            "lossless": self.lossless,
            "distance": self.distance,
            "settings": self.settings,
            "tiers": [{**asdict(tier), "state": tier.state} for tier in self.tiers],
            "notes": list(self.notes),
            "provenance": self.provenance,
        }

    def as_json(self) -> str:
        """The JSON object as one line of ASCII; what is not finite is written as text."""
        return json.dumps(_finite(self.as_record()), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_finite(each) for each in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return str(value)
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
