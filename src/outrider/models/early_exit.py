"""The target with a way out after its first layers: they draft, and verification does not run them again.

It knows the decoder's layers, not how drafts are made or judged.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field

import torch

from outrider.cache import KVCache
from outrider.core import Block, Output
from outrider.errors import InvalidOption
from outrider.models.config import DecoderConfig
from outrider.models.decoder import Decoder


@dataclass
class Run:
    """What the first layers have made of a slot's tokens past the target's length.

    Their keys and values stand in the cache; row `start + i` is token i's.
    """

    start: int
    tokens: list[int] = field(default_factory=list)
    states: list[torch.Tensor] = field(default_factory=list)  # [H] after the first layers, one per token


class ExitCache:
    """A `core.Cache`: the target's, which its first layers share, and what they have run past its lengths.

    A run is forgotten when anything becomes of its slot, so that it never stands on another text.

    Args:
        whole: keys and values of all layers.
    """

    def __init__(self, whole: KVCache) -> None:
        self.whole, self.capacity = whole, whole.capacity
        self.rows, self.data, self.lengths = whole.rows, whole.data, whole.lengths
        self.runs: dict[int, Run] = {}

    def commit(self, slot: int, rows: Ordered[int]) -> None:
        """See `core.Cache`."""
        self.runs.pop(slot, None)
        self.whole.commit(slot, rows)

    def truncate(self, slot: int, length: int) -> None:
        """See `core.Cache`."""
        self.runs.pop(slot, None)
        self.whole.truncate(slot, length)

    def copy(self, source: int, target: int) -> None:
        """See `core.Cache`."""
        self.runs.pop(target, None)
        self.whole.copy(source, target)


class ExitView:
    """The same rows with other lengths: those that the first layers have got to.

    Args:
        cache: the target's; slots without a run have its lengths.
    """

    def __init__(self, cache: ExitCache) -> None:
        self.rows, self.data, self.lengths = cache.rows, cache.data, list(cache.lengths)
        for slot, run in cache.runs.items():
            self.lengths[slot] = run.start + len(run.tokens)


class EarlyExitTarget:
    """A decoder that can also be left after its first layers; a `core.Model` whose drafts cost no second prefill.

    What the first layers made of the pending token and of a drafted chain is remembered, and the verification of that
    chain starts from there. At float16 and q4 on a CPU this gives the very bits of running all layers on the whole
    block (see `Decoder.row_invariant`). Elsewhere the last bits differ, so there it is done only if asked for; asked or
    not, the law is the target's.

    Args:
        decoder: the target, without feature layers.
        layers: how many of its layers draft, 1 to all but one.
        reuse: whether verification starts from what was remembered; None for where it gives the same bits.

    Raises:
        InvalidOption: any other number of layers.

    Attributes:
        share: cost of a drafted token, in units of the target's forward of one row, by the weights that are read.
        num_rows_saved: rows whose first layers verification did not run again.
    """

    takes_trees = True

    def __init__(self, decoder: Decoder, layers: int, *, reuse: bool | None = None) -> None:
        total = decoder.config.num_layers
        if not 1 <= layers < total:
            fix = f"The target has {total} layers."
            raise InvalidOption("early-exit layers", layers, f"1 to {total - 1}", fix)
        assert not decoder.feature_layers, "features of layers that are not run again would be missing"
        self.decoder, self.layers = decoder, layers
        self.vocab_size, self.context_length = decoder.vocab_size, decoder.context_length
        self.precision, self.row_invariant = decoder.precision, decoder.row_invariant
        self.reuse = decoder.row_invariant if reuse is None else reuse
        self.pads_to_same_bits = decoder.pads_to_same_bits and (decoder.row_invariant or not self.reuse)
        self.share = _share(decoder.config, layers)
        self.num_rows_saved = 0
        self._cache: ExitCache | None = None

    def new_cache(self, slots: int, capacity: int) -> ExitCache:
        """The engine's cache; drafts stand on the one made last, so each engine needs a target of its own.

        Raises:
            CacheTooLarge: with the number of bytes asked.
        """
        self._cache = ExitCache(self.decoder.new_cache(slots, capacity))
        return self._cache

    def begin(self, slots: list[int], lengths: list[int]) -> None:
        """Start drafting in these slots, on top of the target's rows; what was remembered of them is forgotten.

        Args:
            slots: distinct.
            lengths: how many rows the target must hold in each: all of the text but its last token.
        """
        assert self._cache is not None, "the engine makes the cache first"
        for slot, length in zip(slots, lengths, strict=True):
            assert self._cache.lengths[slot] == length, "another engine's sequence, or not between two rounds"
            self._cache.runs[slot] = Run(length)

    @torch.inference_mode()
    def draft(self, slots: list[int], tokens: list[int]) -> torch.Tensor:
        """[B, V] early logits after one more token in each slot, whose rows and state are kept for verification."""
        assert self._cache is not None
        view, runs = ExitView(self._cache), [self._cache.runs[slot] for slot in slots]
        places = torch.tensor([[view.lengths[slot]] for slot in slots])
        block = Block(torch.tensor(tokens)[:, None], places, tuple(slots), (1,) * len(slots))
        flow = self.decoder.embed(block, view)
        self.decoder.run(flow, view, range(self.layers))
        for run, token, state in zip(runs, tokens, flow.x, strict=True):
            run.tokens.append(token)
            run.states.append(state)
        return self.decoder.head(flow, block)[:, 0]

    @torch.inference_mode()
    def forward(self, block: Block, cache: ExitCache) -> Output:
        """See `core.Model`; rows that have just been drafted enter behind the first layers."""
        known = [self._known(block, cache, row) for row in range(len(block.slots))]
        for slot in block.slots:  # this forward writes over their rows
            cache.runs.pop(slot, None)
        if not any(known):
            return self.decoder.forward(block, cache)
        self.num_rows_saved += sum(len(states) for states in known)
        flow = self.decoder.embed(block, cache)
        flow.x = self._entered(block, cache, known)
        self.decoder.run(flow, cache, range(self.layers, self.decoder.config.num_layers))
        return Output(self.decoder.head(flow, block))

    def _known(self, block: Block, cache: ExitCache, row: int) -> list[torch.Tensor]:
        """States of the first rows of one sequence that were drafted just so: same tokens at the same places.

        Row i at depth i has all rows before it as ancestors, in any tree: these rows are a chain.
        """
        slot, width = block.slots[row], block.widths[row]
        run = cache.runs.get(slot)
        if run is None or block.prefill or not self.reuse or run.start != cache.lengths[slot]:
            return []
        rows = zip(block.tokens[row, :width].tolist(), block.positions[row, :width].tolist(), strict=True)
        for count, (drafted, found) in enumerate(zip(run.tokens, rows, strict=False)):
            if found != (drafted, run.start + count):
                return run.states[:count]
        return run.states[:width]

    def _entered(self, block: Block, cache: ExitCache, known: list[list[torch.Tensor]]) -> torch.Tensor:
        """[T, H] all rows behind the first layers: those that are known, and the rest run now."""
        skip = [len(states) for states in known]
        flow = self.decoder.embed(block, cache, skip)
        if len(flow.x) > 0:
            self.decoder.run(flow, cache, range(self.layers))
        new = torch.split(flow.x, [width - s for width, s in zip(block.widths, skip, strict=True)])
        return torch.stack([state for pair in zip(known, new, strict=True) for part in pair for state in part])


def _share(config: DecoderConfig, layers: int) -> float:
    """Weights of so many layers and the head, in units of those of all layers and the head."""
    heads = 2 * (config.num_heads + config.num_kv_heads) * config.head_dim
    layer = (heads + 3 * config.intermediate_size) * config.hidden_size
    head = config.vocab_size * config.hidden_size
    return (layers * layer + head) / (config.num_layers * layer + head)
