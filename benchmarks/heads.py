"""Trained heads on sixty held-out prompts of six kinds, against plain decoding in the same process.

All drafters take turns, prompt by prompt. Per kind and temperature: tokens per round over all rounds, and the speed-up,
which is total tokens over total time against the same of plain decoding; over the open kinds and over all of them too.
At temperature 0 also in how many prompts the text is plain decoding's, token for token (a tree may turn a near tie).
With --typical each drafter, which must draft chains and be no mixture of kinds, runs at temperature 0.8 once more with
that lossy rule, and the distance of its law from the target's, per token, is quoted beside the gain.
The last line is one JSON object, which is also written to benchmarks/results/heads.json.

    python benchmarks/heads.py eagle:FOLDER suffix+eagle:FOLDER [--prompts 10] [--tokens 96] [--precision float16]
    python benchmarks/heads.py medusa:FOLDER --typical
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from held_out import HELD_OUT, OPEN

import outrider
from outrider.benching.provenance import provenance
from outrider.generation import Result

RESULTS = Path(__file__).parent / "results"

TEMPERATURES = (0.0, 0.8)
TYPICAL = ", rule typical (LOSSY)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("drafters", nargs="+", help="as after --drafter")
    parser.add_argument("--prompts", type=int, default=10, help="of each kind")
    parser.add_argument("--tokens", type=int, default=96, help="new tokens per run")
    parser.add_argument("--precision", default="float16")
    parser.add_argument("--typical", action="store_true", help="at temperature 0.8 the lossy rule too")
    parser.add_argument("--out", type=Path, default=RESULTS / "heads.json")
    options = parser.parse_args()
    exact = {name: engine(name, options.precision) for name in ("none", *options.drafters)}
    lossy = {
        f"{name}{TYPICAL}": engine(name, options.precision, "typical") for name in options.drafters if options.typical
    }
    found: dict[str, dict[str, dict[str, list[Result]]]] = {}
    for temperature in TEMPERATURES:
        engines = exact | lossy if temperature > 0 else exact
        kinds = found[f"temperature {temperature}"] = {kind: {name: [] for name in engines} for kind in HELD_OUT}
        for place in range(options.prompts):
            for kind, prompts in HELD_OUT.items():
                for name, each in engines.items():
                    result = each.generate(
                        prompts[place], temperature=temperature, seed=place, max_new_tokens=options.tokens
                    )
                    kinds[kind][name].append(result)
    report = {temperature: summary(kinds) for temperature, kinds in found.items()}
    show(report)
    full = {"prompts": options.prompts, "tokens": options.tokens, "precision": options.precision, "results": report}
    full["provenance"] = provenance()
    options.out.write_text(json.dumps(full, indent=1) + "\n")
    print(json.dumps(full))


def engine(drafter: str, precision: str, rule: str = "auto") -> outrider.generation.TextEngine:
    lossy = rule == "typical"
    return outrider.load(
        "smollm2", drafter=drafter, precision=precision, slots=1, context_length=1024, rule=rule, allow_lossy=lossy
    )


def summary(kinds: dict[str, dict[str, list[Result]]]) -> dict[str, dict[str, dict[str, float]]]:
    """Per drafter: of each kind, of the open ones together, and of all."""
    groups = {**{kind: [kind] for kind in kinds}, "open kinds": list(OPEN), "all kinds": list(kinds)}
    return {
        name: {
            group: figures(
                [r for kind in members for r in kinds[kind][name]], [r for kind in members for r in kinds[kind]["none"]]
            )
            for group, members in groups.items()
        }
        for name in next(iter(kinds.values()))
    }


def figures(results: list[Result], plain: list[Result]) -> dict[str, float]:
    stats = [r.stats for r in results]
    tokens, rounds = sum(s.num_new_tokens for s in stats), sum(s.num_rounds for s in stats)
    distances = [s.distance * s.num_new_tokens for s in stats if s.distance is not None]
    same = sum(one.token_ids == other.token_ids for one, other in zip(results, plain, strict=True))
    return {
        "acceptance_length": tokens / rounds,
        "speedup": speed(results) / speed(plain),
        "drafting": sum(s.seconds.draft for s in stats) / sum(s.seconds.total for s in stats),
        "prompts": len(results),
        "same_text": same,
        **({"distance": sum(distances) / tokens} if distances else {}),
    }


def speed(results: Iterable[Result]) -> float:
    """Total tokens over total seconds of decoding."""
    stats = [r.stats for r in results]
    return sum(s.num_new_tokens for s in stats) / sum(s.seconds.total for s in stats)


def show(report: dict[str, Any]) -> None:
    for temperature, drafters in report.items():
        groups = list(next(iter(drafters.values())))
        print(f"\n{temperature}: tokens per round, speed-up (and a lossy rule's distance from the target's law)\n")
        print("| drafter | " + " | ".join(groups) + " |\n|---|" + "---|" * len(groups))
        for name, found in drafters.items():
            print(f"| {name} | " + " | ".join(cell(found[g]) for g in groups) + " |")


def cell(found: dict[str, float]) -> str:
    gain = f"{found['acceptance_length']:.2f}, {found['speedup']:.2f}x"
    return f"{gain}, distance {found['distance']:.3f}" if "distance" in found else gain


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
