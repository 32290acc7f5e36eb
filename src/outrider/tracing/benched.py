"""The trace of a benchmark: what all ways of this library do in the runs that are measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Ordered
from contextlib import ExitStack, contextmanager

from outrider.benching.asked import Prompts
from outrider.benching.run import WARMING_UP, Grid, Told
from outrider.benching.ways import EngineWay
from outrider.core import Sequence
from outrider.tracing.lines import header
from outrider.tracing.recording import Tracer


@contextmanager
def trace_bench(
    path: str, target: str, grid: Grid, prompts: Prompts, ways: Ordered[EngineWay], decode: Callable[[list[int]], str]
) -> Iterator[Tracer]:
    """Write down what the ways do in this context; it fails, if it does, when it is left.

    Args:
        path: of the file.
        target: as typed.
        grid: what is measured.
        prompts: by kind.
        ways: with one target.
        decode: token ids to text.

    Raises:
        InvalidOption: the file cannot be written, or not to its end.
    """
    kinds = {prompt.ids: kind for kind, own in prompts.items() for prompt in own}

    def kind_of(sequence: Sequence) -> str:
        return kinds.get(tuple(sequence.tokens[: sequence.prompt_length]), "")

    names, sampling = ", ".join(way.name for way in ways), {"temperature": grid.temperatures}
    first = header(ways[0].engine, target=target, drafter=names, sampling=sampling, seed=grid.seed)
    with Tracer(path, first) as tracer, ExitStack() as stack:
        for way in ways:
            stack.enter_context(tracer.following(way.engine, decode, name=way.name, kind_of=kind_of))
        yield tracer


def without_warm_up(tracer: Tracer | None, told: Told) -> Told:
    """`told`, and nothing is written down of runs that are not measured."""
    if tracer is None:
        return told

    def told_too(what: str, done: int, total: int) -> None:
        tracer.recording = what != WARMING_UP
        told(what, done, total)

    return told_too
