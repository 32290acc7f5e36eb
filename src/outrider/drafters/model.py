"""The draft model: a smaller language model with the target's vocabulary, drafting from its own law.

It knows nothing of the target beyond the size of its vocabulary, and nothing of what became of a draft: its feeder
compares what the cache holds with the sequence's tokens in every round. Trees are grown in `model_tree`.
"""

from __future__ import annotations

from typing import Any

from outrider.core import Draft, Model, Proposal, Sequence
from outrider.drafters.feeding import Feeder, Text
from outrider.drafters.levels import grow
from outrider.drafters.shapes import Shape, read_form
from outrider.errors import InvalidOption


class ModelDrafter:
    """Drafts chains or trees from a second model, all sequences together, one forward per level of the draft.

    Chains and trees of a given shape are drawn from the model's law. A tree that is left to "auto" has, where the law
    draws, one drawn child per node and the likeliest tokens beside it; at temperature 0 it is the tree of the likeliest
    nodes (see `model_tree`). At temperature 0 no tree is drawn at all.

    Args:
        model: the draft model; it may be the target object itself, since the cache is the drafter's own.
        slots: as many as the engine has.
        vocab_size: the target's; ids that the draft lacks get probability 0, ids that only the draft has are masked.
            None if both are equal.
        capacity: cached tokens per slot; None for the draft's whole context. Beyond either, drafts are empty.
        cache: an empty cache of the model's kind, for so many slots, to be the drafter's own; None makes one.
        tree: "chain"; "auto"; a `Shape`; or its text: children per level such as "4.2.1", or a JSON file of rank paths.
            A shape that is larger than a budget loses its last nodes.
        depth: longest path of an "auto" tree, 1 to 32; each level costs a forward of the draft model.
        row_cost: cost of one more row in the target's forward, in units of a forward of one row, 0 or more: an "auto"
            tree ends where a row is not worth it; at 0 it ends with the budget.
        level_cost: cost of a forward of the draft model, in the same units: an "auto" tree has no level that is not
            worth it.

    Raises:
        CacheTooLarge: from the model.
        InvalidOption: a value outside its range, a shape that is none, or a tree from a model that takes none.

    Attributes:
        num_past_context: how often a draft was empty because a sequence had outgrown the draft's context.
        num_failed: how often a draft ended early because its law could not be made (a user's processor raised).
    """

    name = "model"
    proposal: Proposal = "sampled"

    def __init__(
        self,
        model: Model,
        slots: int,
        *,
        vocab_size: int | None = None,
        capacity: int | None = None,
        cache: Any = None,
        tree: str | Shape = "chain",
        depth: int = 8,
        row_cost: float = 0.1,
        level_cost: float = 0.0,
    ) -> None:
        self.model = model
        self.vocab_size = model.vocab_size if vocab_size is None else vocab_size
        self.form = read_form(tree, depth, row_cost, level_cost)
        if self.form is not None:
            self.proposal = "hybrid"
            if not model.takes_trees:
                raise InvalidOption("tree", tree, '"chain"', "This draft model takes no attention mask for trees.")
        limits = [model.context_length, capacity, None if cache is None else cache.capacity]
        self.feeder = Feeder(model, slots, min(limit for limit in limits if limit is not None), cache)
        self.num_past_context = 0
        self.num_failed = 0

    @property
    def capacity(self) -> int:
        """Cached tokens per slot."""
        return self.feeder.capacity

    @property
    def cache(self) -> Any:
        """What the model keeps of the texts; between rounds it holds no tree."""
        return self.feeder.cache

    def ends_itself(self, sequence: Sequence) -> bool:
        """See `shapes.Form`."""
        return self.form is not None and self.form.ends_itself(sequence)

    def arrears(self, sequence: Sequence) -> int:
        """Tokens that are to be taken in before a draft can begin."""
        return self.feeder.arrears(Text(sequence.slot, sequence.id, sequence.tokens))

    def propose(self, sequences: list[Sequence], budgets: list[int]) -> list[Draft]:
        """See `core.Drafter`: drafts end at their budget, after a stop id, or where the draft's context ends."""
        room = [self._within_context(s, budget) for s, budget in zip(sequences, budgets, strict=True)]
        grown = grow(self.feeder, sequences, room, self.form, self.vocab_size)
        self.num_failed += grown.num_failed
        return grown.drafts

    def _within_context(self, sequence: Sequence, budget: int) -> int:
        """The budget, less what does not fit: all tokens need a row, but for the last one of a chain."""
        room = max(0, self.capacity - len(sequence.tokens) + (self.form is None))
        self.num_past_context += budget > 0 and room == 0
        return min(budget, room)
