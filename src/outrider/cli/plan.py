"""The command `outrider plan`. A plan that is kept is shown without importing torch."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from dataclasses import asdict
from json import dumps, loads
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import outrider.cli.options as o
from outrider.cli.leaving import INTERRUPTED, leaving_cleanly
from outrider.cli.screen import Screen, open_screen
from outrider.errors import InvalidOption
from outrider.models.locate import EMBEDDED_NAME

if TYPE_CHECKING:
    from outrider.planning.job import Job, Told
    from outrider.planning.kept import Asked
    from outrider.planning.plan import Plan
    from outrider.planning.walked import Text as Prompt

NUM_PROMPTS = 12
"""Prompts of a user's own that are decoded, evenly spread over the file."""

PER_KIND = 2
"""Of the prompts that come with the package."""

DEFAULT_DRAFTERS = ("suffix", "ngram")
DRAFTERS_OF_EMBEDDED = ("auto", "suffix", "suffix:branches=3", "ngram", f"eagle:{EMBEDDED_NAME}")
DEFAULT_TEMPERATURES, DEFAULT_BATCHES, DEFAULT_NEW_TOKENS = (0.0, 0.8), (1, 4, 16), 48
DEFAULT_MAX_K, LONGEST_K = 16, 1024
BY_FORMULA = ("alpha", "cost_ratio", "max_k")
WITH_FORMULA = (*BY_FORMULA, "json")


def _option(text: str, metavar: str, default: str | bool = False) -> Any:
    return typer.Option(help=text, metavar=metavar, show_default=default)


Target = Annotated[str | None, _option("A folder, a .gguf file, a Hugging Face id or smollm2.", "ID", "smollm2")]
Drafters = Annotated[
    list[str] | None,
    _option("What may draft, as for `outrider generate`; repeatable.", "NAME", "what suits the target"),
]
OwnPrompts = Annotated[
    str | None,
    _option(
        'Prompts of your own: JSONL of {"prompt": text} or {"messages": [...]}; a sample of them is decoded.',
        "FILE",
        "twelve of six kinds",
    ),
]
Temperatures = Annotated[list[str] | None, _option("0 (the likeliest token) or more; repeatable.", "X", "0, 0.8")]
Batches = Annotated[list[str] | None, _option("Texts that are decoded together; repeatable.", "N", "1, 4, 16")]
NewTokens = Annotated[str | None, _option("Tokens of each text, 2 or more.", "N", str(DEFAULT_NEW_TOKENS))]
Fresh = Annotated[bool, typer.Option("--fresh", help="Measure anew, whatever is kept of earlier.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output, and no tables.")]
Plot = Annotated[str | None, _option("Draw speed-ups and costs, as .png, .svg, .pdf or .jpg.", "FILE")]
Emit = Annotated[
    str | None, _option("Print a launch command for what is recommended: vllm, sglang, llama.cpp.", "SERVER")
]
Alpha = Annotated[
    str | None,
    _option("Chance that a drafted token is kept, 0 to 1: answer from the formulas, measure nothing.", "X"),
]
CostRatio = Annotated[
    str | None, _option("With --alpha: cost of drafting a token, in forwards of the target; 0 or more.", "X")
]
MaxK = Annotated[str | None, _option("With --alpha: the longest draft of the table.", "N", str(DEFAULT_MAX_K))]


def plan(
    target: Target = None,
    drafter: Drafters = None,
    prompts: OwnPrompts = None,
    temperature: Temperatures = None,
    batch: Batches = None,
    max_new_tokens: NewTokens = None,
    precision: o.Precision = None,
    threads: o.Threads = None,
    fresh: Fresh = False,
    json: Json = False,
    plot: Plot = None,
    emit: Emit = None,
    alpha: Alpha = None,
    cost_ratio: CostRatio = None,
    max_k: MaxK = None,
) -> None:
    """Predict how much faster drafts make a target on this machine, and say what to use, or not to speculate.

    Costs are timed, and rounds are walked on a sample of your prompts. The plan is kept; the same question is answered
    at once. After Ctrl-C what was measured is shown, marked as partial, and kept: the same command goes on with it.
    """
    given, screen = dict(locals()), open_screen()
    with leaving_cleanly(screen, _typed, lambda: "Interrupted; nothing was measured yet."):
        if any(given[name] is not None for name in BY_FORMULA):
            _by_formula(given)
            return
        asked = _asked(given)
        _check_places(given)
        found = _found(given, asked, screen)
        _show(found, given)
    if found.partial:
        typed = shlex.join(["outrider", *(word for word in sys.argv[1:] if word != "--fresh")])
        screen.error(f"Interrupted. What was measured is kept; to go on: {typed}")
        raise typer.Exit(INTERRUPTED)


