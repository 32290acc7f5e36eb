"""EAGLE heads at work: their one layer's keys and values per sequence, and the states that drafts grow from.

What the target's states gave is kept; what the head made of its own drafts is forgotten in the next round, when the
target's states of the tokens that were kept are there. It knows no laws and no rules.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field

import torch
from torch.nn import functional as F

import outrider.tree as tree
from outrider.cache import KVCache
from outrider.core import Draft, Sequence
from outrider.drafters.feeding import Text
from outrider.drafters.heads.eagle import EagleHead
from outrider.rounds import Verified

CHUNK = 512
"""Most rows of one sequence in a forward."""

Path = tuple[int, ...]


@dataclass
class _Node:
    """A drafted token, or the last of the text.

    Args:
        row: of the cache; -1 for the last token of the text, whose row is among the true ones.
        state: [H] what its children start from.
        logits: [Vd] of what may follow it.
    """

    row: int
    state: torch.Tensor
    logits: torch.Tensor


@dataclass
class _Known:
    """What is known of one sequence.

    Args:
        owner: the very sequence: ids start again with every engine, and prompts with the text of the last turn.
        rows: rows of the cache that the target's states gave: row t is of the state of token t and of token t + 1.
        unread: [n, F] states of tokens `rows`, `rows` + 1, ...
        prompt_last: [F] of the last token of the prompt that was prefilled, for those who share it.
        drafted: what the head made of drafted paths in this round; () is the text itself.
    """

    owner: Sequence
    rows: int = 0
    unread: list[torch.Tensor] = field(default_factory=list)
    prompt_last: torch.Tensor | None = None
    drafted: dict[Path, _Node] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Tokens whose states were seen."""
        return self.rows + sum(map(len, self.unread))


@dataclass(frozen=True)
class _Job:
    """Rows of one sequence that run together.

    Args:
        slot: whose.
        start: the first row of the cache that they are written to.
        tokens: [n].
        states: [n, H].
        positions: [n].
        mask: [n, start + n] bool, what each may look at.
    """

    slot: int
    start: int
    tokens: list[int]
    states: torch.Tensor
    positions: list[int]
    mask: torch.Tensor


