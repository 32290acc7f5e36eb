"""Text in, text out: prompts and messages on top of the engine, in one piece, streamed, or many at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from threading import RLock
from typing import Any, Literal, Protocol

from outrider.core import Sequence
from outrider.engine import Engine
from outrider.errors import InvalidOption
from outrider.options import Sampling, check_seed, whole
from outrider.rounds import FinishReason, Round, TokenLogprobs
from outrider.stats import Stats, collect
from outrider.text import TextStream

DEFAULT_MAX_NEW_TOKENS = 256

Prompt = str | Ordered[int]
Messages = Ordered[Mapping[str, Any]]


class TextCodec(Protocol):
    """What the engine needs of a tokenizer; `models.tokenizer.Tokenizer` is one."""

    stop_ids: frozenset[int]
    chat_template: str | None

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of raw text, with the beginning-of-text token if the model has one."""
        ...

    def encode_chat(self, messages: Messages) -> list[int]:
        """Ids of a conversation, ready for the assistant's answer."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of raw text, nothing added."""
        ...

    def decode(self, ids: Ordered[int]) -> str:
        """Text of ids; special tokens give nothing."""
        ...


@dataclass(frozen=True)
class Piece:
    """One emitted token of a stream.

    Args:
        text: what became final with this token; "" while a character or a possible stop string is incomplete.
        token_id: the token.
        origin: "accepted" for a drafted token, "next" for one that the target added.
        logprobs: if asked for.
        finish_reason: set on the last piece.
    """

    text: str
    token_id: int
    origin: Literal["accepted", "next"]
    logprobs: TokenLogprobs | None = None
    finish_reason: FinishReason | None = None