# ---------------------------------------------------------------- what was typed


def _typed(name: str) -> str:
    """An option's name as users type it."""
    names = {"curve": "plot", "data": "prompts", "slots": "batch"}
    name = names.get(name, name)
    return name if " " in name else "--" + name.replace("_", "-")


def _asked(given: dict[str, Any]) -> Asked:
    """The question; what takes torch to be checked is checked before anything is measured."""
    from outrider.planning.kept import BUILT_IN, Asked, digest

    target = EMBEDDED_NAME if given["target"] is None else given["target"]
    usual = DRAFTERS_OF_EMBEDDED if target == EMBEDDED_NAME else DEFAULT_DRAFTERS
    temperatures = [_real("temperature", typed) for typed in given["temperature"] or ()]
    batches = [_whole("batch", typed, 1) for typed in given["batch"] or ()]
    new_tokens = given["max_new_tokens"]
    return Asked(
        target,
        tuple(dict.fromkeys(given["drafter"] or usual)),
        tuple(dict.fromkeys(temperatures)) or DEFAULT_TEMPERATURES,
        tuple(sorted(set(batches))) or DEFAULT_BATCHES,
        given["precision"] or "auto",
        BUILT_IN if given["prompts"] is None else digest(Path(given["prompts"])),
        DEFAULT_NEW_TOKENS if new_tokens is None else _whole("max_new_tokens", new_tokens, 2),
    )


FIXES = {
    "alpha": "Give the share of drafted tokens that are kept, such as 0.7.",
    "cost_ratio": "Give the time of drafting a token over that of a forward of the target, such as 0.1.",
}


def _real(name: str, typed: str, high: float | None = None) -> float:
    """A number from 0 on, as typed.

    Raises:
        InvalidOption: something else.
    """
    allowed, fix = "0 or more" if high is None else f"0 to {high:g}", FIXES.get(name, "")
    try:
        number = float(typed)
    except ValueError as error:
        raise InvalidOption(name, typed, f"a number, {allowed}", fix) from error
    if not (isfinite(number) and number >= 0 and (high is None or number <= high)):
        raise InvalidOption(name, number, allowed, fix)
    return number


def _whole(name: str, typed: str, low: int, high: int | None = None) -> int:
    allowed = f"a whole number, {low} or more" if high is None else f"a whole number from {low} to {high}"
    try:
        number = int(typed)
    except ValueError as error:
        raise InvalidOption(name, typed, allowed) from error
    if number < low or (high is not None and number > high):
        raise InvalidOption(name, number, allowed)
    return number


def _check_places(given: dict[str, Any]) -> None:
    """Refuse at the start what could not be done in the end.

    Raises:
        InvalidOption: naming the option.
    """
    from outrider.planning.emit import VERSIONS
    from outrider.planning.picture import ENDINGS
    from outrider.training.curve import check_drawing

    if given["emit"] is not None and given["emit"] not in VERSIONS:
        raise InvalidOption("emit", given["emit"], ", ".join(VERSIONS))
    if given["plot"] is not None:
        path = Path(given["plot"])
        check_drawing(path)
        if path.suffix.lower() not in ENDINGS or path.is_dir():
            raise InvalidOption("plot", given["plot"], f"a file that ends in {', '.join(ENDINGS)}")
        if not path.parent.is_dir():
            fix = "Make the folder, or name another."
            raise InvalidOption("plot", given["plot"], "a file in a folder that exists", fix)


# ---------------------------------------------------------------- by the formulas


def _by_formula(given: dict[str, Any]) -> None:
    from outrider.cli.foretold import formula_advice, formula_tables
    from outrider.planning.speedup import RoundCost, emitted, speedups

    for name, value in given.items():
        if value not in (None, False) and name not in WITH_FORMULA:
            raise InvalidOption(name, value, "left out with --alpha", "The formulas measure nothing.")
    for name in ("alpha", "cost_ratio"):
        if given[name] is None:
            raise InvalidOption(name, "missing", "a number", "--alpha and --cost-ratio go together.")
    alpha, cost = _real("alpha", given["alpha"], 1), _real("cost_ratio", given["cost_ratio"])
    longest = DEFAULT_MAX_K if given["max_k"] is None else _whole("max_k", given["max_k"], 1, LONGEST_K)
    if not given["json"]:
        _print(formula_tables(alpha, cost, longest))
        return
    table = [
        {"k": k, "tokens": float(emitted(alpha, k)), "speedup": float(speedup)}
        for k, speedup in enumerate(speedups(alpha, RoundCost(per_token=cost), longest))
    ]
    advice = formula_advice(alpha, cost, longest)
    typer.echo(dumps({"alpha": alpha, "cost_ratio": cost, "table": table, "recommendation": advice}))


