"""Medusa heads and MLP speculators at work; and what all heads have in common: texts, laws, refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine_runs import LIMIT, finish, new_tokens, p_value, sample, toy_engine
from head_references import Recorder, any_wrong, are_same, count_wrong, fresh_draft, run
from heads import HEADS, eagle_head, head_drafter, medusa_head, mlp_head, tiny_target
from outrider.core import Draft, Verdict
from outrider.drafters import SuffixDrafter
from outrider.drafters.combined import CombinedDrafter
from outrider.drafters.headed import HeadDrafter
from outrider.drafters.parallel import LastStates, MedusaFeeder, MlpFeeder
from outrider.errors import InvalidOption
from outrider.options import Sampling
from outrider.rules import RULES, choose_rule
from test_drafter_eagle import DRAWN, GREEDY, LONG, SHARED, budget, requests
from toy import exact_string_law

TARGET = tiny_target()
STORED = {name: make(TARGET) for name, make in HEADS.items()}
SMALL = tiny_target(4)

RUNS = [
    ("medusa", "chain", DRAWN),
    ("medusa", "auto", GREEDY),
    ("medusa", "2.1", DRAWN),
    ("medusa shared", "chain", GREEDY),
    ("mlp", "chain", DRAWN),
    ("mlp", "auto", DRAWN),
    ("mlp scaled", "auto", GREEDY),
    ("mlp scaled", "2.1", DRAWN),
]


def run_of(kind, tree, sampling, feeder=None):
    drafter = head_drafter(TARGET, STORED[kind], 3, feeder=feeder, tree=tree, row_cost=0)
    return run(TARGET, drafter, requests(sampling), 3, k=budget(tree, sampling))


# ---------------------------------------------------------------- what is proposed


@pytest.mark.parametrize(("kind", "tree", "sampling"), RUNS)
def test_every_draft_is_what_the_last_state_gives(kind, tree, sampling):
    recorder = run_of(kind, tree, sampling)
    assert count_wrong(TARGET, STORED[kind], recorder) == 0
    assert recorder.drafter.num_not_ready == 2  # the prompts of one token, in their first round
    assert recorder.num_shared_late >= 2
    assert recorder.num_accepted > (8 if sampling is DRAWN else 0)


@pytest.mark.parametrize("kind", ["medusa", "mlp"])
def test_a_fresh_drafter_that_is_told_the_same_proposes_the_same(kind):
    recorder = run_of(kind, "auto", DRAWN)
    for asked in recorder.asked:
        fresh = head_drafter(TARGET, STORED[kind], tree="auto", row_cost=0)
        assert are_same(fresh_draft(fresh, asked, recorder.told.get(asked.sequence.id, [])), asked.draft)


@pytest.mark.parametrize("kind", ["medusa", "mlp"])
def test_long_prompts_are_read_in_parts_and_shared(kind):
    long_requests = [
        {"prompt": LONG, "seed": i, "max_new_tokens": n, "sampling": DRAWN} for i, n in enumerate((9, 3, 3))
    ]
    recorder = run(TARGET, head_drafter(TARGET, STORED[kind], 2, 1024), long_requests, 2)
    assert count_wrong(TARGET, STORED[kind], recorder) == 0
    assert recorder.num_shared == 2 > recorder.num_shared_late == 1


@pytest.mark.parametrize("kind", ["medusa", "mlp"])
def test_nothing_of_another_engines_sequences_is_trusted(kind):
    drafter = head_drafter(TARGET, STORED[kind], 3)
    first = run(TARGET, drafter, requests(DRAWN), 3)
    again = [
        {**request, "prompt": [*s.tokens, *s.tokens]}
        for request, s in zip(requests(DRAWN), first.sequences, strict=True)
    ]
    assert count_wrong(TARGET, STORED[kind], run(TARGET, drafter, again, 3)) == 0


@pytest.mark.parametrize("kind", ["eagle-3", "medusa", "mlp"])
def test_a_head_learns_from_what_others_drafted(kind):
    recorder = Recorder(head_drafter(TARGET, STORED[kind], 3))
    drafter = CombinedDrafter([SuffixDrafter(min_match=1, offset=1), recorder], [0.0, 0.1])
    engine = toy_engine(TARGET.showing(recorder), drafter, slots=3)
    for request in requests(DRAWN):
        engine.add(**request)
    rounds = finish(engine)
    assert all(r.broken is None for each in rounds.values() for r in each)
    assert count_wrong(TARGET, STORED[kind], recorder) == 0
    assert sum(len(asked.draft) > 0 for asked in recorder.asked) > 5
    assert recorder.num_shared > 0
    assert drafter.num_uses[0] > 5


# ---------------------------------------------------------------- planted bugs


def with_states(feeder, states):
    """A feeder with another memory."""

    class Feeder(feeder):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.states = states()

    return Feeder


class KeepsTheRejectedState(LastStates):
    """The state of the last drafted token, kept or not."""

    def learn(self, verified):
        hidden = verified.hidden.clone()
        hidden[:] = hidden[-1]
        super().learn(replace(verified, hidden=hidden))


class KeepsWhatWasMade(LastStates):
    """What was made of the last round's state is still there in the next."""

    def learn(self, verified):
        held = self._held.get(verified.sequence.slot)
        made = held.made if held is not None else {}
        super().learn(verified)
        self._held[verified.sequence.slot].made = made


