"""The command `outrider bench`."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import outrider.cli.options as o
from outrider.cli.leaving import INTERRUPTED, leaving_cleanly
from outrider.cli.progress import watching
from outrider.cli.screen import Screen, open_screen
from outrider.errors import InvalidOption

if TYPE_CHECKING:
    from outrider.benching.asked import Prompts
    from outrider.benching.peers import Peer
    from outrider.benching.report import Report
    from outrider.benching.run import Grid
    from outrider.benching.ways import EngineWay, Strategy
    from outrider.models.opening import Opened
    from outrider.planning.plan import Plan
    from outrider.tracing.recording import Tracer

NOTHING_YET = "Interrupted; nothing was measured yet."
ON_STANDARD_OUTPUT = "-"
DEFAULT_DRAFTERS = ("auto", "suffix")
MOST_REPEATS = 10_000
FEWEST_NEW_TOKENS = 2
"""A peer's time of decoding begins with its first token."""


def _option(text: str, metavar: str, default: str | bool = False) -> Any:
    return typer.Option(help=text, metavar=metavar, show_default=default)


Target = Annotated[str, _option("A folder, a .gguf file, a Hugging Face id or smollm2.", "ID", True)]
Drafters = Annotated[
    list[str] | None,
    _option("What is compared with plain decoding, as for `outrider generate`; repeatable.", "NAME", "auto, suffix"),
]
Kinds = Annotated[
    list[str] | None,
    _option("Kind of prompts: chat, summarise, edit, question, maths, code; repeatable.", "NAME", "all"),
]
OwnPrompts = Annotated[
    str | None,
    _option('Prompts of your own instead: JSONL of {"prompt": text} or {"messages": [...]}.', "FILE"),
]
PerKind = Annotated[
    str | None, _option("How many prompts of each kind, 1 to 16, or more of your own.", "N", "10, or the largest batch")
]
Temperatures = Annotated[list[str] | None, _option("0 (the likeliest token) or more; repeatable.", "X", "0, 0.8")]
Batches = Annotated[
    list[str] | None,
    _option("Prompts that are decoded together, 1 to 16, or more of your own; repeatable.", "N", "1"),
]
NewTokens = Annotated[
    str | None, _option("Tokens to make of each prompt, 2 or more; stop tokens do not end a text.", "N", "64")
]
Repeats = Annotated[str | None, _option(f"How often everything is measured, 1 to {MOST_REPEATS:,}.", "N", "1")]
Seed = Annotated[str | None, _option("Of everything that is drawn: 0 to 2^63 - 1.", "N", "0")]
JsonPath = Annotated[str | None, _option("Write all figures and runs as JSON; - for standard output.", "FILE")]
HtmlPath = Annotated[str | None, _option("Write a report with plots, one page that needs nothing else.", "FILE")]
Peers = Annotated[
    bool,
    typer.Option(
        "--peers",
        help="Measure what is installed of transformers, llama.cpp (llama-cpp-python) and OpenVINO GenAI too, on the "
        "same weights and prompts.",
    ),
]
TracePath = Annotated[
    str | None,
    _option("Write every round of all measured runs to a file of JSON lines; `outrider trace` shows it.", "FILE"),
]
PlanFile = Annotated[str | None, _option("A plan of this target, to show beside what is measured.", "FILE")]


def bench(
    target: Target = "smollm2",
    drafter: Drafters = None,
    num_draft_tokens: o.NumDraftTokens = None,
    kind: Kinds = None,
    prompts: OwnPrompts = None,
    prompts_per_kind: PerKind = None,
    temperature: Temperatures = None,
    batch: Batches = None,
    max_new_tokens: NewTokens = None,
    repeats: Repeats = None,
    seed: Seed = None,
    precision: o.Precision = None,
    threads: o.Threads = None,
    peers: Peers = False,
    plan: PlanFile = None,
    json: JsonPath = None,
    html: HtmlPath = None,
    trace: TracePath = None,
) -> None:
    """Measure how much faster drafters are than plain decoding, on six kinds of prompts.

    All take turns in one process. Ctrl-C ends the run; what was measured until then is shown and written, marked as
    partial.
    """
    given, screen = dict(locals()), open_screen()
    with leaving_cleanly(screen, _typed, lambda: NOTHING_YET), ExitStack() as at_end:
        report = _measured(_read(given), screen, at_end)
        if not report.outcome.runs:
            raise KeyboardInterrupt
        _show(report, to_notes=json == ON_STANDARD_OUTPUT)
        _write(report, json, html)
    if report.outcome.partial:
        raise typer.Exit(INTERRUPTED)


# ---------------------------------------------------------------- what was typed


