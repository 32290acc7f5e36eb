"""Trees from a draft model: their laws, proved by enumeration and counted in the engine; their shapes; their state."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from engine_runs import LIMIT, p_value, sample, toy_engine
from enumeration import law_error, outcomes, random_model
from outrider.core import Draft
from outrider.drafters.growth import best_first, ranked
from outrider.drafters.model import ModelDrafter
from outrider.drafters.model_tree import without
from outrider.drafters.shapes import Shape, read_shape
from outrider.errors import InvalidOption
from outrider.options import Sampling
from outrider.rules import RULES
from outrider.sampling import laws
from outrider.tree import check, depths, is_chain, paths
from test_drafter_model import WHOLE_TEXT, V, count_stale_proposals, same_law
from toy import KeyedDice, TableModel, blend, exact_string_law, make_sequence, random_laws

SAMPLED = Sampling(temperature=1.0)
GREEDY = Sampling()
TREES = {
    "auto": {"tree": "auto", "row_cost": 0},
    "costly": {"tree": "auto", "level_cost": 0.1},
    "shape": {"tree": "2.2.1"},
}
trees = pytest.mark.parametrize("options", TREES.values(), ids=TREES)
tree_rules = pytest.mark.parametrize("rule", ["recursive", "traversal", "point-mass", "auto"])


def tree_of(tokens, budget, model=WHOLE_TEXT, *, sequence=None, sampling=SAMPLED, stop_ids=(), coins=None, **options):
    sequence = make_sequence(tokens, sampling=sampling, stop_ids=stop_ids, draft_coins=coins)
    (draft,) = ModelDrafter(model, 1, **options).propose([sequence], [budget])
    check(draft)
    assert len(draft) <= budget
    return draft


# ---------------------------------------------------------------- the law, proved


class Exactly(TableModel):
    """Gives its laws in double precision."""

    def forward(self, block, cache):
        output = super().forward(block, cache)
        return output if output.logits is None else replace(output, logits=output.logits.double())


def uneven(vocab, seed):
    """Flat and peaked laws, some with zeros: what hangs on a node depends on what was drawn before."""
    tables = [random_laws(vocab, seed, sharpness=1), random_laws(vocab, seed, sharpness=9, zeros=0.3)]
    return lambda context: tables[(sum(context) + len(context)) % 2](context)


PROVED = [
    (3, {"tree": "auto", "row_cost": 0, "depth": 1}, 3),
    (3, {"tree": "auto", "row_cost": 0, "depth": 2}, 5),
    (3, {"tree": "auto", "row_cost": 0, "depth": 3}, 6),
    (3, {"tree": "auto", "row_cost": 0.15, "depth": 4}, 7),
    (3, {"tree": "auto", "row_cost": 0, "depth": 3, "stop_ids": [1]}, 6),
    (4, {"tree": "auto", "row_cost": 0, "depth": 2}, 5),
    (2, {"tree": "auto", "row_cost": 0, "depth": 3}, 6),
    (3, {"tree": "3"}, 3),
    (3, {"tree": "2.1"}, 4),
    (3, {"tree": "2.2"}, 5),
    (2, {"tree": Shape(((0,), (0, 0), (1,), (0, 0, 0), (1, 0)))}, 5),
]


def every_tree(vocab, options, budget, meddle=lambda draft: draft):
    """All trees that the drafter may draw, with their probabilities."""
    model = Exactly(vocab, order=None, law=uneven(vocab, seed=vocab))
    drafted = outcomes(lambda coins: meddle(tree_of([0, 1], budget, model, coins=coins, **options)))
    return [(draft, probability) for draft, probability in drafted]


def one_of(drafted):
    return lambda coins: drafted[coins.choose([probability for _, probability in drafted])][0]


def error_of(rule, drafted, vocab):
    """How far what a round emits is from the target's law, over two targets."""
    tables = [random_model(kind, vocab, seed=5) for kind in ("dense", "zeros")]
    doubles = [lambda prefix, table=table: table(prefix).astype(float) for table in tables]
    return max(float(law_error(RULES[rule], one_of(drafted), target)) for target in doubles)