class EagleFeeder:
    """An EAGLE head and what it remembers of the sequences; `feed` is for `model_tree` what a model's feeder is.

    Args:
        head: ready to run, at the precision that it is to run at.
        draft_ids: [Vd] the target's id of each id of the head, None if they are equal.
        slots: as many as the engine has.
        capacity: tokens per slot, drafts included.
        device: where the head is.

    Raises:
        CacheTooLarge: with the number of bytes asked.
    """

    max_depth = 64

    def __init__(
        self, head: EagleHead, draft_ids: torch.Tensor | None, slots: int, capacity: int, device: torch.device
    ) -> None:
        c = head.config
        self.head, self.capacity = head, capacity
        self._draft_ids = draft_ids
        self._cache = KVCache(
            1, slots, capacity, num_kv_heads=c.num_kv_heads, head_dim=c.head_dim, dtype=torch.float32, device=device
        )
        self._known: dict[int, _Known] = {}

    def read(self, sequence: Sequence, hidden: torch.Tensor) -> None:
        """See `rounds.Reader`."""
        known = self._known.get(sequence.slot)
        if known is None or known.owner is not sequence:
            known = self._known[sequence.slot] = _Known(sequence)
        known.unread.append(hidden)
        known.prompt_last = hidden[-1].clone()  # a view would keep the whole chunk

    def share(self, source: Sequence, sequence: Sequence) -> None:
        """See `rounds.Reader`."""
        held, length, rows = self._known.get(source.slot), sequence.prompt_length - 1, self._cache.rows[0]
        if held is None or held.owner is not source or held.prompt_last is None or sequence.slot >= len(rows):
            return
        known = _Known(sequence, min(held.rows, length - 1), prompt_last=held.prompt_last)
        unread = torch.cat(held.unread)[: length - held.rows] if held.rows < length else held.prompt_last[None]
        known.unread.append(unread)
        rows[sequence.slot][: known.rows] = rows[source.slot][: known.rows]
        self._known[sequence.slot] = known

    def learn(self, verified: Verified) -> None:
        """Take in the states of the tokens that a round kept."""
        sequence, path = verified.sequence, verified.verdict.path
        known = self._known.get(sequence.slot)
        if len(sequence.tokens) == 2 + len(path):  # the first round of a prompt of one token, which is not prefilled
            known = self._known[sequence.slot] = _Known(sequence)
        if verified.hidden is None or known is None or known.owner is not sequence:
            return
        known.unread.append(verified.hidden[[0, *(node + 1 for node in path)]])

    def arrears(self, sequence: Sequence) -> int:
        """Tokens whose states it was shown but has not taken in: it does so when a draft is wanted."""
        known = self._known.get(sequence.slot)
        return known.length - known.rows if known is not None and known.owner is sequence else 0

    def is_ready(self, sequence: Sequence) -> bool:
        """Whether the states of all tokens but the pending one were seen."""
        known = self._known.get(sequence.slot)
        if known is None or known.owner is not sequence or sequence.slot >= len(self._cache.lengths):
            return False
        return known.length == len(sequence.tokens) - 1

    @torch.inference_mode()
    def feed(self, texts: Ordered[Text], trees: Ordered[Draft]) -> list[torch.Tensor]:
        """Logits after each text and after each node of the tree on top of it.

        Args:
            texts: distinct slots, ready; tokens beyond the pending one are drafted ones.
            trees: one draft per text that continues it, only looked at.

        Returns:
            Per text [1 + n, Vt], -inf on ids that the head does not draft.
        """
        self._catch_up(texts)
        wanted = [_paths(text, self._known[text.slot], draft) for text, draft in zip(texts, trees, strict=True)]
        for text, paths in zip(texts, wanted, strict=True):
            self._make_room(text, paths)
        while jobs := [job for text, paths in zip(texts, wanted, strict=True) for job in self._level(text, paths)]:
            self._run_drafted(jobs)
        return [self._logits(text, paths) for text, paths in zip(texts, wanted, strict=True)]

    def _catch_up(self, texts: Ordered[Text]) -> None:
        """Run what the target's states are new of, all texts together; then nothing is drafted yet."""
        while late := [text for text in texts if self._known[text.slot].unread]:
            jobs = [self._next_rows(text) for text in late]
            found = self._run(jobs)
            for job, states in zip(jobs, found, strict=True):
                known = self._known[job.slot]
                known.rows += len(job.tokens)
                left = torch.cat(known.unread)[len(job.tokens) :]
                known.unread = [left] if len(left) > 0 else []
                last = states[-1:]
                known.drafted = {(): _Node(-1, self.head.feedback(last)[0], self.head.logits(last)[0])}

    def _next_rows(self, text: Text) -> _Job:
        known = self._known[text.slot]
        features = torch.cat(known.unread)[:CHUNK]
        start, count = known.rows, len(features)
        mask = torch.ones(count, start + count, dtype=torch.bool).tril(start)
        tokens, states = text.tokens[start + 1 : start + 1 + count], self.head.fuse(features)
        return _Job(text.slot, start, tokens, states, list(range(start, start + count)), mask)

    def _make_room(self, text: Text, paths: list[Path]) -> None:
        """Forget what was drafted in this round where it leaves no room; what is wanted alone always fits.

        A tree may ask for nodes that likelier ones displace later, so all together may be more than the budget.
        """
        known = self._known[text.slot]
        if known.rows + len({*known.drafted, *_on_the_way(paths)}) - 1 > self.capacity:
            known.drafted = {(): known.drafted[()]}

    def _level(self, text: Text, paths: list[Path]) -> list[tuple[_Job, list[Path]]]:
        """The job of the nodes that are not known yet but whose parents are; none if all are known."""
        known = self._known[text.slot]
        new = [path for path in _on_the_way(paths) if path not in known.drafted and path[:-1] in known.drafted]
        if not new:
            return []
        start = known.rows + len(known.drafted) - 1
        mask = torch.zeros(len(new), start + len(new), dtype=torch.bool)
        mask[:, : known.rows] = True
        for i, path in enumerate(new):
            mask[i, [known.drafted[path[:depth]].row for depth in range(1, len(path))]] = True
            mask[i, start + i] = True
        states = torch.stack([known.drafted[path[:-1]].state for path in new])
        positions = [known.rows - 1 + len(path) for path in new]
        return [(_Job(text.slot, start, [path[-1] for path in new], states, positions, mask), new)]

    def _run_drafted(self, jobs: list[tuple[_Job, list[Path]]]) -> None:
        for (job, paths), states in zip(jobs, self._run([job for job, _ in jobs]), strict=True):
            passed, logits = self.head.feedback(states), self.head.logits(states)
            drafted = self._known[job.slot].drafted
            for i, path in enumerate(paths):
                drafted[path] = _Node(job.start + i, passed[i], logits[i])

    def _run(self, jobs: list[_Job]) -> list[torch.Tensor]:
        """[n, H] what the layer makes of each job's rows."""
        device = jobs[0].states.device
        sizes, rows = [len(job.tokens) for job in jobs], self._cache.rows[0]

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            parts = []
            for job, queries, keys_values in zip(
                jobs, torch.split(q, sizes), torch.split(torch.cat([k, v], 1), sizes), strict=True
            ):
                end = job.start + len(queries)
                rows[job.slot][job.start : end] = keys_values
                parts.append(_attended(queries, rows[job.slot][:end], job.mask.to(device)))
            return torch.cat(parts)

        tokens = torch.tensor([token for job in jobs for token in job.tokens], device=device)
        positions = torch.tensor([position for job in jobs for position in job.positions], device=device)
        states = self.head.step(tokens, torch.cat([job.states for job in jobs]), positions, attend)
        return list(torch.split(states, sizes))

    def _logits(self, text: Text, paths: list[Path]) -> torch.Tensor:
        """[1 + n, Vt] after the text and its tree's nodes, which are the last of the paths."""
        drafted = self._known[text.slot].drafted
        return spread(
            torch.stack([drafted[path].logits for path in paths]), self._draft_ids, self.head.config.vocab_size
        )


