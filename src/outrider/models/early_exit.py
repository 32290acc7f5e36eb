"""The target with a way out after its first layers: they draft, and verification does not run them again.

It knows the decoder's layers, not how drafts are made or judged.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from outrider.cache import KVCache
from outrider.core import Block, Output
from outrider.errors import InvalidOption
from outrider.models.decoder import Decoder


class ExitView:
    """The rows of a target's cache as its first layers see them: the same storage, lengths of its own.

    Args:
        cache: the target's.
    """

    def __init__(self, cache: KVCache) -> None:
        self.rows, self.data, self.capacity = cache.rows, cache.data, cache.capacity
        self.lengths = list(cache.lengths)


@dataclass
class _Run:
    """What the first layers have made of a slot's rows past the target's length."""

    start: int = 0
    tokens: list[int] = field(default_factory=list)
    states: list[torch.Tensor] = field(default_factory=list)  # [H] after the first layers, one per token


class EarlyExitTarget:
    """A decoder that can also be left after its first layers; a `core.Model` whose drafts cost no second prefill.

    What the first layers made of the pending token and of a drafted chain is remembered until the next draft, and the
    verification of that chain starts from there. At float16 and q4 on a CPU this gives the very bits of running all
    layers on the whole block (see `Decoder.row_invariant`); elsewhere the last bits may differ.

    Args:
        decoder: the target.
        layers: how many of its layers draft, 1 to all but one.

    Raises:
        InvalidOption: any other number of layers.
    """

    takes_trees = True
    pads_to_same_bits = False  # the first layers run on other widths when they draft

    def __init__(self, decoder: Decoder, layers: int) -> None:
        total = decoder.config.num_layers
        if not 1 <= layers < total:
            fix = f"The target has {total} layers."
            raise InvalidOption("early-exit layers", layers, f"1 to {total - 1}", fix)
        assert not decoder.feature_layers, "features of layers that are not run again would be missing"
        self.decoder, self.layers = decoder, layers
        self.vocab_size, self.context_length = decoder.vocab_size, decoder.context_length
        self.precision, self.row_invariant = decoder.precision, decoder.row_invariant
        self.share = layers / total
        """Cost of a drafted token, in units of the target's forward of one row."""
        self.num_rows_saved = 0
        """Rows whose first layers verification did not run again."""
        self._view: ExitView | None = None
        self._runs: dict[int, _Run] = {}

    def new_cache(self, slots: int, capacity: int) -> KVCache:
        """The target's cache, which the first layers share; one at a time, that of the engine.

        Raises:
            CacheTooLarge: with the number of bytes asked.
        """
        cache = self.decoder.new_cache(slots, capacity)
        self._view, self._runs = ExitView(cache), {}
        return cache

    def begin(self, slots: list[int], lengths: list[int]) -> None:
        """Start drafting on top of so many rows of these slots; what was remembered of them is forgotten."""
        assert self._view is not None, "the engine makes the cache first"
        for slot, length in zip(slots, lengths, strict=True):
            self._view.lengths[slot] = length
            self._runs[slot] = _Run(length)

    @torch.inference_mode()
    def draft(self, slots: list[int], tokens: list[int]) -> torch.Tensor:
        """[B, V] early logits after one more token in each slot, whose rows and state are kept for verification."""
        assert self._view is not None
        view, runs = self._view, [self._runs[slot] for slot in slots]
        places = torch.tensor([[view.lengths[slot]] for slot in slots])
        block = Block(torch.tensor(tokens)[:, None], places, tuple(slots), (1,) * len(slots))
        flow = self.decoder.embed(block, view)
        self.decoder.run(flow, view, range(self.layers))
        for slot, run, token, state in zip(slots, runs, tokens, flow.x.clone(), strict=True):
            run.tokens.append(token)
            run.states.append(state)
            view.lengths[slot] += 1
        return self.decoder.head(flow, block)[:, 0]

    @torch.inference_mode()
    def forward(self, block: Block, cache: KVCache) -> Output:
        """See `core.Model`; rows that have just been drafted enter behind the first layers."""
        known = [self._known(block, cache, row) for row in range(len(block.slots))]
        for slot in block.slots:  # used once: later rows of this slot may stand on another text
            self._runs.pop(slot, None)
        if not any(known):
            return self.decoder.forward(block, cache)
        self.num_rows_saved += sum(len(states) for states in known)
        flow = self.decoder.embed(block, cache)
        flow.x = torch.cat(self._entered(block, cache, known))
        self.decoder.run(flow, cache, range(self.layers, self.decoder.config.num_layers))
        return Output(self.decoder.head(flow, block))

    def _known(self, block: Block, cache: KVCache, row: int) -> list[torch.Tensor]:
        """States of the first rows of one sequence that were drafted just so; never of all of them."""
        slot, width = block.slots[row], block.widths[row]
        run = self._runs.get(slot)
        if run is None or block.prefill or block.ancestors is not None or run.start != cache.lengths[slot]:
            return []
        fed = block.tokens[row, : width - 1].tolist()
        agreed = next((i for i, (a, b) in enumerate(zip(fed, run.tokens, strict=False)) if a != b), None)
        return run.states[: min(len(fed), len(run.tokens)) if agreed is None else agreed]

    def _entered(self, block: Block, cache: KVCache, known: list[list[torch.Tensor]]) -> list[torch.Tensor]:
        """Per sequence [width, H] behind the first layers: what is known, and the rest run now."""
        view = ExitView(cache)
        skipped = [len(states) for states in known]
        widths = tuple(width - skip for width, skip in zip(block.widths, skipped, strict=True))
        for slot, skip in zip(block.slots, skipped, strict=True):
            view.lengths[slot] += skip
        tokens, positions = (_shifted(rows, skipped, max(widths)) for rows in (block.tokens, block.positions))
        flow = self.decoder.embed(Block(tokens, positions, block.slots, widths), view)
        self.decoder.run(flow, view, range(self.layers))
        rest = torch.split(flow.x, list(widths))
        return [torch.stack([*states, *new]) for states, new in zip(known, rest, strict=True)]


def _shifted(rows: torch.Tensor, skipped: list[int], width: int) -> torch.Tensor:
    """[B, width] each row from its own start on; what is past its end is padding."""
    longer = torch.nn.functional.pad(rows, (0, width))
    return torch.stack([row[skip : skip + width] for row, skip in zip(longer, skipped, strict=True)])
