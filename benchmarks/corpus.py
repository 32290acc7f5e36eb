"""A corpus of 50 MB on this machine: how long and how much memory building it takes, and how long a query.

The text is made of the standard library's sources: again and again, each time with other words for a part of its
names, by a seed, so that it is no mere repetition. Building and querying run in processes of their own. Prints the
figures; the last line is one JSON object, which is also written to benchmarks/results/corpus.json.

    python benchmarks/corpus.py [--megabytes 50] [--queries 2000]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from outrider.benching.provenance import provenance
from outrider.drafters.corpus import open_corpus
from outrider.drafters.growth import best_first
from outrider.models.locate import locate
from outrider.models.tokenizer import load_tokenizer

RESULTS = Path(__file__).parent / "results"

WORD = re.compile(r"[A-Za-z]{4,}")
SHARE_EXCHANGED = 0.3
"""Of the words, in every copy after the first."""

BUDGET = 16
"""Nodes and depth of the tree that is grown from a match."""


def main() -> None:
    options = arguments()
    if options.stage:
        print(json.dumps({"build": build, "query": query}[options.stage](options)))
        return
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        write_text(text, int(options.megabytes * 1e6))
        report: dict[str, Any] = {"megabytes": text.stat().st_size / 1e6}
        for stage in ("build", "query"):
            report[stage] = in_own_process(stage, text, options.queries)
        report["stored_megabytes"] = sum(f.stat().st_size for f in Path(folder).rglob("corpora/*/*")) / 1e6
    report["provenance"] = provenance()
    for stage in ("build", "query"):
        for name, value in report[stage].items():
            print(f"{stage + ' ' + name:32s} {value:,.3f}")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / options.output).write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=50)
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--output", default="corpus.json", help="file name in benchmarks/results")
    parser.add_argument("--stage", choices=["build", "query"], help=argparse.SUPPRESS)
    parser.add_argument("--text", help=argparse.SUPPRESS)
    return parser.parse_args()


def write_text(path: Path, size: int) -> None:
    """The standard library over and over, its words exchanged with others by seed, cut at `size` bytes."""
    paths = sorted(path for path in standard_library().rglob("*.py") if "packages" not in str(path))
    sources = [path.read_text(errors="ignore").replace("\0", "") for path in paths]
    words = sorted({word for source in sources[:200] for word in WORD.findall(source)})
    with path.open("wb") as file:
        copy = 0
        while file.tell() < size:
            exchanged = exchange(words, copy)
            for source in sources:
                swapped = WORD.sub(lambda match, to=exchanged: to.get(match[0], match[0]), source)
                file.write(swapped.encode())
            copy += 1
        file.truncate(size)
    # The cut may have left half a character.
    path.write_bytes(path.read_bytes().decode(errors="ignore").encode())


def exchange(words: list[str], seed: int) -> dict[str, str]:
    """Some of the words, each with the word that replaces it; none for seed 0."""
    rng = random.Random(seed)
    chosen = rng.sample(words, int(SHARE_EXCHANGED * len(words))) if seed else []
    return dict(zip(chosen, rng.sample(chosen, len(chosen)), strict=True))


def standard_library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def in_own_process(stage: str, text: Path, queries: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--stage", stage, "--text", str(text), "--queries", str(queries)]
    environment = {**os.environ, "OUTRIDER_CACHE": str(text.parent)}
    output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, float] = json.loads(output.splitlines()[-1])
    return found


def build(options: argparse.Namespace) -> dict[str, float]:
    tokenizer = load_tokenizer(locate("smollm2"))
    before = peak_memory()
    start = time.perf_counter()
    corpus = open_corpus(options.text, tokenizer)
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "tokens": corpus.num_tokens,
        "peak_megabytes": peak_memory(),
        "peak_megabytes_before": before,
    }


def query(options: argparse.Namespace) -> dict[str, float]:
    """From the cache: opening, finding a match, and a whole tree from it.

    Half of the queries end somewhere in the corpus' own text, half of them with a strange token a little before.
    """
    tokenizer = load_tokenizer(locate("smollm2"))
    start = time.perf_counter()
    corpus = open_corpus(options.text, tokenizer)
    opening = time.perf_counter() - start
    rng = random.Random(7)
    with Path(options.text).open("rb") as file:
        contexts = [context(file, rng, tokenizer) for _ in range(options.queries)]
    lengths, finds, drafts = [], [], []
    for tokens in contexts:
        start = time.perf_counter()
        length, places = corpus.find(tokens)
        found = time.perf_counter()
        best_first(corpus.continuations(places, BUDGET), BUDGET, max_depth=BUDGET)
        lengths.append(length)
        finds.append(1000 * (found - start))
        drafts.append(1000 * (time.perf_counter() - start))
    figures = {"open_seconds": opening, "match_length_mean": float(np.mean(lengths)), "peak_megabytes": peak_memory()}
    return {**figures, **spread("find", finds), **spread("find_and_tree", drafts)}


def context(file: Any, rng: random.Random, tokenizer: Any) -> list[int]:
    """Some 40 tokens of the text, every second time with a random one among the last eight."""
    file.seek(rng.randrange(os.fstat(file.fileno()).st_size - 200))
    tokens: list[int] = tokenizer.encode(file.read(160).decode(errors="ignore"))[1:-1]
    if rng.random() < 0.5:
        tokens[-rng.randrange(1, 9)] = rng.randrange(tokenizer.vocab_size)
    return tokens


def spread(name: str, milliseconds: list[float]) -> dict[str, float]:
    median, p99 = np.percentile(milliseconds, [50, 99])
    return {f"{name}_median_ms": float(median), f"{name}_p99_ms": float(p99)}


def peak_memory() -> float:
    """Megabytes that this process held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


if __name__ == "__main__":
    main()