def _paths(text: Text, known: _Known, draft: Draft) -> list[Path]:
    """What is drafted up to the text's last token, and up to each node of the tree.

    A text holds drafted tokens where a chain grows one by one.
    """
    prefix = tuple(text.tokens[known.length + 1 :])
    return [(*prefix, *path) for path in tree.paths(draft.tokens, draft.parents)]


def _on_the_way(paths: list[Path]) -> list[Path]:
    """Every node on these paths, once, parents first."""
    return list(dict.fromkeys(path[:depth] for path in paths for depth in range(1, len(path) + 1)))


def spread(logits: torch.Tensor, draft_ids: torch.Tensor | None, vocab_size: int) -> torch.Tensor:
    """[n, Vd] -> [n, Vt], -inf on ids outside the draft vocabulary."""
    if draft_ids is None:
        return logits
    whole = logits.new_full((len(logits), vocab_size), -torch.inf)
    whole[:, draft_ids] = logits
    return whole


def _attended(queries: torch.Tensor, keys_values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """[n, heads, D] on [L, 2 * kv_heads, D] under [n, L] -> [n, heads * D]."""
    keys, values = (part.transpose(0, 1)[None] for part in keys_values.chunk(2, dim=1))
    out = F.scaled_dot_product_attention(
        queries.transpose(0, 1)[None], keys, values, attn_mask=mask[None, None], enable_gqa=True
    )
    return out[0].transpose(0, 1).flatten(1)
