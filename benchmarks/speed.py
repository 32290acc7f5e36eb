"""Speed on this machine: plain and speculative decoding, transformers on the same weights, and what a round costs.

Every comparison is interleaved in one process and quoted as the ratio of medians. Prints a table; the last line is one
JSON object, which is also written to benchmarks/results/speed.json.

    python benchmarks/speed.py [--repeats 5] [--tokens 96] [--precision auto]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from reference import llama_config
from transformers import LlamaForCausalLM
from transformers.utils import logging

import outrider
from outrider.benching.provenance import provenance
from outrider.cli.runs import plain_twin
from outrider.core import Block
from outrider.generation import TextEngine
from outrider.models.checkpoint import Checkpoint, open_checkpoint
from outrider.models.locate import locate
from prompts import CHAT, EDIT

RESULTS = Path(__file__).parent / "results"

WIDTHS = (1, 2, 4, 8, 12, 16)


def main() -> None:
    options = arguments()
    started = first_token_seconds(options.starts)  # before this process takes memory and cores
    fast = outrider.load("smollm2", drafter="suffix", precision=options.precision, context_length=1024)
    plain = plain_twin(fast)
    reference = transformers_model(open_checkpoint(locate("smollm2")))
    report: dict[str, Any] = {
        "precision": fast.engine.target.precision,
        "first_token_seconds": started,
        "forward": forward_cost(fast, options.repeats * 4),
        "chat": compare(fast, plain, CHAT, options, reference),
        "edit": compare(fast, plain, EDIT, options, None),
    }
    report["ratios"] = ratios(report)
    report["provenance"] = provenance()
    for name, value in report["ratios"].items():
        print(f"{name:32s} {value:.3f}")
    RESULTS.mkdir(exist_ok=True)
    name = "speed.json" if options.precision == "auto" else f"speed-{options.precision}.json"
    (RESULTS / name).write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="interleaved runs of each kind")
    parser.add_argument("--tokens", type=int, default=96, help="new tokens per run")
    parser.add_argument("--starts", type=int, default=3, help="process starts for the time to the first token")
    parser.add_argument("--precision", default="auto")
    return parser.parse_args()


def first_token_seconds(starts: int) -> list[float]:
    """From starting `outrider generate` to the first character on its standard output."""
    command = [Path(sys.executable).with_name("outrider"), "generate", CHAT[0], "--max-new-tokens", "16", "--quiet"]
    taken = []
    for _ in range(starts):
        start = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            if not process.stdout.read(1):
                raise RuntimeError(f"{command} printed nothing")
            taken.append(time.perf_counter() - start)
            process.communicate()
    return taken


def forward_cost(engine: TextEngine, repeats: int) -> dict[str, Any]:
    """Median milliseconds of a forward by the number of rows, 128 tokens cached; widths interleaved."""
    target = engine.engine.target
    cache = target.new_cache(1, 512)
    tokens = torch.arange(1000, 1000 + 256)[None]
    target.forward(Block(tokens[:, :128], torch.arange(128)[None], (0,), (128,), prefill=True), cache)
    cache.commit(0, range(128))

    def forward(width: int) -> None:
        target.forward(Block(tokens[:, 128 : 128 + width], torch.arange(128, 128 + width)[None], (0,), (width,)), cache)

    taken: dict[int, list[float]] = {width: [] for width in WIDTHS}
    for repeat in range(repeats + 2):
        for width in WIDTHS:
            seconds = timed(lambda width=width: forward(width))
            if repeat >= 2:
                taken[width].append(1000 * seconds)
    medians = {width: median(times) for width, times in taken.items()}
    return {"milliseconds": medians, "c": {width: medians[width] / medians[1] for width in WIDTHS}}


def compare(
    fast: TextEngine,
    plain: TextEngine,
    prompts: list[str],
    options: argparse.Namespace,
    reference: LlamaForCausalLM | None,
) -> dict[str, Any]:
    """The same prompts by every way in turn; whole calls are timed, prefill included, and rounds from the stats."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for repeat in range(options.repeats + 1):
        for prompt in prompts:
            ways: dict[str, Callable[[], dict[str, Any]]] = {
                "plain": lambda prompt=prompt: ours(plain, prompt, options.tokens),
                "suffix": lambda prompt=prompt: ours(fast, prompt, options.tokens),
            }
            if reference is not None:
                ids = fast.tokenizer.encode_chat([{"role": "user", "content": prompt}])
                ways["transformers"] = lambda ids=ids: theirs(reference, ids, options.tokens)
            for name, run in ways.items():
                found = run()
                if repeat > 0:  # the first is a warm-up
                    runs.setdefault(name, []).append(found)
    same = all(a["token_ids"] == b["token_ids"] for a, b in zip(runs["plain"], runs["suffix"], strict=True))
    summary = {name: summarised(found) for name, found in runs.items()}
    return {"identical": same, "ways": summary}


def ours(engine: TextEngine, prompt: str, tokens: int) -> dict[str, Any]:
    start = time.perf_counter()
    result = engine.generate(prompt, max_new_tokens=tokens, stop_ids=())
    whole = time.perf_counter() - start
    stats = result.stats
    return {
        "token_ids": result.token_ids,
        "tokens_per_second": len(result.token_ids) / whole,
        "decoding_tokens_per_second": stats.tokens_per_second,
        "acceptance_length": stats.mean_acceptance_length,
        "outside_forwards": 1 - stats.seconds.target / stats.seconds.total,
    }


def theirs(model: LlamaForCausalLM, ids: list[int], tokens: int) -> dict[str, Any]:
    prompt = torch.tensor([ids])
    start = time.perf_counter()
    output = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False
    )
    return {"tokens_per_second": (output.shape[1] - len(ids)) / (time.perf_counter() - start)}


def summarised(runs: list[dict[str, Any]]) -> dict[str, float]:
    names = [name for name in runs[0] if name != "token_ids"]
    return {name: median(run[name] for run in runs) for name in names}


def ratios(report: dict[str, Any]) -> dict[str, float]:
    chat, edit = report["chat"]["ways"], report["edit"]["ways"]
    speed = "decoding_tokens_per_second"
    return {
        "plain / transformers float32": chat["plain"]["tokens_per_second"] / chat["transformers"]["tokens_per_second"],
        "c(8) / c(1)": report["forward"]["c"][8],
        "outside forwards, plain": chat["plain"]["outside_forwards"],
        "outside forwards, edit": edit["suffix"]["outside_forwards"],
        "suffix / plain, edit": edit["suffix"][speed] / edit["plain"][speed],
        "suffix / plain, chat": chat["suffix"][speed] / chat["plain"][speed],
        "seconds to the first token": median(report["first_token_seconds"]),
    }


def transformers_model(checkpoint: Checkpoint) -> LlamaForCausalLM:
    """The very weights of the checkpoint in transformers, float32, its default attention."""
    logging.set_verbosity_error()
    config = llama_config(checkpoint)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model = model.to_empty(device="cpu").float().eval()
    weights = {name: checkpoint.tensor(name) for name in checkpoint.names}
    missing = model.load_state_dict(weights, strict=False)
    assert set(missing.missing_keys) <= {"lm_head.weight"}
    assert not missing.unexpected_keys
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model


def timed(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
