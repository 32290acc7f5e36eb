"""A plan in the making: costs of this machine, rounds that are walked, and the speed-ups that follow from both.

Costs are timed in the engine, at each batch size and temperature (see `timing`); acceptance is walked (see `walked`); a
speed-up is priced from both (see `pricing`). Every step gives a plan that has more in it than the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field, replace
from statistics import fmean, median

from outrider.drafters.catalogue import TREE_NODES
from outrider.engine import Engine
from outrider.loading import default_drafter
from outrider.planning.job import Job, check_lengths
from outrider.planning.pace import FixedPace
from outrider.planning.plan import AUTO, TREE, Acceptance, Cell, DraftCost, K, Plan
from outrider.planning.pricing import Place, Prices, cell, step_of
from outrider.planning.speedup import RoundCost, best_k
from outrider.planning.strategy import Strategy, made
from outrider.planning.timing import (
    LONGER,
    Batch,
    Given,
    Repeats,
    draft_cost,
    few_wishes,
    interpolated,
    longer_context,
    other_cost,
    steps,
    target_cost,
    wishes,
)
from outrider.planning.walked import InCrowd, Trace, Walk, acceptance, cut, paced, replay, walk

LENGTHS = (1, 2, 3, 4, 6, 8)
"""Chains that look-ups are replayed with."""

SHORTEST, HOPED = 4, 0.9
"""Where drafting costs, one chain is walked from which shorter ones are cut: so long at least, and as long as would be
best if tokens were kept as often as one may hope."""

CHAINS, TREES = (0, 1, 3), (0, 1, TREE_NODES)
"""Drafted tokens that drafters are timed with; a tree is as deep as it makes itself, in each step another."""


def measure(job: Job, begun: Plan | None = None) -> Iterator[Plan]:
    """Plans that grow: first the costs, then drafter by drafter; the last one lacks nothing.

    Args:
        job: what to measure.
        begun: a partial plan of the same job, which is gone on with.

    Raises:
        InvalidOption: a text that is too long for the target, or a drafter that it does not take.
        CheckpointError, UnsupportedModel, VocabularyMismatch, CacheTooLarge: as `outrider.load`.
    """
    check_lengths(job)
    plan = begun
    if plan is None:
        plan = costs(job)
        yield plan
    for drafter in plan.missing:
        strategy = made(drafter, job.place)
        found = replayed(job, plan, drafter, strategy) if strategy.replays else walked(job, plan, drafter, strategy)
        plan = replace(
            plan,
            drafts=(*plan.drafts, *found.drafts),
            acceptances=(*plan.acceptances, *found.acceptances),
            cells=(*plan.cells, *found.cells),
            missing=plan.missing[1:],
        )
        yield plan


# ---------------------------------------------------------------- costs


def costs(job: Job) -> Plan:
    """A plan of costs alone."""
    given, timed = Given(), {}
    engine = job.engine(Repeats(), given)
    settings = [(temperature, size) for temperature in job.asked.temperatures for size in job.sizes]
    for number, (temperature, size) in enumerate(settings):
        job.told("timing", number, len(settings))
        batch, wanted = Batch(job.prompt, temperature, size), wishes if number < len(job.sizes) else few_wishes
        timed[temperature, size] = list(steps(engine, given, batch, wanted(size)))
    job.told("timing", len(settings), len(settings))
    at_size = {size: [each for key, found in timed.items() if key[1] == size for each in found] for size in job.sizes}
    long = job.engine(Repeats(), given, slots=1, context_length=min(2 * LONGER, job.opened.model.context_length))
    return Plan(
        job.asked.as_dict(),
        job.machine,
        job.model,
        job.opened.model.precision,
        len(job.texts),
        targets=tuple(target_cost(found, size, len(job.prompt)) for size, found in at_size.items()),
        others=tuple(other_cost(found, *key) for key, found in timed.items()),
        context=longer_context(long, given, job.prompt, long.context_length),
        missing=job.asked.drafters,
        auto=default_drafter(job.asked.target),
    )


def draft_costs(job: Job, plan: Plan, typed: str, strategy: Strategy, engine: Engine) -> list[DraftCost]:
    """What a drafter takes at each temperature and batch size.

    Args:
        job: of the plan.
        plan: has the costs of the target.
        typed: the drafter as users type it.
        strategy: it.
        engine: the strategy's own, with nothing in it.
    """
    given = engine.pace = Given()
    found = list[DraftCost]()
    for other in plan.others:
        target = next(target for target in plan.targets if target.batch == other.batch)
        batch = Batch(job.prompt, other.temperature, other.batch)
        budgets = CHAINS if strategy.is_chain else TREES if other.batch > 1 else (*TREES, *TREES[-1:])
        timed = list(steps(engine, given, batch, [(budget,) * other.batch for budget in budgets]))
        found.append(draft_cost(timed, typed, target, other, own_forward=strategy.own_forward))
        job.told(f"timing drafts, {typed}", len(found), len(plan.others))
    return found


# ---------------------------------------------------------------- drafters


@dataclass
class Found:
    """What was found of one drafter."""

    drafts: list[DraftCost] = field(default_factory=list)
    acceptances: list[Acceptance] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)


def replayed(job: Job, plan: Plan, drafter: str, strategy: Strategy) -> Found:
    """A look-up, replayed on what the target writes: chains of all lengths and of its own, or its trees."""
    found = Found()
    for temperature, written in job.written.written.items():
        asked: list[tuple[K, int | None]] = [(k, None) for k in LENGTHS] if strategy.is_chain else []
        asked += [(AUTO if strategy.is_chain else TREE, batch) for batch in job.asked.batches]
        for k, batch in asked:
            pace = InCrowd(FixedPace(k), 1) if isinstance(k, int) else strategy.pace(batch or 1)
            run = replay(strategy.drafter, pace, written, job.wish, temperature)
            prices = prices_of(plan, temperature, {}, run.seconds)
            _add(job, found, (drafter, k, temperature, batch), run.traces, prices)
    return found


def walked(job: Job, plan: Plan, drafter: str, strategy: Strategy) -> Found:
    """A drafter that needs the target: one long chain from which all are cut, or its own rounds in each batch."""
    engine = strategy.engine()
    found, sources = Found(), _sources(job, plan, drafter, strategy, engine)
    found.drafts = [cost for costs in sources.values() for cost in costs if cost not in plan.drafts]
    if strategy.is_chain:
        longest = chain_to_walk(plan, found.drafts)
        engine.pace = FixedPace(longest)
        run = _walk(job, engine, drafter)
        for temperature, traces in run.traces.items():
            for k in (k for k in LENGTHS if k <= longest):
                _add(job, found, (drafter, k, temperature, None), cut(traces, k), prices_of(plan, temperature, sources))
            for batch in job.asked.batches:
                own = paced(traces, strategy.pace(batch), job.wish, temperature)
                _add(job, found, (drafter, AUTO, temperature, batch), own, prices_of(plan, temperature, sources))
        return found
    for batch in job.asked.batches:
        engine.pace = strategy.pace(batch)
        run = _walk(job, engine, f"{drafter} in a batch of {batch}")
        prices = {temperature: prices_of(plan, temperature, sources) for temperature in run.traces}
        look_up = fmean(look_up_seconds(run, each) for each in prices.values()) if strategy.is_combined else 0.0
        for temperature, traces in run.traces.items():
            key = drafter, AUTO if strategy.is_combined else TREE, temperature, batch
            _add(job, found, key, traces, replace(prices[temperature], look_up=look_up))
    return found


def _sources(job: Job, plan: Plan, drafter: str, strategy: Strategy, engine: Engine) -> dict[str, list[DraftCost]]:
    """By name, what those parts cost whose drafts cost by their length, timed unless the plan has it."""
    if not strategy.is_combined:
        return {strategy.drafter.name: draft_costs(job, plan, drafter, strategy, engine)}
    found = {}
    for typed, name in strategy.costly:
        found[name] = [cost for cost in plan.drafts if cost.drafter == typed]
        if not found[name]:
            part = made(typed, job.place)
            found[name] = draft_costs(job, plan, typed, part, part.engine())
    return found


def _walk(job: Job, engine: Engine, what: str) -> Walk:
    return walk(engine, job.wish, lambda done, total: job.told(f"walking rounds, {what}", done, total))


def chain_to_walk(plan: Plan, costs: Ordered[DraftCost]) -> int:
    """One of `LENGTHS`.

    Args:
        plan: has the costs of the target.
        costs: of the drafter, those of one sequence among them.
    """
    target, draft = plan.targets[0], next(cost for cost in costs if cost.batch == 1)
    per_token = (draft.seconds[-1] - draft.seconds[0]) / max(draft.depths[-1], 1)
    round_cost = RoundCost(lambda rows: interpolated(target.rows, target.seconds, rows), per_token=per_token)
    best = best_k(HOPED, round_cost, max(LENGTHS))
    return min(length for length in LENGTHS if length >= max(best, SHORTEST))


def _add(job: Job, found: Found, key: tuple[str, K, float, int | None], traces: Ordered[Trace], prices: Prices) -> None:
    """What rounds say of acceptance and, in each batch that they are for, of the speed-up."""
    drafter, k, temperature, batch = key
    found.acceptances.append(acceptance(traces, *key))
    for size in job.asked.batches if batch is None else (batch,):
        found.cells.append(cell(Place(drafter, k, temperature, size), traces, prices, job.sample))


def prices_of(
    plan: Plan, temperature: float, sources: Mapping[str, Ordered[DraftCost]], look_up: float = 0.0
) -> Prices:
    """What steps take at a temperature, by the costs of a plan.

    Args:
        plan: has costs.
        temperature: one of its own.
        sources: by name, what drafts cost at all temperatures.
        look_up: see `Prices`.
    """
    others = tuple(other for other in plan.others if other.temperature == temperature)
    drafts = {name: tuple(c for c in costs if c.temperature == temperature) for name, costs in sources.items()}
    return Prices(plan.targets, others, drafts, look_up)


def look_up_seconds(run: Walk, prices: Prices) -> float:
    """Of drafting, for each sequence and step, beside what the parts take whose drafts cost by their length.

    Seconds are divided by what the target's forwards took in the walk over what they should have taken.
    """
    made = [step_of(step.guesses, prices.drafts) for step in run.steps]
    slower = median(step.target / float(prices.forwards(m)[0]) for step, m in zip(run.steps, made, strict=True))
    rest = [
        (step.draft / slower - float(prices.drafting(m)[0])) / len(step.guesses)
        for step, m in zip(run.steps, made, strict=True)
    ]
    return max(0.0, median(rest))
