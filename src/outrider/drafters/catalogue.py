"""Every drafter by the name that users type, what it needs, and how a typed choice is read. It builds no model.

A choice is `NAME`, `NAME:ARGUMENT` or `NAME:ARGUMENT,OPTION=VALUE,...`, or several of them joined by "+".
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from outrider.core import Drafter
from outrider.drafters.early_exit import EarlyExitDrafter
from outrider.drafters.headed import HeadDrafter
from outrider.drafters.lookahead import LookaheadDrafter
from outrider.drafters.model import ModelDrafter
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.none import NoDrafter
from outrider.drafters.records import COPY, LOOK_UP, MODEL
from outrider.drafters.recycling import RecyclingDrafter
from outrider.drafters.shapes import read_form
from outrider.drafters.suffix import SuffixDrafter
from outrider.errors import InvalidOption
from outrider.models.load import PRECISIONS

READERS: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str}
"""How an option's text becomes a value, by the annotation of the class's argument."""

KINDS = {"int": "a whole number", "float": "a number", "str": "a text"}

SEPARATOR = "+"

TREE_NODES = 16
"""Most nodes of a tree where the user leaves it open; a tree that knows what a row costs mostly stays smaller."""


@dataclass(frozen=True)
class Entry:
    """One drafter.

    Args:
        name: what users type.
        make: the class.
        argument: what stands after the colon: its name in the help, "" for nothing; in brackets if it may be left out.
        options: arguments of the class that users may set.
        needs: what must be there.
        cost: what drafting costs.
        helps: when it is worth it.
        proposal: the widest kind of draft it makes.
        is_free: whether proposing costs no forward of a model.
        always_tree: whether its drafts are trees whatever the options.
        is_head: whether it reads states of the target.
        prior: chances of its tokens before anything is known, see `records.Habit`.
    """

    name: str
    make: Callable[..., Drafter]
    argument: str
    options: tuple[str, ...]
    needs: str
    cost: str
    helps: str
    proposal: str = "point_mass"
    is_free: bool = True
    always_tree: bool = False
    is_head: bool = False
    prior: tuple[float, ...] = LOOK_UP

    @property
    def defaults(self) -> dict[str, Any]:
        """The options with their default values."""
        signature = inspect.signature(self.make).parameters
        return {name: signature[name].default for name in self.options}


ENTRIES = (
    Entry(
        "none", NoDrafter, "", (), "nothing", "nothing", "Plain decoding: the yardstick, and right where guesses fail."
    ),
    Entry(
        "ngram",
        NgramDrafter,
        "",
        ("max_ngram", "min_ngram"),
        "nothing",
        "next to nothing",
        "Text that repeats its prompt or itself; drafts after any short match, so it is often wrong elsewhere.",
    ),
    Entry(
        "suffix",
        SuffixDrafter,
        "",
        ("min_match", "factor", "offset", "branches", "min_probability", "row_cost"),
        "nothing; --corpus FILE and --prediction FILE add sources",
        "next to nothing",
        "Editing, extracting, code, logs, agents: whatever copies. Silent where there is nothing to copy.",
    ),
    Entry(
        "lookahead",
        LookaheadDrafter,
        "",
        ("window", "ngram", "candidates"),
        "a target that takes trees",
        "many rows in every target forward: (window + candidates) * (ngram - 1)",
        "Hardware where rows are free, such as a GPU with one stream. On a CPU it is mostly slower than plain.",
        always_tree=True,
    ),
    Entry(
        "recycling",
        RecyclingDrafter,
        "",
        ("candidates", "max_depth", "row_cost"),
        "a target that takes trees",
        "a top-k of the target's logits and a small tree of rows",
        "Long texts in a narrow language, such as code and lists, where words follow each other as before.",
        always_tree=True,
    ),
    Entry(
        "early-exit",
        EarlyExitDrafter,
        "LAYERS",
        ("min_confidence",),
        "a target run by the native decoder",
        "LAYERS of the target's layers per drafted token, which verification does not run again",
        "Targets that were trained for it (LayerSkip); the early layers of others predict too little.",
        proposal="sampled",
        is_free=False,
        prior=MODEL,
    ),
    Entry(
        "quantised",
        ModelDrafter,
        "[PRECISION]",
        ("tree", "depth", "row_cost"),
        "a target at a wider precision, read by the native decoder",
        "a forward of the narrower weights per drafted token, and their memory",
        "A target at float32 or float16 whose bytes are the bottleneck; nearly every token is accepted.",
        proposal="sampled",
        is_free=False,
        prior=COPY,
    ),
    Entry(
        "model",
        ModelDrafter,
        "ID",
        ("tree", "depth", "row_cost"),
        "a smaller model of any vocabulary: a folder, a .gguf file or a Hugging Face id",
        "a forward of that model per drafted token, and its memory",
        "Open text, when the small model is at least four times cheaper and agrees with the target.",
        proposal="sampled",
        is_free=False,
        prior=MODEL,
    ),
    Entry(
        "eagle",
        HeadDrafter,
        "PATH",
        ("tree", "depth", "row_cost"),
        "a head trained for this target: a folder (outrider train, outrider convert), a Hugging Face id, or smollm2",
        "one small layer per drafted token, and its memory",
        "Open text: the best guesses for their cost, at any temperature.",
        proposal="sampled",
        is_free=False,
        is_head=True,
        prior=MODEL,
    ),
    Entry(
        "medusa",
        HeadDrafter,
        "PATH",
        ("tree", "depth", "row_cost"),
        "a head trained for this target: a folder (outrider train, outrider convert)",
        "a small product per place, once per round",
        "Open text, where an EAGLE head is not at hand; guesses do not know each other.",
        proposal="sampled",
        is_free=False,
        is_head=True,
        prior=MODEL,
    ),
    Entry(
        "mlp",
        HeadDrafter,
        "PATH",
        ("tree", "depth", "row_cost"),
        "a head trained for this target: a folder (outrider train, outrider convert)",
        "two small products per drafted token",
        "Targets that an MLP speculator was published for.",
        proposal="sampled",
        is_free=False,
        is_head=True,
        prior=MODEL,
    ),
)
CATALOGUE = {entry.name: entry for entry in ENTRIES}


@dataclass(frozen=True)
class Choice:
    """One part of what a user typed.

    Args:
        entry: the drafter.
        argument: what stood after the colon, "" if nothing did.
        options: the options given, read.
    """

    entry: Entry
    argument: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def drafts_trees(self) -> bool:
        """Whether drafts may branch, as it is set."""
        return (
            self.entry.always_tree
            or self.options.get("branches", 1) > 1
            or self.options.get("tree", "chain") != "chain"
        )

    @property
    def proposal(self) -> str:
        """The widest kind of draft, as it is set."""
        return "hybrid" if self.entry.proposal == "sampled" and self.drafts_trees else self.entry.proposal

    @property
    def nodes(self) -> int:
        """Nodes to offer where the user leaves it open; 0 for chains, whose length follows what was accepted."""
        if self.entry.name == "lookahead":
            set_to = {**self.entry.defaults, **self.options}
            return int((set_to["window"] + set_to["candidates"]) * (set_to["ngram"] - 1))
        return TREE_NODES if self.drafts_trees else 0

    @property
    def wants_row_cost(self) -> bool:
        """Whether what a row costs is still to be measured for it."""
        return (
            self.drafts_trees
            and "row_cost" not in self.options
            and "row_cost" in inspect.signature(self.entry.make).parameters
        )


def parse(text: str) -> tuple[Choice, ...]:
    """What a typed drafter means, one choice per part of a combination.

    Raises:
        InvalidOption: an unknown name or option, a value that cannot be read, an argument too many or missing, or a
            combination that makes no sense.
    """
    parts = text.split(SEPARATOR)
    choices = tuple(_parse_part(part, text) for part in parts)
    names = [choice.entry.name for choice in choices]
    # Two of the same kind are one twice, or two that would share a state; only models may be several.
    distinct = {(c.entry.name, c.argument if c.entry.name == "model" else "") for c in choices}
    if len(choices) > 1 and ("none" in names or len(distinct) < len(choices)):
        raise InvalidOption("drafter", text, "different drafters that draft, joined by +", "Leave out one part.")
    num_heads = sum(choice.entry.is_head for choice in choices)
    if num_heads > 1 or (num_heads == 1 and "early-exit" in names):
        raise InvalidOption("drafter", text, "one head, and not with early-exit", "They would read different states.")
    if len(choices) > 1 and "lookahead" in names:
        raise InvalidOption("drafter", text, "a combination without lookahead", "Its window must run in every round.")
    return choices


def names() -> str:
    """All that users may type, for messages."""
    typed = [entry.name + (f":{entry.argument}" if entry.argument[:1].isalpha() else "") for entry in ENTRIES]
    return ", ".join([*typed, "A+B", "auto"])


def _parse_part(part: str, whole: str) -> Choice:
    name, _, rest = part.partition(":")
    if name not in CATALOGUE:
        fix = f"The part {part!r} is unknown." if part != whole else "See: outrider drafters"
        fix = '"auto" stands alone and takes no options.' if name == "auto" else fix
        raise InvalidOption("drafter", whole, names(), fix)
    entry, items = CATALOGUE[name], [item for item in rest.split(",") if item]
    arguments = [item for item in items if "=" not in item]
    if len(arguments) > bool(entry.argument) or (not arguments and entry.argument[:1].isalpha()):
        wanted = f"{name}:{entry.argument}" if entry.argument else name
        example = _example(entry)
        raise InvalidOption("drafter", part, wanted + (f", with options such as {example}" if example else ""))
    options = [_option(entry, item) for item in items if "=" in item]
    if len(dict(options)) < len(options):
        raise InvalidOption("drafter", part, "each option once")
    _check_argument(entry, "".join(arguments), dict(options))
    return Choice(entry, "".join(arguments), dict(options))


def _check_argument(entry: Entry, argument: str, options: dict[str, Any]) -> None:
    """What can be refused of a drafter before a model is loaded."""
    if entry.name == "early-exit" and not (argument.isascii() and argument.isdigit()):
        raise InvalidOption("drafter", f"early-exit:{argument}", "early-exit:N, N a number of layers")
    if entry.name == "quantised" and argument and argument not in PRECISIONS:
        raise InvalidOption("drafter", f"quantised:{argument}", ", ".join(f"quantised:{name}" for name in PRECISIONS))
    if "tree" in entry.options:
        set_to = {**entry.defaults, **options}
        read_form(set_to["tree"], set_to["depth"], set_to["row_cost"])


def _option(entry: Entry, item: str) -> tuple[str, Any]:
    name, _, value = item.partition("=")
    if name not in entry.options:
        allowed = ", ".join(entry.options) or "no options"
        raise InvalidOption(f"an option of the drafter {entry.name}", name, allowed, "Check the spelling.")
    kind = str(inspect.signature(entry.make).parameters[name].annotation).split(" | ")[0]
    try:
        return name, READERS[kind](value)
    except ValueError as error:
        raise InvalidOption(name, value, KINDS[kind]) from error


def _example(entry: Entry) -> str:
    """An option with its default, "" if there are none."""
    return next((f"{name}={value}" for name, value in entry.defaults.items()), "")
