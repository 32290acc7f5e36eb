"""Toy engines to certify: right ones, and the same with a planted fault."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

from engine_runs import all_drafters, toy_engine
from outrider.certifying import Certificate, certify, run
from outrider.certifying.planted import planted
from outrider.certifying.running import changed
from outrider.engine import Engine
from outrider.options import Sampling
from outrider.rules import RULES
from toy import TableModel, random_laws

V = 8
TARGET = TableModel(V, order=2, law=random_laws(V, seed=1, sharpness=3))
PROMPTS = [[0, 1, 2, 0, 1], [3, 4, 5, 3, 4, 5, 3]]
PENALTIES = Sampling(temperature=1.0, repetition_penalty=1.4, frequency_penalty=0.3)


def engine_of(drafter: str = "model", rule: str = "block", k: int = 3, target: TableModel = TARGET) -> Engine:
    made = all_drafters(target, 4, PROMPTS[0])[drafter]()
    return toy_engine(target, made, RULES[rule], k, slots=4, context_length=64)


def certificate(
    engine: Engine,
    sampling: Sampling | None = None,
    fault: str | None = None,
    seed: int = 0,
    samples: int = 400,
    distance: float = 0.3,
) -> Certificate:
    """The certificate of an engine, with a fault while it is made if one is named."""
    options = {"sampling": sampling, "seed": seed, "quick": True, "samples": samples, "distance": distance}
    few = changed(run, QUICK=replace(run.QUICK, problems=12, texts=2))
    with few, nullcontext() if fault is None else planted(engine, fault):
        return certify(engine, PROMPTS, **options)