@dataclass(frozen=True)
class Result:
    """A finished request.

    Args:
        text: the output, cut before a stop string.
        token_ids: the emitted tokens, a final stop token included.
        prompt_token_ids: what the prompt became.
        finish_reason: "stop", "length", "cancelled" or "error".
        stats: counts and times.
        origins: per token, "accepted" or "next".
        logprobs: per token if asked for, else ().
        error: what ended it, if `finish_reason` is "error".
    """

    text: str
    token_ids: tuple[int, ...]
    prompt_token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: Stats
    origins: tuple[Literal["accepted", "next"], ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    error: Exception | None = None


class TextEngine:
    """An engine with a tokenizer; what `outrider.load` returns. Safe to use from several threads.

    Args:
        engine: decodes ids; use it directly (`add`, `step`, `cancel`) for full control.
        tokenizer: encodes prompts and decodes output.
    """

    def __init__(self, engine: Engine, tokenizer: TextCodec) -> None:
        self.engine, self.tokenizer = engine, tokenizer
        self._lock = RLock()
        self._inboxes: dict[int, deque[Round]] = {}

    def generate(self, prompt: Prompt | None = None, *, messages: Messages | None = None, **options: Any) -> Result:
        """Decode one request to its end.

        Args:
            prompt: text, or token ids taken as they are. Text is a user's message if the model has a chat template
                and `raw` is not set.
            messages: a conversation, [{"role": ..., "content": ...}], instead of a prompt.
            **options: see `add`.

        Raises:
            InvalidOption: a bad option, prompt or message.
            ProcessorError: the logits processor failed.
        """
        result = self._collect(self._start(prompt, messages=messages, **options))
        if result.error is not None:
            raise result.error
        return result

    def stream(
        self, prompt: Prompt | None = None, *, messages: Messages | None = None, **options: Any
    ) -> Iterator[Piece]:
        """Decode one request, token by token; arguments as for `generate`. Closing the iterator cancels it.

        Raises:
            InvalidOption: at once, before the first piece is asked for.
            ProcessorError: when the logits processor fails.
        """
        pieces = self._pieces(self._start(prompt, messages=messages, **options))
        next(pieces)
        return pieces

    def generate_many(self, prompts: Iterable[Prompt | Messages], *, n: int = 1, **options: Any) -> list[Result]:
        """Decode several requests together, n samples of each; the results are in order, samples side by side.

        Sample i of a prompt is what `generate(prompt, seed=seed + i)` gives. A request that fails has
        `finish_reason` "error" and its `error`; the others are not disturbed.

        Args:
            prompts: texts, lists of token ids, or conversations.
            n: samples of each prompt; they share its prefill.
            **options: see `add`; they hold for every request.

        Raises:
            InvalidOption: before anything is decoded.
        """
        if isinstance(prompts, str) or not isinstance(prompts, Iterable):
            raise InvalidOption("prompts", prompts, "a list of texts, lists of token ids or conversations")
        if not whole(n, 1):
            raise InvalidOption("n", n, "1 or more")
        seed = options.pop("seed", None)
        check_seed(seed)
        sequences: list[Sequence] = []
        try:
            for prompt in prompts:
                messages = prompt if _is_conversation(prompt) else None
                text = None if messages is not None else prompt
                for i in range(n):
                    sample_seed = None if seed is None else seed + i
                    sequences.append(self._start(text, messages=messages, seed=sample_seed, **options))
            return [self._collect(sequence) for sequence in sequences]
        finally:
            for sequence in sequences:
                self.cancel(sequence)

    def add(
        self,
        prompt: Prompt | None = None,
        *,
        messages: Messages | None = None,
        raw: bool = False,
        max_new_tokens: int | None = DEFAULT_MAX_NEW_TOKENS,
        stop: str | Ordered[str] = (),
        stop_ids: Iterable[int] | None = None,
        seed: int | None = None,
        prediction: Prompt | None = None,
        **sampling: Any,
    ) -> Sequence:
        """Queue a request without waiting for it; `step` or any other call drives it on.

        Args:
            prompt: see `generate`.
            messages: see `generate`.
            raw: take text as it is, without the chat template.
            max_new_tokens: 1 or more; None means until a stop or the context's end.
            stop: strings that end the output, which is cut just before them.
            stop_ids: tokens that end the output; None means the model's own.
            seed: in [0, 2^63); None draws one.
            prediction: text, or token ids, that much of the output is expected to repeat, such as a file before an
                edit. The suffix drafter looks it up; the law of the output stays the same.
            **sampling: fields of `Sampling`: temperature, top_k, top_p, min_p, repetition_penalty,
                presence_penalty, frequency_penalty, logit_bias, banned_ids, min_new_tokens, processor, logprobs.

        Raises:
            InvalidOption: naming the value, what is allowed and what to do.
        """
        ids = self._encode(prompt, messages, raw)
        text = TextStream(self.tokenizer.decode, _stop_strings(stop))
        expected = self.tokenizer.encode(prediction) if isinstance(prediction, str) else prediction or ()
        ends = self.tokenizer.stop_ids if stop_ids is None else stop_ids
        settings = _sampling(sampling)
        with self._lock:
            return self.engine.add(
                ids,
                sampling=settings,
                seed=seed,
                stop_ids=ends,
                max_new_tokens=max_new_tokens,
                prediction=expected,
                text=text,
            )

    def _start(self, *prompt: Any, **options: Any) -> Sequence:
        """Queue a request whose rounds are kept for `_rounds`, whoever drives the engine."""
        with self._lock:
            sequence = self.add(*prompt, **options)
            self._inboxes[sequence.id] = deque()
        return sequence

    def step(self) -> list[Round]:
        """One round of everything that is running; see `Engine.step`."""
        with self._lock:
            rounds = self.engine.step()
            for r in rounds:
                if r.sequence.id in self._inboxes:
                    self._inboxes[r.sequence.id].append(r)
            return rounds

    def cancel(self, sequence: Sequence) -> None:
        """Take a request out; nothing happens if it has ended."""
        with self._lock:
            self.engine.cancel(sequence)
            self._inboxes.pop(sequence.id, None)

    def _rounds(self, sequence: Sequence) -> Iterator[Round]:
        """The rounds of one request, driving the engine as far as needed."""
        inbox = self._inboxes[sequence.id]
        try:
            while True:
                with self._lock:
                    while not inbox:
                        self.step()
                    latest = inbox.popleft()
                yield latest
                if latest.finish_reason is not None:
                    return
        finally:
            self.cancel(sequence)

    def _pieces(self, sequence: Sequence) -> Iterator[Piece]:
        """The pieces after a first, empty one that `stream` takes: a generator that never began cannot be closed."""
        try:
            yield Piece("", -1, "next")
            for r in self._rounds(sequence):
                yield from _split(r)
                if r.error is not None:
                    raise r.error
        finally:
            self.cancel(sequence)

    def _collect(self, sequence: Sequence) -> Result:
        return self.result(sequence, list(self._rounds(sequence)))

    def result(self, sequence: Sequence, rounds: list[Round]) -> Result:
        """Sum up the rounds of one request, finished or not (then "cancelled").

        Args:
            sequence: the request.
            rounds: its rounds so far, in order.
        """
        pieces = [piece for r in rounds for piece in _split(r)]
        last = rounds[-1] if rounds else None
        stats = collect(
            rounds,
            drafter=self.engine.drafter.name,
            note=getattr(self.engine.drafter, "note", ""),
            rule=self.engine.rule.name,
            lossless=self.engine.rule.lossless,
            precision=self.engine.target.precision,
            prefill_seconds=sequence.prefill_seconds,
        )
        return Result(
            text="".join(piece.text for piece in pieces),
            token_ids=tuple(piece.token_id for piece in pieces),
            prompt_token_ids=tuple(sequence.tokens[: sequence.prompt_length]),
            finish_reason=(last and last.finish_reason) or "cancelled",
            stats=stats,
            origins=tuple(piece.origin for piece in pieces),
            logprobs=tuple(piece.logprobs for piece in pieces if piece.logprobs is not None),
            error=last.error if last else None,
        )

    def _encode(self, prompt: Prompt | None, messages: Messages | None, raw: bool) -> Ordered[int]:
        if (prompt is None) == (messages is None):
            given = "neither" if prompt is None else "both"
            raise InvalidOption("prompt and messages", given, "exactly one of the two")
        if not isinstance(raw, bool):
            raise InvalidOption("raw", raw, "True or False")
        if messages is not None:
            return self.tokenizer.encode_chat(messages)
        if not isinstance(prompt, str):
            assert prompt is not None
            return prompt
        if not prompt:
            raise InvalidOption("prompt", prompt, "at least one character", "Give some text, or a chat message.")
        if raw or self.tokenizer.chat_template is None:
            return self.tokenizer.encode_prompt(prompt)
        return self.tokenizer.encode_chat([{"role": "user", "content": prompt}])


def _split(r: Round) -> Iterator[Piece]:
    for i, token in enumerate(r.token_ids):
        is_last = i == len(r.token_ids) - 1
        yield Piece(
            r.pieces[i] if r.pieces else "",
            token,
            "accepted" if i < r.num_accepted else "next",
            r.logprobs[i] if r.logprobs else None,
            r.finish_reason if is_last else None,
        )


def _is_conversation(prompt: Any) -> bool:
    return isinstance(prompt, Ordered) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def _stop_strings(stop: str | Ordered[str]) -> tuple[str, ...]:
    strings = tuple(stop) if isinstance(stop, Iterable) and not isinstance(stop, str) else (stop,)
    bad = next((s for s in strings if not isinstance(s, str) or not s), None)
    if bad is not None:
        raise InvalidOption("stop", bad, "strings of at least one character", "Leave it out for no stop string.")
    return strings


def _sampling(settings: dict[str, Any]) -> Sampling:
    known = Sampling.__dataclass_fields__
    for name in settings:
        if name not in known:
            others = ("max_new_tokens", "prediction", "raw", "seed", "stop", "stop_ids")
            raise InvalidOption("option", name, ", ".join(sorted((*known, *others))), "Check the spelling.")
    return Sampling(**settings)