@pytest.mark.parametrize(("vocab", "options", "budget"), PROVED)
def test_whatever_the_draws_a_round_emits_the_targets_law(vocab, options, budget):
    drafted = every_tree(vocab, options, budget)
    assert sum(probability for _, probability in drafted) == 1
    kinds = {law is None for draft, _ in drafted for law in map(draft.law, range(len(draft)))}
    assert kinds == ({True, False} if options.get("row_cost") == 0 else {False})
    for rule in ("recursive", "traversal", "point-mass"):
        assert error_of(rule, drafted, vocab) < 1e-12


def test_what_was_drawn_decides_what_hangs_on_it():
    for vocab, options, budget in PROVED[3:5]:
        assert len({draft.parents for draft, _ in every_tree(vocab, options, budget)}) > 1


def pruned_by_value(draft):
    """Planted bug: a drawn node that looks unlikely is dropped, with what hangs on it."""
    kept = {-1: -1}
    for node, parent in enumerate(draft.parents):
        law = draft.law(node)
        if parent in kept and (law is None or law[draft.tokens[node]] > 0.3):
            kept[node] = len(kept) - 1
    nodes = list(kept)[1:]
    tokens, parents = (tuple(f(n) for n in nodes) for f in (draft.tokens.__getitem__, lambda n: kept[draft.parents[n]]))
    return replace(draft, tokens=tokens, parents=parents, draft_probs=tuple(draft.law(n) for n in nodes))


def with_laws_of_first_children(draft):
    """Planted bug: siblings are said to be drawn from the law that the first of them was drawn from."""
    first = {}
    rows = tuple(
        first.setdefault(parent, draft.law(node)) if draft.law(node) is not None else None
        for node, parent in enumerate(draft.parents)
    )
    rows = [None if law is None else with_token(law, token) for law, token in zip(rows, draft.tokens, strict=True)]
    return replace(draft, draft_probs=tuple(rows))


def with_token(law, token):
    return law if law[token] > 0 else np.full_like(law, 1 / len(law))


@pytest.mark.parametrize("rule", ["recursive", "traversal"])
@pytest.mark.parametrize("options", [{"tree": "auto", "row_cost": 0, "depth": 2}, {"tree": "2.1"}])
def test_the_same_proof_catches_nodes_dropped_by_their_value(rule, options):
    assert error_of(rule, every_tree(3, options, 4, pruned_by_value), 3) > 0.01


@pytest.mark.parametrize("rule", ["recursive", "traversal"])
def test_the_same_proof_catches_laws_that_forget_earlier_siblings(rule):
    assert error_of(rule, every_tree(3, {"tree": "3"}, 3, with_laws_of_first_children), 3) > 0.01


def test_the_point_mass_rule_does_not_mind_dropped_nodes():
    drafted = every_tree(3, {"tree": "2.1"}, 4, lambda d: replace(pruned_by_value(d), draft_probs=None))
    drafted = [(replace(draft, proposal="point_mass"), p) for draft, p in drafted]
    assert error_of("point-mass", drafted, 3) < 1e-12


# ---------------------------------------------------------------- the law, counted

V3, LENGTH, PROMPT = 3, 3, [0, 1, 2, 0, 1]
TARGET = TableModel(V3, order=2, law=random_laws(V3, seed=1, sharpness=3))
NEAR = TableModel(V3, order=2, law=blend(lambda c: TARGET.law(c), random_laws(V3, seed=9, sharpness=3), 0.5))


