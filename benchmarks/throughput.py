"""Where speculation stops paying: tokens per second against the batch, plain and with drafts of three looked-up tokens.

Plain decoding, `suffix` with k = 3 and `auto` take turns at each batch size, on prompts of all kinds. The crossover is
predicted beforehand from costs and acceptance alone, as `outrider plan` does, at the sizes 1, 4, 16 and 64.

    python benchmarks/throughput.py [--tokens 40]

Writes benchmarks/results/throughput.json and docs/throughput.png (needs matplotlib); the last line is the JSON object.
"""

from __future__ import annotations

import argparse
import json
from itertools import chain
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch

from outrider.benching.asked import built_in
from outrider.benching.prompts import PROMPTS
from outrider.benching.provenance import provenance
from outrider.benching.ways import Asked, EngineWay, Strategy, engine_of
from outrider.cli.plan import PER_KIND
from outrider.loading import default_drafter
from outrider.models.opening import Opened, open_model
from outrider.planning.job import Job
from outrider.planning.kept import Asked as Question
from outrider.planning.kept import this_machine, this_model
from outrider.planning.measure import measure
from outrider.planning.walked import Text

RESULTS = Path(__file__).parent / "results"
PICTURE = Path(__file__).parent.parent / "docs" / "throughput.png"
TARGET, K = "smollm2", 3
BATCHES, PREDICTED = (1, 2, 4, 8, 16, 32, 64), (1, 4, 16, 64)
WAYS = {"plain": Strategy("none"), f"suffix, k = {K}": Strategy("suffix", K), "auto": Strategy(default_drafter(TARGET))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=40, help="new tokens per prompt")
    tokens = parser.parse_args().tokens
    opened = open_model(TARGET, "auto", torch.device("cpu"), None)
    predicted = foretold(opened, tokens)
    speeds = {str(batch): measured(opened, batch, tokens) for batch in BATCHES}
    report: dict[str, Any] = {
        "tokens_per_second": speeds,
        "predicted_speedup": predicted,
        "predicted_crossover": crossover(list(predicted), list(predicted.values())),
        "measured_crossover": crossover(
            [int(batch) for batch in speeds], [each[f"suffix, k = {K}"] / each["plain"] for each in speeds.values()]
        ),
        "provenance": provenance(model=opened.model),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "throughput.json").write_text(json.dumps(report, indent=1) + "\n")
    draw(report)
    print(json.dumps(report))


def foretold(opened: Opened, tokens: int) -> dict[int, float]:
    """Predicted speed-up of the fixed chains by batch."""
    question = Question(TARGET, ("suffix",), (0.0,), PREDICTED, max_new_tokens=tokens)
    found = built_in(PROMPTS, PER_KIND, opened.tokenizer)
    texts = tuple(Text(kind, prompt.ids) for kind, prompts in found.items() for prompt in prompts)
    job = Job(question, opened, texts, this_machine(None), this_model(TARGET), lambda name, done, total: None)
    *_, plan = measure(job)
    return {cell.batch: cell.speedup.mid for cell in plan.cells if cell.k == K}


def measured(opened: Opened, batch: int, tokens: int) -> dict[str, float]:
    """Tokens per second of decoding; small batches run on as many prompts as come to sixteen at least."""
    prompts = list(chain.from_iterable(zip(*built_in(PROMPTS, None, opened.tokenizer).values(), strict=True)))
    longest = max(len(prompt.ids) for prompt in prompts)
    ways = {name: EngineWay(name, engine_of(each, opened, batch, longest + tokens)) for name, each in WAYS.items()}
    made, seconds = dict.fromkeys(ways, 0), dict.fromkeys(ways, 0.0)
    for turn, start in enumerate(range(0, max(16, batch), batch)):
        own = tuple(prompt.ids for prompt in prompts[start : start + batch])
        order = list(ways)[turn % len(ways) :] + list(ways)[: turn % len(ways)]
        for name in order:
            run = ways[name].run(Asked(own, tuple(range(batch)), 0.0, tokens))
            made[name] += run.decoded
            seconds[name] += run.decoding_seconds
    return {name: made[name] / seconds[name] for name in ways}


def crossover(batches: list[int], speedups: list[float]) -> float | None:
    """The batch at which a speed-up falls to 1, on straight lines; None if it never does."""
    for (small, high), (large, low) in zip(
        zip(batches, speedups, strict=True), zip(batches[1:], speedups[1:], strict=True), strict=False
    ):
        if high >= 1 > low:
            return small + (high - 1) / (high - low) * (large - small)
    return None


def draw(report: dict[str, Any]) -> None:
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for name in WAYS:
        axes.plot(BATCHES, [report["tokens_per_second"][str(batch)][name] for batch in BATCHES], marker="o", label=name)
    for kind, style in (("predicted", "--"), ("measured", ":")):
        place = report[f"{kind}_crossover"]
        if place is not None:
            axes.axvline(place, color="black", linestyle=style, label=f"crossover of k = {K}, {kind}: {place:.1f}")
    axes.set(
        xscale="log", xticks=BATCHES, xticklabels=BATCHES, xlabel="texts decoded together", ylabel="tokens per second"
    )
    axes.minorticks_off()
    axes.legend()
    figure.savefig(PICTURE, dpi=110)


if __name__ == "__main__":
    main()
