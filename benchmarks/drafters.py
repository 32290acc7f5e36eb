"""Every drafter on six kinds of work, greedy and sampled, against plain decoding in the same run.

All engines of a group take turns, prompt by prompt, in one process; figures are medians over prompts and repeats. The
quantised drafter needs a wider target, so it has a plain run of its own at float16. Prints the table; the last line is
one JSON object, which is also written to benchmarks/results/drafters.json.

    python benchmarks/drafters.py [--repeats 2] [--tokens 64] [--drafters suffix lookahead ...]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import torch
from other_tokenizer import write_model

import outrider
from outrider.benching.provenance import provenance
from outrider.generation import TextEngine
from prompts import KINDS

RESULTS = Path(__file__).parent / "results"

TEMPERATURES = (0.0, 0.8)
OTHER = "model:OTHER"
"""Stands for the embedded model with a smaller vocabulary, written to a temporary folder."""

GROUPS = {
    "q4": (
        "auto",
        "ngram",
        "suffix",
        "suffix:branches=3",
        "recycling",
        "suffix+recycling",
        "lookahead",
        "early-exit:10",
        OTHER,
    ),
    "float16": ("suffix", "quantised"),
}
"""Drafters by the precision of their target."""


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        groups = {name: measure(name, folder, options) for name in GROUPS}
    report = {"tokens": options.tokens, "groups": groups, "provenance": provenance()}
    show(groups)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "drafters.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=2, help="interleaved runs of each prompt")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens per run")
    parser.add_argument("--drafters", nargs="*", help="only these")
    return parser.parse_args()


def measure(precision: str, folder: str, options: argparse.Namespace) -> dict[str, Any]:
    """Per temperature, kind and drafter: acceptance length, and speed against plain decoding."""
    wanted = [name for name in GROUPS[precision] if options.drafters is None or name in options.drafters]
    engines = {name: engine(name.replace("OTHER", folder), precision) for name in ["none", *wanted]}
    return {
        f"temperature {temperature}": {
            kind: compare(engines, prompts, temperature, options) for kind, prompts in KINDS.items()
        }
        for temperature in TEMPERATURES
    }


def engine(drafter: str, precision: str) -> TextEngine:
    return outrider.load("smollm2", drafter=drafter, precision=precision, slots=1, context_length=1024)


def compare(
    engines: dict[str, TextEngine], prompts: list[str], temperature: float, options: argparse.Namespace
) -> dict[str, Any]:
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
    for repeat in range(options.repeats):
        for prompt in prompts:
            for name, each in engines.items():
                runs[name].append(run(each, prompt, temperature, seed=repeat, tokens=options.tokens))
    plain = median(found["tokens_per_second"] for found in runs["none"])
    return {name: summary(found, plain) for name, found in runs.items()}


def run(each: TextEngine, prompt: str, temperature: float, *, seed: int, tokens: int) -> dict[str, float]:
    result = each.generate(prompt, temperature=temperature, seed=seed, max_new_tokens=tokens, stop_ids=())
    stats = result.stats
    return {
        "tokens_per_second": stats.tokens_per_second or 0.0,
        "acceptance_length": stats.mean_acceptance_length or 0.0,
        "drafting": stats.seconds.draft / stats.seconds.total,
    }


def summary(runs: list[dict[str, float]], plain: float) -> dict[str, float]:
    medians = {name: median(found[name] for found in runs) for name in runs[0]}
    return {**medians, "speedup": medians["tokens_per_second"] / plain}


def show(groups: dict[str, Any]) -> None:
    """Acceptance length and speed-up, one line per drafter and temperature."""
    for precision, temperatures in groups.items():
        for temperature, kinds in temperatures.items():
            print(f"\n{precision}, {temperature}: acceptance length, speed-up\n")
            print("| drafter | " + " | ".join(kinds) + " |\n|---|" + "---|" * len(kinds))
            for name in next(iter(kinds.values())):
                cells = [f"{kinds[k][name]['acceptance_length']:.2f}, {kinds[k][name]['speedup']:.2f}x" for k in kinds]
                print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