def p_of(drafter, rule, sampling=SAMPLED):
    engine = toy_engine(TARGET, drafter, rule, 5, slots=5, context_length=16)
    strings, rounds = sample(engine, PROMPT, 600, sampling=sampling, max_new_tokens=LENGTH)
    assert not any(r.broken for r in rounds)
    assert 0 < sum(r.num_accepted for r in rounds) < sum(r.num_drafted for r in rounds)
    return p_value(strings, exact_string_law(TARGET, PROMPT, LENGTH, sampling))


@trees
@tree_rules
def test_the_engine_emits_the_targets_law(options, rule):
    assert p_of(ModelDrafter(NEAR, 5, **options), rule) > LIMIT


@pytest.mark.parametrize(
    "sampling",
    [Sampling(temperature=0.7, top_k=2), Sampling(temperature=1.2, top_p=0.8, presence_penalty=0.5)],
)
@trees
def test_the_engine_emits_the_targets_law_with_filters_and_penalties(options, sampling):
    assert p_of(ModelDrafter(NEAR, 5, **options), "auto", sampling) > LIMIT


class DropsUnlikelyNodes(ModelDrafter):
    def propose(self, sequences, budgets):
        return [pruned_by_value(draft) if len(draft) else draft for draft in super().propose(sequences, budgets)]


@pytest.mark.parametrize("rule", ["recursive", "traversal"])
@pytest.mark.parametrize("options", [TREES["auto"], TREES["shape"]])
def test_counting_catches_nodes_dropped_by_their_value(options, rule):
    assert p_of(DropsUnlikelyNodes(NEAR, 5, **options), rule) < LIMIT


# ---------------------------------------------------------------- what is drawn


class RecordingDice(KeyedDice):
    def __init__(self, seed):
        super().__init__(seed)
        self.draws = []

    def categorical(self, weights, position):
        token = super().categorical(weights, position)
        self.draws.append((weights.copy(), token, position))
        return token


@pytest.mark.parametrize("temperature", [0.3, 1.0, 3.0])
@trees
def test_every_row_is_the_law_that_its_token_was_drawn_from(options, temperature):
    for seed in range(10):
        coins, sampling = RecordingDice(seed), Sampling(temperature=temperature, repetition_penalty=1.3)
        draft = tree_of([1, 2, 3], 7, sampling=sampling, coins=coins, **options)
        drawn = [node for node in range(len(draft)) if draft.law(node) is not None]
        assert [token for _, token, _ in coins.draws] == [draft.tokens[node] for node in drawn]
        assert all(same_law(row, draft.law(node)) for node, (row, _, _) in zip(drawn, coins.draws, strict=True))
        depth = depths(draft.parents)
        assert [position for _, _, position in coins.draws] == [2 + depth[node + 1] for node in drawn]


@trees
def test_siblings_share_the_law_after_their_path(options):
    """Drawn ones: what earlier siblings left of it. One drawn beside extras: what the extras left of it."""
    for seed in range(10):
        draft = tree_of([1, 2, seed % V], 7, coins=KeyedDice(seed), **options)
        before = paths(draft.tokens, draft.parents)
        for node, parent in enumerate(draft.parents):
            text = make_sequence([1, 2, seed % V, *before[parent + 1]], sampling=SAMPLED)
            law = laws(WHOLE_TEXT.logits(text.tokens)[None], text, [()])[0]
            family = [n for n, p in enumerate(draft.parents) if p == parent]
            chosen = [n for n in family if draft.law(n) is None]
            earlier = [n for n in family if n < node and draft.law(n) is not None]
            if node in chosen:
                assert draft.tokens[node] in [token for token, _ in ranked(law, len(chosen))]
                continue
            gone = [draft.tokens[n] for n in (*earlier, *chosen)]
            np.testing.assert_allclose(draft.law(node), without(law, gone), atol=1e-6)
            assert not chosen or node == family[0]


def test_what_is_left_of_a_law():
    law = np.array([0.5, 0.25, 0.25], dtype=np.float32)
    assert without(law, []) is law
    assert without(law, [1]).tolist() == pytest.approx([2 / 3, 0, 1 / 3])
    assert without(law, [1]).dtype == np.float32
    assert without(law, [0, 1, 2]).tolist() == [0, 0, 0]
    assert law.tolist() == [0.5, 0.25, 0.25]


