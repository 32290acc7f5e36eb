"""Trees end to end: which rows stay, what each node's history is, and what ends a text in the middle of a tree."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine_runs import ScriptedTrees, decode, finish, new_tokens, plain, toy_engine
from outrider import blocks, tree
from outrider.core import Draft
from outrider.engine import Engine
from outrider.generation import TextEngine
from outrider.options import Sampling
from outrider.rules import KeyedCoins
from test_engine_law import BEYOND, LIMIT, count, make
from toy import ByteTokenizer, ScriptedDrafter, TableModel, ToyCache, random_laws, rule_law

V, LENGTH, PROMPT = 7, 40, [1, 2]
TARGET = TableModel(V, order=None, law=random_laws(V, seed=21, sharpness=2))
TEXT = TARGET.greedy(PROMPT, LENGTH)
WARM = Sampling(temperature=0.8)


class Fork:
    """The pending token's continuation by `right`, with wrong branches beside each of its tokens.

    Args:
        right: what to draft after these tokens.
        first: whether the right child stands before its wrong sibling.
    """

    name, proposal = "fork", "point_mass"

    def __init__(self, right, first, vocab_size=V):
        self.right, self.first, self.vocab_size = right, first, vocab_size

    def propose(self, sequences, budgets):
        return [self._propose(s, budget) for s, budget in zip(sequences, budgets, strict=True)]

    def _propose(self, sequence, budget):
        tokens, parents, tip = [], [], -1
        for token in self.right(sequence.tokens, budget):
            wrong = (token + 1) % self.vocab_size
            family = (token, wrong) if self.first else (wrong, token)
            tokens += family
            parents += [tip, tip]
            tip = len(tokens) - (2 if self.first else 1)
        return Draft(tuple(tokens[:budget]), tuple(parents[:budget]))


def follows(text, prompt=tuple(PROMPT)):
    whole = [*prompt, *text]
    return lambda tokens, budget: whole[len(tokens) :] if whole[: len(tokens)] == list(tokens) else []


forks = pytest.mark.parametrize("first", [True, False], ids=["right first", "right last"])


@pytest.mark.parametrize("right", [None, 0, 1, 2, 3])
@pytest.mark.parametrize("k", [1, 2, 5, 9])
def test_every_accepted_length_on_a_branch_gives_the_plain_text(k, right):
    engine = toy_engine(TARGET, ScriptedTrees([[*PROMPT, *TEXT]], V, right), k=k)
    sequence = engine.add(PROMPT, max_new_tokens=LENGTH)
    (rounds,) = finish(engine).values()
    assert new_tokens(sequence) == TEXT
    assert not any(r.broken for r in rounds)
    assert k == 1 or any(r.depth < r.num_drafted for r in rounds)
    if right is not None:
        assert max(r.num_accepted for r in rounds) <= right


def test_trees_accept_more_than_one_branch_alone_would():
    # A second child is a second chance: the right token is never first, and yet all of them are kept.
    engine = toy_engine(TARGET, Fork(follows(TEXT), first=False), k=8)
    engine.add(PROMPT, max_new_tokens=LENGTH)
    (rounds,) = finish(engine).values()
    assert [(r.num_drafted, r.depth, r.num_accepted) for r in rounds[:7]] == [(8, 4, 4)] * 7


# ---------------------------------------------------------------- stops and limits in the middle of a tree


@forks
@pytest.mark.parametrize("k", [2, 6, 12])
def test_a_stop_token_on_a_branch_ends_the_text_there(k, first):
    for place in [i for i, token in enumerate(TEXT) if token not in TEXT[:i]]:
        engine = toy_engine(TARGET, Fork(follows(TEXT), first), k=k)
        sequence = engine.add(PROMPT, stop_ids=[TEXT[place]], max_new_tokens=LENGTH)
        (rounds,) = finish(engine).values()
        assert new_tokens(sequence) == TEXT[: place + 1]
        assert rounds[-1].finish_reason == "stop"


def test_what_is_drafted_behind_a_stop_is_cut_off_and_its_siblings_stay():
    stop, other = 5, 3
    drafts = []

    class Looks(Fork):
        def _propose(self, sequence, budget):
            return Draft((stop, other, 1, 2, 4), (-1, -1, 0, 1, 2))

    class Seen(Engine):
        def _forward(self, ready, given):
            drafts.extend(given)
            return super()._forward(ready, given)

    engine = toy_engine(TARGET, Looks(None, True), k=5)
    engine.__class__ = Seen
    engine.add(PROMPT, stop_ids=[stop], max_new_tokens=20)
    engine.step()
    assert [(d.tokens, d.parents) for d in drafts] == [((stop, other, 2), (-1, -1, 1))]


@forks
def test_a_stop_string_that_ends_inside_a_tree(first):
    prompt, reply = [ByteTokenizer.bos_id, *b"Q:"], list(b"one two END three")
    target = TableModel(
        ByteTokenizer.vocab_size,
        order=None,
        law=rule_law(ByteTokenizer.vocab_size, lambda context: [*prompt, *reply, *[32] * 99][len(context)]),
    )
    for k in (1, 5, 12, 30):
        drafter = Fork(follows(reply, prompt), first, ByteTokenizer.vocab_size)
        result = TextEngine(toy_engine(target, drafter, k=k), ByteTokenizer()).generate(
            "Q:", raw=True, stop=["END"], max_new_tokens=60
        )
        assert (result.text, result.finish_reason) == ("one two ", "stop")


@forks
@pytest.mark.parametrize("limit", range(1, 9))
def test_the_limit_is_kept_when_a_tree_goes_beyond_it(limit, first):
    engine = toy_engine(TARGET, Fork(follows(TEXT), first), k=12)
    sequence = engine.add(PROMPT, max_new_tokens=limit)
    (rounds,) = finish(engine).values()
    assert new_tokens(sequence) == TEXT[:limit]
    assert rounds[-1].finish_reason == "length"
    assert all(r.num_drafted < limit for r in rounds)


# ---------------------------------------------------------------- each node has its own history


class Watches:
    """A processor that notes every history it is shown, and forbids the last token of it."""

    def __init__(self):
        self.seen = []

    def __call__(self, ids, logits):
        self.seen.append(tuple(ids))
        return logits.index_fill(0, torch.tensor([ids[-1]]), -torch.inf)


def test_a_processor_sees_each_node_with_its_own_way_from_the_root():
    watches = Watches()

    class Fixed(Fork):
        def _propose(self, sequence, budget):
            return Draft((3, 4, 5, 3, 6), (-1, -1, 0, 1, 2))

    engine = toy_engine(TARGET, Fixed(None, True), k=5)
    engine.add(PROMPT, sampling=Sampling(processor=watches), max_new_tokens=20)
    engine.step()
    assert watches.seen == [(1, 2, *way) for way in [(), (3,), (4,), (3, 5), (4, 3), (3, 5, 6)]]


HISTORIES = {
    "penalties": Sampling(repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.6),
    "minimum": Sampling(min_new_tokens=9),
    "processor": Sampling(processor=lambda ids, logits: logits.index_fill(0, torch.tensor([ids[-2]]), -9.0)),
    "warm penalties": replace(WARM, repetition_penalty=1.4, frequency_penalty=0.6),
    "warm minimum": replace(WARM, min_new_tokens=9),
}


def texts_with_history(setting):
    """Coupled, so that it is one text at every temperature: what the engine writes with trees, and plain decoding."""
    sampling, found, wanted = HISTORIES[setting], [], []
    for k in (4, 9, 14):
        stop_ids = [TEXT[k % 4], TEXT[0], TEXT[2]] if sampling.min_new_tokens else []
        coins = KeyedCoins(k) if sampling.temperature else None
        wanted.append(plain(TARGET, PROMPT, LENGTH, sampling=sampling, stop_ids=stop_ids, coins=coins))
        engine = toy_engine(TARGET, ScriptedTrees([[*PROMPT, *wanted[-1]]], V), "coupled", k)
        request = {"sampling": sampling, "stop_ids": stop_ids, "seed": k, "max_new_tokens": LENGTH}
        found.append(decode(engine, PROMPT, **request))
    return found, wanted


@pytest.mark.parametrize("setting", HISTORIES)
def test_penalties_minimum_and_processors_follow_each_branch(setting):
    found, wanted = texts_with_history(setting)
    assert found == wanted


@pytest.mark.parametrize("setting", HISTORIES)
def test_the_same_check_catches_the_history_of_another_branch(setting, monkeypatch):
    # Every node has the tokens before it in the block for its history, as if the tree were a chain.
    right = tree.paths
    monkeypatch.setattr(tree, "paths", lambda tokens, parents: right(tokens, range(-1, len(tokens) - 1)))
    found, wanted = texts_with_history(setting)
    assert found != wanted


def test_log_probabilities_are_those_of_the_kept_branch():
    sampling = Sampling(temperature=0.8, logprobs=2)
    wanted = plain(TARGET, PROMPT, LENGTH, sampling=sampling, coins=KeyedCoins(2))
    engine = toy_engine(TARGET, ScriptedTrees([[*PROMPT, *wanted]], V), "coupled", k=8)
    sequence = engine.add(PROMPT, sampling=sampling, seed=2, max_new_tokens=LENGTH)
    (rounds,) = finish(engine).values()
    entries = [entry for r in rounds for entry in r.logprobs]
    assert sum(r.num_accepted for r in rounds) > 5
    for place, entry in enumerate(entries, start=len(PROMPT)):
        law = torch.softmax(TARGET.logits(sequence.tokens[:place]) / 0.8, -1)
        assert entry.chosen == pytest.approx(float(law[sequence.tokens[place]].log()), abs=1e-4)


# ---------------------------------------------------------------- planted faults, caught by the law


def no_ancestors(right):
    """Each node sees the committed rows, the pending token and itself."""

    def ancestors(parents, width):
        mask = torch.eye(width, dtype=torch.bool)
        mask[: len(parents) + 1, 0] = True
        return mask

    return ancestors


MASKS = {
    "no ancestors": no_ancestors,
    "siblings are seen": lambda right: lambda parents, width: torch.ones(width, width, dtype=torch.bool).tril(),
    "of the node before": lambda right: lambda parents, width: right(parents, width).roll(1, 0),
}


class KeepsThePrefix(ToyCache):
    """The right number of rows, but the first ones of the block."""

    def commit(self, slot, rows):
        super().commit(slot, range(len(rows)))


class KeepsTheRowBefore(ToyCache):
    """Forgets that row 0 is the pending token's."""

    def commit(self, slot, rows):
        super().commit(slot, [rows[0], *(row - 1 for row in rows[1:])])


