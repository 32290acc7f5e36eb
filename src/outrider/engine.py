"""The engine: sequences in slots, one target forward per round for all of them, exact verification.

Knows token ids, laws and caches; nothing of tokenizers, checkpoints or how a drafter guesses. Plain decoding is this
engine with empty drafts.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Ordered
from dataclasses import replace
from itertools import count, pairwise
from time import perf_counter

import outrider.tree as tree
from outrider.blocks import draft_block, prefill_block, rows_of
from outrider.core import Draft, Drafter, Model, Output, Rule, Sequence, Verdict
from outrider.errors import InvalidOption, OutriderError
from outrider.guard import Guard
from outrider.options import Sampling, check_request, check_slots, token_ids, validate, whole
from outrider.rounds import FinishReason, Pace, Round, Seconds, TokenLogprobs, Verified
from outrider.rules.coins import streams
from outrider.sampling import laws, token_logprobs
from outrider.text import TextStream

PREFILL_CHUNK = 256
"""Prompt tokens per prefill forward; fixed, so that a prompt's cache does not depend on what else is running."""

INVARIANT_WIDTH = 16
"""Rows of every forward in invariant mode, so that plain and speculative runs call the same kernels."""


class Engine:
    """Continuous batching of speculative rounds.

    Between rounds `cache.lengths[slot] == len(sequence.tokens) - 1` for every sequence that finished its prefill.

    Args:
        target: the model whose law is kept.
        drafter: proposes; its `proposal` must be one that `rule` accepts.
        rule: verifies.
        pace: decides how much to draft.
        slots: sequences decoded together; more wait in line.
        context_length: tokens per sequence, prompt and output; at most the target's.
        invariant: run each sequence alone in forwards of `INVARIANT_WIDTH` rows.

    Raises:
        InvalidOption: slots or context length out of range, a rule that does not fit the drafter.
        CacheTooLarge: the cache does not fit in memory.
    """

    def __init__(
        self,
        target: Model,
        drafter: Drafter,
        rule: Rule,
        pace: Pace,
        *,
        slots: int = 1,
        context_length: int | None = None,
        invariant: bool = False,
    ) -> None:
        self.context_length = target.context_length if context_length is None else context_length
        if not whole(self.context_length, 2, target.context_length):
            raise InvalidOption("context_length", context_length, f"2 to {target.context_length}, the target's own")
        check_slots(slots)
        if drafter.proposal not in rule.proposals:
            fits = ", ".join(sorted(rule.proposals))
            raise InvalidOption("rule", rule.name, f"one for {drafter.proposal} drafts", f"This one is for: {fits}.")
        self.target, self.drafter, self.rule, self.pace = target, drafter, rule, pace
        self._guard = Guard(drafter, rule, target)
        self.invariant = invariant
        self.cache = target.new_cache(slots, self.context_length + (INVARIANT_WIDTH if invariant else 0))
        self._waiting: deque[Sequence] = deque()
        self.slots, self._slots = slots, list[Sequence | None]([None] * slots)
        self._texts: dict[int, TextStream] = {}
        self._ids = count()

    def add(
        self,
        prompt: Ordered[int],
        *,
        sampling: Sampling | None = None,
        seed: int | None = None,
        stop_ids: Iterable[int] = (),
        max_new_tokens: int | None = None,
        prediction: Iterable[int] = (),
        text: TextStream | None = None,
    ) -> Sequence:
        """Queue a request; it joins at a later step, when a slot is free.

        Args:
            prompt: token ids, at least one, fewer than the context length.
            sampling: the law; greedy by default.
            seed: of the three random streams; None draws one.
            stop_ids: tokens that end the sequence (emitted, then nothing more).
            max_new_tokens: at least 1; None means until a stop or the context's end.
            prediction: tokens expected in the output, for drafters that look things up; they change nothing else.
            text: decodes the output and looks for stop strings; None for ids only.

        Raises:
            InvalidOption: naming the value, what is allowed and what to do.
        """
        sampling = sampling or Sampling()
        validate(sampling, self.target.vocab_size)
        tokens, stops = token_ids("prompt", prompt, self.target.vocab_size), frozenset(token_ids("stop", stop_ids))
        expected = tuple(token_ids("prediction", prediction, self.target.vocab_size))
        check_request(tokens, max_new_tokens, sampling.min_new_tokens, seed, self.context_length)
        chosen = secrets.randbits(63) if seed is None else seed
        coins = streams(chosen, coupled=self.rule.name == "coupled")
        sequence = Sequence(next(self._ids), tokens, len(tokens), sampling, *coins, stops, max_new_tokens, expected)
        sequence.seeded = seed is not None
        self._waiting.append(sequence)
        if text is not None:
            self._texts[sequence.id] = text
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """Take a sequence out, waiting or running; its slot is free at the next step. Unknown ones are ignored."""
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        self._release(sequence)

    @property
    def num_unfinished(self) -> int:
        """Sequences waiting or running."""
        return len(self._waiting) + len(self._running())

    def step(self) -> list[Round]:
        """One round for every sequence that is ready; the others get on with their prefill.

        Returns:
            One Round per sequence that took part; [] if nothing was ready.
        """
        self._admit()
        self._prefill()
        ready = [s for s in self._running() if self._is_ready(s)]
        if not ready:
            return []
        clock = [perf_counter()]
        drafts, broken = self._propose(ready)
        clock.append(perf_counter())
        outputs = self._forward(ready, drafts)
        clock.append(perf_counter())
        decided = [self._decide(*each) for each in zip(ready, drafts, outputs, strict=True)]
        clock.append(perf_counter())
        rounds = [self._emit(*each) for each in zip(ready, drafts, decided, broken, strict=True)]
        clock.append(perf_counter())
        self._guard.observe(_verified(rounds, drafts, decided, outputs))
        clock.append(perf_counter())
        draft, target, verify, other, learn = (after - before for before, after in pairwise(clock))
        rounds = [replace(r, seconds=Seconds(draft + learn, target, verify, other)) for r in rounds]
        self.pace.observe(rounds)
        return rounds

    def _admit(self) -> None:
        for slot, holder in enumerate(self._slots):
            if holder is None and self._waiting:
                sequence = self._waiting.popleft()
                sequence.slot, self._slots[slot] = slot, sequence
                self.cache.truncate(slot, 0)

    def _prefill(self) -> None:
        """One chunk for each sequence that is not ready, each alone; a copy where the same prompt is in the cache."""
        for sequence in [s for s in self._running() if not self._is_ready(s)]:
            start = perf_counter()
            twin = self._twin(sequence)
            if twin is None:
                self._prefill_chunk(sequence)
            elif self._is_ready(twin):
                self.cache.copy(twin.slot, sequence.slot)
                self.cache.truncate(sequence.slot, sequence.prompt_length - 1)
                self._guard.share(twin, sequence)
            sequence.prefill_seconds += perf_counter() - start

    def _twin(self, sequence: Sequence) -> Sequence | None:
        """An earlier running sequence with the same prompt, whose prefill can be shared."""
        prompt = sequence.tokens
        earlier = (s for s in self._running() if s.id < sequence.id and s.prompt_length == len(prompt))
        return next((s for s in earlier if s.tokens[: s.prompt_length] == prompt), None)

    def _prefill_chunk(self, sequence: Sequence) -> None:
        done = self.cache.lengths[sequence.slot]
        chunk = sequence.tokens[done : min(done + PREFILL_CHUNK, len(sequence.tokens) - 1)]
        output = self.target.forward(prefill_block(sequence, chunk, self.cache.lengths), self.cache)
        self.cache.commit(sequence.slot, range(len(chunk)))
        self._guard.read(sequence, None if output.hidden is None else output.hidden[0])

    def _propose(self, ready: list[Sequence]) -> tuple[list[Draft], list[str | None]]:
        most = INVARIANT_WIDTH - 1 if self.invariant else self.context_length
        budgets = [min(k, most, self._room(s) - 1) for k, s in zip(self.pace.budgets(ready), ready, strict=True)]
        return self._guard.proposals(ready, budgets)

    def _forward(self, ready: list[Sequence], drafts: list[Draft]) -> list[Output]:
        """Logits [1 + n, V] of each sequence's block: after its pending token and after each drafted node."""
        if self.invariant and len(ready) > 1:
            return [self._forward([s], [d])[0] for s, d in zip(ready, drafts, strict=True)]
        block = draft_block(ready, drafts, self.cache.lengths, INVARIANT_WIDTH if self.invariant else 0)
        return rows_of(self.target.forward(block, self.cache), drafts)

    def _decide(self, sequence: Sequence, draft: Draft, output: Output) -> _Decision:
        """Verify one draft; a failure, such as a user's processor that raises, is this sequence's alone."""
        paths, logits = tree.paths(draft.tokens, draft.parents), output.logits
        assert logits is not None
        try:
            target_probs = laws(logits, sequence, paths)
            verdict = self.rule.verify(draft, target_probs, sequence.verify_coins, len(sequence.tokens))
            if sequence.sampling.logprobs is None:
                return verdict, ()
            rows = zip((0, *(node + 1 for node in verdict.path)), _new_tokens(draft, verdict), strict=True)
            return verdict, tuple(token_logprobs(logits[r], sequence, paths[r], token) for r, token in rows)
        except OutriderError as error:
            return error

    def _emit(self, sequence: Sequence, draft: Draft, decided: _Decision, broken: str | None) -> Round:
        """Cut the new tokens at the first stop or limit, append them and move the cache's length."""
        report = Round(sequence, (), len(draft), broken=broken, depth=max(tree.depths(draft.parents)))
        if isinstance(decided, OutriderError):
            self._release(sequence)
            return replace(report, finish_reason="error", error=decided)
        verdict, logprobs = decided
        kept, reason, pieces = self._cut(sequence, _new_tokens(draft, verdict))
        sequence.tokens += kept
        self.cache.commit(sequence.slot, [0, *(node + 1 for node in verdict.path)])
        assert reason is not None or self.cache.lengths[sequence.slot] == len(sequence.tokens) - 1
        if reason is not None:
            self._release(sequence)
        n, rule = len(kept), verdict.rule or self.rule.name
        report = replace(report, token_ids=tuple(kept), num_accepted=min(len(verdict.path), n), finish_reason=reason)
        return replace(report, logprobs=logprobs[:n], pieces=tuple(pieces), rule=rule, distance=verdict.distance[:n])

    def _cut(self, sequence: Sequence, tokens: list[int]) -> tuple[list[int], FinishReason | None, list[str]]:
        """The tokens up to the first that ends the sequence, why it ends, and each token's text."""
        stream, room, pieces = self._texts.get(sequence.id), self._room(sequence), []
        reason: FinishReason | None = None
        for number, token in enumerate(tokens, start=1):
            is_stop = token in sequence.stop_ids
            pieces.append(stream.push(token) if stream and not is_stop else "")
            if is_stop or (stream and stream.stopped is not None):
                reason = "stop"
            elif number == room:
                reason = "length"
            if reason is not None:
                pieces[-1] += stream.finish() if stream else ""
                break
        return tokens[: len(pieces)], reason, pieces if stream else []

    def _running(self) -> list[Sequence]:
        return [s for s in self._slots if s is not None]

    def _is_ready(self, sequence: Sequence) -> bool:
        return bool(self.cache.lengths[sequence.slot] >= sequence.prompt_length - 1)

    def _room(self, sequence: Sequence) -> int:
        """Tokens that may still be emitted."""
        room = self.context_length - len(sequence.tokens)
        limit = sequence.max_new_tokens
        return room if limit is None else min(room, limit - sequence.num_new_tokens)

    def _release(self, sequence: Sequence) -> None:
        self._texts.pop(sequence.id, None)
        if sequence.slot >= 0 and self._slots[sequence.slot] is sequence:
            self._slots[sequence.slot] = None


_Decision = tuple[Verdict, tuple[TokenLogprobs, ...]] | OutriderError


def _new_tokens(draft: Draft, verdict: Verdict) -> list[int]:
    return [*(draft.tokens[node] for node in verdict.path), verdict.next_token]


def _verified(
    rounds: list[Round], drafts: list[Draft], decided: list[_Decision], outputs: list[Output]
) -> Iterator[Verified]:
    """What a drafter may learn from: the sequences that go on."""
    for r, draft, decision, output in zip(rounds, drafts, decided, outputs, strict=True):
        if r.finish_reason is None and not isinstance(decision, OutriderError) and output.logits is not None:
            yield Verified(r.sequence, draft, decision[0], output.logits, output.hidden)
