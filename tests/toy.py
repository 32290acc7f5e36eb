"""Toys for tests: a table model with literal laws and a real cache, a byte tokenizer, scripted and broken drafters.

The table model computes nothing but a look-up, yet it looks its context up *in its cache*: a row that was kept by
mistake, lost, moved or placed at a wrong position changes the law, as it would in a transformer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Ordered
from typing import Any

import numpy as np
import torch

from outrider.core import Block, Coins, Draft, Output, Proposal, Sequence
from outrider.options import Sampling

MISSING = -1
"""Stands in a context for a position that no visible row has, or that two have."""

LawOf = Callable[[tuple[int, ...]], np.ndarray]
"""From the last tokens, oldest first, to [V] probabilities in float64."""


def random_laws(vocab_size: int, seed: int = 0, *, zeros: float = 0.0, sharpness: float = 1.0) -> LawOf:
    """A law per context, drawn at random but fixed by `seed` and the context.

    Args:
        vocab_size: V.
        seed: names the table.
        zeros: share of tokens with probability 0 (one at least is left).
        sharpness: exponent on the weights; 1 is nearly flat, 8 puts most mass on a few tokens.
    """

    def law(context: tuple[int, ...]) -> np.ndarray:
        rng = np.random.default_rng([seed, *(token + 1 for token in context), len(context)])
        weights = rng.uniform(0.1, 1.0, vocab_size) ** sharpness
        dropped = rng.random(vocab_size) < zeros
        dropped[rng.integers(vocab_size)] = False
        weights[dropped] = 0.0
        return weights / weights.sum()

    return law


def blend(first: LawOf, second: LawOf, amount: float) -> LawOf:
    """(1 - amount) * first + amount * second: a draft that resembles its target."""
    return lambda context: (1 - amount) * first(context) + amount * second(context)


def rule_law(vocab_size: int, next_token: Callable[[tuple[int, ...]], int], certainty: float = 0.9) -> LawOf:
    """A law that puts `certainty` on `next_token(context)` and spreads the rest evenly."""

    def law(context: tuple[int, ...]) -> np.ndarray:
        probs = np.full(vocab_size, (1 - certainty) / (vocab_size - 1))
        probs[next_token(context)] = certainty
        return probs

    return law


class ToyCache:
    """A `core.Cache` that stores the token and the position of each row where a transformer stores keys and values."""

    def __init__(self, slots: int, capacity: int) -> None:
        self.capacity = capacity
        self.lengths = [0] * slots
        self.tokens = np.full((slots, capacity), MISSING, dtype=np.int64)
        self.positions = np.full((slots, capacity), MISSING, dtype=np.int64)
        self.block_widths = [0] * slots  # rows past the length that the last forward wrote

    def commit(self, slot: int, rows: Ordered[int]) -> None:
        """Keep these rows of the slot's last block, in this order."""
        length = self.lengths[slot]
        source = [length + row for row in rows]
        assert all(0 <= row < self.block_widths[slot] for row in rows), f"rows {list(rows)} of slot {slot} do not exist"
        for table in (self.tokens, self.positions):
            table[slot, length : length + len(source)] = table[slot, source]
        self.lengths[slot] = length + len(source)
        self.block_widths[slot] = 0

    def truncate(self, slot: int, length: int) -> None:
        """Forget everything from row `length` on (the stale rows stay where they are, as in a real cache)."""
        assert 0 <= length <= self.lengths[slot], f"slot {slot} holds {self.lengths[slot]} rows, not {length}"
        self.lengths[slot] = length
        self.block_widths[slot] = 0

    def copy(self, source: int, target: int) -> None:
        """Make slot `target` an independent copy of slot `source`."""
        self.tokens[target], self.positions[target] = self.tokens[source], self.positions[source]
        self.lengths[target] = self.lengths[source]
        self.block_widths[target] = 0

    def committed(self, slot: int) -> list[int]:
        """The tokens that the slot holds, for audits; fails if one is not at its own position."""
        length = self.lengths[slot]
        assert self.positions[slot, :length].tolist() == list(range(length))
        return self.tokens[slot, :length].tolist()


