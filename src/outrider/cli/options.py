"""What users may type: the options of the commands, the prompt, and the checks that need no model.

Numbers are read here rather than by typer, whose messages do not name what was typed. An option that is not given is
None and stays the library's default; the help repeats that default in words.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from outrider.errors import InvalidOption

if TYPE_CHECKING:
    from outrider.drafters.catalogue import Choice

EXAMPLE = 'outrider generate "Name three fruits."'


def _option(panel: str | None, text: str, default: str | None = None, **more: Any) -> Any:
    """An option with a help text, under a heading, whose default is the library's."""
    return Option(help=text, show_default=default or False, rich_help_panel=panel, **more)


def _flag(name: str, panel: str | None, text: str) -> Any:
    return Option(name, help=text, rich_help_panel=panel)


Prompt = Annotated[
    str | None, Argument(help="A message to the model; if missing, --prompt-file or piped input.", show_default=False)
]
PromptFile = Annotated[
    str | None,
    _option(
        None, "Read the prompt from a UTF-8 file, - for standard input; one final line end is cut.", metavar="FILE"
    ),
]
System = Annotated[str | None, _option(None, "A system message before everything else.", metavar="TEXT")]
Raw = Annotated[bool, _flag("--raw", None, "Continue the prompt as it is, without the chat template.")]

MODEL = "Model and drafter"
Target = Annotated[
    str | None, _option(MODEL, "A folder, a .gguf file, a Hugging Face id or smollm2.", "smollm2", metavar="ID")
]
Drafter = Annotated[
    str | None,
    _option(
        MODEL,
        "What proposes tokens: none, ngram, suffix, lookahead, recycling, early-exit:LAYERS, quantised, model:ID "
        "(ID as for --target), several joined by +, auto. `outrider drafters` tells more.",
        "auto",
        metavar="NAME",
    ),
]
NumDraftTokens = Annotated[
    str | None, _option(MODEL, "Most tokens to draft per round: 0 to 64, auto.", "auto", metavar="N")
]
Corpus = Annotated[
    list[str] | None,
    _option(MODEL, "A text file for the suffix drafter to look things up in; repeatable.", metavar="FILE"),
]
Rule = Annotated[
    str | None,
    _option(
        MODEL,
        "How drafts are verified: token, block, recursive, traversal, point-mass, coupled, typical (lossy), auto.",
        "auto",
        metavar="NAME",
    ),
]
AllowLossy = Annotated[
    bool, _flag("--allow-lossy", MODEL, "Accept a rule whose text does not have the law of the target.")
]
Precision = Annotated[
    str | None,
    _option(
        MODEL,
        "float32, bfloat16, float16, q4, or auto: the fastest that is close to float32.",
        "auto",
        metavar="NAME",
    ),
]
ContextLength = Annotated[
    str | None, _option(MODEL, "Tokens of prompt and text together.", "the target's own", metavar="N")
]
Threads = Annotated[str | None, _option(MODEL, "CPU threads, 1 or more.", "torch's choice", metavar="N")]
Invariant = Annotated[
    bool,
    _flag("--invariant", MODEL, "Fixed-width forwards: equal bits plainly and speculatively, but slower."),
]

TEXT = "Text"
MaxNewTokens = Annotated[str | None, _option(TEXT, "Most tokens to make, 1 or more.", "256", metavar="N")]
MinNewTokens = Annotated[str | None, _option(TEXT, "No end before so many tokens, but for --stop.", "0", metavar="N")]
Temperature = Annotated[str | None, _option(TEXT, "0 (the likeliest token) or more.", "0.0", metavar="X")]
TopK = Annotated[str | None, _option(TEXT, "Keep the K likeliest tokens, 1 or more.", "all", metavar="K")]
TopP = Annotated[
    str | None,
    _option(TEXT, "Keep the fewest likeliest tokens with this mass, above 0 to 1.", "1.0", metavar="P"),
]
MinP = Annotated[
    str | None,
    _option(TEXT, "Drop tokens below P times the largest probability, 0 to 1.", "0.0", metavar="P"),
]
RepetitionPenalty = Annotated[
    str | None,
    _option(TEXT, "Divides the logits of tokens in prompt or text, above 0.", "1.0", metavar="X"),
]
PresencePenalty = Annotated[
    str | None, _option(TEXT, "Taken off the logit of every token in the text.", "0.0", metavar="X")
]
FrequencyPenalty = Annotated[str | None, _option(TEXT, "The same for each time it occurs.", "0.0", metavar="X")]
Seed = Annotated[
    str | None,
    _option(TEXT, "Repeats a sampled text: 0 to 2^63 - 1.", "a fresh one", metavar="N"),
]
Stop = Annotated[list[str] | None, _option(TEXT, "End just before this text; repeatable.", metavar="TEXT")]

