"""What a trace costs: the same seeded texts with and without one, taking turns in one process, on the embedded model.

A run is timed as users wait for it, the file closed at the end included; a ratio is that of medians, beside it stand
the quartiles of the quotients of neighbours. Without a trace an engine has its own rule and pace and nothing else.
The last line is one JSON object, which is also written to benchmarks/results/trace.json.

    python benchmarks/trace_overhead.py [--runs 15] [--tokens 96] [--precision auto]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import outrider
from outrider.benching.provenance import provenance
from outrider.generation import TextEngine
from prompts import CHAT

RESULTS = Path(__file__).parent / "results"

SETTINGS = {"auto, greedy": ("auto", 0.0), "auto, T 0.8": ("auto", 0.8), "suffix, greedy": ("suffix", 0.0)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=15, help="of each setting, with and without")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--precision", default="auto")
    options = parser.parse_args()
    report = {}
    for name, (drafter, temperature) in SETTINGS.items():
        engine = outrider.load("smollm2", drafter=drafter, precision=options.precision, slots=1, context_length=512)
        report[name] = measured(engine, temperature, options.runs, options.tokens)
        print(f"{name:16s} {report[name]['ratio']:.4f}, quotients {report[name]['quartiles']}")
    full = {"tokens": options.tokens, "settings": report, "provenance": provenance()}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "trace.json").write_text(json.dumps(full, indent=1) + "\n")
    print(json.dumps(full))


def measured(engine: TextEngine, temperature: float, runs: int, tokens: int) -> dict[str, Any]:
    """Neighbours decode the same text; who begins changes."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        for number in range(-1, runs):  # the first pair warms up
            for traced in (number % 2 == 0, number % 2 != 0):
                took = run(engine, path if traced else None, number, temperature, tokens)
                seconds[traced] += [took] if number >= 0 else []
        size = path.stat().st_size
    quotients = [on / off for on, off in zip(seconds[True], seconds[False], strict=True)]
    return {
        "ratio": median(seconds[True]) / median(seconds[False]),
        "quartiles": [round(quotient, 4) for quotient in quantiles(quotients, n=4)],
        "seconds": {"on": median(seconds[True]), "off": median(seconds[False])},
        "bytes_per_token": size / tokens,
        "runs": runs,
    }


def run(engine: TextEngine, path: Path | None, number: int, temperature: float, tokens: int) -> float:
    request: dict[str, Any] = {"temperature": temperature, "seed": 1, "max_new_tokens": tokens, "stop_ids": ()}
    prompt = CHAT[number % len(CHAT)]
    start = perf_counter()
    if path is None:
        engine.generate(prompt, **request)
    else:
        with outrider.trace(engine, path):
            engine.generate(prompt, **request)
    return perf_counter() - start


if __name__ == "__main__":
    main()