def p_of(drafter="chosen-trees", rule="auto", num_samples=600, engine_of=toy_engine):
    return count(make(drafter, 5), rule, 5, "temperature 1", num_samples, engine_of, BEYOND)[0]


def engine_as(kind):
    def engine_of(target, drafter, rule, k, **options):
        made = toy_engine(target, drafter, rule, k, **options)
        made.__class__ = kind
        return made

    return engine_of


@pytest.mark.parametrize("drafter", ["chosen-trees", "with-trees", "without-trees", "hybrid-trees"])
def test_without_a_planted_fault_the_law_is_the_targets(drafter):
    assert p_of(drafter) > LIMIT


@pytest.mark.parametrize("cache", [KeepsThePrefix, KeepsTheRowBefore])
def test_rows_of_another_branch_are_kept(cache, monkeypatch):
    monkeypatch.setattr(TableModel, "new_cache", lambda self, slots, capacity: cache(slots, capacity))
    assert p_of() < LIMIT


@pytest.mark.parametrize("drafter", ["chosen-trees", "without-trees"])
def test_positions_are_counted_by_row(drafter, monkeypatch):
    monkeypatch.setattr(tree, "depths", lambda parents: list(range(len(parents) + 1)))
    assert p_of(drafter) < LIMIT


@pytest.mark.parametrize("fault", MASKS)
def test_the_mask_is_wrong(fault, monkeypatch):
    monkeypatch.setattr(tree, "ancestors", MASKS[fault](tree.ancestors))
    assert p_of(num_samples=1800) < LIMIT


