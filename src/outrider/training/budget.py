"""From a wish in minutes to numbers of tokens and steps, measured once and then kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter

from outrider.engine import Engine
from outrider.options import Sampling
from outrider.training.lesson import Lesson
from outrider.training.trainer import backward, read_kept, write_whole
from outrider.training.work import CHOSEN

WRITING_SHARE = 0.4
"""Part of the time in which texts are written."""

ANSWER_SHARE = 0.6
"""Tokens of answers among all that the target reads and writes for them, prompts included."""

FEWEST_TOKENS, FEWEST_STEPS = 1000, 16
WARM_UP, ROUNDS = 3, 16


class Chosen:
    """Sizes that were measured or chosen once: a resumed training has the same ones.

    Args:
        path: of options.json.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, name: str, choose: Callable[[], int]) -> int:
        """What the file has of this name; if nothing, what `choose` says, which is written down."""
        options = read_kept(self._path)
        sizes: dict[str, int] = options.setdefault(CHOSEN, {})
        if name not in sizes:
            sizes[name] = choose()
            text = json.dumps(options, sort_keys=True)
            write_whole(self._path, lambda path: path.write_text(text, encoding="utf-8"))
        return sizes[name]


def tokens_within(minutes: float, engine: Engine, prompts: Ordered[list[int]]) -> int:
    """Tokens of answers that the target can write in its share of the time.

    Args:
        minutes: for all of the training.
        engine: the target, all slots free.
        prompts: what it will answer, or the opening of a conversation.
    """
    seconds, written = 60 * minutes * WRITING_SHARE, 0
    sequences = [
        engine.add(prompt, sampling=Sampling(temperature=1.0), seed=seed, max_new_tokens=WARM_UP + ROUNDS)
        for seed, prompt in enumerate(islice(cycle(prompts), engine.slots))
    ]
    for _ in range(WARM_UP):
        engine.step()
    start = perf_counter()
    for _ in range(ROUNDS):
        written += sum(len(r.token_ids) for r in engine.step())
    speed = max(1, written) / (perf_counter() - start)
    for sequence in sequences:
        engine.cancel(sequence)
    return max(FEWEST_TOKENS, int(ANSWER_SHARE * speed * seconds))


def steps_within(seconds: float, lesson: Lesson, look: Callable[[], object], num_looks: int, *, bfloat16: bool) -> int:
    """Steps of the optimiser that fit, with looks at what was learnt between them.

    Args:
        seconds: that are left.
        lesson: what will be trained; its weights stay as they are.
        look: measures what was learnt.
        num_looks: how many of them, besides one before training begins.
        bfloat16: see `trainer.Plan`.
    """
    start = perf_counter()
    look()
    left = seconds - (1 + num_looks) * (perf_counter() - start)
    _step(lesson, 0, 0.0, bfloat16)
    start, stages = perf_counter(), (0.0, 0.25, 0.5, 0.75, 0.99)
    for step, progress in enumerate(stages):
        _step(lesson, step, progress, bfloat16)
    return max(FEWEST_STEPS, int(left / ((perf_counter() - start) / len(stages))))


def _step(lesson: Lesson, step: int, progress: float, bfloat16: bool) -> None:
    backward(lesson, step, progress, bfloat16)
    for parameter in lesson.parameters.values():
        parameter.grad = None
