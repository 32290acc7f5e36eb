"""Is the plan right? Predicted speed-ups beside measured ones, for strategies x temperatures x batches; bad cells too.

A plan is made as `outrider plan --fresh` makes it; then plain decoding and the strategies take turns on prompts of the
six kinds, most of which the plan did not see. Three questions are answered: how often the measured speed-up lies in the
predicted interval and how far it is from the prediction; how fast the recommendation is beside the best strategy that
was measured; and whether `auto` is ever slower than plain decoding, in each kind, temperature and batch.

    python benchmarks/audit.py [--tokens 40]
    python benchmarks/audit.py --again     # nothing is measured: what is kept is judged by the rules of now

Writes benchmarks/results/audit.json and audit.md; the last line is the JSON object.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from outrider.benching.asked import Prompts, built_in
from outrider.benching.figures import ALL, Cell, cells
from outrider.benching.prompts import PROMPTS
from outrider.benching.provenance import provenance
from outrider.benching.run import Grid, Run, measure
from outrider.benching.ways import PLAIN, EngineWay, Strategy, engine_of
from outrider.cli.plan import DRAFTERS_OF_EMBEDDED, PER_KIND
from outrider.loading import default_drafter
from outrider.models.opening import Opened, open_model
from outrider.planning.job import Job
from outrider.planning.kept import Asked, this_machine, this_model
from outrider.planning.measure import measure as planned
from outrider.planning.plan import Plan, from_json, recommend
from outrider.planning.walked import Text

RESULTS = Path(__file__).parent / "results"
TARGET = "smollm2"
TEMPERATURES = (0.0, 0.8)
GROUPS = {1: 3, 4: 1, 16: 1}
"""Groups of prompts of each kind, by batch."""

STRATEGIES = (
    Strategy(default_drafter(TARGET)),
    Strategy("suffix"),
    Strategy("suffix:branches=3"),
    Strategy("ngram", 2),
    Strategy(f"eagle:{TARGET}"),
    Strategy(f"eagle:{TARGET}", 1),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=40, help="new tokens per prompt")
    parser.add_argument("--again", action="store_true", help="judge what is kept once more")
    options = parser.parse_args()
    report = again() if options.again else anew(options.tokens)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "audit.json").write_text(json.dumps(report, indent=1) + "\n")
    (RESULTS / "audit.md").write_text(as_text(report))
    print(as_text(report))
    print(json.dumps(report))


def anew(tokens: int) -> dict[str, Any]:
    opened = open_model(TARGET, "auto", torch.device("cpu"), None)
    start = perf_counter()
    plan = make_plan(opened, tokens)
    seconds = perf_counter() - start
    runs = [run for batch in GROUPS for run in measured(opened, batch, tokens)]
    found = cells(runs)
    rows = [row for cell in found if cell.kind == ALL and cell.way != PLAIN for row in compared(plan, cell)]
    auto = [
        {"kind": cell.kind, "temperature": cell.temperature, "batch": cell.batch, "speedup": round(cell.speedup.mid, 3)}
        for cell in found
        if cell.way == STRATEGIES[0].name and cell.speedup is not None
    ]
    measured_by = {"plan_seconds": seconds, "provenance": provenance(model=opened.model)}
    return judged(plan, rows, auto) | measured_by


def again() -> dict[str, Any]:
    kept = json.loads((RESULTS / "audit.json").read_text())
    measured_by = {name: kept[name] for name in ("plan_seconds", "provenance")}
    return judged(from_json(json.dumps(kept["plan"])), kept["cells"], kept["auto"]) | measured_by


def make_plan(opened: Opened, tokens: int) -> Plan:
    asked = Asked(TARGET, DRAFTERS_OF_EMBEDDED, TEMPERATURES, tuple(GROUPS), max_new_tokens=tokens)
    found = built_in(PROMPTS, PER_KIND, opened.tokenizer)
    texts = tuple(Text(kind, prompt.ids) for kind, prompts in found.items() for prompt in prompts)
    machine, model = this_machine(None), this_model(TARGET, asked.drafters)
    *_, plan = planned(Job(asked, opened, texts, machine, model, lambda name, done, total: None))
    return plan


def measured(opened: Opened, batch: int, tokens: int) -> list[Run]:
    """All ways in turn, in batches of one size; the prompts that the plan saw come last."""
    prompts: Prompts = {
        kind: [*own[PER_KIND:], *own[:PER_KIND]][: batch * GROUPS[batch]]
        for kind, own in built_in(PROMPTS, None, opened.tokenizer).items()
    }
    longest = max(len(prompt.ids) for own in prompts.values() for prompt in own)
    ways = [
        EngineWay(each.name, engine_of(each, opened, batch, longest + tokens))
        for each in (Strategy("none"), *STRATEGIES)
    ]
    grid = Grid(temperatures=TEMPERATURES, batches=(batch,), max_new_tokens=tokens)
    return list(measure(ways, prompts, grid, lambda name, done, total: None).runs)


def judged(plan: Plan, rows: list[dict[str, Any]], auto: list[dict[str, Any]]) -> dict[str, Any]:
    advice = [advised(plan, rows, temperature, batch) for batch in GROUPS for temperature in TEMPERATURES]
    return {
        "inside": sum(row["inside"] for row in rows) / len(rows),
        "median_error": median(abs(row["error"]) for row in rows),
        "recommended": min(each["of_best"] for each in advice),
        "auto_at_least_0.97": sum(each["speedup"] >= 0.97 for each in auto) / len(auto),
        "auto_least": min(each["speedup"] for each in auto),
        "cells": rows,
        "advice": advice,
        "auto": auto,
        "plan": asdict(plan),
    }


def compared(plan: Plan, cell: Cell) -> list[dict[str, Any]]:
    """A measured cell beside the plan's."""
    strategy = next(each for each in STRATEGIES if each.name == cell.way)
    for foretold in plan.at(cell.temperature, cell.batch):
        drafter = default_drafter(TARGET) if foretold.drafter == "auto" else foretold.drafter
        k = "auto" if foretold.k == "tree" else foretold.k
        if (drafter, k) == (strategy.drafter, strategy.num_draft_tokens) and cell.speedup is not None:
            low, mid, high = foretold.speedup.low, foretold.speedup.mid, foretold.speedup.high
            return [
                {
                    "strategy": cell.way,
                    "temperature": cell.temperature,
                    "batch": cell.batch,
                    "predicted": [round(low, 3), round(mid, 3), round(high, 3)],
                    "measured": round(cell.speedup.mid, 3),
                    "inside": low <= cell.speedup.mid <= high,
                    "error": round(cell.speedup.mid / mid - 1, 4),
                }
            ]
    return []