def test_no_mask_at_all(monkeypatch):
    monkeypatch.setattr(tree, "is_chain", lambda parents: True)
    monkeypatch.setattr(blocks.tree, "is_chain", lambda parents: True)
    assert p_of() < LIMIT


class RowsShifted(Engine):
    """The law after a node is that after the node before it."""

    def _forward(self, ready, drafts):
        outputs = super()._forward(ready, drafts)
        return [replace(o, logits=torch.cat([o.logits[:1], o.logits[:-1]])) for o in outputs]


@pytest.mark.parametrize("drafter", ["chosen-trees", "with-trees", "hybrid-trees"])
def test_the_laws_of_the_nodes_are_shifted(drafter):
    assert p_of(drafter, engine_of=engine_as(RowsShifted)) < LIMIT


def meddled(kind, meddle):
    """A sampling drafter of trees with something done to each draft."""
    drafter = make(kind, 5)
    right = drafter.propose
    drafter.propose = lambda sequences, budgets: [meddle(d) if len(d) else d for d in right(sequences, budgets)]
    return drafter


def of_another_temperature(draft):
    return replace(draft, draft_probs=tuple(row**0.2 / (row**0.2).sum() for row in draft.draft_probs))


def likeliest_called_drawn(draft):
    return replace(draft, tokens=tuple(int(row.argmax()) for row in draft.draft_probs))


@pytest.mark.parametrize(("kind", "meddle"), [("without", of_another_temperature), ("with", likeliest_called_drawn)])
@pytest.mark.parametrize("rule", ["recursive", "traversal"])
def test_laws_that_the_nodes_were_not_drawn_from(rule, kind, meddle):
    assert count(meddled(f"{kind}-trees", meddle), rule, 5, "temperature 1", beyond=BEYOND)[0] < LIMIT


def test_a_chain_drafter_and_a_tree_drafter_share_a_forward():
    class Both:
        name, proposal = "both", "point_mass"

        def propose(self, sequences, budgets):
            kinds = (ScriptedTrees, ScriptedDrafter)
            drafters = [kind([[*PROMPT, *TEXT]], V) for kind in kinds]
            each = zip(sequences, budgets, strict=True)
            return [drafters[s.id % 2].propose([s], [budget])[0] for s, budget in each]

    engine = toy_engine(TARGET, Both(), k=6, slots=4)
    sequences = [engine.add(PROMPT, max_new_tokens=LENGTH) for _ in range(4)]
    rounds = finish(engine)
    assert [new_tokens(s) for s in sequences] == [TEXT] * 4
    assert any(r.depth < r.num_drafted for r in rounds[sequences[0]])
    assert all(r.depth == r.num_drafted for r in rounds[sequences[1]])