Prediction = Annotated[
    str | None,
    _option(TEXT, "A text file that the output will mostly repeat; the suffix drafter looks it up.", metavar="FILE"),
]

OUTPUT = "Output"
Compare = Annotated[
    bool,
    _flag("--compare", OUTPUT, "Decode plainly first; report the speed-up and whether the tokens are equal."),
]
Json = Annotated[
    bool,
    _flag("--json", OUTPUT, "Print one JSON object on standard output; the text streams to standard error."),
]
Trace = Annotated[
    str | None,
    _option(
        OUTPUT, "Write every round, node by node, to a file of JSON lines; `outrider trace` shows it.", metavar="FILE"
    ),
]
Quiet = Annotated[bool, _flag("--quiet", OUTPUT, "Print the text alone, or the JSON object alone.")]
QuietChat = Annotated[bool, _flag("--quiet", OUTPUT, "Print the answers alone.")]

MODEL_OPTIONS = (
    "target",
    "drafter",
    "corpus",
    "num_draft_tokens",
    "rule",
    "allow_lossy",
    "precision",
    "context_length",
    "threads",
    "invariant",
)
"""Options that are arguments of `outrider.load`."""

TEXT_OPTIONS = (
    "max_new_tokens",
    "min_new_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
)
"""Options that are arguments of `TextEngine.add`."""


LARGEST_TEXT = 1 << 26
"""Bytes of a prompt or a prediction; a device has no end."""

WHOLE = {
    "num_draft_tokens": (0, 64),
    "context_length": (2, None),
    "threads": (1, None),
    "max_new_tokens": (1, None),
    "min_new_tokens": (0, None),
    "top_k": (1, None),
    "seed": (0, 2**63 - 1),
}
"""Options that are whole numbers, with the smallest and the largest."""

REAL = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
"""Options that are other numbers; `options.validate` knows their ranges."""


def values(names: tuple[str, ...], typed: Mapping[str, Any]) -> dict[str, Any]:
    """The options among `names` that were given, numbers read.

    Raises:
        InvalidOption: something else where a number belongs, or a whole number out of range.
    """
    return {name: _value(name, typed[name]) for name in names if typed[name] is not None}


def _value(name: str, typed: Any) -> Any:
    if name in REAL:
        try:
            return float(typed)
        except ValueError as error:
            raise InvalidOption(name, typed, "a number, such as 0.7") from error
    return _whole(name, typed) if name in WHOLE else typed


def _whole(name: str, typed: str) -> int | str:
    if name == "num_draft_tokens" and typed == "auto":
        return typed
    low, high = WHOLE[name]
    allowed = f"a whole number, {low} or more" if high is None else f"a whole number from {low} to {high}"
    allowed += ", or auto" if name == "num_draft_tokens" else ""
    try:
        number = int(typed)
    except ValueError as error:
        raise InvalidOption(name, typed, allowed) from error
    if not low <= number <= (number if high is None else high):
        raise InvalidOption(name, number, allowed)
    return number


def system_message(text: str | None) -> list[dict[str, str]]:
    """The conversation that a system message opens; [] without one."""
    return [] if text is None else [{"role": "system", "content": text}]


# ---------------------------------------------------------------- the prompt


def read_prompt(prompt: str | None, prompt_file: str | None) -> str:
    """The text to continue: the argument, a file, or what is piped in.

    Raises:
        InvalidOption: there is none, there are two, or it cannot be read as text.
    """
    if prompt is not None and prompt_file is not None:
        raise InvalidOption("prompt", prompt, "one prompt only", "Leave out the argument or --prompt-file.")
    if prompt is not None:
        return _checked("prompt", prompt)
    if prompt_file is not None and prompt_file != "-":
        return read_text("prompt_file", prompt_file)
    terminal = sys.stdin is None or (prompt_file is None and sys.stdin.isatty())
    if terminal:
        raise InvalidOption("prompt", "missing", "an argument, --prompt-file or piped input", f"Try: {EXAMPLE}")
    return _decoded("prompt", "standard input", sys.stdin.buffer.read(LARGEST_TEXT + 1))


