"""What is shown of a plan: tables of predicted speed-ups, what to do, and what that rests on. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Ordered

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from outrider.planning.plan import CONFIDENCE, Cell, Interval, Plan, lengths, recommend, stops_paying, strategies
from outrider.planning.speedup import RoundCost, best_k, break_even_alpha, break_even_cost, emitted, speedups
from outrider.text import visible

NOTHING = "-"
OWN = "auto"
"""Heading of what a drafter decides itself, chains and trees alike."""


def plan_tables(plan: Plan) -> Iterator[Table | Text]:
    """A table for each temperature and batch size, each with its recommendation; then what all of it means."""
    temperatures = list(dict.fromkeys(cell.temperature for cell in plan.cells))
    for temperature in temperatures:
        for batch in sorted({cell.batch for cell in plan.cells if cell.temperature == temperature}):
            yield _table(plan.at(temperature, batch), lengths(plan.cells))
            yield Text(visible(_advice(plan, temperature, batch)))
        yield Text(f"\nTemperature {temperature:g}: {stops_paying(plan, temperature).in_words}")
    yield Text(visible("\n" + "\n".join(_basis(plan))))


def _table(cells: Ordered[Cell], all_lengths: Ordered[int | str]) -> Table:
    first = cells[0]
    together = "one text at a time" if first.batch == 1 else f"{first.batch} texts together"
    title = f"Temperature {first.temperature:g}, {together}"
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title=title, title_justify="left")
    shown = list(dict.fromkeys(_heading(k) for k in all_lengths))
    table.add_column("drafter", overflow="fold")
    for heading in shown:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("best", no_wrap=True)
    for name in strategies(cells):
        own = {_heading(cell.k): cell for cell in cells if cell.drafter == name}
        best = max(own.values(), key=lambda cell: cell.speedup.mid)
        table.add_row(Text(visible(name)), *(_mid(own.get(heading)) for heading in shown), _interval(best.speedup))
    return table


def _heading(k: int | str) -> str:
    """Of the column."""
    return f"k={k}" if isinstance(k, int) else OWN


def _mid(cell: Cell | None) -> Text:
    return Text(NOTHING if cell is None else f"{cell.speedup.mid:.2f}")


def _interval(found: Interval) -> Text:
    return Text(f"{found.mid:.2f} ({found.low:.2f}-{found.high:.2f})")


def _advice(plan: Plan, temperature: float, batch: int) -> str:
    found = recommend(plan, temperature, batch)
    return found.reason[0].upper() + found.reason[1:] if found.cell is None else f"Recommended: {found.reason}"


def _basis(plan: Plan) -> list[str]:
    target, tokens = plan.asked["target"], plan.asked["max_new_tokens"]
    lines = [
        "Speed-ups are those of decoding, prompts left out, against plain decoding at the same temperature and batch.",
        f"Intervals hold {CONFIDENCE:.0%}: other prompts of these kinds, errors of timing, and 4 % for other times.",
        f"Target {target} at {plan.precision}; {plan.num_prompts} prompts, {tokens} tokens of each.",
    ]
    if plan.targets:
        lines.append(f"Costs are those of {plan.targets[0].context} tokens in each cache.{_longer(plan)}")
    if plan.partial:
        lines.append(f"PARTIAL: interrupted before these were measured: {', '.join(plan.missing)}.")
    return lines


def _longer(plan: Plan) -> str:
    if plan.context is None:
        return ""
    parts = [
        f"of {rows} row{'s' if rows > 1 else ''} {long / short:.2f} times"
        for rows, (short, long) in zip(plan.context.rows, plan.context.seconds, strict=True)
    ]
    return f" With {plan.context.tokens[1]:,} tokens a forward {' and one '.join(parts)} as long."


# ---------------------------------------------------------------- by the formulas alone


def formula_tables(alpha: float, cost_ratio: float, longest: int) -> Iterator[Table | Text]:
    """What acceptance and cost say by themselves, rows being free and one sequence decoded.

    Args:
        alpha: chance that a drafted token is kept, in [0, 1].
        cost_ratio: of drafting a token to a forward of the target, 0 or more.
        longest: largest k of the table.
    """
    cost = RoundCost(per_token=cost_ratio)
    table = Table(box=SIMPLE_HEAD)
    for heading in ("k", "tokens per round", "speed-up"):
        table.add_column(heading, justify="right")
    for k, found in enumerate(speedups(alpha, cost, longest)):
        table.add_row(str(k), f"{float(emitted(alpha, k)):.2f}", f"{float(found):.2f}")
    yield table
    yield Text(formula_advice(alpha, cost_ratio, longest))


def formula_advice(alpha: float, cost_ratio: float, longest: int) -> str:
    """The best k, or why none pays, and where that would change."""
    cost = RoundCost(per_token=cost_ratio)
    k, needed = best_k(alpha, cost, longest), break_even_alpha(cost, longest)
    if k == 0:
        least = "more than certain acceptance" if needed is None else f"an acceptance above {needed:.3f}"
        return (
            f"do not speculate: a drafted token costs {cost_ratio:g} forwards of the target, which takes {least} to "
            f"pay; it is {alpha:g}."
        )
    limit = break_even_cost(alpha, RoundCost(), longest)
    edges = f"It pays above an acceptance of {needed:.3f}" if needed is not None else "It pays"
    edges += f", and below a cost of {float(limit):.2f}." if limit is not None else "."
    found = float(speedups(alpha, cost, longest)[k])
    fast = f"{found:.2f} times as fast as plain decoding if more rows cost the target nothing"
    return f"Recommended: k = {k}, {fast}. {edges}"
