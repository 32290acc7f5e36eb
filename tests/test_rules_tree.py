"""Tree rules keep the target's law for every way of drafting: proved by enumeration, with `==`; and golden numbers."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest

from enumeration import (
    POSITION,
    BranchingCoins,
    ToyModel,
    context_free,
    emitted_law,
    every_string,
    law_error,
    mean_emitted,
    one_round,
    outcomes,
    random_model,
    sampled_chain,
    target_rows,
    verdicts,
)
from outrider.core import Draft, Rule
from outrider.errors import InvalidOption
from outrider.rules import RULES, streams
from tree_drafts import (
    EXACT_FAMILIES,
    Family,
    Shape,
    by_depth,
    even,
    extras_then_one_drawn,
    grown,
    likeliest_ones,
    one_drawn_then_extras,
    ragged,
    size,
    with_replacement,
    without_replacement,
)

RECURSIVE, TRAVERSAL, POINT_MASS, COUPLED, AUTO = (
    RULES[name] for name in ("recursive", "traversal", "point-mass", "coupled", "auto")
)
tree_rules = pytest.mark.parametrize("rule", [r for r in RULES.values() if r.trees], ids=lambda r: r.name)
ratio_rules = pytest.mark.parametrize("rule", [RECURSIVE, TRAVERSAL], ids=lambda r: r.name)
families = pytest.mark.parametrize("family", EXACT_FAMILIES, ids=lambda f: f.__name__)
KINDS = [("dense", "dense"), ("zeros", "zeros"), ("dense", "one-hot"), ("one-hot", "dense"), ("even", "odd")]
SHAPES: list[tuple[int, Shape]] = [
    (2, even(2, 2)),
    (3, even(2, 2)),
    (4, even(3)),
    (3, ragged(1, 2, 3)),
    (2, even(2, 1, 1)),
]
P, Q = context_free("5/10", "3/10", "2/10"), context_free("2/10", "3/10", "5/10")


def pair(target_kind: str, draft_kind: str, vocab: int, seed: int) -> tuple[ToyModel, ToyModel]:
    return random_model(target_kind, vocab, seed), random_model(draft_kind, vocab, seed + 1000)


@tree_rules
@families
def test_a_tree_however_it_was_drafted_keeps_the_targets_law(rule: Rule, family: Family) -> None:
    for seed, (target_kind, draft_kind) in enumerate(KINDS):
        for vocab, shape in SHAPES:
            target, draft = pair(target_kind, draft_kind, vocab, seed)
            assert law_error(rule, grown(draft, shape, family), target) == 0


@pytest.mark.slow
@tree_rules
@families
@pytest.mark.parametrize("seed", range(6))
def test_more_random_trees_keep_the_law(rule: Rule, family: Family, seed: int) -> None:
    for target_kind, draft_kind in KINDS:
        for shape in (ragged(seed, 3, 2), ragged(seed, 2, 3), even(1, 2, 1)):
            vocab = 3 if size(shape) <= 5 else 2  # the drafts alone are up to vocab ** size
            target, draft = pair(target_kind, draft_kind, vocab, seed)
            assert law_error(rule, grown(draft, shape, family), target) == 0


@tree_rules
@pytest.mark.parametrize("target_kind", ["dense", "zeros", "one-hot"])
def test_any_set_of_chosen_children_in_any_order_keeps_the_law(rule: Rule, target_kind: str) -> None:
    target = random_model(target_kind, 3, seed=2)
    sets = [some for count in (1, 2, 3) for some in permutations(range(3), count)]
    for children in sets:
        for grandchildren in ((), *sets):
            parents = (-1,) * len(children) + (len(children) - 1,) * len(grandchildren)
            draft = Draft((*children, *grandchildren), parents)
            assert law_error(rule, lambda coins, draft=draft: draft, target) == 0


@tree_rules
def test_equal_laws_and_disjoint_supports(rule: Rule) -> None:
    target = random_model("dense", 3, seed=1)
    equal = mean_emitted(emitted_law(rule, grown(target, even(2, 1), with_replacement), target))
    assert equal == 3 if rule in (RECURSIVE, TRAVERSAL, AUTO) else 1 < equal < 3
    even_target, odd_draft = pair("even", "odd", 4, 1)
    assert mean_emitted(emitted_law(rule, grown(odd_draft, even(2, 1), without_replacement), even_target)) == 1


# --- relations -------------------------------------------------------------------------------------------------------


def verdict_law(name: str, draft: Draft, target: ToyModel) -> dict[tuple[object, ...], Fraction]:
    """P(verdict) on this very draft, whatever the name of the rule that decided."""
    law: dict[tuple[object, ...], Fraction] = defaultdict(Fraction)
    for verdict, probability in verdicts(RULES[name], draft, target):
        law[verdict.path, verdict.next_token, verdict.acceptance] += probability
    return {verdict: probability for verdict, probability in law.items() if probability > 0}


@pytest.mark.parametrize(("one", "other"), [("traversal", "block"), ("auto", "block"), ("recursive", "token")])
def test_on_chains_the_tree_rule_is_the_chain_rule_draft_for_draft(one: str, other: str) -> None:
    for seed in range(4):
        target, draft = pair("zeros", "dense", 3, seed)
        for length in (1, 2, 3):
            for tokens in every_string(3, length):
                chain = Draft.chain(tokens, tuple(draft(tokens[:i]) for i in range(length)))
                assert verdict_law(one, chain, target) == verdict_law(other, chain, target)


@families
def test_where_the_target_is_certain_all_rules_decide_alike_draft_for_draft(family: Family) -> None:
    """So the rule "auto" may look at the laws after drawn tokens."""
    target, draft = pair("one-hot", "dense", 3, 2)
    for drafted, _ in outcomes(grown(draft, even(2, 1), family)):
        found = [[(v.path, v.next_token) for v, _ in verdicts(r, drafted, target)] for r in RULES.values() if r.trees]
        assert all(set(verdict) == set(found[0]) and len(set(verdict)) == 1 for verdict in found)


@pytest.mark.parametrize("family", [with_replacement, without_replacement, one_drawn_then_extras])
@pytest.mark.parametrize("shape", [even(2, 2), even(1, 1, 1)], ids=["tree", "chain"])
def test_auto_uses_ratios_behind_a_first_token_that_is_certain(family: Family, shape: Shape) -> None:
    """As top-p often leaves it: one law is certain and the next is not."""
    flat, draft = pair("dense", "dense", 3, 1)
    sure = random_model("one-hot", 3, 1)
    target = lambda prefix: flat(prefix) if prefix else sure(prefix)  # noqa: E731
    auto, best, pointwise = (
        mean_emitted(emitted_law(r, grown(draft, shape, family), target)) for r in (AUTO, TRAVERSAL, POINT_MASS)
    )
    assert auto == best > pointwise


@ratio_rules
def test_all_tokens_drawn_without_replacement_are_always_enough(rule: Rule) -> None:
    for seed in range(4):
        target, draft = pair("dense", "dense", 3, seed)
        law = emitted_law(rule, grown(draft, even(3), without_replacement), target)
        assert all(len(tokens) == 2 for tokens in law)


@ratio_rules
def test_a_hybrid_node_without_extras_is_the_token_rule(rule: Rule) -> None:
    for seed in range(4):
        target, draft = pair("zeros", "dense", 4, seed)
        hybrid = emitted_law(rule, grown(draft, even(1), one_drawn_then_extras), target)
        assert hybrid == emitted_law(RULES["token"], sampled_chain(draft, 1), target)


@families
def test_traversal_emits_at_least_what_recursive_rejection_does(family: Family) -> None:
    gains = []
    for kinds in (("dense", "dense"), ("zeros", "zeros")):
        target, draft = pair(*kinds, 3, 0)
        one, other = (
            mean_emitted(emitted_law(r, grown(draft, even(2, 2), family), target)) for r in (TRAVERSAL, RECURSIVE)
        )
        gains.append(one - other)
    assert all(gain >= 0 for gain in gains)
    # Chosen leaves are kept with the target's mass of them, by either rule.
    assert family in (likeliest_ones, by_depth) or any(gain > 0 for gain in gains)


@tree_rules
def test_chosen_children_are_kept_with_the_targets_mass_of_them(rule: Rule) -> None:
    """No exact rule does better for a tree that was chosen, so block-wise rules gain nothing on it."""
    for seed in range(4):
        target, draft = pair("dense", "dense", 4, seed)
        propose = grown(draft, even(2), likeliest_ones)
        kept = sum(target(()).tolist()[token] for token in propose(BranchingCoins()).tokens)
        assert mean_emitted(emitted_law(rule, propose, target)) == 1 + kept


def test_greedy_laws_lead_down_the_target_own_path_whatever_the_siblings() -> None:
    """Node 3 continues node 1; the target wants 2, then 0, then 1."""
    draft = Draft((1, 2, 0, 0, 2), (-1, -1, 1, 0, 2), "point_mass")
    wanted = {(): 2, (2,): 0, (2, 0): 1}
    rows = np.zeros((6, 3))
    for row, path in enumerate([(), (1,), (2,), (2, 0), (1, 0), (2, 0, 2)]):
        rows[row, wanted.get(path, 0)] = 1
    for rule in (r for r in RULES.values() if r.trees):
        verdict = rule.verify(draft, rows, BranchingCoins(), POSITION)
        assert (verdict.path, verdict.next_token) == ((1, 2), 1)


def test_the_coupled_rule_emits_what_the_coins_draw_whatever_the_tree() -> None:
    wanted = [2, 0, 1, 1, 0]

    class Scripted:
        def bernoulli(self, probability: object) -> bool:
            raise AssertionError("no acceptance coin")

        def categorical(self, weights: object, position: int) -> int:
            return wanted[position - POSITION]

    for parents in ((-1, -1, 0, 1), (-1, 0, 1, 2), (-1, -1, -1, 1)):
        for tokens in ((2, 1, 0, 0), (1, 2, 0, 0), (2, 0, 1, 1)):
            draft, rows = Draft(tokens, parents), np.full((5, 3), 1 / 3)
            verdict = COUPLED.verify(draft, rows, Scripted(), POSITION)
            emitted = [*(tokens[node] for node in verdict.path), verdict.next_token]
            assert emitted == wanted[: len(emitted)]


# --- golden numbers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "count", "kept"),
    [
        (with_replacement, 1, "7/10"),
        (with_replacement, 2, "19/25"),
        (without_replacement, 2, "41/50"),
        (likeliest_ones, 2, "1/2"),
        (one_drawn_then_extras, 2, "9/10"),
        (extras_then_one_drawn, 2, "41/50"),
    ],
)
@pytest.mark.parametrize("rule", [RECURSIVE, TRAVERSAL, AUTO], ids=lambda r: r.name)
def test_acceptance_at_one_node(rule: Rule, family: Family, count: int, kept: str) -> None:
    assert mean_emitted(emitted_law(rule, grown(P, even(count), family), Q)) - 1 == Fraction(kept)


@pytest.mark.parametrize(
    ("rule", "family", "emitted"),
    [
        (RECURSIVE, with_replacement, "1461/625"),
        (RECURSIVE, without_replacement, "6231/2500"),
        (TRAVERSAL, with_replacement, "1491/625"),
        (TRAVERSAL, without_replacement, "6321/2500"),
    ],
)
def test_emitted_tokens_on_a_tree_of_two_levels(rule: Rule, family: Family, emitted: str) -> None:
    assert mean_emitted(emitted_law(rule, grown(P, even(2, 2), family), Q)) == Fraction(emitted)


@pytest.mark.parametrize(("length", "recursive", "traversal"), [(2, "219/100", "9/4"), (3, "2533/1000", "539/200")])
def test_emitted_tokens_on_chains(length: int, recursive: str, traversal: str) -> None:
    for rule, emitted in ((RECURSIVE, recursive), (TRAVERSAL, traversal)):
        assert mean_emitted(emitted_law(rule, sampled_chain(P, length), Q)) == Fraction(emitted)


def test_a_scheduler_that_looks_at_the_draw_spoils_ratios_but_not_the_point_mass_rule() -> None:
    target, draft = context_free("7/10", "3/10"), context_free("1/2", "1/2")

    def only_a(rows_too: bool):
        def propose(coins):
            token, row = coins.categorical(draft(()), POSITION), draft(())
            if token != 0:
                return Draft()
            return Draft((0,), (-1,), "sampled", (row,)) if rows_too else Draft((0,), (-1,))

        return propose

    assert emitted_first(RECURSIVE, only_a(True), target) == [Fraction(17, 20), Fraction(3, 20)]
    assert emitted_first(POINT_MASS, only_a(False), target) == [Fraction(7, 10), Fraction(3, 10)]


def emitted_first(rule, propose, target):
    law = emitted_law(rule, propose, target)
    return [sum(p for tokens, p in law.items() if tokens[0] == first) for first in range(2)]


# --- refusals, acceptance and the choice ------------------------------------------------------------------------------


@tree_rules
@pytest.mark.parametrize(
    ("tokens", "parents", "message"),
    [
        ((0, 1), (1, -1), r"draft.parents\[0\] is 1; allowed: -1 .* to -1"),
        ((0, 1), (-1, 1), r"draft.parents\[1\] is 1"),
        ((0, 1), (-1, -2), r"draft.parents\[1\] is -2"),
        ((1, 1), (-1, -1), r"draft.tokens\[1\] is 1; allowed: a token that no earlier child of node -1 has"),
    ],
)
def test_what_is_not_a_tree_is_refused_by_name(rule, tokens, parents, message) -> None:
    with pytest.raises(InvalidOption, match=message):
        rule.verify(Draft(tokens, parents), np.full((3, 2), 0.5), BranchingCoins(), POSITION)


def test_the_reported_acceptance_of_the_path_rules_adds_up() -> None:
    """Each examined node is kept with the reported probability, so on average they sum to the accepted tokens."""
    target, draft = pair("zeros", "dense", 3, 4)
    for rule in (RECURSIVE, POINT_MASS):
        rounds = list(one_round(rule, grown(draft, even(2, 2), without_replacement), target))
        accepted = sum(probability * len(verdict.path) for _, verdict, probability in rounds)
        reported = sum(probability * Fraction(sum(verdict.acceptance)) for _, verdict, probability in rounds)
        assert float(reported) == pytest.approx(float(accepted), rel=1e-12)


def test_auto_says_which_rule_it_chose() -> None:
    flat, sure = np.full((3, 2), 0.5), np.eye(2)[[0, 0, 0]]
    law, (_, coins) = np.array([0.5, 0.5]), streams(0, coupled=False)
    chosen = {
        ("point-mass", False): Draft((0, 1), (-1, -1)),
        ("block", False): Draft((0, 1), (-1, 0), "sampled", (law, law)),
        ("traversal", False): Draft((0, 1), (-1, -1), "sampled", (law, law)),
        ("point-mass", True): Draft((0, 1), (-1, 0), "sampled", (law, law)),
    }
    for (name, greedy), draft in chosen.items():
        assert AUTO.verify(draft, sure if greedy else flat, coins, POSITION).rule == name
    hybrid = Draft((0, 1), (-1, -1), "hybrid", (law, None))
    assert AUTO.verify(hybrid, flat, coins, POSITION).rule == "traversal"
    assert target_rows(P, hybrid).shape == (3, 3)