class SharesTheLatestState(LastStates):
    """Another sequence of the same prompt gets the state that its source has come to."""

    def share(self, source, sequence):
        held = self._held[source.slot]
        held.prompt = (held.prompt[0], held.state)
        super().share(source, sequence)


class OnePlaceOn(MedusaFeeder):
    """Each head is asked for the place after its own."""

    def _fed(self, text, draft):
        self.states.of(text.slot).length -= 1
        try:
            return super()._fed(text, draft)
        finally:
            self.states.of(text.slot).length += 1


class StartsFromTheTokenBefore(MlpFeeder):
    """The first step takes the token before the pending one."""

    def _make(self, held, pending, path):
        super()._make(held, (pending + 1) % TARGET.vocab_size, path)


@pytest.mark.parametrize(
    ("kind", "bug"),
    [
        *(
            (kind, with_states(feeder, states))
            for kind, feeder in (("medusa", MedusaFeeder), ("mlp", MlpFeeder))
            for states in (KeepsTheRejectedState, KeepsWhatWasMade, SharesTheLatestState)
        ),
        ("medusa deep", OnePlaceOn),
        ("mlp", StartsFromTheTokenBefore),
    ],
)
def test_the_comparison_catches_a_planted_bug(kind, bug):
    stored = STORED.get(kind) or medusa_head(TARGET, 6)
    recorder = run(TARGET, head_drafter(TARGET, stored, 3, feeder=bug), requests(DRAWN), 3)
    assert any_wrong(TARGET, stored, recorder)


# ---------------------------------------------------------------- end to end, every head

heads = pytest.mark.parametrize("kind", HEADS)
FORMS = ("chain", "auto", "2.1")


def texts(sampling, rule, drafter=None):
    """Of the small target, whose tokens a head often guesses by chance; and how many drafted tokens were kept."""
    engine = toy_engine(SMALL.model if drafter is None else SMALL.showing(drafter), drafter, rule, 5, slots=3)
    for request in requests(sampling):
        engine.add(**request | {"prompt": [token % 4 for token in request["prompt"]]})
    rounds = finish(engine)
    assert all(r.broken is None for each in rounds.values() for r in each)
    num_accepted = sum(r.num_accepted for each in rounds.values() for r in each)
    return {sequence.id: new_tokens(sequence) for sequence in rounds}, num_accepted


@heads
@pytest.mark.parametrize(("sampling", "rule"), [(GREEDY, "auto"), (DRAWN, "coupled")])
def test_the_text_is_that_of_plain_decoding(kind, sampling, rule):
    (expected, _), stored = texts(sampling, RULES[rule]), HEADS[kind](SMALL)
    runs = [texts(sampling, RULES[rule], head_drafter(SMALL, stored, 3, tree=tree, row_cost=0)) for tree in FORMS]
    assert [text for text, _ in runs] == [expected] * len(FORMS)
    assert sum(num_accepted for _, num_accepted in runs) > 3


class KeepsAllEldest:
    """A rule with a planted bug: the first child is kept, as deep as the draft goes."""

    name, lossless, trees, proposals = "eldest", True, True, frozenset({"sampled", "hybrid", "point_mass"})

    def verify(self, draft, target_probs, coins, position):
        path, node = [], -1
        while node in draft.parents:
            node = draft.parents.index(node)
            path.append(node)
        return Verdict(tuple(path), coins.categorical(target_probs[node + 1], position + len(path)))


@pytest.mark.parametrize("tree", FORMS)
def test_the_texts_show_a_rule_that_trusts_the_draft(tree):
    expected, _ = texts(GREEDY, RULES["auto"])
    assert texts(GREEDY, KeepsAllEldest(), head_drafter(SMALL, SMALL_HEADS["eagle-3"], 3, tree=tree))[0] != expected


class Exact:
    """Transformers' model of the small target, for the enumeration."""

    def logits(self, tokens):
        with torch.inference_mode():
            return SMALL.reference(torch.tensor([tokens])).logits[0, -1]


PROMPT, LENGTH, NUM_SAMPLES = [0, 1, 2, 0, 1, 3], 3, 300
LAW = exact_string_law(Exact(), PROMPT, LENGTH, DRAWN)
SMALL_HEADS = {
    "eagle-3": eagle_head(SMALL, norm_output=True),
    "eagle-3 reduced": eagle_head(SMALL, draft_ids=(0, 2, 3)),
    "medusa": medusa_head(SMALL),
    "mlp": mlp_head(SMALL),
}


def p_of(drafter, rule="auto", length=LENGTH):
    engine = toy_engine(SMALL.showing(drafter), drafter, rule, 4, slots=8, context_length=16)
    options = {"sampling": DRAWN, "max_new_tokens": LENGTH + 2}
    strings, rounds = sample(engine, PROMPT, NUM_SAMPLES, length, **options)
    assert 0 < sum(r.num_accepted for r in rounds) < sum(r.num_drafted for r in rounds)
    return p_value(strings, LAW)


