"""The commands `outrider generate` and `outrider chat`."""

from __future__ import annotations

import inspect
import io
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import outrider.cli.options as o
from outrider.cli.later import Commands
from outrider.cli.leaving import INTERRUPTED, USER_ERROR, leaving_cleanly
from outrider.cli.screen import Screen, open_screen
from outrider.errors import DrafterWarning, InvalidOption
from outrider.text import visible

if TYPE_CHECKING:
    from outrider.cli.runs import Comparison
    from outrider.generation import Result, TextEngine
    from outrider.tracing.recording import Tracer

# Without typer's pretty tracebacks: they print the values of variables, prompts among them.
app = typer.Typer(cls=Commands, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


def main() -> None:
    """The console script."""
    warnings.showwarning = _show_warning
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 is no reason to fail
    app(prog_name="outrider")


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Of a Python warning the message alone, and only if it is ours: a user has no use for the line of code."""
    if isinstance(message, DrafterWarning):
        typer.echo(f"Warning: {visible(str(message))}", err=True)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"outrider {version('outrider')}")
        raise typer.Exit


@app.callback()
def _outrider(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Exact speculative decoding: the text of the target alone, with fewer forwards of it."""


@app.command()
def generate(
    prompt: o.Prompt = None,
    prompt_file: o.PromptFile = None,
    system: o.System = None,
    raw: o.Raw = False,
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
    max_new_tokens: o.MaxNewTokens = None,
    min_new_tokens: o.MinNewTokens = None,
    temperature: o.Temperature = None,
    top_k: o.TopK = None,
    top_p: o.TopP = None,
    min_p: o.MinP = None,
    repetition_penalty: o.RepetitionPenalty = None,
    presence_penalty: o.PresencePenalty = None,
    frequency_penalty: o.FrequencyPenalty = None,
    seed: o.Seed = None,
    stop: o.Stop = None,
    prediction: o.Prediction = None,
    compare: o.Compare = False,
    json: o.Json = False,
    trace: o.Trace = None,
    quiet: o.Quiet = False,
) -> None:
    """Answer or continue one prompt.

    The text streams to standard output, everything else goes to standard error.
    Control characters in the text are shown as \\x1b and the like; --json has them.
    """
    given = dict(locals())  # every option by its name
    screen = open_screen(quiet=quiet, json=json)
    with leaving_cleanly(screen, _typed):
        _check_output(given)
        text = o.read_prompt(prompt, prompt_file)
        model, request = _requested(given)
        engine, opening = _load(screen, model, request, system), o.system_message(system)
        if opening:
            request["messages"] = [*opening, {"role": "user", "content": text}]
        else:
            request |= {"prompt": text, "raw": raw}
        with _tracer(given, engine, request) as tracer:
            code = answer(engine, screen, request, compare=compare, json=json, tracer=tracer)
        raise typer.Exit(code)


@app.command()
def chat(
    system: o.System = None,
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
    max_new_tokens: o.MaxNewTokens = None,
    min_new_tokens: o.MinNewTokens = None,
    temperature: o.Temperature = None,
    top_k: o.TopK = None,
    top_p: o.TopP = None,
    min_p: o.MinP = None,
    repetition_penalty: o.RepetitionPenalty = None,
    presence_penalty: o.PresencePenalty = None,
    frequency_penalty: o.FrequencyPenalty = None,
    seed: o.Seed = None,
    stop: o.Stop = None,
    quiet: o.QuietChat = False,
) -> None:
    """Talk to the model, or answer the lines of a pipe one by one.

    /reset forgets the conversation, /stats shows the counts so far, /exit or Ctrl-D ends.
    Ctrl-C stops an answer; what there is of it stays in the conversation.
    """
    given = dict(locals())  # every option by its name
    screen = open_screen(quiet=quiet)
    with leaving_cleanly(screen, _typed):
        model, request = _requested(given)
        engine = _load(screen, model, request, system)
        if engine.tokenizer.chat_template is None:
            fix = "Use outrider generate --raw."
            raise InvalidOption("target", target or "smollm2", "a model with a chat template", fix)
        from outrider.cli.chat import Chat

        Chat(engine, screen, request, o.system_message(system)).run()


@app.command()
def drafters() -> None:
    """List what can propose tokens: what each needs, what it costs, when it helps, and its options."""
    from rich.console import Console

    from outrider.cli.listing import drafters_table

    Console().print(drafters_table())


# ---------------------------------------------------------------- steps of the commands


def _check_output(given: dict[str, Any]) -> None:
    if given["raw"] and given["system"] is not None:
        raise InvalidOption("raw", True, "no --raw with --system", "A system message needs the chat template.")
    if given["compare"] and given["quiet"] and not given["json"]:
        raise InvalidOption("quiet", True, "no --quiet with --compare", "Add --json, or the comparison is not shown.")
    if given["trace"] is not None:
        from outrider.benching.report import check_place

        check_place("trace", Path(given["trace"]))


def _requested(given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments for `outrider.load` and for `TextEngine.add`; what was not given is left to them, but for the seed."""
    import secrets

    model, request = o.values(o.MODEL_OPTIONS, given), o.values(o.TEXT_OPTIONS, given)
    if given.get("prediction") is not None:
        request["prediction"] = o.read_text("prediction", given["prediction"])
    request.setdefault("seed", secrets.randbits(63))  # drawn here: a plain and a speculative run need the same one
    return model, request


def _load(screen: Screen, model: dict[str, Any], request: dict[str, Any], system: str | None) -> TextEngine:
    with screen.loading() as progress:
        o.check(model, request, system)
        from outrider.loading import load

        engine = load(slots=1, progress=progress, **model)
        o.check_request(request, engine.engine.target.vocab_size)
    rule, drafter = engine.engine.rule, engine.engine.drafter
    if not rule.lossless:
        screen.warn(f"rule {rule.name} is LOSSY: the text does not have the law of the target.")
        screen.note("The table at the end has the measured distance between the two.")
    if request.get("temperature", 0) > 0:
        screen.note(f"Seed: {request['seed']}")
    if drafter.name != "none":
        screen.legend()
    return engine


@contextmanager
def _tracer(given: dict[str, Any], engine: TextEngine, request: dict[str, Any]) -> Iterator[Tracer | None]:
    """The trace that is wanted, if one is."""
    if given["trace"] is None:
        yield None
        return
    from outrider.models.locate import EMBEDDED_NAME
    from outrider.tracing.lines import header
    from outrider.tracing.recording import Tracer

    sampling = {name: value for name, value in request.items() if name in o.REAL or name in ("top_k", "min_new_tokens")}
    named = {"target": given["target"] or EMBEDDED_NAME, "drafter": given["drafter"] or "auto"}
    with Tracer(given["trace"], header(engine.engine, **named, sampling=sampling, seed=request["seed"])) as tracer:
        yield tracer


def answer(
    engine: TextEngine,
    screen: Screen,
    request: dict[str, Any],
    *,
    compare: bool = False,
    json: bool = False,
    tracer: Tracer | None = None,
) -> int:
    """Decode one request, show its text and what happened, and print the JSON object if it is wanted.

    Args:
        engine: decodes.
        screen: shows.
        request: arguments of `TextEngine.add`.
        compare: decode plainly first.
        json: print the object of `report.as_json`.
        tracer: writes the run down, but not the plain one.

    Returns:
        The exit code: 0, 2 if decoding failed, 130 after Ctrl-C.
    """
    decoded = _compare(engine, screen, request, tracer) if compare else (_decode(engine, screen, request, tracer), None)
    result, comparison = decoded
    _report(engine, screen, result, comparison)
    if json:
        from outrider.cli.report import as_json

        typer.echo(as_json(result, comparison))
    return {"cancelled": INTERRUPTED, "error": USER_ERROR}.get(result.finish_reason, 0)


def _decode(engine: TextEngine, screen: Screen, request: dict[str, Any], tracer: Tracer | None) -> Result:
    from outrider.cli.runs import decode

    with nullcontext() if tracer is None else tracer.following(engine.engine, engine.tokenizer.decode):
        return decode(engine, engine.add(**request), screen.token).result


def _compare(
    engine: TextEngine, screen: Screen, request: dict[str, Any], tracer: Tracer | None
) -> tuple[Result, Comparison]:
    """Plainly, then speculatively; if the plain run does not end by itself, it is the result."""
    from outrider.cli.runs import Comparison, decode, plain_twin, warm_up

    plain = plain_twin(engine)
    sequence = plain.add(**request)  # first of all, for it refuses a bad request
    plain.cancel(sequence)
    screen.note("Warming up with a few tokens ...")
    for each in (plain, engine):
        warm_up(each, sequence.tokens[-1])
    screen.note("Plain decoding:")
    base = decode(plain, plain.add(**request), screen.plain_token).result
    if base.finish_reason not in ("stop", "length"):
        screen.end_text()
        screen.token(base.text)
        return base, Comparison(base, None, sequence.sampling.temperature)
    screen.note("Speculative decoding:")
    result = _decode(engine, screen, request, tracer)
    return result, Comparison(base, result, sequence.sampling.temperature)


def _report(engine: TextEngine, screen: Screen, result: Result, comparison: Comparison | None) -> None:
    """Close the text; then how it ended, the tables, and what went wrong."""
    from outrider.cli.report import ending, problems, tables, verdict

    screen.end_text()
    if ending(result):
        screen.note(ending(result))
    beside = comparison.plain.stats if comparison and comparison.speculative else None
    for table in tables(result.stats, beside):
        screen.note(table)
    if comparison is not None:
        screen.note(verdict(comparison, invariant=engine.engine.invariant))
    for problem in problems(result.stats):
        screen.warn(problem)
    if result.error is not None:
        screen.error(str(result.error))


def _typed(name: str) -> str:
    """An option's name as users type it."""
    if name == "prompt" or name not in inspect.signature(generate).parameters:
        return name
    return "--" + name.replace("_", "-")
