"""One door from what a user names to an engine that runs: target, drafter, rule, pace, tokenizer."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from functools import partial
from pathlib import Path
from typing import Any

import torch

from outrider.attaching import open_head, showing
from outrider.core import Drafter, Model, Rule
from outrider.drafters import check_drafter
from outrider.drafters.catalogue import SEPARATOR, TREE_NODES, Choice, parse
from outrider.drafters.corpus import Corpus, open_corpus
from outrider.drafters.corpus_build import check_file
from outrider.drafters.heads.stored import StoredHead
from outrider.drafters.records import LOOK_UP, MODEL
from outrider.drafters.sharing import arrears_of, free
from outrider.drafting import Built, Setting, build_drafter, early_exit_target
from outrider.engine import INVARIANT_WIDTH, Engine
from outrider.errors import InvalidOption
from outrider.generation import TextEngine
from outrider.guard import why_chains_only
from outrider.models.load import PRECISIONS
from outrider.models.locate import EMBEDDED_NAME
from outrider.models.opening import Opened, Progress, open_model
from outrider.options import check_slots, whole
from outrider.planning.pace import MAX_K, AutoPace, FixedPace
from outrider.rounds import Pace
from outrider.rules import RULES, choose_rule

DEFAULT_CONTEXT = 8192
"""Tokens per sequence unless more are asked for: caches of very long contexts are large."""

MAX_THREADS = 1024


def load(
    target: Any = "smollm2",
    *,
    drafter: str | Drafter = "auto",
    num_draft_tokens: int | str = "auto",
    rule: str = "auto",
    precision: str = "auto",
    slots: int = 8,
    context_length: int | None = None,
    invariant: bool = False,
    allow_lossy: bool = False,
    device: str = "cpu",
    threads: int | None = None,
    tokenizer: Any = None,
    corpus: Ordered[str | Path] | None = None,
    progress: Progress | None = None,
) -> TextEngine:
    """Load a target and a drafter and put them into an engine.

    Args:
        target: "smollm2" (the embedded model), a folder, a .gguf file, a Hugging Face id, or a loaded transformers
            model.
        drafter: "none", "ngram", "suffix", "lookahead", "recycling", "early-exit:LAYERS", "quantised", "model:ID" (ID
            as for target), several joined by "+", "auto", or an object with the methods of `outrider.Drafter`. Options
            follow a colon: "suffix:branches=3,min_match=2". `outrider drafters` lists them all.
        num_draft_tokens: most tokens to draft per round, 0 to 64, or "auto": by what was accepted and what rows cost.
        rule: "auto" (by draft and temperature), or a key of `outrider.rules.RULES`; "typical" is lossy.
        precision: "float32", "bfloat16", "float16", "q4", or "auto": the fastest within 1e-3 nats of float32.
        slots: sequences decoded together; more wait in line.
        context_length: tokens per sequence, prompt and output; None for the target's own limit, at most 8,192. A
            target with a sliding window needs one, at most the window's length.
        invariant: fixed-width forwards, for equal bits where kernels alone do not give them.
        allow_lossy: accept rules that change the law.
        device: "cpu" or a CUDA device.
        threads: CPU threads of this whole process; None leaves torch's setting.
        tokenizer: only with a loaded transformers model: its transformers tokenizer; None for the one saved with it.
        corpus: text files for the suffix drafter to look things up in; their index is built once and kept.
        progress: called while layers load.

    Raises:
        InvalidOption: an option outside its range.
        CheckpointError, UnsupportedModel, VocabularyMismatch, CacheTooLarge: see `outrider.errors`.
    """
    check_options(
        drafter=drafter, num_draft_tokens=num_draft_tokens, rule=rule, precision=precision, invariant=invariant
    )
    choices = parse_drafter(drafter, target, rule, invariant=invariant)
    check_sources(choices, corpus=corpus or ())
    check_slots(slots)  # before caches are made for them
    place = _placed(device, threads)
    opened = open_model(target, precision, place, progress, tokenizer, context_length)
    model, head = _prepared(choices, opened, invariant)
    length = min(model.context_length, DEFAULT_CONTEXT) if context_length is None else context_length
    setting = Setting(opened, model, slots, length, place, _corpus(corpus, opened, progress), progress, head)
    built = build_drafter(choices, setting) if isinstance(drafter, str) else Built(drafter)
    chosen, pace = _rule(rule, built.drafter, allow_lossy), pace_of(num_draft_tokens, choices, built, setting)
    check_trees(choices, chosen, model)
    engine = Engine(model, built.drafter, chosen, pace, slots=slots, context_length=length, invariant=invariant)
    return TextEngine(engine, opened.tokenizer)


def default_drafter(target: Any = None, rule: str = "auto", *, invariant: bool = False) -> str:
    """What drafter="auto" means for a target and a rule, by what users call them.

    A look-up needs no model, costs next to nothing and stays silent where it has nothing to copy; where a head ships
    with the target and the rule takes both kinds of draft, the head drafts in the other places: trees, unless the rule
    takes none or equal bits are asked for, which only chains have.
    """
    if target == EMBEDDED_NAME and "hybrid" in RULES[rule].proposals:
        return f"suffix{SEPARATOR}eagle:{EMBEDDED_NAME}" + (",tree=auto" if RULES[rule].trees and not invariant else "")
    return "suffix"


def parse_drafter(
    drafter: str | Drafter, target: Any = None, rule: str = "auto", *, invariant: bool = False
) -> tuple[Choice, ...]:
    """What a named drafter means; () for a user's own object.

    Args:
        drafter: as in `load`.
        target: as in `load`; it decides, with the next two, what "auto" means.
        rule: a key of `outrider.rules.RULES`.
        invariant: as in `load`.

    Raises:
        InvalidOption: see `catalogue.parse`.
    """
    if not isinstance(drafter, str):
        return ()
    return parse(default_drafter(target, rule, invariant=invariant) if drafter == "auto" else drafter)


def check_sources(choices: tuple[Choice, ...], *, corpus: Ordered[str | Path] = (), prediction: bool = False) -> None:
    """Refuse texts to look things up in where nothing looks them up.

    Raises:
        InvalidOption: naming the option.
    """
    looks_up = any(choice.entry.name == "suffix" for choice in choices)
    for name, given in (("corpus", bool(corpus)), ("prediction", prediction)):
        if given and not looks_up:
            used = SEPARATOR.join(choice.entry.name for choice in choices) or "your own drafter"
            raise InvalidOption(name, "given", f"left out with {used}", "Only the suffix drafter looks it up.")
    if isinstance(corpus, str | Path) or not all(isinstance(file, str | Path) for file in corpus):
        raise InvalidOption("corpus", corpus, "a list of file names")
    for file in corpus:
        check_file(Path(file))


def check_options(
    *, num_draft_tokens: int | str, rule: str, precision: str, invariant: bool, drafter: str | Drafter = "auto"
) -> None:
    """Refuse what can be refused before a model is loaded.

    Raises:
        InvalidOption: naming the option.
    """
    if not isinstance(drafter, str):
        check_drafter(drafter)
    choices = parse_drafter(drafter)
    if num_draft_tokens != "auto":
        if not whole(num_draft_tokens, 0, MAX_K):
            raise InvalidOption("num_draft_tokens", num_draft_tokens, f'a whole number from 0 to {MAX_K}, or "auto"')
        if invariant and int(num_draft_tokens) >= INVARIANT_WIDTH:
            raise InvalidOption("num_draft_tokens", num_draft_tokens, f"0 to {INVARIANT_WIDTH - 1} in invariant mode")
    if rule != "auto" and (not isinstance(rule, str) or rule not in RULES):
        raise InvalidOption("rule", rule, ", ".join(RULES))
    if not RULES[rule].trees and any(choice.drafts_trees for choice in choices):
        trees = ", ".join(name for name, known in RULES.items() if known.trees)
        raise InvalidOption("rule", rule, f"one that takes trees: {trees}", "Or set the drafter to chains.")
    if precision != "auto" and precision not in PRECISIONS:
        raise InvalidOption("precision", precision, ", ".join(["auto", *PRECISIONS]))


def _placed(device: str, threads: int | None) -> torch.device:
    _set_threads(threads)
    return torch_device(device)


def _set_threads(threads: int | None) -> None:
    if threads is None:
        return
    if not whole(threads, 1, MAX_THREADS):
        raise InvalidOption("threads", threads, f"1 to {MAX_THREADS}", "As many as there are cores is a good choice.")
    torch.set_num_threads(threads)


def torch_device(name: str) -> torch.device:
    """The device of that name, if this torch can use it.

    Raises:
        InvalidOption: if it cannot.
    """
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise InvalidOption("device", name, "cpu, or a device this torch can use", str(error).split("\n")[0]) from error
    return device


def _prepared(choices: tuple[Choice, ...], opened: Opened, invariant: bool) -> tuple[Model, StoredHead | None]:
    """The target, whose first layers an early-exit drafter shares, and whose states a head reads; and that head."""
    head = open_head(choices, opened)
    layers = [choice.argument for choice in choices if choice.entry.name == "early-exit"]
    model = early_exit_target(opened.model, layers[0], invariant) if layers else opened.model
    if head is not None:
        model = showing(head, opened)
    if invariant and not getattr(model, "pads_to_same_bits", False):
        raise InvalidOption("invariant", True, "False for this target", "It needs the native decoder on a CPU.")
    return model, head


def _corpus(files: Ordered[str | Path] | None, opened: Opened, progress: Progress | None) -> Corpus | None:
    if not files:
        return None
    report = None if progress is None else lambda done, total: progress("the corpus", done, total)
    return open_corpus(files, opened.tokenizer, progress=report)


def _rule(name: str, drafter: Drafter, allow_lossy: bool) -> Rule:
    if drafter.name == "none" and name in ("token", "block"):
        name = "auto"  # nothing is drafted, so there is no ratio to test
    return choose_rule(name, drafter.proposal, allow_lossy=allow_lossy)


def check_trees(choices: tuple[Choice, ...], rule: Rule, model: Model) -> None:
    """Refuse drafters that are set to draft trees where none can be verified.

    Raises:
        InvalidOption: naming the drafter and the reason.
    """
    for choice in choices:
        reason = why_chains_only(rule, model) if choice.drafts_trees else None
        if reason:
            fix = f"It is set to draft trees, but {reason}."
            raise InvalidOption("drafter", choice.entry.name, "one that drafts chains", fix)


def pace_of(wanted: int | str, choices: tuple[Choice, ...], built: Built, setting: Setting | None = None) -> Pace:
    """The pace for what a user asked: a fixed number of nodes, or with "auto" what suits the drafter.

    Args:
        wanted: as in `load`.
        choices: what the drafter's name means; () for a user's own.
        built: it.
        setting: its own, to measure what rows cost; None takes a usual cost.
    """
    if wanted != "auto":
        return FixedPace(int(wanted))
    ends_itself = getattr(built.drafter, "ends_itself", None)  # of those that grow trees from laws
    nodes = [choice.nodes for choice in choices]
    if len(choices) > 1 or (any(nodes) and ends_itself is None):
        return FixedPace(max(*nodes, TREE_NODES))
    if built.drafter.name == "none":
        return FixedPace(0)
    usual = LOOK_UP if built.drafter.proposal == "point_mass" else MODEL
    return AutoPace(
        prior=choices[0].entry.prior if choices else usual,
        level=built.level or free,
        verify=None if setting is None else setting.verify_cost,
        ends_itself=ends_itself,
        arrears=partial(arrears_of, built.drafter),
    )
