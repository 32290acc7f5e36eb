"""The command `outrider certify`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import outrider.cli.options as o
from outrider.cli.leaving import leaving_cleanly
from outrider.cli.progress import watching
from outrider.cli.screen import Screen, open_screen
from outrider.errors import InvalidOption

if TYPE_CHECKING:
    from outrider.certifying.certificate import Certificate
    from outrider.generation import TextEngine

NOT_CERTIFIED = 1
ON_STANDARD_OUTPUT = "-"
SLOTS = 8
DEFAULT_TEMPERATURE = 1.0
KINDS = ("edit", "code", "summarise", "chat")
"""Of the package's own prompts: on some of them every drafter drafts."""

PER_KIND = 2
LAW = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


def _option(text: str, metavar: str, default: str | bool = False) -> Any:
    return typer.Option(help=text, metavar=metavar, show_default=default)


OwnPrompts = Annotated[
    str | None,
    _option(
        'Your own prompts: JSONL of {"prompt": text} or {"messages": [...]}.',
        "FILE",
        "eight of four kinds, four with --quick",
    ),
]
Temperature = Annotated[str | None, _option("0 (the likeliest token) or more.", "X", "1.0")]
Seed = Annotated[str | None, _option("Of everything that is drawn: 0 to 2^63 - 1.", "N", "0")]
Quick = Annotated[bool, typer.Option("--quick", help="About a minute on smollm2: fewer samples.")]
Samples = Annotated[str | None, _option("Tokens of the long run, 100 or more.", "N", "8000, or 1600 with --quick")]
Distance = Annotated[
    str | None,
    _option("Total variation that the tier small must exclude, 0 to 1.", "X", "0.08, or 0.15 with --quick"),
]
Confidence = Annotated[str | None, _option("Of that, 0 to 1.", "P", "0.9999")]
JsonPath = Annotated[str | None, _option("Write the certificate as JSON; - for standard output.", "FILE")]
HtmlPath = Annotated[str | None, _option("Write it as one page that needs nothing else.", "FILE")]


def certify(
    target: o.Target = None,
    drafter: o.Drafter = None,
    corpus: o.Corpus = None,
    num_draft_tokens: o.NumDraftTokens = None,
    rule: o.Rule = None,
    allow_lossy: o.AllowLossy = False,
    precision: o.Precision = None,
    context_length: o.ContextLength = None,
    threads: o.Threads = None,
    invariant: o.Invariant = False,
    temperature: Temperature = None,
    top_k: o.TopK = None,
    top_p: o.TopP = None,
    min_p: o.MinP = None,
    repetition_penalty: o.RepetitionPenalty = None,
    presence_penalty: o.PresencePenalty = None,
    frequency_penalty: o.FrequencyPenalty = None,
    prompts: OwnPrompts = None,
    seed: Seed = None,
    quick: Quick = False,
    samples: Samples = None,
    distance: Distance = None,
    confidence: Confidence = None,
    json: JsonPath = None,
    html: HtmlPath = None,
) -> None:
    """Test whether speculation keeps the law of your target: with your drafter, rule and settings, on your prompts.

    Five tiers, each with a fault that is planted on purpose and must be found. Exit code 0: certified; 1: not, and why;
    2: something was asked that cannot be.
    """
    given, screen = dict(locals()), open_screen()
    with leaving_cleanly(screen, lambda name: "--" + name.replace("_", "-")):
        certificate = _certified(_read(given), screen)
        _show(certificate, to_notes=json == ON_STANDARD_OUTPUT)
        _write(certificate, json, html)
    if not certificate.certified:
        raise typer.Exit(NOT_CERTIFIED)


@dataclass(frozen=True)
class _Asked:
    model: dict[str, Any]
    law: dict[str, Any]
    seed: int
    effort: dict[str, Any]
    prompts: Path | None


def _read(given: dict[str, Any]) -> _Asked:
    """Everything that can be refused before a model is loaded is refused here.

    Raises:
        InvalidOption: naming the option, its value and what is allowed.
        CheckpointError: there is no such target or draft model.
    """
    from outrider.benching.asked import check_file
    from outrider.certifying.run import effort_of

    model, law = o.values(o.MODEL_OPTIONS, given), o.values(LAW, given)
    law.setdefault("temperature", DEFAULT_TEMPERATURE)
    o.check(model, law)
    effort = {
        "quick": given["quick"],
        "samples": None if given["samples"] is None else _number("samples", given["samples"], int),
        "distance": None if given["distance"] is None else _number("distance", given["distance"], float),
        "confidence": None if given["confidence"] is None else _number("confidence", given["confidence"], float),
    }
    effort_of(**effort, temperature=law["temperature"])
    _check_places(given)
    if given["prompts"] is not None:
        check_file(Path(given["prompts"]))
    seed = o.values(("seed",), given).get("seed", 0)
    return _Asked(model, law, seed, effort, None if given["prompts"] is None else Path(given["prompts"]))


def _number(name: str, typed: str, kind: type) -> Any:
    try:
        return kind(typed)
    except ValueError as error:
        raise InvalidOption(name, typed, "a whole number" if kind is int else "a number, such as 0.05") from error


def _check_places(given: dict[str, Any]) -> None:
    from outrider.benching.report import check_place

    if given["json"] is not None and given["json"] == given["html"]:
        raise InvalidOption("html", given["html"], "another file than --json", "One would overwrite the other.")
    for name in ("json", "html"):
        if given[name] is not None and (name, given[name]) != ("json", ON_STANDARD_OUTPUT):
            check_place(name, Path(given[name]))


def _certified(asked: _Asked, screen: Screen) -> Certificate:
    from outrider.benching.provenance import provenance
    from outrider.certifying import certify as run
    from outrider.loading import load
    from outrider.options import Sampling

    with screen.loading() as progress:
        engine = load(slots=SLOTS, progress=progress, **asked.model)
        o.check_request(asked.law, engine.engine.target.vocab_size)
        prompts = _prompts(asked, engine)
    with watching() as watcher:
        return run(
            engine,
            prompts,
            sampling=Sampling(**asked.law),
            seed=asked.seed,
            told=watcher.told,
            provenance={
                "target": asked.model.get("target", "smollm2"),
                **provenance(["outrider", *sys.argv[1:]], engine.engine.target),
            },
            **asked.effort,
        )


def _prompts(asked: _Asked, engine: TextEngine) -> list[tuple[int, ...]]:
    from outrider.benching import asked as prompts_of

    if asked.prompts is None:
        found = prompts_of.built_in(KINDS, 1 if asked.effort["quick"] else PER_KIND, engine.tokenizer)
    else:
        found = prompts_of.from_file(asked.prompts, None, engine.tokenizer)
    return [prompt.ids for own in found.values() for prompt in own]


def _show(certificate: Certificate, *, to_notes: bool) -> None:
    """The tables go where the JSON object does not."""
    from rich.console import Console

    from outrider.certifying.tables import contents

    console = Console(stderr=to_notes, markup=False, emoji=False, highlight=False)
    for content in contents(certificate):
        console.print(content)


def _write(certificate: Certificate, json: str | None, html: str | None) -> None:
    """Both files, even if one of them cannot be written."""
    from outrider.benching.report import write
    from outrider.certifying.page import as_page

    failures = []
    for name, place, made in (("json", json, certificate.as_json), ("html", html, lambda: as_page(certificate))):
        if (name, place) == ("json", ON_STANDARD_OUTPUT):
            typer.echo(made())
        elif place is not None:
            try:
                write(name, Path(place), made())
            except InvalidOption as error:
                failures.append(error)
    if failures:
        raise failures[0]