@dataclass(frozen=True)
class _Asked:
    target: str
    precision: str
    threads: int | None
    strategies: list[Strategy]
    grid: Grid
    kinds: list[str]
    own_prompts: Path | None
    per_kind: int | None
    peers: bool
    plan: Plan | None
    trace: str | None


def _read(given: dict[str, Any]) -> _Asked:
    """Everything that can be refused before a model is loaded is refused here.

    Raises:
        InvalidOption: naming the option, its value and what is allowed.
        CheckpointError: there is no such target or draft model.
    """
    from outrider.benching.foretelling import check_here, read_plan
    from outrider.benching.ways import strategies

    values = o.values(("num_draft_tokens", "precision", "threads", "seed"), given)
    per_kind = None if given["prompts_per_kind"] is None else _whole("prompts_per_kind", given["prompts_per_kind"])
    grid = _grid(given, values.get("seed", 0))
    drafters, k = list(given["drafter"] or DEFAULT_DRAFTERS), values.get("num_draft_tokens", "auto")
    _check(given, drafters, values)
    _check_places(given)
    kinds, per_kind = _prompts(given, per_kind, grid)
    plan = None if given["plan"] is None else read_plan(Path(given["plan"]))
    if plan is not None:
        check_here(plan, given["target"], values.get("threads"))
    return _Asked(
        given["target"],
        values.get("precision", "auto"),
        values.get("threads"),
        strategies(drafters, given["target"], k),
        grid,
        kinds,
        None if given["prompts"] is None else Path(given["prompts"]),
        per_kind,
        given["peers"],
        plan,
        given["trace"],
    )


def _whole(name: str, typed: str, low: int = 1, high: int | None = None) -> int:
    allowed = f"a whole number, {low} or more" if high is None else f"a whole number from {low} to {high}"
    try:
        number = int(typed)
    except ValueError as error:
        raise InvalidOption(name, typed, allowed) from error
    if number < low or (high is not None and number > high):
        raise InvalidOption(name, number, allowed)
    return number


def _grid(given: dict[str, Any], seed: int) -> Grid:
    from outrider.benching.run import Grid
    from outrider.options import check_slots

    grid = Grid(seed=seed)
    batches = tuple(_whole("batch", typed) for typed in given["batch"] or ()) or grid.batches
    for size in batches:
        check_slots(size)
    temperatures = [o.values(("temperature",), {"temperature": typed}) for typed in given["temperature"] or ()]
    for each in temperatures:
        o.check_request(each, vocab_size=2**31)
    if given["peers"] and 1 not in batches:
        raise InvalidOption("batch", list(batches), "1 among them with --peers", "They decode one prompt at a time.")
    new_tokens, repeats = given["max_new_tokens"], given["repeats"]
    return Grid(
        tuple(dict.fromkeys(each["temperature"] for each in temperatures)) or grid.temperatures,
        tuple(dict.fromkeys(batches)),
        grid.max_new_tokens if new_tokens is None else _whole("max_new_tokens", new_tokens, FEWEST_NEW_TOKENS),
        grid.repeats if repeats is None else _whole("repeats", repeats, high=MOST_REPEATS),
        seed,
    )


def _check(given: dict[str, Any], drafters: list[str], values: dict[str, Any]) -> None:
    for drafter in drafters:
        if drafter == "none":
            raise InvalidOption("drafter", drafter, "any other", "Plain decoding is always measured.")
        o.check({"target": given["target"], "drafter": drafter, **values}, {})


def _prompts(given: dict[str, Any], per_kind: int | None, grid: Grid) -> tuple[list[str], int | None]:
    """Kinds of the package's own prompts, [] with a user's; and how many of each, None for all that the user has."""
    from outrider.benching.asked import check_built_in, check_file
    from outrider.benching.prompts import PROMPTS

    kinds = list(dict.fromkeys(given["kind"] or ()))
    if given["prompts"] is None:
        return kinds or list(PROMPTS), check_built_in(kinds or PROMPTS, per_kind, grid.batches)
    if kinds:
        raise InvalidOption("kind", kinds[0], "left out with --prompts", "They are all of one kind.")
    check_file(Path(given["prompts"]))
    return [], per_kind


def _check_places(given: dict[str, Any]) -> None:
    from outrider.benching.report import check_place

    places: dict[str, str] = {}
    for name in ("json", "html", "trace"):
        place = given[name]
        if place in places:
            raise InvalidOption(name, place, f"another file than --{places[place]}", "One would overwrite the other.")
        if place is not None:
            places[place] = name
        if place is not None and (name, place) != ("json", ON_STANDARD_OUTPUT):
            check_place(name, Path(place))


def _typed(name: str) -> str:
    return "--" + name.replace("_", "-")


# ---------------------------------------------------------------- the run