class TableModel:
    """A `core.Model` whose law is a function of the last `order` tokens that it finds in its cache.

    Args:
        vocab_size: V.
        order: how many tokens the law depends on, None for all of them; with 1 the committed rows do not matter.
        law: the table; by default `random_laws(vocab_size, seed)`.
        seed: of the default table and of the garbage in stale rows.
        context_length: positions from here on raise IndexError, as a rotary table would.
    """

    precision = "float32"
    takes_trees = True

    def __init__(
        self,
        vocab_size: int,
        *,
        order: int | None = 2,
        law: LawOf | None = None,
        seed: int = 0,
        context_length: int = 4096,
    ) -> None:
        self.vocab_size = vocab_size
        self.order = order
        self.context_length = context_length
        self.num_forwards = 0
        self._law = law if law is not None else random_laws(vocab_size, seed)
        self._known: dict[tuple[int, ...], np.ndarray] = {}
        self._garbage = np.random.default_rng([seed, 7])

    def law(self, tokens: Ordered[int]) -> np.ndarray:
        """[V] float64: the model's own law of the token after `tokens`, without any cache (the reference)."""
        context = tuple(tokens) if self.order is None else tuple(tokens[max(0, len(tokens) - self.order) :])
        if context not in self._known:
            law = self._law(context)
            assert law.shape == (self.vocab_size,)
            assert abs(law.sum() - 1) < 1e-9
            self._known[context] = law
        return self._known[context]

    def logits(self, tokens: Ordered[int]) -> torch.Tensor:
        """[V] float32: the logarithm of `law`, -inf where it is zero."""
        with np.errstate(divide="ignore"):
            return torch.from_numpy(np.log(self.law(tokens))).float()

    def greedy(self, tokens: Ordered[int], count: int) -> list[int]:
        """The `count` tokens that plain greedy decoding adds to `tokens`."""
        grown = list(tokens)
        for _ in range(count):
            grown.append(int(self.logits(grown).argmax()))
        return grown[len(tokens) :]

    def new_cache(self, slots: int, capacity: int) -> ToyCache:
        """An empty cache."""
        return ToyCache(slots, capacity)

    def forward(self, block: Block, cache: ToyCache) -> Output:
        """See `core.Model`; rows past a width get a law that is certain of a random token."""
        self.num_forwards += 1
        num_rows, width = block.tokens.shape
        assert block.positions.shape == (num_rows, width)
        assert len(block.slots) == len(block.widths) == num_rows
        assert len(set(block.slots)) == num_rows, "one slot twice in a block"
        if not bool(((block.tokens >= 0) & (block.tokens < self.vocab_size)).all()):
            raise IndexError(f"a token id is outside [0, {self.vocab_size})")
        for row, slot in enumerate(block.slots):
            self._write(block, cache, row, slot)
        if block.prefill:
            return Output(None)
        logits = torch.full((num_rows, width, self.vocab_size), -torch.inf)
        for row, slot in enumerate(block.slots):
            for node in range(width):
                if node < block.widths[row]:
                    logits[row, node] = self.logits(self._context(block, cache, row, slot, node))
                else:
                    logits[row, node, int(self._garbage.integers(self.vocab_size))] = 0.0
        return Output(logits)

    def _write(self, block: Block, cache: ToyCache, row: int, slot: int) -> None:
        """Store the block's rows past the slot's length, and garbage after them."""
        start, width = cache.lengths[slot], block.widths[row]
        assert 1 <= width <= block.tokens.shape[1]
        if start + width > cache.capacity:
            raise IndexError(f"slot {slot} holds {start} of {cache.capacity} rows; {width} more do not fit")
        positions = block.positions[row, :width].numpy()
        if not (positions.min() >= 0 and positions.max() < self.context_length):
            raise IndexError(f"a position is outside [0, {self.context_length})")
        garbage = cache.capacity - start
        cache.tokens[slot, start:] = self._garbage.integers(self.vocab_size, size=garbage)
        cache.positions[slot, start:] = self._garbage.integers(start + width, size=garbage)
        cache.tokens[slot, start : start + width] = block.tokens[row, :width].numpy()
        cache.positions[slot, start : start + width] = positions
        cache.block_widths[slot] = width

    def _context(self, block: Block, cache: ToyCache, row: int, slot: int, node: int) -> tuple[int, ...]:
        """The last tokens before and at a node, by position, among the cache rows that the node may see."""
        start, width = cache.lengths[slot], block.widths[row]
        seen = np.zeros(start + width, dtype=bool)
        seen[:start] = True
        if block.ancestors is None:
            seen[start : start + node + 1] = True
        else:
            seen[start:] = block.ancestors[row, node, :width].numpy()
        position = int(block.positions[row, node])
        tokens, positions = cache.tokens[slot, : start + width][seen], cache.positions[slot, : start + width][seen]
        reach = position + 1 if self.order is None else min(self.order, position + 1)
        found = [tokens[positions == wanted].tolist() for wanted in range(position + 1 - reach, position + 1)]
        return tuple(tokens_here[0] if len(tokens_here) == 1 else MISSING for tokens_here in found)


