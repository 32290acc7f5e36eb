"""What heads are trained on: conversations whose answers the target wrote, from prompts of the user's or of its own.

An instruction-tuned model that is given only its template's opening writes the user's turn (Magpie, 2406.08464).
Nothing here knows heads or losses.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from outrider.core import Sequence
from outrider.engine import Engine
from outrider.errors import InvalidOption, OutriderError
from outrider.generation import TextCodec
from outrider.options import Sampling

MARK = "§user§"
"""Stands for the user's turn where a template's opening is looked for."""

TEMPERATURES = (0.0, 0.7, 1.0)
"""Of the answers, in turn: heads draft at any temperature."""

Progress = Callable[[int, int], None]
"""Called with (done, in all)."""


@dataclass(frozen=True)
class Sample:
    """A text and which part of it the target wrote.

    Args:
        tokens: ids of the whole conversation.
        answer: index of the first token of the answer, which the target wrote.
        own: index of the first token that the target wrote: of its prompt, if it wrote that too.
    """

    tokens: tuple[int, ...]
    answer: int
    own: int


@dataclass(frozen=True)
class Wish:
    """How much is to be written.

    Args:
        num_tokens: answers stop being begun when so many tokens were written.
        max_answer: most tokens of an answer.
        max_prompt: longer prompts are left out.
        temperatures: of the answers, in turn.
        seed: of all draws.
    """

    num_tokens: int
    max_answer: int = 192
    max_prompt: int = 320
    temperatures: tuple[float, ...] = TEMPERATURES
    seed: int = 0


def read_prompts(path: Path, tokenizer: TextCodec) -> list[list[int]]:
    """Prompts, as ids, from a JSONL file of {"prompt": text} or {"messages": [{"role": ..., "content": ...}, ...]}.

    Raises:
        InvalidOption: the file cannot be read, has no lines, or has broken ones: how many, and where.
    """
    try:
        whole = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption("data", str(path), "a JSONL file in UTF-8", str(error)) from error
    lines = whole.removesuffix("\n").split("\n")  # not splitlines: a text may hold other line ends
    prompts, broken = list[list[int]](), list[str]()
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                prompts.append(_prompt_of(json.loads(line), tokenizer))
            except (ValueError, RecursionError, OutriderError) as error:
                broken.append(f"line {number}: {error}")
    if broken:
        shown = "; ".join(broken[:5]) + ("; ..." if len(broken) > 5 else "")
        allowed = 'lines {"prompt": text} or {"messages": [...]}'
        fix = f"{len(broken)} of {len(lines)} lines are broken: {shown}."
        raise InvalidOption("data", str(path), allowed, fix)
    if not prompts:
        raise InvalidOption("data", str(path), "at least one prompt", "The file has no lines.")
    return prompts


def _prompt_of(record: Any, tokenizer: TextCodec) -> list[int]:
    if not isinstance(record, dict) or ("prompt" in record) == ("messages" in record):
        raise ValueError('needs either "prompt" or "messages"')
    if "messages" in record:
        messages = record["messages"]
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise ValueError('"messages" must be a list of {"role": ..., "content": ...}')
        if messages and messages[-1].get("role") == "assistant":
            messages = messages[:-1]  # the target writes its own answer
        return tokenizer.encode_chat(messages)
    if not isinstance(record["prompt"], str) or not record["prompt"].strip():
        raise ValueError('"prompt" must be a text that is not empty')
    if tokenizer.chat_template is None:
        return tokenizer.encode_prompt(record["prompt"])
    return tokenizer.encode_chat([{"role": "user", "content": record["prompt"]}])


def opening(tokenizer: TextCodec) -> list[int]:
    """The ids with which a conversation begins, up to the user's first word.

    Raises:
        InvalidOption: the target has no chat template, so that it cannot be asked for prompts.
    """
    if tokenizer.chat_template is None:
        fix = "This target has no chat template, so it cannot write prompts itself."
        raise InvalidOption("data", None, "a JSONL file of prompts", fix)
    whole = tokenizer.encode_chat([{"role": "user", "content": MARK}])
    other = tokenizer.encode_chat([{"role": "user", "content": "?"}])
    agreed = next((i for i, (one, two) in enumerate(zip(whole, other, strict=False)) if one != two), 0)
    if agreed == 0:
        fix = "Its chat template has nothing before the user's words, so that it cannot write prompts itself."
        raise InvalidOption("data", None, "a JSONL file of prompts", fix)
    return whole[:agreed]


def write_samples(
    engine: Engine,
    tokenizer: TextCodec,
    prompts: Iterable[list[int]] | None,
    wish: Wish,
    progress: Progress | None = None,
) -> Iterator[Sample]:
    """The target's answers to prompts, in the order in which they end, until prompts run out or enough was written.

    Args:
        engine: the target, plainly decoding; nothing else may run in it.
        tokenizer: its own.
        prompts: to be answered; None lets the target write them, each different.
        wish: how much.
        progress: called with (tokens written, tokens wanted).

    Raises:
        InvalidOption: the target is to write prompts and has no chat template.
    """
    writer, running, written = _Writer(tokenizer, prompts, wish), dict[int, tuple[_Job, Sequence]](), 0
    while True:
        while len(running) < engine.slots and written < wish.num_tokens and (job := writer.next_job()) is not None:
            sequence = engine.add(
                job.prompt,
                sampling=job.sampling,
                seed=job.seed,
                stop_ids=tokenizer.stop_ids,
                max_new_tokens=job.max_new_tokens,
            )
            running[sequence.id] = job, sequence
        if not running:
            return
        for finished in [r for r in engine.step() if r.finish_reason is not None]:
            job, sequence = running.pop(finished.sequence.id)
            if not job.is_answer:
                writer.take(sequence.tokens[sequence.prompt_length :])
                continue
            written += sequence.num_new_tokens
            answer = sequence.prompt_length
            yield Sample(tuple(sequence.tokens), answer, answer if prompts is not None else writer.opening_length)
            if progress is not None:
                progress(min(written, wish.num_tokens), wish.num_tokens)


@dataclass(frozen=True)
class _Job:
    prompt: list[int]
    sampling: Sampling
    seed: int
    max_new_tokens: int
    is_answer: bool


class _Writer:
    """What the target is to write next: the answer to a prompt that is there, or another prompt."""

    def __init__(self, tokenizer: TextCodec, prompts: Iterable[list[int]] | None, wish: Wish) -> None:
        self._tokenizer, self._wish = tokenizer, wish
        self._given = None if prompts is None else iter(prompts)
        self._opening = [] if prompts is not None else opening(tokenizer)
        self._ready: deque[list[int]] = deque()
        self._seen: set[str] = set()
        self._prompts, self._answers = count(), count()

    @property
    def opening_length(self) -> int:
        """Tokens in front of a prompt that the target writes."""
        return len(self._opening)

    def next_job(self) -> _Job | None:
        """None if there are no more prompts."""
        prompt = self._ready.popleft() if self._ready else self._next_given()
        if prompt is not None:
            number, temperatures = next(self._answers), self._wish.temperatures
            sampling = Sampling(temperature=temperatures[number % len(temperatures)])
            return _Job(prompt, sampling, self._wish.seed + number, self._wish.max_answer, True)
        if self._given is not None:
            return None
        seed, room = self._wish.seed + next(self._prompts), self._wish.max_prompt - len(self._opening)
        return _Job(self._opening, Sampling(temperature=1.0), seed, room, False)

    def take(self, ids: list[int]) -> None:
        """A prompt that the target wrote; one that did not end, is empty or was seen before is dropped."""
        text = self._tokenizer.decode(ids).strip()
        if ids[-1] in self._tokenizer.stop_ids and text and text not in self._seen:
            self._seen.add(text)
            prompt = self._tokenizer.encode_chat([{"role": "user", "content": text}])
            if len(prompt) <= self._wish.max_prompt:
                self._ready.append(prompt)

    def _next_given(self) -> list[int] | None:
        if self._given is None:
            return None
        return next((prompt for prompt in self._given if len(prompt) <= self._wish.max_prompt), None)


def save_samples(samples: Ordered[Sample], path: Path) -> None:
    """One JSON line per sample: its ids, and where what the target wrote begins."""
    lines = [json.dumps({"answer": s.answer, "own": s.own, "tokens": list(s.tokens)}) for s in samples]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def load_samples(path: Path) -> list[Sample]:
    """What `save_samples` wrote.

    Raises:
        InvalidOption: the file is damaged.
    """
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [Sample(tuple(r["tokens"]), r["answer"], r["own"]) for r in records]
    except (ValueError, KeyError, TypeError) as error:
        fix = "Delete the file: it is written again."
        raise InvalidOption("resume", str(path), "texts of this training", fix) from error