def test_a_law_of_few_tokens_gives_few_children():
    draft = tree_of([1, 2], 12, sampling=Sampling(temperature=1.0, top_k=2), tree="4.2")
    assert draft.parents == (-1, -1, 0, 0, 1, 1)
    assert len(tree_of([1, 2], 12, sampling=Sampling(temperature=1.0, top_k=1), tree="4.2")) == 2


def certain(probabilities):
    return lambda context: np.array(probabilities)


def test_a_peaked_law_has_no_extras_and_a_flat_one_has():
    peaked, flat = (TableModel(5, law=certain(p)) for p in ([0.96, 0.01, 0.01, 0.01, 0.01], [0.2] * 5))
    assert is_chain(tree_of([0], 6, peaked, tree="auto", row_cost=0.05).parents)
    assert is_chain(tree_of([0], 3, flat, tree="auto", row_cost=0).parents)
    draft = tree_of([0], 16, flat, tree="auto", row_cost=0)
    assert draft.proposal == "hybrid"
    assert draft.parents.count(-1) > 1


def test_rows_that_cost_too_much_are_not_drafted():
    flat = TableModel(5, law=certain([0.2] * 5))
    lengths = [len(tree_of([0], 16, flat, tree="auto", row_cost=cost)) for cost in (0, 0.05, 0.2, 0.5, 1.0)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == 16
    assert lengths[-1] == 0


# ---------------------------------------------------------------- temperature 0


def known_tree(tokens, budget, sequence, model, depth, row_cost):
    """What best-first growth gives that may ask for every law."""

    def children(path):
        if set(path) & sequence.stop_ids:
            return []
        law = laws(model.logits([*tokens, *path])[None], make_sequence(tokens, sampling=SAMPLED), [path])[0]
        return ranked(law, budget)

    return best_first(children, budget, max_depth=depth, row_cost=row_cost)


@pytest.mark.parametrize("sharpness", [1, 4, 12])
@pytest.mark.parametrize(("depth", "row_cost"), [(8, 0), (2, 0), (8, 0.05), (8, 0.3)])
def test_the_greedy_tree_is_the_best_there_is_with_a_forward_per_level(sharpness, depth, row_cost):
    model = TableModel(V, order=None, law=random_laws(V, seed=3, sharpness=sharpness))
    for budget in (1, 2, 7, 16):
        for tokens in ([1], [2, 3], [4, 4, 0]):
            forwards = model.num_forwards
            options = {"tree": "auto", "depth": depth, "row_cost": row_cost}
            draft = tree_of(tokens, budget, model, sampling=GREEDY, stop_ids=[5], **options)
            sequence = make_sequence(tokens, stop_ids=[5])
            assert draft == known_tree(tokens, budget, sequence, model, depth, row_cost)
            assert model.num_forwards - forwards <= depth
            assert draft.proposal == "point_mass"
            if len(draft) > 0:
                assert draft.tokens[0] == model.greedy(tokens, 1)[0]


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_levels_that_cost_too_much_are_not_drafted(sampling):
    model = TableModel(V, order=None, law=random_laws(V, seed=3, sharpness=6))
    forwards, depth = [], []
    for cost in (0, 0.1, 0.3, 1.0, 3.0):
        before = model.num_forwards
        draft = tree_of([2, 3], 16, model, sampling=sampling, tree="auto", row_cost=0.02, level_cost=cost)
        forwards.append(model.num_forwards - before)
        depth.append(max(depths(draft.parents), default=0))
    assert forwards == sorted(forwards, reverse=True)
    assert (forwards[-1], depth[-1]) == (1, 1)
    assert depth[0] > 2


def test_a_greedy_tree_with_fewer_levels_is_the_best_of_its_depth():
    model = TableModel(V, order=None, law=random_laws(V, seed=3, sharpness=6))
    for cost in (0.1, 0.3, 1.0):
        before = model.num_forwards
        draft = tree_of([2, 3], 16, model, sampling=GREEDY, tree="auto", row_cost=0.02, level_cost=cost)
        levels = model.num_forwards - before
        assert draft == known_tree([2, 3], 16, make_sequence([2, 3]), model, levels, 0.02)


def test_the_greedy_tree_of_a_shape_holds_the_likeliest_tokens_in_their_ranks():
    shape = read_shape([[0], [0, 0], [1], [0, 1], [0, 0, 0], [2]])
    draft = tree_of([1, 2], 6, sampling=GREEDY, tree=shape)
    by_ranks = {(): ()}
    for path in paths(draft.tokens, draft.parents)[1:]:
        law = WHOLE_TEXT.law([1, 2, *path[:-1]])
        parent = next(ranks for ranks, tokens in by_ranks.items() if tokens == path[:-1])
        rank = [token for token, _ in ranked(law, V)].index(path[-1])
        by_ranks[(*parent, rank)] = path
    assert set(by_ranks) == {(), *shape.nodes}
    assert draft.draft_probs is None


@pytest.mark.parametrize("options", [TREES["auto"], TREES["shape"]])
def test_greedy_text_is_the_targets(options):
    target = TableModel(V, order=None, law=random_laws(V, seed=1, sharpness=3))
    for draft in (target, WHOLE_TEXT, TableModel(V - 2, order=None, law=random_laws(V - 2, seed=3))):
        engine = toy_engine(target, ModelDrafter(draft, 2, vocab_size=V, **options), k=6, slots=2)
        made = [engine.add(prompt, max_new_tokens=15) for prompt in ([1], [2, 3], [4, 5, 6])]
        while engine.num_unfinished:
            assert not any(r.broken for r in engine.step())
        for s in made:
            assert s.tokens[s.prompt_length :] == target.greedy(s.tokens[: s.prompt_length], 15)


# ---------------------------------------------------------------- limits and state


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
@trees
def test_nothing_hangs_on_a_stop_id(options, sampling):
    seen = 0
    for seed in range(10):
        draft = tree_of([seed % V], 7, sampling=sampling, stop_ids=[3], coins=KeyedDice(seed), **options)
        seen += 3 in draft.tokens
        assert not any(draft.tokens[parent] == 3 for parent in draft.parents if parent >= 0)
    assert seen > 0


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
@trees
def test_trees_end_where_the_drafts_context_ends(options, sampling):
    for length in range(8, 19):
        model = TableModel(V, order=None, context_length=16, law=random_laws(V, seed=4))
        drafter = ModelDrafter(model, 1, **options)
        (draft,) = drafter.propose([make_sequence([1] * length, sampling=sampling)], [6])
        assert len(draft) <= max(0, 16 - length)
        assert drafter.num_past_context == (length >= 16)
        assert (len(draft) > 0) == (length < 16)


@pytest.mark.parametrize("draft_size", [V - 2, V, V + 2])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
@trees
def test_a_vocabulary_of_another_size(options, sampling, draft_size):
    model = TableModel(draft_size, order=None, law=random_laws(draft_size, seed=2))
    draft = tree_of([1, V - 1, 2], 6, model, sampling=sampling, vocab_size=V, **options)
    assert len(draft) > 1
    assert max(draft.tokens) < min(draft_size, V)
    rows = [draft.law(node) for node in range(len(draft)) if draft.law(node) is not None]
    assert all(row.shape == (V,) and not row[draft_size:].any() for row in rows)


@pytest.mark.parametrize("sizes", [(V, V), (V - 2, V)])
@trees
def test_trees_laws_and_cache_equal_a_fresh_drafters_whatever_was_accepted(options, sizes):
    model = TableModel(sizes[0], order=None, law=random_laws(sizes[0], seed=2, sharpness=2))
    assert count_stale_proposals(ModelDrafter(model, 3, vocab_size=sizes[1], **options), **options) == 0


class CommitsItsTree(ModelDrafter):
    """Planted bug: a row of the last tree stays in the cache as if it were text."""

    def propose(self, sequences, budgets):
        drafts = super().propose(sequences, budgets)
        for sequence, draft in zip(sequences, drafts, strict=True):
            if len(draft):
                self.cache.lengths[sequence.slot] += 1
                self.feeder._held[sequence.slot].append(draft.tokens[0])
        return drafts


@trees
def test_the_fresh_drafter_comparison_catches_rows_of_a_tree_that_stay(options):
    model = TableModel(V, order=None, law=random_laws(V, seed=2, sharpness=2))
    assert count_stale_proposals(CommitsItsTree(model, 3, **options), **options) > 0


@trees
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_a_processor_that_fails_ends_its_own_tree_only(options, temperature):
    def fail_on_long_text(ids, logits):
        if len(ids) > 3:
            raise ValueError("too long for me")
        return logits

    samplings = [Sampling(temperature=temperature, processor=p) for p in (fail_on_long_text, None)]
    broken, sound = (make_sequence([1, 2, 3], slot=slot, sampling=s) for slot, s in enumerate(samplings))
    drafter = ModelDrafter(WHOLE_TEXT, 2, **options)
    short, full = drafter.propose([broken, sound], [7, 7])
    assert max(depths(short.parents)) == 1 < max(depths(full.parents))
    assert drafter.num_failed == 1


def test_trees_and_empty_budgets_in_one_batch():
    drafter = ModelDrafter(WHOLE_TEXT, 3, tree="auto", row_cost=0)
    sequences = [make_sequence([1, 2], id=i, slot=i, sampling=s) for i, s in enumerate((GREEDY, SAMPLED, SAMPLED))]
    drafts = drafter.propose(sequences, [5, 0, 5])
    assert [len(draft) for draft in drafts] == [5, 0, 5]
    assert drafter.cache.lengths == [2, 0, 2]


def test_a_ready_cache_is_used():
    cache = WHOLE_TEXT.new_cache(1, 9)
    drafter = ModelDrafter(WHOLE_TEXT, 1, cache=cache)
    assert drafter.cache is cache
    assert drafter.capacity == 9
    assert len(drafter.propose([make_sequence([1] * 8)], [5])[0]) == 2


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("depth", 0),
        ("depth", 33),
        ("depth", 2.0),
        ("depth", True),
        ("row_cost", -1),
        ("row_cost", float("inf")),
        ("row_cost", "0"),
        ("tree", "bushy"),
        ("tree", ""),
        ("tree", None),
        ("tree", []),
    ],
)
def test_an_option_outside_its_range_is_refused_by_name(name, value):
    with pytest.raises(InvalidOption, match=name):
        ModelDrafter(WHOLE_TEXT, 1, **{"tree": "auto", name: value})


def test_a_model_that_takes_no_trees_drafts_chains_only():
    class ChainsOnly(TableModel):
        takes_trees = False

    model = ChainsOnly(V)
    assert ModelDrafter(model, 1).proposal == "sampled"
    for tree in ("auto", "2.1", [[0]]):
        with pytest.raises(InvalidOption, match=r"tree.*mask"):
            ModelDrafter(model, 1, tree=tree)


def test_the_proposal_is_the_widest_that_may_come():
    assert [ModelDrafter(WHOLE_TEXT, 1, tree=tree).proposal for tree in ("chain", "auto", "2.1")] == [
        "sampled",
        "hybrid",
        "hybrid",
    ]
    assert isinstance(ModelDrafter(WHOLE_TEXT, 1, tree="auto").propose([make_sequence([1])], [0])[0], Draft)
    assert Fraction(1) == sum(p for _, p in every_tree(2, {"tree": "2"}, 2))