class Dice:
    """`core.Coins` from a numpy generator, drawn in the order of the calls."""

    def __init__(self, seed: int | list[int]) -> None:
        self._rng = np.random.default_rng(seed)

    def bernoulli(self, probability: Any) -> bool:
        return bool(self._rng.random() < probability)

    def categorical(self, weights: np.ndarray, position: int) -> int:
        return _invert(weights, self._rng.random())


class KeyedDice(Dice):
    """The same, but a token's draw depends on the seed and its position alone: two drafters draw alike."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._seed = seed

    def categorical(self, weights: np.ndarray, position: int) -> int:
        return _invert(weights, np.random.default_rng([self._seed, position]).random())


def _invert(weights: np.ndarray, uniform: float) -> int:
    """Inverse distribution function; never an index of weight 0."""
    sums = np.cumsum(np.asarray(weights, dtype=np.float64))
    assert sums[-1] > 0
    index = int(np.searchsorted(sums, uniform * sums[-1], side="right"))
    return min(index, int(np.flatnonzero(weights)[-1]))


def make_sequence(
    tokens: Ordered[int],
    *,
    id: int = 0,  # noqa: A002 - the field's name
    slot: int = 0,
    sampling: Sampling | None = None,
    seed: int = 0,
    prompt_length: int | None = None,
    stop_ids: Ordered[int] = (),
    max_new_tokens: int | None = None,
    draft_coins: Coins | None = None,
) -> Sequence:
    """A `core.Sequence` for tests: greedy unless `sampling` says otherwise, all tokens prompt unless told otherwise."""
    return Sequence(
        id=id,
        tokens=list(tokens),
        prompt_length=len(tokens) if prompt_length is None else prompt_length,
        sampling=Sampling() if sampling is None else sampling,
        draft_coins=KeyedDice(seed) if draft_coins is None else draft_coins,
        verify_coins=Dice([seed, 1]),
        stop_ids=frozenset(stop_ids),
        max_new_tokens=max_new_tokens,
        slot=slot,
    )


def exact_string_law(
    model: TableModel,
    prompt: Ordered[int],
    length: int,
    sampling: Sampling | None = None,
    stop_ids: Ordered[int] = (),
) -> dict[tuple[int, ...], float]:
    """The law of the next `length` tokens by enumeration, {string: probability > 0}; a stop id ends a string."""
    from outrider.sampling import laws

    sampling = Sampling(temperature=1.0) if sampling is None else sampling

    def grow(path: tuple[int, ...], weight: float) -> Iterator[tuple[tuple[int, ...], float]]:
        if len(path) == length or (path and path[-1] in stop_ids):
            yield path, weight
            return
        sequence = make_sequence([*prompt, *path], prompt_length=len(prompt), sampling=sampling, stop_ids=stop_ids)
        law = laws(model.logits(sequence.tokens)[None], sequence, [()])[0]
        for token in np.flatnonzero(law):
            yield from grow((*path, int(token)), weight * float(law[token]))

    return dict(grow((), 1.0))


class ByteTokenizer:
    """One token per UTF-8 byte and a few specials; the interface of `outrider.models.tokenizer`."""

    specials = ("<bos>", "<end>", "<system>", "<user>", "<assistant>")
    bos_id, eos_id = 256, 257
    prefix_ids = (bos_id,)
    stop_ids = frozenset({eos_id})
    vocab_size = 256 + len(specials)
    special_ids = frozenset(range(256, vocab_size))
    chat_template = "<role>content<end>"

    def encode(self, text: str) -> list[int]:
        """The bytes of the text, nothing added."""
        return list(text.encode())

    def encode_prompt(self, text: str) -> list[int]:
        """The text with what the model expects before it."""
        return [*self.prefix_ids, *self.encode(text)]

    def encode_chat(self, messages: Ordered[Mapping[str, str]], add_generation_prompt: bool = True) -> list[int]:
        """The messages in the toy's chat format, ready for the answer."""
        tokens = [self.bos_id]
        for message in messages:
            role = 256 + self.specials.index(f"<{message['role']}>")
            tokens += [role, *self.encode(message["content"]), self.eos_id]
        return [*tokens, 256 + self.specials.index("<assistant>")] if add_generation_prompt else tokens

    def decode(self, ids: Ordered[int]) -> str:
        """The text of the ids without the specials; U+FFFD for bytes that are no character."""
        return bytes(token for token in ids if token < 256).decode(errors="replace")

    def strings(self) -> list[str | None]:
        """[vocab_size] what each id stands for, to compare two vocabularies."""
        return [*(f"<0x{byte:02X}>" for byte in range(256)), *self.specials]


