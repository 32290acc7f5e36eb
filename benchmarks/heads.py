"""Trained heads on sixty held-out prompts of six kinds, against plain decoding in the same process.

All drafters take turns, prompt by prompt. Per kind and temperature: tokens per round over all rounds, and the speed-up,
which is total tokens over total time against the same of plain decoding; over the open kinds and over all of them too.
The last line is one JSON object, which is also written to benchmarks/results/heads.json.

    python benchmarks/heads.py eagle:FOLDER suffix+eagle:FOLDER [--prompts 10] [--tokens 96] [--precision float16]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from held_out import HELD_OUT, OPEN
from provenance import RESULTS, provenance

import outrider
from outrider.stats import Stats

TEMPERATURES = (0.0, 0.8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("drafters", nargs="+", help="as after --drafter")
    parser.add_argument("--prompts", type=int, default=10, help="of each kind")
    parser.add_argument("--tokens", type=int, default=96, help="new tokens per run")
    parser.add_argument("--precision", default="float16")
    parser.add_argument("--out", type=Path, default=RESULTS / "heads.json")
    options = parser.parse_args()
    names = ["none", *options.drafters]
    engines = {name: engine(name, options.precision) for name in names}
    found: dict[str, dict[str, dict[str, list[Stats]]]] = {}
    for temperature in TEMPERATURES:
        kinds = found[f"temperature {temperature}"] = {kind: {name: [] for name in names} for kind in HELD_OUT}
        for place in range(options.prompts):
            for kind, prompts in HELD_OUT.items():
                for name, each in engines.items():
                    result = each.generate(
                        prompts[place], temperature=temperature, seed=place, max_new_tokens=options.tokens
                    )
                    kinds[kind][name].append(result.stats)
    report = {temperature: summary(kinds) for temperature, kinds in found.items()}
    show(report)
    full = {"prompts": options.prompts, "tokens": options.tokens, "precision": options.precision, "results": report}
    full["provenance"] = provenance()
    options.out.write_text(json.dumps(full, indent=1) + "\n")
    print(json.dumps(full))


def engine(drafter: str, precision: str) -> outrider.generation.TextEngine:
    return outrider.load("smollm2", drafter=drafter, precision=precision, slots=1, context_length=1024)


def summary(kinds: dict[str, dict[str, list[Stats]]]) -> dict[str, dict[str, dict[str, float]]]:
    """Per drafter: of each kind, of the open ones together, and of all."""
    groups = {**{kind: [kind] for kind in kinds}, "open kinds": list(OPEN), "all kinds": list(kinds)}
    return {
        name: {
            group: figures(
                [s for kind in members for s in kinds[kind][name]], [s for kind in members for s in kinds[kind]["none"]]
            )
            for group, members in groups.items()
        }
        for name in next(iter(kinds.values()))
    }


def figures(stats: list[Stats], plain: list[Stats]) -> dict[str, float]:
    tokens, rounds = sum(s.num_new_tokens for s in stats), sum(s.num_rounds for s in stats)
    return {
        "acceptance_length": tokens / rounds,
        "speedup": speed(stats) / speed(plain),
        "drafting": sum(s.seconds.draft for s in stats) / sum(s.seconds.total for s in stats),
    }


def speed(stats: Iterable[Stats]) -> float:
    """Total tokens over total seconds of decoding."""
    stats = list(stats)
    return sum(s.num_new_tokens for s in stats) / sum(s.seconds.total for s in stats)


def show(report: dict[str, Any]) -> None:
    for temperature, drafters in report.items():
        groups = list(next(iter(drafters.values())))
        print(f"\n{temperature}: tokens per round, speed-up\n")
        print("| drafter | " + " | ".join(groups) + " |\n|---|" + "---|" * len(groups))
        for name, found in drafters.items():
            cells = (f"{found[g]['acceptance_length']:.2f}, {found[g]['speedup']:.2f}x" for g in groups)
            print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
