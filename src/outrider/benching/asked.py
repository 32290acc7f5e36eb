"""Which prompts are decoded: those of the kinds that come with the package, or a user's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from pathlib import Path

from outrider.benching.prompts import PER_KIND, PROMPTS
from outrider.errors import InvalidOption
from outrider.generation import TextCodec
from outrider.training.texts import read_prompts

OWN = "own"
"""Kind of a user's own prompts."""


@dataclass(frozen=True)
class Prompt:
    """A prompt.

    Args:
        text: for people.
        ids: what is decoded, chat template and all.
    """

    text: str
    ids: tuple[int, ...]


Prompts = Mapping[str, Ordered[Prompt]]
"""Kind -> prompts."""


def check_built_in(kinds: Iterable[str], per_kind: int | None, batches: Iterable[int]) -> int:
    """Refuse what does not come with the package.

    Args:
        kinds: that are wanted.
        per_kind: how many prompts of each; None for the usual number, or as many as the largest batch takes.
        batches: prompts that are decoded together.

    Returns:
        How many prompts of each kind.

    Raises:
        InvalidOption: a kind that there is not, or more prompts of it than there are.
    """
    largest, most = max(batches), min(map(len, PROMPTS.values()))
    for kind in kinds:
        if kind not in PROMPTS:
            raise InvalidOption("kind", kind, ", ".join(PROMPTS))
    for name, number in (("prompts_per_kind", per_kind or 1), ("batch", largest)):
        if number > most:
            fix = f"{most} prompts of each kind come with the package; give more with --prompts FILE."
            raise InvalidOption(name, number, f"1 to {most}", fix)
    return per_kind or max(PER_KIND, largest)


def check_file(path: Path) -> None:
    """Refuse, before a model is loaded, a file of prompts that cannot be read or that is empty.

    Raises:
        InvalidOption: naming it.
    """
    try:
        whole = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a NUL in the name
        raise InvalidOption("prompts", str(path), "a JSONL file in UTF-8", str(error)) from error
    if not whole.strip():
        raise InvalidOption(
            "prompts", str(path), "at least one prompt", 'The file is empty. Give it lines {"prompt": text}.'
        )


def built_in(kinds: Iterable[str], per_kind: int | None, tokenizer: TextCodec) -> dict[str, list[Prompt]]:
    """Prompts that come with the package.

    Args:
        kinds: keys of `prompts.PROMPTS`.
        per_kind: how many of each, from the first on; None for all.
        tokenizer: the target's.
    """
    return {kind: [_encoded(text, tokenizer) for text in PROMPTS[kind][:per_kind]] for kind in kinds}


def from_file(path: Path, most: int | None, tokenizer: TextCodec) -> dict[str, list[Prompt]]:
    """A user's own prompts, as `training.texts.read_prompts` reads them, as one kind.

    Args:
        path: JSONL of {"prompt": text} or {"messages": [...]}.
        most: how many, from the first on; None for all.
        tokenizer: the target's.

    Raises:
        InvalidOption: the file cannot be read, has no lines, or broken ones.
    """
    try:
        found = read_prompts(path, tokenizer)[:most]
    except InvalidOption as error:
        raise InvalidOption("prompts", error.value, error.allowed, error.fix) from error
    return {OWN: [Prompt(tokenizer.decode(ids), tuple(ids)) for ids in found]}


def check_lengths(prompts: Prompts, max_new_tokens: int, context_length: int) -> None:
    """Refuse prompts that do not fit, with what is to be made of them, into the context.

    Raises:
        InvalidOption: naming the first of them.
    """
    room = context_length - max_new_tokens
    if room < 1:
        fix = f"The target's context is {context_length} tokens."
        raise InvalidOption("max_new_tokens", max_new_tokens, f"1 to {context_length - 1}", fix)
    for kind, own in prompts.items():
        for number, prompt in enumerate(own, start=1):
            if len(prompt.ids) > room:
                allowed = f"at most {room}: a context of {context_length} less {max_new_tokens} new tokens"
                value = f"{len(prompt.ids)} tokens in prompt {number} of kind {kind}"
                raise InvalidOption("prompts", value, allowed, "Leave it out or make fewer new tokens.")


def _encoded(text: str, tokenizer: TextCodec) -> Prompt:
    if tokenizer.chat_template is None:
        return Prompt(text, tuple(tokenizer.encode_prompt(text)))
    return Prompt(text, tuple(tokenizer.encode_chat([{"role": "user", "content": text}])))