def read_text(option: str, name: str) -> str:
    """The text of a UTF-8 file that an option names.

    Raises:
        InvalidOption: it cannot be read as text.
    """
    try:
        with Path(name).open("rb") as file:
            data = file.read(LARGEST_TEXT + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        allowed = "a text file, or - for standard input" if option == "prompt_file" else "a text file"
        raise InvalidOption(option, name, allowed, f"{reason}.") from error
    return _decoded(option, name, data)


def _decoded(name: str, source: str, data: bytes) -> str:
    if len(data) > LARGEST_TEXT:
        raise InvalidOption(name, source, f"at most {LARGEST_TEXT:,} bytes of text", "No context is so long.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        fix = f"It is not text from byte {error.start} on."
        raise InvalidOption(name, source, "UTF-8 text", fix) from error
    if "\0" in text:
        raise InvalidOption(name, source, "UTF-8 text", f"It looks binary: byte {data.index(0)} is 0.")
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        fix = "It is empty." + (f" Try: {EXAMPLE}" if name == "prompt" else "")
        raise InvalidOption(name, source, "at least one character of text", fix)
    return text


def _checked(name: str, text: str) -> str:
    """A text argument; bytes that are no UTF-8 reach us as halves of surrogates."""
    if not text:
        raise InvalidOption(name, text, "at least one character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidOption(name, text, "valid UTF-8 text") from error
    return text


# ---------------------------------------------------------------- checks before a model is loaded


def check(model: Mapping[str, Any], request: Mapping[str, Any], system: str | None = None) -> None:
    """Refuse everything that can be refused without a model.

    Args:
        model: given arguments of `outrider.load`.
        request: given arguments of `TextEngine.add`.
        system: the system message.

    Raises:
        InvalidOption: naming the option, its value and what is allowed.
        CheckpointError: there is no such target or draft model.
    """
    from outrider.loading import check_options, check_sources, parse_drafter
    from outrider.models.locate import EMBEDDED_NAME, locate

    for text in request.get("stop", ()):
        _checked("stop", text)
    if system is not None:
        _checked("system", system)
    check_request(request, vocab_size=2**31)  # the vocabulary's real size is known after loading
    drafter, rule = model.get("drafter", "auto"), model.get("rule", "auto")
    check_options(
        drafter=drafter,
        num_draft_tokens=model.get("num_draft_tokens", "auto"),
        rule=rule,
        precision=model.get("precision", "auto"),
        invariant=model.get("invariant", False),
    )
    invariant = model.get("invariant", False)
    choices = parse_drafter(drafter, model.get("target", EMBEDDED_NAME), rule, invariant=invariant)
    check_sources(choices, corpus=model.get("corpus", ()), prediction="prediction" in request)
    _check_drafter(choices, rule, model)
    for name in (model.get("target"), *(choice.argument for choice in choices if choice.entry.name == "model")):
        if name:
            locate(name)


def check_request(request: Mapping[str, Any], vocab_size: int) -> None:
    """Refuse sampling options that have no meaning for a vocabulary of this size.

    Raises:
        InvalidOption: naming the option.
    """
    from outrider.options import Sampling, validate

    fields = Sampling.__dataclass_fields__
    validate(Sampling(**{name: value for name, value in request.items() if name in fields}), vocab_size)


def _check_drafter(choices: tuple[Choice, ...], rule: str, model: Mapping[str, Any]) -> None:
    from outrider.drafters import make_free
    from outrider.rules import RULES, choose_rule

    for choice in choices:
        if choice.entry.is_free:
            make_free(choice, choice.options)  # it checks its options
    is_none, k = choices[0].entry.name == "none", model.get("num_draft_tokens", "auto")
    if is_none and k not in ("auto", 0):
        raise InvalidOption("num_draft_tokens", k, "0 or auto with --drafter none", "Choose a drafter or leave it out.")
    if rule != "auto" and not RULES[rule].lossless and not model.get("allow_lossy"):
        raise InvalidOption("rule", rule, "a lossless rule", "Add --allow-lossy to accept another output law.")
    if not is_none:
        kinds = {choice.proposal for choice in choices}
        choose_rule(rule, kinds.pop() if len(kinds) == 1 else "hybrid", allow_lossy=True)
