"""Certifies every lossless rule with every drafter that it fits, on the embedded model.

The settings are temperature 0, 0.7 and 1, top-p 0.9, and a repetition penalty; they take turns over the pairs of
drafter and rule unless --full asks for all of them with every pair. Fewer samples per cell than
--quick has, so that all of it ends in a quarter of an hour on two cores. Writes benchmarks/results/certificates.json.

    python benchmarks/certify_all.py [--samples 320] [--full] [--precision float16] [--only eagle]
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

import outrider
from outrider.benching.prompts import PROMPTS
from outrider.benching.provenance import provenance
from outrider.certifying import run
from outrider.engine import Engine
from outrider.errors import InvalidOption
from outrider.generation import TextEngine
from outrider.options import Sampling
from outrider.rules import RULES

RESULTS = Path(__file__).parent / "results"

DRAFTERS = (
    "none",
    "ngram",
    "suffix",
    "suffix:branches=3",
    "lookahead",
    "recycling",
    "early-exit:10",
    "quantised",
    "eagle:smollm2",
    "eagle:smollm2,tree=auto",
    "eagle:smollm2,tree=2.2.1",
    "auto",
)
SETTINGS = {
    "temperature 0": Sampling(),
    "temperature 0.7": Sampling(temperature=0.7),
    "temperature 1": Sampling(temperature=1.0),
    "top-p 0.9": Sampling(temperature=1.0, top_p=0.9),
    "repetition penalty 1.2": Sampling(temperature=1.0, repetition_penalty=1.2),
}
KINDS = ("edit", "code", "summarise", "maths")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=320, help="tokens of each long run")
    parser.add_argument("--full", action="store_true", help="every setting with every pair")
    parser.add_argument("--precision", default="float16")
    parser.add_argument("--only", default="", help="drafters whose name has this in it")
    parser.add_argument("--out", type=Path, default=RESULTS / "certificates.json")
    options = parser.parse_args()
    cells, started, turn = list[dict[str, Any]](), perf_counter(), 0
    for drafter in (name for name in DRAFTERS if options.only in name):
        for rule, engine in engines(drafter, options.precision):
            names = list(SETTINGS) if options.full else [list(SETTINGS)[(turn + i) % len(SETTINGS)] for i in (0, 2)]
            turn += 1
            for name in names:
                cells.append(cell(engine, drafter, rule, name, options.samples))
                show(cells[-1])
                report = {"cells": cells, "certified": sum(each["certified"] for each in cells), "of": len(cells)}
                report |= {"seconds": perf_counter() - started, "provenance": provenance()}
                options.out.write_text(json.dumps(report, indent=1) + "\n")
    failed = [each for each in cells if not each["certified"]]
    print(f"{len(cells) - len(failed)} of {len(cells)} certified in {perf_counter() - started:.0f} s")
    raise SystemExit(bool(failed))


def engines(drafter: str, precision: str) -> list[tuple[str, TextEngine]]:
    """One engine for each lossless rule that fits; they share the target and the drafter."""
    first = outrider.load(
        "smollm2", drafter=drafter, precision=precision, slots=8, context_length=640, num_draft_tokens=tokens(drafter)
    )
    made = []
    for name, rule in RULES.items():
        fits = rule.lossless and first.engine.drafter.proposal in rule.proposals
        if fits and (rule.trees or not draws_trees(drafter)) and (drafter != "none" or name in ("auto", "coupled")):
            engine = first.engine
            again = Engine(engine.target, engine.drafter, rule, engine.pace, slots=8, context_length=640)
            made.append((name, TextEngine(again, first.tokenizer)))
    return made


def draws_trees(drafter: str) -> bool:
    return "tree" in drafter or "branches" in drafter or drafter in ("auto", "lookahead", "recycling")


def tokens(drafter: str) -> int | str:
    """A fixed length, so that there is a draft in every round; combinations choose their own."""
    return "auto" if drafter in ("auto", "none") else 6 if draws_trees(drafter) else 4


def cell(engine: TextEngine, drafter: str, rule: str, setting: str, samples: int) -> dict[str, Any]:
    """A certificate in short."""
    started = perf_counter()
    prompts = [PROMPTS[kind][place] for kind, place in product(KINDS, range(1))]
    found = run.certify(engine, prompts, sampling=SETTINGS[setting], quick=True, samples=samples, distance=0.4)
    figures = {
        f"{tier.name}: {check.name}": check.figure for tier in found.tiers for check in tier.checks if not check.passed
    }
    law = next((check.figure for tier in found.tiers for check in tier.checks if "of a round" in check.name), None)
    return {
        "drafter": drafter,
        "rule": rule,
        "setting": setting,
        "certified": found.certified,
        "faults": list(found.faults),
        "tiers": {tier.name: tier.state for tier in found.tiers},
        "largest_total_variation": law,
        "failed_figures": figures,
        "samples": found.settings["samples"],
        "seconds": perf_counter() - started,
    }


def show(each: dict[str, Any]) -> None:
    said = "certified" if each["certified"] else f"NOT: {each['faults']}"
    print(f"{each['drafter']}, {each['rule']}, {each['setting']}: {said} ({each['seconds']:.0f} s)", flush=True)


if __name__ == "__main__":
    try:
        main()
    except InvalidOption as error:
        raise SystemExit(str(error)) from error