class ScriptedDrafter:
    """Drafts the continuation written in `references`: the first `right` tokens right, the others wrong.

    Args:
        references: token lists, prompt included; a sequence follows the first one that begins with its tokens.
        vocab_size: V; a wrong token is the right one + 1 modulo V.
        right: how many drafted tokens are right in each round: None for all (the oracle), 0 for none (the anti-oracle).
    """

    name = "scripted"
    proposal: Proposal = "point_mass"

    def __init__(self, references: Ordered[Ordered[int]], vocab_size: int, right: int | None = None) -> None:
        self.references = [list(reference) for reference in references]
        self.vocab_size = vocab_size
        self.right = right

    def propose(self, sequences: list[Sequence], budgets: list[int]) -> list[Draft]:
        return [self._propose(sequence.tokens, budget) for sequence, budget in zip(sequences, budgets, strict=True)]

    def _propose(self, tokens: list[int], budget: int) -> Draft:
        for reference in self.references:
            if reference[: len(tokens)] == tokens:
                right = reference[len(tokens) : len(tokens) + budget]
                sure = len(right) if self.right is None else self.right
                wrong = [(token + 1) % self.vocab_size for token in right]
                return Draft.chain(right[:sure] + wrong[sure:])
        return Draft()


class BrokenDrafter:
    """Drafts that break the contract in one of the ways named in `faults`; `faults_of_sampled` are for sampled ones."""

    name = "broken"
    faults = ("raises", "id_too_large", "negative_id", "float_id", "too_long", "too_few", "not_a_draft", "bad_parents")
    faults_of_sampled = ("no_laws", "misshapen_laws", "impossible_token")

    def __init__(self, fault: str, vocab_size: int, proposal: Proposal = "point_mass") -> None:
        assert fault in (self.faults_of_sampled if proposal == "sampled" else self.faults)
        self.fault = fault
        self.vocab_size = vocab_size
        self.proposal: Proposal = proposal

    def propose(self, sequences: list[Sequence], budgets: list[int]) -> Any:
        if self.fault == "raises":
            raise RuntimeError("the drafter failed")
        drafts = [self._draft(budget) for budget in budgets]
        return drafts[:-1] if self.fault == "too_few" else drafts

    def _draft(self, budget: int) -> Any:
        count = max(1, budget)
        if self.fault == "too_long":
            return Draft.chain([0] * (budget + 1))
        if self.fault == "not_a_draft":
            return [0] * count
        if self.fault == "bad_parents":
            return Draft((0,) * count, tuple(range(1, count + 1)))
        if self.fault in self.faults_of_sampled:
            return self._sampled(count)
        token: Any = {"id_too_large": self.vocab_size, "negative_id": -1, "float_id": 0.5}.get(self.fault, 0)
        return Draft.chain([token] * count)

    def _sampled(self, count: int) -> Draft:
        laws = np.zeros((count, self.vocab_size + (self.fault == "misshapen_laws")), dtype=np.float32)
        laws[:, 1 if self.fault == "impossible_token" else 0] = 1
        draft_probs = None if self.fault == "no_laws" else laws
        return Draft((0,) * count, tuple(range(-1, count - 1)), "sampled", draft_probs)
