"""What is kept of a benchmark: one JSON object with every run, and where it is written to."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from outrider.benching.asked import Prompts
from outrider.benching.figures import BatchCost, Cell, cells
from outrider.benching.peers import Peer
from outrider.benching.run import Grid, Outcome, Run
from outrider.benching.ways import PLAIN, Rounds, Strategy
from outrider.errors import InvalidOption

SCHEMA = 1
"""Goes up when the meaning of a key changes or a key goes away."""


@dataclass(frozen=True)
class Report:
    """All that was asked and found.

    Args:
        target: as typed.
        precision: of the target.
        strategies: that were compared with plain decoding.
        prompts: that were decoded.
        grid: what was measured of them.
        outcome: the runs.
        cells: their figures.
        provenance: where they come from.
        peers: other engines, ready or not; () if none was asked for.
        after_end: of plain decoding's tokens, the share that comes after a token that would have ended the text.
    """

    target: str
    precision: str
    strategies: tuple[Strategy, ...]
    prompts: Prompts
    grid: Grid
    outcome: Outcome
    cells: tuple[Cell, ...]
    provenance: dict[str, Any] = field(default_factory=dict)
    peers: tuple[Peer, ...] = ()
    after_end: float = 0.0


def figures_of(outcome: Outcome, grid: Grid, cost: BatchCost | None) -> tuple[Cell, ...]:
    """The cells of what was measured."""
    return tuple(cells(outcome.runs, cost, grid.seed))


def share_after_end(runs: Iterable[Run], stop_ids: frozenset[int]) -> float:
    """Of plain decoding's tokens, the share after the first stop token of their text."""
    texts = [ids for run in runs if run.way == PLAIN for ids in run.measured.token_ids]
    ends = [next((place for place, token in enumerate(ids) if token in stop_ids), len(ids)) for ids in texts]
    in_all = sum(map(len, texts))
    late = sum(max(0, len(ids) - end - 1) for ids, end in zip(texts, ends, strict=True))
    return late / in_all if in_all else 0.0


def as_record(report: Report) -> dict[str, Any]:
    """The JSON object.

    `cells` has the figures of `figures.Cell`, each interval as {"low", "mid", "high"} or null; `runs` has what was
    measured, so that other figures can be made of it: seconds, tokens and rounds, but not the texts.
    """
    grid = asdict(report.grid)
    return {
        "schema": SCHEMA,
        "partial": report.outcome.partial,
        "provenance": report.provenance,
        "settings": {
            "target": report.target,
            "precision": report.precision,
            "strategies": [{"name": each.name, **asdict(each)} for each in report.strategies],
            **grid,
            "stop_tokens": "ignored",
        },
        "prompts": [
            {"kind": kind, "place": place, "tokens": len(prompt.ids), "text": prompt.text}
            for kind, own in report.prompts.items()
            for place, prompt in enumerate(own)
        ],
        "peers": [_peer(peer, report.outcome.failed) for peer in report.peers],
        "share_after_end": report.after_end,
        "cells": [asdict(cell) for cell in report.cells],
        "runs": [_run(run) for run in report.outcome.runs],
    }


def as_json(report: Report) -> str:
    """The JSON object as text, one line, in ASCII."""
    return json.dumps(as_record(report), allow_nan=False)


def _peer(peer: Peer, failed: dict[str, str]) -> dict[str, Any]:
    state, reason = state_of(peer, failed)
    return {"name": peer.name, "state": state, "reason": reason, "version": peer.version, "settings": peer.settings}


def state_of(peer: Peer, failed: dict[str, str]) -> tuple[str, str]:
    """Whether a peer was measured, and if not, why."""
    if peer.name in failed:
        return "failed", failed[peer.name]
    return ("measured", "") if peer.state == "ready" else (peer.state, peer.reason)


def _run(run: Run) -> dict[str, Any]:
    m, job = run.measured, run.job
    return {
        "way": run.way,
        "kind": job.kind,
        "places": job.places,
        "temperature": job.temperature,
        "repeat": job.repeat,
        "tokens": sum(map(len, m.token_ids)),
        "seconds": m.seconds,
        "first_token_seconds": m.first_token_seconds,
        "decoded": m.decoded,
        "decoding_seconds": m.decoding_seconds,
        "equal": run.first_difference is None if run.compared else None,
        "first_difference": run.first_difference,
        "rounds": None if m.rounds is None else _rounds(m.rounds),
    }


def _rounds(rounds: Rounds) -> dict[str, Any]:
    return asdict(rounds) | {"rows": {str(rows): count for rows, count in sorted(rounds.rows.items())}}


# ---------------------------------------------------------------- files


def check_place(name: str, path: Path) -> None:
    """Refuse, before anything is measured, a file that could not be written in the end.

    Raises:
        InvalidOption: naming the option and the reason.
    """
    is_new = not path.exists()
    try:
        with path.open("ab"):
            pass
        if is_new:
            path.unlink()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise _not_written(name, path, error) from error


def write(name: str, path: Path, text: str) -> None:
    """Write a whole file.

    Raises:
        InvalidOption: naming the option and the reason.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _not_written(name, path, error) from error


def _not_written(name: str, path: Path, error: Exception) -> InvalidOption:
    reason = getattr(error, "strerror", None) or error
    return InvalidOption(name, str(path), "a file that can be written", f"{reason}.")