@pytest.mark.parametrize(
    ("kind", "tree"),
    [
        ("eagle-3", "chain"),
        ("eagle-3", "auto"),
        ("eagle-3 reduced", "chain"),
        ("eagle-3 reduced", "2.1"),
        ("medusa", "chain"),
        ("medusa", "2.2.1"),
        ("mlp", "auto"),
    ],
)
def test_sampled_text_has_the_targets_law(kind, tree):
    assert p_of(head_drafter(SMALL, SMALL_HEADS[kind], 8, tree=tree, row_cost=0)) > LIMIT


@pytest.mark.parametrize("name", [rule.name for rule in RULES.values() if rule.lossless and rule.name != "auto"])
def test_medusa_heads_keep_the_law_with_every_exact_rule_at_temperatures_0_and_08(name):
    rule = choose_rule(name, "sampled")
    assert p_of(head_drafter(SMALL, SMALL_HEADS["medusa"], 8), rule) > LIMIT
    assert texts(GREEDY, rule, head_drafter(SMALL, SMALL_HEADS["medusa"], 3))[0] == texts(GREEDY, "auto")[0]


class SaysAnotherLaw(HeadDrafter):
    """Planted bug: the law that is handed over is warmer than the one that was drawn from."""

    def propose(self, sequences, budgets):
        return [self._warmer(draft) for draft in super().propose(sequences, budgets)]

    def _warmer(self, draft: Draft) -> Draft:
        rows = [draft.law(node) ** 0.2 for node in range(len(draft))]
        return replace(draft, draft_probs=tuple(row / row.sum() for row in rows))


@pytest.mark.parametrize("kind", ["eagle-3", "medusa"])
def test_the_count_catches_a_law_that_was_not_drawn_from(kind):
    drafter = head_drafter(SMALL, SMALL_HEADS[kind], 8)
    drafter.__class__ = SaysAnotherLaw
    assert p_of(drafter) < LIMIT


def test_typical_acceptance_with_medusa_heads_is_lossy_and_only_where_that_is_allowed():
    drafter = head_drafter(SMALL, SMALL_HEADS["medusa"], 8)
    with pytest.raises(InvalidOption, match="allow_lossy"):
        choose_rule("typical", drafter.proposal)
    rule = choose_rule("typical", drafter.proposal, allow_lossy=True)
    assert p_of(drafter, rule) < LIMIT
    assert texts(GREEDY, rule, head_drafter(SMALL, SMALL_HEADS["medusa"], 3))[0] == texts(GREEDY, rule)[0]
    with pytest.raises(InvalidOption, match="typical"):
        choose_rule("typical", head_drafter(SMALL, SMALL_HEADS["medusa"], tree="auto").proposal, allow_lossy=True)


def test_a_draft_vocabulary_that_is_banned_as_a_whole_costs_drafts_and_nothing_else():
    stored = eagle_head(TARGET, draft_ids=(0, 2, 3))
    drafter = head_drafter(TARGET, stored, 3)
    banned = Sampling(banned_ids=frozenset({0, 2, 3}))
    found = [
        [new_tokens(s) for s in finish(engine)]
        for engine in (toy_engine(TARGET.showing(drafter), drafter), toy_engine(TARGET.model))
        if engine.add(SHARED, sampling=banned, max_new_tokens=8)
    ]
    assert found[0] == found[1]
    assert drafter.num_failed == 7


# ---------------------------------------------------------------- refused


@pytest.mark.parametrize("kind", ["medusa", "mlp"])
def test_drafts_are_never_longer_than_there_are_heads(kind):
    with pytest.raises(InvalidOption, match=r"depth 4.*depth 1 to 3"):
        head_drafter(TARGET, STORED[kind], tree="2.1.1.1")
    for tree in ("chain", "auto", "2.1.1"):
        recorder = run(TARGET, head_drafter(TARGET, STORED[kind], tree=tree, row_cost=0), requests(GREEDY)[:1], 1, k=9)
        depths = [depth_of(asked.draft) for asked in recorder.asked]
        assert max(depths) == 3


def depth_of(draft):
    depths = [0]
    for parent in draft.parents:
        depths.append(depths[parent + 1] + 1)
    return max(depths)


@pytest.mark.parametrize("kind", ["medusa", "mlp"])
def test_beyond_its_capacity_drafts_are_empty_and_counted(kind):
    drafter = head_drafter(TARGET, STORED[kind], capacity=12)
    recorder = run(TARGET, drafter, requests(GREEDY)[:1], 1)
    assert all(len(asked.sequence.tokens) + len(asked.draft) <= 12 or not len(asked.draft) for asked in recorder.asked)
    assert drafter.num_past_context > 10
    assert recorder.num_accepted < 8


def test_a_head_gives_a_law_for_every_id_of_the_target():
    recorder = run_of("medusa", "chain", DRAWN)
    rows = np.concatenate([asked.draft.draft_probs for asked in recorder.asked if len(asked.draft)])
    assert rows.shape[1] == TARGET.vocab_size
    assert abs(rows.sum(-1) - 1).max() < 1e-5
