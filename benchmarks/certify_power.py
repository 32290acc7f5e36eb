"""Ten planted faults on the embedded model: how often does `outrider certify --quick` find each?

A chain drafter that draws (the head that ships with the model), the block rule, temperature 1 with a repetition
penalty. Writes benchmarks/results/certify_power.json as it goes.

    python benchmarks/certify_power.py [--seeds 20] [--samples 1600] [--fault "leniency 0.95"]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from time import perf_counter
from typing import Any

import outrider
from outrider.benching.prompts import PROMPTS
from outrider.benching.provenance import provenance
from outrider.certifying import certify
from outrider.certifying.planted import FAULTS, planted
from outrider.options import Sampling

RESULTS = Path(__file__).parent / "results"

SAMPLING = Sampling(temperature=1.0, repetition_penalty=1.2)
WITHOUT = "no fault"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--samples", type=int, default=None, help="as after certify --samples; that of --quick")
    parser.add_argument("--fault", default=None, choices=list(FAULTS))
    parser.add_argument("--out", type=Path, default=RESULTS / "certify_power.json")
    options = parser.parse_args()
    engine = outrider.load(
        "smollm2", drafter="eagle:smollm2", rule="block", num_draft_tokens=4, slots=8, context_length=640
    )
    prompts = [PROMPTS[kind][place] for kind in ("edit", "code", "summarise", "chat") for place in range(2)]
    found: dict[str, Any] = {}
    for fault in [options.fault] if options.fault else [WITHOUT, *FAULTS]:
        found[fault] = {"caught": 0, "of": 0, "faults": {}, "seconds": 0.0}
        for seed in range(options.seeds):
            started = perf_counter()
            settings = {"sampling": SAMPLING, "quick": True, "samples": options.samples, "seed": 10_000 * seed}
            if options.samples:
                settings["distance"] = 0.9
            if fault == WITHOUT:
                each = certify(engine, prompts, **settings)
            else:
                with planted(engine.engine, fault):
                    each = certify(engine, prompts, **settings)
            note(found[fault], each, perf_counter() - started)
            options.out.write_text(json.dumps({"found": found, "provenance": provenance()}, indent=1) + "\n")
        print(f"{fault}: {found[fault]}", flush=True)


def note(into: dict[str, Any], certificate: Any, seconds: float) -> None:
    into["caught"] += not certificate.certified
    into["of"] += 1
    into["seconds"] += seconds
    for fault in certificate.faults:
        name = fault.split(" is ")[0]
        into["faults"][name] = into["faults"].get(name, 0) + 1


if __name__ == "__main__":
    main()