def advised(plan: Plan, rows: list[dict[str, Any]], temperature: float, batch: int) -> dict[str, Any]:
    """The recommendation beside the best that was measured; of a length that was not, its drafter's nearest."""
    here = {r["strategy"]: r["measured"] for r in rows if (r["temperature"], r["batch"]) == (temperature, batch)}
    here[PLAIN] = 1.0
    advice = recommend(plan, temperature, batch)
    name = PLAIN
    if advice.cell is not None:
        drafter = default_drafter(TARGET) if advice.cell.drafter == "auto" else advice.cell.drafter
        k = advice.cell.k if isinstance(advice.cell.k, int) else "auto"
        same = [each for each in STRATEGIES if each.drafter == drafter]
        name = next((each.name for each in same if each.num_draft_tokens == k), same[0].name)
    return {
        "temperature": temperature,
        "batch": batch,
        "reason": advice.reason,
        "measured_as": name,
        "best": max(here, key=here.__getitem__),
        "of_best": round(here[name] / max(here.values()), 3),
    }


def as_text(report: dict[str, Any]) -> str:
    lines = [
        "# Predicted and measured speed-ups",
        "",
        f"- Inside the predicted interval: {report['inside']:.0%}; median absolute error {report['median_error']:.1%}.",
        f"- Recommendation: at least {report['recommended']:.1%} of the best that was measured.",
        f"- Cells by kind with `auto` at 0.97 of plain decoding's speed or more: {report['auto_at_least_0.97']:.0%}.",
        f"- The least of them: {report['auto_least']:.2f}.",
        f"- The plan took {report['plan_seconds']:.0f} s.",
        "",
        "| strategy | temperature | batch | predicted | measured | inside |",
        "|---|---|---|---|---|---|",
    ]
    for row in report["cells"]:
        low, mid, high = row["predicted"]
        lines.append(
            f"| {row['strategy']} | {row['temperature']:g} | {row['batch']} | {mid:.2f} ({low:.2f}-{high:.2f}) | "
            f"{row['measured']:.2f} | {'yes' if row['inside'] else 'NO'} |"
        )
    lines += ["", "| temperature | batch | recommended | of the best | the best |", "|---|---|---|---|---|"]
    for each in report["advice"]:
        named = f"{each['measured_as']} | {each['of_best']:.3f} | {each['best']}"
        lines.append(f"| {each['temperature']:g} | {each['batch']} | {named} |")
    lines += ["", "`auto` by kind:", "", "| kind | temperature | batch | speed-up |", "|---|---|---|---|"]
    lines += [
        f"| {each['kind']} | {each['temperature']:g} | {each['batch']} | {each['speedup']:.2f} |"
        for each in report["auto"]
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