def _measured(asked: _Asked, screen: Screen, at_end: ExitStack) -> Report:
    import torch

    from outrider.benching import asked as prompts_of
    from outrider.loading import DEFAULT_CONTEXT
    from outrider.models.opening import open_model

    if asked.threads is not None:
        torch.set_num_threads(asked.threads)
    with screen.loading() as progress:
        opened = open_model(asked.target, asked.precision, torch.device("cpu"), progress)
        if asked.own_prompts is None:
            prompts = prompts_of.built_in(asked.kinds, asked.per_kind, opened.tokenizer)
        else:
            prompts = prompts_of.from_file(asked.own_prompts, asked.per_kind, opened.tokenizer)
        context = min(opened.model.context_length, DEFAULT_CONTEXT)
        prompts_of.check_lengths(prompts, asked.grid.max_new_tokens, context)
        longest = max(len(prompt.ids) for own in prompts.values() for prompt in own) + asked.grid.max_new_tokens
        ways, peers = _ways(asked, opened, longest), list[Any]()
        if asked.peers:
            peers = _opened_peers(asked, opened, longest, lambda name: progress(name, 0, 1))
    tracer = None
    if asked.trace is not None:
        from outrider.tracing.benched import trace_bench

        traced = trace_bench(asked.trace, asked.target, asked.grid, prompts, ways, opened.tokenizer.decode)
        tracer = at_end.enter_context(traced)
    return _run(asked, opened, prompts, ways, peers, tracer)


def _ways(asked: _Asked, opened: Opened, context: int) -> list[EngineWay]:
    from outrider.benching.foretelling import check_precision
    from outrider.benching.ways import NO_DRAFTER, EngineWay, Strategy, engine_of

    if asked.plan is not None:
        check_precision(asked.plan, opened.model.precision)
    slots = max(asked.grid.batches)
    return [
        EngineWay(each.name, engine_of(each, opened, slots, context))
        for each in (Strategy(NO_DRAFTER), *asked.strategies)
    ]


def _opened_peers(asked: _Asked, opened: Opened, context: int, told: Any) -> list[Peer]:
    import torch

    from outrider.benching.peers import Source, open_peers
    from outrider.loading import parse_drafter
    from outrider.models.locate import locate

    choices = [choice for each in asked.strategies for choice in parse_drafter(each.drafter)]
    draft = next((choice.argument for choice in choices if choice.entry.name == "model"), None)
    return open_peers(Source(locate(asked.target), opened, context, torch.get_num_threads(), draft), told)


def _run(
    asked: _Asked,
    opened: Opened,
    prompts: Prompts,
    ways: list[EngineWay],
    peers: list[Peer],
    tracer: Tracer | None,
) -> Report:
    from outrider.benching.foretelling import with_plan
    from outrider.benching.provenance import provenance
    from outrider.benching.report import Report, figures_of, share_after_end
    from outrider.benching.run import measure
    from outrider.planning.costs import verify_cost
    from outrider.tracing.benched import without_warm_up

    cost = verify_cost(opened.model, max(asked.grid.batches))
    ready = [peer.way for peer in peers if peer.way is not None]
    with watching() as watcher:
        outcome = measure([*ways, *ready], prompts, asked.grid, without_warm_up(tracer, watcher.told))
    if tracer is not None:
        tracer.stopped = outcome.partial
    cells = figures_of(outcome, asked.grid, cost)
    if asked.plan is not None:
        cells = with_plan(cells, asked.plan, asked.strategies, list(prompts), asked.target)
    return Report(
        asked.target,
        opened.model.precision,
        tuple(asked.strategies),
        prompts,
        asked.grid,
        outcome,
        cells,
        provenance(["outrider", *sys.argv[1:]], opened.model),
        tuple(peers),
        share_after_end(outcome.runs, opened.tokenizer.stop_ids),
    )


# ---------------------------------------------------------------- what came of it


def _show(report: Report, *, to_notes: bool) -> None:
    """The tables go where the JSON object does not."""
    from rich.console import Console
    from rich.text import Text

    from outrider.benching.tables import tables
    from outrider.text import visible

    console = Console(stderr=to_notes, markup=False, emoji=False, highlight=False)
    for content in tables(report):
        console.print(Text(visible(content)) if isinstance(content, str) else content)


def _write(report: Report, json: str | None, html: str | None) -> None:
    """Both files, even if one of them cannot be written."""
    from outrider.benching.page import as_page
    from outrider.benching.report import as_json, write

    failures = []
    for name, place, made in (("json", json, as_json), ("html", html, as_page)):
        if (name, place) == ("json", ON_STANDARD_OUTPUT):
            typer.echo(made(report))
        elif place is not None:
            try:
                write(name, Path(place), made(report))
            except InvalidOption as error:
                failures.append(error)
    if failures:
        raise failures[0]