# ---------------------------------------------------------------- kept or measured


def _found(given: dict[str, Any], asked: Asked, screen: Screen) -> Plan:
    """The plan that is kept, or one that is measured now."""
    from outrider.planning.kept import Found, find

    threads = o.values(("threads",), given).get("threads")
    kept = Found(None) if given["fresh"] else find(asked, threads)
    if kept.note:
        screen.note(kept.note)
    if kept.plan is not None and not kept.plan.partial:
        return kept.plan
    return _measured(given, asked, threads, kept.plan)


def _measured(given: dict[str, Any], asked: Asked, threads: int | None, begun: Plan | None) -> Plan:
    """Measure until the end or Ctrl-C; every step is kept.

    Raises:
        KeyboardInterrupt: before anything could be said.
    """
    from outrider.cli.progress import watching
    from outrider.planning.kept import keep
    from outrider.planning.measure import measure

    _check(asked, given["prompts"])
    latest = begun
    try:
        with watching() as watcher:
            job = _job(given, asked, threads, watcher.told)
            for latest in measure(job, begun):
                keep(latest, asked)
    except KeyboardInterrupt:
        if latest is None or not latest.cells:
            raise
    assert latest is not None
    return latest


def _check(asked: Asked, prompts: str | None) -> None:
    """Refuse everything that can be refused before a model is loaded.

    Raises:
        InvalidOption: naming the option.
        CheckpointError: there is no such target or draft model.
    """
    from outrider.benching.asked import check_file
    from outrider.options import check_slots
    from outrider.planning.strategy import check

    if prompts is not None:
        check_file(Path(prompts))
    for drafter in asked.drafters:
        check(drafter, asked.target)
        o.check({"target": asked.target, "drafter": drafter, "precision": asked.precision}, {})
    for temperature in asked.temperatures:
        o.check_request({"temperature": temperature}, vocab_size=2**31)
    for batch in asked.batches:
        check_slots(batch)


def _job(given: dict[str, Any], asked: Asked, threads: int | None, told: Told) -> Job:
    """Loads the target."""
    import torch

    from outrider.models.opening import open_model
    from outrider.planning.job import Job
    from outrider.planning.kept import this_machine, this_model

    if threads is not None:
        torch.set_num_threads(threads)
    report = lambda name, done, total: told(f"loading {name}", done, total)  # noqa: E731
    opened = open_model(asked.target, asked.precision, torch.device("cpu"), report)
    texts = _texts(given["prompts"], opened.tokenizer)
    return Job(asked, opened, texts, this_machine(threads), this_model(asked.target, asked.drafters), told)


def _texts(path: str | None, tokenizer: Any) -> tuple[Prompt, ...]:
    """The user's prompts, or those of the package.

    Raises:
        InvalidOption: the file cannot be read, is empty or has broken lines.
    """
    from outrider.benching.asked import built_in
    from outrider.benching.prompts import PROMPTS
    from outrider.planning.job import sampled
    from outrider.planning.walked import Text
    from outrider.training.texts import read_prompts

    if path is not None:
        own = [Text("own", tuple(ids)) for ids in read_prompts(Path(path), tokenizer)]
        return sampled(own, NUM_PROMPTS)
    found = built_in(PROMPTS, PER_KIND, tokenizer)
    return tuple(Text(kind, prompt.ids) for kind, prompts in found.items() for prompt in prompts)


# ---------------------------------------------------------------- what is shown


def _show(found: Plan, given: dict[str, Any]) -> None:
    from outrider.cli.foretold import plan_tables
    from outrider.planning.plan import recommend, to_json

    if given["plot"] is not None:
        from outrider.planning.picture import draw

        draw(found, Path(given["plot"]))
    if given["json"]:
        places = list(dict.fromkeys((cell.temperature, cell.batch) for cell in found.cells))
        advice = [asdict(recommend(found, *place)) for place in places]
        typer.echo(dumps({**loads(to_json(found)), "recommendations": advice}, allow_nan=False))
    else:
        _print(plan_tables(found))
    if given["emit"] is not None:
        _emit(found, given)


def _emit(found: Plan, given: dict[str, Any]) -> None:
    """The command for the first temperature and batch size that were asked for; with --json among the notes."""
    from outrider.planning.emit import emit, header
    from outrider.planning.plan import recommend

    first = found.cells[0]
    advice = recommend(found, first.temperature, first.batch)
    command = emit(found, advice, given["emit"])
    lines = [f"# {header(advice, command)}", *(f"# {note}" for note in command.notes), command.line]
    console = Console(stderr=given["json"])
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def _print(parts: Iterable[Table | Text]) -> None:
    console = Console(markup=False, emoji=False, highlight=False)
    for part in parts:
        console.print(part)
